"""The attacks of `layout.py`, in random orders on a store that is as unruly as the contract allows."""

import logging
import os
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

from safekeeper import Batch, CheckpointId, Corruption
from safekeeper.integrations.langgraph import layout
from safekeeper.integrations.langgraph.thread import StoredThread
from safekeeper.langgraph import SafeKeeperSaver

from ...unruly import Turns, UnrulyStore
from .checkpoints import config, put, values_of

SEEDS = range(600 if os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long" else 60)
THREAD = "t"
MESSAGES = [f"{n}".ljust(1500, "m") for n in range(12)]


class Killed(BaseException):
    """The process takes no further step."""


class Mortal:
    """The store as a process sees it that is killed at its call number *last*; a write may have begun by then."""

    def __init__(self, store, last):
        self._store, self._left = store, last

    def __getattr__(self, name):
        return getattr(self._store, name)

    def _step(self):
        self._left -= 1
        if self._left == 0:
            raise Killed

    def write(self, batch):
        try:
            self._step()
        except Killed:
            self._store._begun.append(batch)
            raise
        return self._store.write(batch)

    def read(self, ids):
        self._step()
        return self._store.read(ids)

    def keys(self, group):
        self._step()
        return self._store.keys(group)


class Scene:
    """A thread with some checkpoints, in a store that several use at once."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.turns = Turns(self.random)
        self.store = UnrulyStore(self.random, self.turns)
        self.acknowledged = {}
        self.alone(lambda: [put(SafeKeeperSaver(self.store), THREAD, self.values(n), id=f"{n:04}") for n in (1, 2, 3)])

    def values(self, number):
        """What checkpoint *number* has: most of it, the one before has too."""
        return {"messages": [*MESSAGES[number % 3 :][:6], f"{number}".ljust(1500, "n")], "number": number}

    def alone(self, work):
        self.turns.run(work)

    def saver(self, mortal=False):
        if not mortal:
            return SafeKeeperSaver(self.store)
        return SafeKeeperSaver(Mortal(self.store, self.random.randrange(1, 12)))

    def putting(self, *numbers, mortal=False):
        def work():
            with suppress(Killed):
                saver = self.saver(mortal)
                saver.get_tuple(config(THREAD))
                for number in numbers:
                    put(saver, THREAD, self.values(number), id=f"{number:04}")
                    self.acknowledged[number] = True

        return work

    def pruning(self, mortal=False):
        def work():
            with suppress(Killed):
                self.saver(mortal).prune([THREAD])

        return work

    def deleting(self, mortal=False):
        def work():
            with suppress(Killed):
                self.saver(mortal).delete_thread(THREAD)

        return work

    def check(self, deleted=False):
        """Everything that is listed can be read; nothing that was acknowledged is lost; a prune leaves no garbage."""

        def look():
            saver = self.saver()
            for one in saver.list(config(THREAD)):
                number = int(one.checkpoint["id"])
                assert one.checkpoint["channel_values"] == self.values(number)
            latest = values_of(saver, THREAD)
            if not deleted:
                assert latest["number"] >= max([3, *self.acknowledged])
            put(saver, THREAD, self.values(50), id="0050")
            assert values_of(self.saver(), THREAD) == self.values(50)
            saver.prune([THREAD])
            assert values_of(self.saver(), THREAD) == self.values(50)
            group = layout.thread_group(THREAD)
            parts = set(self.store.keys(layout.parts_group(group)))
            (stored,) = StoredThread(self.store, THREAD, None, saver._known).read_stored([("", "0050")])
            assert parts == {layout.part_key(stored.token, name) for name in stored.names}

        self.alone(look)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prune_and_a_put_that_uses_parts_again(seed):
    scene = Scene(seed)
    scene.turns.run(scene.putting(4, 5), scene.pruning())
    assert scene.acknowledged.keys() == {4, 5}
    scene.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_put_is_killed_while_somebody_prunes(seed):
    scene = Scene(seed)
    scene.turns.run(scene.putting(4, 5, mortal=True), scene.pruning())
    scene.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prune_is_killed_while_somebody_puts(seed):
    scene = Scene(seed)
    scene.turns.run(scene.putting(4, 5), scene.pruning(mortal=True))
    assert scene.acknowledged.keys() == {4, 5}
    scene.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_two_prunes_and_two_that_put(seed):
    scene = Scene(seed)
    scene.turns.run(scene.putting(4, 6), scene.putting(5, 7), scene.pruning(), scene.pruning())
    assert scene.acknowledged.keys() == {4, 5, 6, 7}
    scene.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_thread_is_deleted_while_it_is_written_and_pruned(seed):
    scene = Scene(seed)
    scene.turns.run(scene.putting(4, 5), scene.deleting(mortal=seed % 2 == 0), scene.pruning(mortal=seed % 3 == 0))
    scene.check(deleted=True)


@pytest.mark.parametrize("seed", range(40))
def test_two_processes_begin_a_thread(seed):
    scene = Scene(seed)
    scene.alone(lambda: scene.saver().delete_thread(THREAD))
    scene.turns.run(scene.putting(4, 5), scene.putting(6, 7))
    assert scene.acknowledged.keys() == {4, 5, 6, 7}
    scene.check()


def test_parts_that_are_gone_for_another_reason_are_corruption(make_saver):
    saver = make_saver("log")
    at = put(saver, THREAD, {"messages": MESSAGES})
    for prunes in range(2):
        group = layout.parts_group(layout.thread_group(THREAD))
        (key, *_) = saver._store.keys(group)
        (value,) = saver._store.read([CheckpointId(group, key)])
        batch = Batch()
        batch.delete(CheckpointId(group, key))
        saver._store.write(batch)
        with pytest.raises(Corruption, match=r"parts of it are gone from langgraph\.parts\.t"):
            make_saver(saver._store).get_tuple(at)  # another process, which has nothing of it in memory
        saver._store.write(Batch({CheckpointId(group, key): value}))
        saver.prune([THREAD])
        assert prunes or saver.get_tuple(at) is not None


def test_the_attacks_are_tried_in_many_orders():
    """The schedules differ: otherwise nothing is tried."""
    seen = Counter()
    for seed in range(20):
        scene = Scene(seed)
        scene.turns.run(scene.putting(4), scene.pruning())
        seen[str(sorted(map(str, scene.store.values)))] += 1
    assert len(seen) > 10


class KilledAfterItsWrite(Mortal):
    """Dies before it can look at the mark."""

    def __init__(self, store):
        super().__init__(store, 0)
        self.wrote = False

    def write(self, batch):
        self.wrote = True
        return self._store.write(batch)

    def read(self, ids):
        if self.wrote:
            raise Killed
        return self._store.read(ids)


def test_a_put_that_came_too_late_and_was_killed_is_passed_over(make_saver, caplog):
    saver = make_saver("log")
    store = saver._store
    put(saver, THREAD, {"messages": MESSAGES}, id="0001")
    late, remembers = SafeKeeperSaver(KilledAfterItsWrite(store)), make_saver(store)
    assert values_of(late, THREAD) == values_of(remembers, THREAD) == {"messages": MESSAGES}
    put(saver, THREAD, {"messages": MESSAGES[-1:]}, id="0002")
    saver.prune([THREAD])
    with pytest.raises(Killed):
        put(late, THREAD, {"messages": MESSAGES}, id="0003")
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert values_of(make_saver(store), THREAD) == {"messages": MESSAGES[-1:]}
        assert values_of(remembers, THREAD) == {"messages": MESSAGES[-1:]}, "although it has those parts in memory"
        assert "0003 is passed over: it was never acknowledged" in caplog.text
        assert [one.checkpoint["id"] for one in saver.list(config(THREAD))] == ["0002"]
        saver.copy_thread(THREAD, "copy")
        assert values_of(saver, "copy") == {"messages": MESSAGES[-1:]}
        saver.prune([THREAD])  # which does not take it for the latest
    put(saver, THREAD, {"messages": MESSAGES}, id="0004")
    saver.prune([THREAD])
    assert [one.checkpoint["id"] for one in saver.list(config(THREAD))] == ["0004"]
    assert set(store.keys(layout.thread_group(THREAD))) == {b"mark", b"kept", b"c//0004"}
