"""`save_together`: all of the states are there or none is. `save_many`: a lot of states, one by one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import safekeeper
from safekeeper import (
    BadState,
    Bounds,
    CheckpointId,
    Closed,
    QueueFull,
    SafeKeeper,
    SafekeeperError,
    SupportsAtomicBatch,
    TooLarge,
    Unavailable,
    large,
)
from safekeeper.backends.memory import MemoryBackend
from safekeeper.dev.redis import RedisServer
from safekeeper.testing import Faulty

A, B, C, D = (CheckpointId("group", key) for key in (b"a", b"b", b"c", b"d"))


class Recording(Faulty):
    """Remembers the ids of each batch that it was to write. Its batches are atomic, as those of what is inside."""

    atomic_batch = True

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.batches: list[list[bytes]] = []

    def write(self, batch):
        self.batches.append([id.key for id, _ in batch.items()])
        return super().write(batch)


@pytest.fixture
def store():
    with Recording(MemoryBackend()) as store:
        yield store


def test_they_are_in_one_batch_and_have_one_ticket(store):
    heard = []
    with SafeKeeper(store) as keeper:
        ticket = keeper.save_together({A: 1, B: [2], C: "x" * 10_000}, callback=heard.append)
        ticket.result()
        assert store.batches == [[b"a", b"b", b"c"]]
        assert [keeper.fetch(id) for id in (A, B, C)] == [1, [2], "x" * 10_000]
        assert (keeper.metrics().stored, keeper.metrics().pending) == (3, 0)
    assert heard == [ticket]


def test_what_was_saved_before_comes_before_and_what_is_saved_later_after(store):
    with SafeKeeper(store, overflow="block") as keeper:
        with store.hold("write") as gate:
            keeper.save(A, "first")
            gate.wait_for(1)
            keeper.save(B, "second")
            keeper.save(A, "third")
            both = keeper.save_together({A: "together", B: "together"})
            later = keeper.save(B, "later")
        later.result()
        assert both.done()
        assert [keeper.fetch(id) for id in (A, B)] == ["together", "later"]
    assert store.batches == [[b"a"], [b"b", b"a"], [b"a", b"b"], [b"b"]]


def test_nothing_is_coalesced_into_them_nor_they_into_anything(store):
    with SafeKeeper(store) as keeper:
        with store.hold("write") as gate:
            keeper.save(D, 0)
            gate.wait_for(1)
            keeper.save(A, 1)
            keeper.save_together({A: 2, B: 2})
            keeper.save_together({B: 3, C: 3})
            keeper.save(B, 4)
            keeper.save(B, 5)
        keeper.flush()
        assert store.batches == [[b"d"], [b"a"], [b"a", b"b"], [b"b", b"c"], [b"b"]]
        assert [keeper.fetch(id) for id in (A, B, C)] == [2, 5, 3]
        assert keeper.metrics().superseded == 1


def test_they_wait_for_an_earlier_state_that_a_worker_serializes(store):
    lock = threading.Lock()
    with SafeKeeper(store, lock_timeout=60) as keeper:
        lock.acquire()
        keeper.save(B, {"earlier": 1}, lock=lock)
        saved: list[object] = []
        thread = threading.Thread(target=lambda: saved.append(keeper.save_together({A: 1, B: 1}).result()))
        thread.start()
        time.sleep(0.05)
        assert not saved
        lock.release()
        thread.join(60)
        assert keeper.fetch(B) == 1


@pytest.mark.parametrize("workers", (1, 3))
def test_in_any_order_of_ids_they_come_to_an_end(store, workers):
    with SafeKeeper(store, storage_workers=workers, overflow="block", storage_queue=Bounds(count=7)) as keeper:

        def save(seed: int) -> None:
            dice = random.Random(seed)
            for n in range(100):
                some = dice.sample((A, B, C, D), dice.randrange(1, 5))
                keeper.save_together({id: [seed, n] for id in some})
                keeper.save(dice.choice((A, B, C, D)), [seed, n])

        threads = [threading.Thread(target=save, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        keeper.flush(120)
        metrics = keeper.metrics()
        assert metrics.stored == metrics.saves
        assert (metrics.storage_queue_entries, metrics.storage_queue_bytes) == (0, 0)


def test_more_than_the_queue_has_room_for_are_let_in_when_it_is_empty(store):
    ids = [CheckpointId("many", b"%d" % n) for n in range(50)]
    with SafeKeeper(store, storage_queue=Bounds(count=10)) as keeper:
        keeper.save(A, 1)
        keeper.save_together(dict.fromkeys(ids, 1)).result()
    assert [len(batch) for batch in store.batches if len(batch) > 1] == [50]


def test_an_unavailable_store_gets_all_of_them_again(store):
    store.fail("write", times=3)
    with SafeKeeper(store) as keeper:
        ticket = keeper.save_together({A: 1, B: 2})
        keeper.save(C, 3).result()
        ticket.result()
    assert all((b"a" in batch) == (b"b" in batch) for batch in store.batches)
    assert len(store.batches) >= 4


def test_when_their_time_is_over_none_of_them_is_written(store):
    with SafeKeeper(store) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, "first")
            gate.wait_for(1)
            ticket = keeper.save_together({A: 2, B: 2, C: 2}, deadline=0.02)
            with pytest.raises(Unavailable, match="not stored within its deadline"):
                ticket.result(60)
            assert (keeper.metrics().expired, keeper.metrics().storage_queue_entries) == (3, 0)
        keeper.save(B, "later").result()
        assert [keeper.fetch(id) for id in (A, B, C)] == ["first", "later", None]


def test_a_full_queue_drops_or_rejects_them_as_one(store):
    for overflow, fate in (("reject", "rejected"), ("drop-oldest", "dropped")):
        with SafeKeeper(store, overflow=overflow, storage_queue=Bounds(count=3)) as keeper:
            with store.hold("write") as gate:
                keeper.save(D, 0)
                gate.wait_for(1)
                first = keeper.save_together({A: 1, B: 1})
                second = keeper.save_together({B: 2, C: 2})
                refused = second if overflow == "reject" else first
                assert isinstance(refused.outcome(60), QueueFull)
            keeper.flush(60)
            assert getattr(keeper.metrics(), fate) == 2


def test_closing_completes_all_of_them(store):
    keeper = SafeKeeper(store)
    with store.hold("write") as gate:
        keeper.save(A, 0)
        gate.wait_for(1)
        ticket = keeper.save_together({A: 1, B: 1})
        with pytest.raises(Unavailable, match="3 saves were not stored"):
            keeper.close(0.01)
        assert isinstance(ticket.outcome(), Closed)


def test_one_bad_state_fails_all_of_them(store, monkeypatch):
    with SafeKeeper(store) as keeper:
        with pytest.raises(BadState, match=r"group/b: .* is a complex"):
            keeper.save_together({A: 1, B: 1j}).result()
        monkeypatch.setattr(large, "MAX_VALUE_BYTES", 1000)
        with pytest.raises(TooLarge, match=r"group/b: .* is stored in parts: save it alone"):
            keeper.save_together({A: 1, B: bytes(2000)}).result()
        with pytest.raises(ValueError, match="nothing to save together"):
            keeper.save_together({})
        assert keeper.fetch(A) is None


def test_a_store_without_atomic_batches_says_what_to_use(tmp_path):
    with SafeKeeper(f"file://{tmp_path}/store") as keeper:
        with pytest.raises(SafekeeperError, match=r"FileBackend .*: use log: or lmdb:, or an operator") as error:
            keeper.save_together({A: 1})
        assert "\n" not in str(error.value)


class Picky(Recording):
    """Its batches are atomic if all ids are in one group."""

    atomic_batch = property()  # it has none

    def why_not_atomic(self, batch):
        return None if len({id.group for id, _ in batch.items()}) == 1 else "picky: put them into one group"


def test_a_store_that_keeps_some_batches_whole_gets_them_by_themselves():
    other = CheckpointId("other", b"d")
    with Picky(MemoryBackend()) as store, SafeKeeper(store) as keeper:
        assert not isinstance(store, SupportsAtomicBatch)
        with store.hold("write") as gate:
            keeper.save(other, 0)
            gate.wait_for(1)
            tickets = [keeper.save(C, 1), keeper.save_together({A: 2, B: 2}), keeper.save(other, 3)]
            tickets.append(keeper.save_together({C: 4, A: 4}))
            store.fail("write", skip=1)
        for ticket in tickets:
            ticket.result(60)
        assert [keys for keys in store.batches[1:] if b"a" in keys and b"d" not in keys][-2:] == [
            [b"a", b"b"],
            [b"c", b"a"],
        ]
        with pytest.raises(SafekeeperError, match="picky: put them into one group, or use an operator, which"):
            keeper.save_together({A: 1, other: 1})
        assert [keeper.fetch(id) for id in (A, B, C, other)] == [4, 2, 4, 3]


def test_redis_keeps_small_states_of_one_group_together(tmp_path):
    with RedisServer(tmp_path) as server, SafeKeeper(server.url) as keeper:
        keeper.save_together({A: 1, B: [2], C: "x" * 100_000}).result(60)
        assert [keeper.fetch(id) for id in (A, B)] == [1, [2]]
        with pytest.raises(
            SafekeeperError, match=r"redis: keeps the ids of one group together: .*, or use an operator"
        ):
            keeper.save_together({A: 1, CheckpointId("other", b""): 1})
        with pytest.raises(
            SafekeeperError, match="redis: keeps at most 500 ids with 524288 bytes together: save fewer"
        ):
            keeper.save_together({A: "x" * 600_000, B: 1})
        with pytest.raises(SafekeeperError, match="redis: keeps at most 500 ids"):
            keeper.save_together({CheckpointId("group", b"%d" % n): n for n in range(501)})


@pytest.fixture
def url(request, tmp_path):
    if request.param != "redis":
        yield f"{request.param}://{tmp_path}/store"
        return
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        yield server.url


@pytest.mark.crash
@pytest.mark.parametrize("url", ("log", "lmdb", "redis"), indirect=True)
def test_money_that_is_moved_by_killed_processes_is_all_there(url, long_form):
    """SIGKILL at random moments: after each, the accounts add up to what they had at first."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    node = Path(__file__).with_name("transfer_node.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent)}
    for turn in range(50 if long_form else 5):
        command = [sys.executable, str(node), url, str(dice.random())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout.readline() == "ready\n"
            for _ in range(dice.randrange(1, 8)):
                assert process.stdout.readline()
            time.sleep(dice.random() * 0.02)
            process.send_signal(signal.SIGKILL)
        with SafeKeeper(url) as keeper:
            ids = [CheckpointId("accounts", b"%d" % n) for n in range(8)]
            values = keeper.backend.read(ids)  # in one call: on redis: something may still be on its way
            balances = [keeper._decode(id, value)["balance"] for id, value in zip(ids, values, strict=True)]
        assert sum(balances) == 8000, f"turn {turn}: {balances}"


def test_many_are_stored_when_it_returns(store):
    ids = [CheckpointId("many", b"%d" % n) for n in range(2500)]
    with SafeKeeper(store, storage_queue=Bounds(count=100)) as keeper:
        assert keeper.save_many({id: n for n, id in enumerate(ids)}) == 2500
        assert len(dict(keeper.recover("many"))) == 2500
        assert keeper.save_many((id, "x" * 5000) for id in ids) == 2500  # by workers, too
        assert set(dict(keeper.recover("many")).values()) == {"x" * 5000}
        assert keeper.save_many([(A, 1), (A, 2), (A, 3)]) == 3
        assert keeper.fetch(A) == 3
        assert keeper.save_many({}) == 0
        assert keeper.metrics().pending == 0


def test_one_of_many_that_is_not_stored_is_named(store):
    with SafeKeeper(store) as keeper:
        with pytest.raises(BadState, match=r"group/b: not stored: .* is a complex"):
            keeper.save_many([(A, 1), (B, 1j), (C, 3)])
        assert keeper.fetch(A) == 1
        store.fail("write", error=SafekeeperError("broken"))
        with pytest.raises(SafekeeperError, match="group/a: not stored: broken"):
            keeper.save_many({A: 2})


def test_the_listener_hears_of_each_id_that_is_saved_together_or_in_bulk(store):
    heard = []
    with SafeKeeper(store, listener=lambda ticket: heard.append(ticket.id.key)) as keeper:
        keeper.save_together({CheckpointId("group", b"%d" % n): n for n in range(3)}).result()
        keeper.save_many((CheckpointId("group", b"%d" % n), n) for n in range(3, 6))
    assert sorted(heard) == [b"%d" % n for n in range(6)]
