"""A journal: what is appended, who may, what is found afterwards. Each attack of `docs/journal.md` is a test here."""

import os
import threading
import time
from contextlib import ExitStack, contextmanager
from random import Random

import pytest

import safekeeper
from safekeeper import (
    MAX_VALUE_BYTES,
    Batch,
    CheckpointId,
    Closed,
    Conflict,
    Corruption,
    QueueFull,
    SafeKeeper,
    Unavailable,
    claims,
)
from safekeeper.backends.memory import MemoryBackend
from safekeeper.journal import Block, Follow, Journal, Moment, Outputs
from safekeeper.journal.chain import MOST_IN_FLIGHT, BlockKey
from safekeeper.testing import Faulty

NAME = "counter"
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@pytest.fixture
def store():
    with MemoryBackend() as store:
        yield store


@contextmanager
def owner(store, **settings):
    """A journal of a process of its own, and what it found."""
    with SafeKeeper(store, **settings) as keeper:
        journal = Journal(keeper, NAME)
        image = journal.own()
        yield journal, image


def block(events, changes=(), *, oldest=1, live=None, replay=None, out=None):
    """A block of parts {key: value}, None closes."""
    changes = dict(changes)
    kinds = b"".join(b"x" if value is None else b"c" for value in changes.values())
    moment = Moment(events, {"in": events})
    return Block(
        moment,
        moment if replay is None else Moment(replay, {"in": replay}),
        order=[("in", 1)],
        keys=list(changes),
        kinds=kinds,
        values=[value or b"" for value in changes.values()],
        out=out or {},
        oldest=oldest,
        live=len(changes) if live is None else live,
    )


def until(journal, number, timeout=60.0):
    """Wait until *number* is acknowledged."""
    end = time.monotonic() + timeout
    while journal.acknowledge() < number:
        assert time.monotonic() < end
        time.sleep(0.001)
    journal.clean()


def append(journal, *args, **settings):
    """Append a block and have it acknowledged."""
    number = journal.append(block(*args, **settings))
    until(journal, number)
    return number


def blocks_of(store):
    return sorted(BlockKey.decode(key) for key in store.keys(NAME))


class TestOneOwner:
    def test_a_new_journal_is_empty(self, store):
        with owner(store) as (journal, image):
            assert (image.parts, image.number, journal.next_number) == ({}, 0, 1)

    def test_what_was_appended_is_found(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            append(journal, 2, {b"b": b"2"}, live=2)
            append(journal, 3, {b"a": b"3"}, live=2)
        with owner(store) as (journal, image):
            assert image.parts == {b"a": b"3", b"b": b"2"}
            assert (image.number, image.at) == (3, Moment(3, {"in": 3}))
            assert journal.mark.epoch == 2

    def test_a_closed_part_leaves_a_tombstone_until_replay_has_passed_it(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1", b"b": b"1"})
            append(journal, 2, {b"a": None}, live=1, replay=1)
            until(journal, 2)
        with owner(store) as (journal, image):
            assert (image.parts, image.closed, image.recorded_at(b"a")) == ({b"b": b"1"}, {b"a": 2}, 2)
            append(journal, 3, {}, live=1, replay=2)
        with owner(store) as (_, image):
            assert (image.parts, image.closed) == ({b"b": b"1"}, {})

    def test_a_part_that_is_missing_is_noticed(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"}, live=2)
        with pytest.raises(Corruption, match="says 2 parts"), owner(store):
            pass

    def test_the_order_of_the_inputs_is_given_from_where_replay_begins(self, store):
        with owner(store) as (journal, _):
            for events, order in ((3, [("a", 2), ("b", 1)]), (6, [("b", 2), ("a", 1)])):
                journal.append(Block(Moment(events), Moment(1), order=order))
            until(journal, 2)
        with owner(store) as (_, image):
            assert list(image.order()) == [("a", 1), ("b", 1), ("b", 2), ("a", 1)]

    def test_outputs_of_the_blocks_that_are_needed_are_found(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, out={"o": Outputs(1, [1], [b""], [b"x"])})
            append(journal, 2, oldest=2, out={"o": Outputs(2, [2], [b""], [b"y"])})
        with owner(store) as (_, image):
            assert [outputs.bodies for _, _, outputs in image.outputs()] == [[b"y"]]

    def test_what_is_not_needed_any_more_is_deleted(self, store):
        with owner(store) as (journal, _):
            for events in range(1, 6):
                append(journal, events, {b"a": b"1"}, oldest=max(events - 1, 1))
            journal._keeper.flush()
            assert [key.number for key in blocks_of(store)] == [4, 5]

    def test_no_more_than_so_many_are_in_flight(self, store):
        faulty = Faulty(store)
        with owner(faulty) as (journal, _), faulty.hold("write"):
            for events in range(MOST_IN_FLIGHT):
                journal.append(block(events))
            with pytest.raises(QueueFull, match="not acknowledged"):
                journal.append(block(9))

    def test_what_is_stored_too_early_is_acknowledged_in_its_turn(self, store):
        first_arrived, go_on = threading.Event(), threading.Event()

        class HoldsTheFirst(Faulty):
            def write(self, batch):
                if any(b"block_0000000000000000001_" in id.key for id, _ in batch.items()):
                    first_arrived.set()
                    assert go_on.wait(60)
                return super().write(batch)

        with owner(HoldsTheFirst(store), storage_workers=2) as (journal, _):
            journal.append(block(1, {b"a": b"1"}))
            assert first_arrived.wait(60)
            journal.append(block(2, {b"a": b"2"}))
            end = time.monotonic() + 60
            while not blocks_of(store):
                assert time.monotonic() < end
            time.sleep(0.02)
            assert ([key.number for key in blocks_of(store)], journal.acknowledge()) == ([2], 0)
            go_on.set()
            until(journal, 2)

    def test_it_has_to_be_owned(self, store):
        with SafeKeeper(store) as keeper, pytest.raises(Closed, match="own"):
            Journal(keeper, NAME).append(block(1))

    def test_blocks_of_several_journals_share_a_batch_and_each_has_one_check(self, store):
        faulty = Faulty(store)
        with SafeKeeper(faulty) as keeper:
            journals = [Journal(keeper, f"op{number}") for number in range(3)]
            for journal in journals:
                journal.own()
            with faulty.hold("write") as gate:  # the first one is on its way, the others wait and go together
                keeper.save(CheckpointId("other", b""), 1)
                gate.wait_for(1)
                for journal in journals:
                    journal.append(block(1))
                    journal.append(block(2))
                before = faulty.calls.copy()
                gate.release()
                for journal in journals:
                    until(journal, 2)
            assert faulty.calls["write"] - before["write"] == 1
            assert faulty.calls["read"] - before["read"] == 3

    def test_a_block_over_the_limit_of_a_value_goes_in_parts_and_is_deleted_with_them(self, store):
        value = bytes(MAX_VALUE_BYTES)
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": value})
            assert len(list(store.keys(f"{NAME}.parts"))) > 2
        with owner(store) as (journal, image):
            assert image.parts == {b"a": value}
            append(journal, 2, {b"a": b"small"}, oldest=2)
            journal._keeper.flush()
        assert list(store.keys(f"{NAME}.parts")) == []


class TestAttacks:
    """What `docs/journal.md` lists."""

    def test_an_owner_stopped_before_its_write_acknowledges_nothing_when_it_comes_back(self, store):
        faulty = Faulty(store)
        with owner(faulty) as (stopped, _):
            append(stopped, 1, {b"a": b"1"})
            with faulty.hold("write") as gate:
                stopped.append(block(2, {b"a": b"late"}))
                gate.wait_for(1)
                with owner(store) as (next_one, image):
                    assert image.parts == {b"a": b"1"}
                    append(next_one, 2, {b"a": b"2"})
            with pytest.raises(Conflict, match="taken"):
                until(stopped, 2)
            with pytest.raises(Conflict):
                stopped.append(block(3))
        with owner(store) as (_, image):
            assert image.parts == {b"a": b"2"}

    def test_an_owner_stopped_between_write_and_check_acknowledges_nothing(self, store):
        faulty = Faulty(store)
        with owner(faulty) as (stopped, _):
            with faulty.hold("write", when="after") as gate:
                stopped.append(block(1, {b"a": b"1"}))
                gate.wait_for(1)
                with owner(store) as (next_one, image):
                    assert image.parts == {b"a": b"1"}  # it was there, so it may count
                    append(next_one, 2, {b"a": b"2"})
            with pytest.raises(Conflict):
                until(stopped, 1)

    def test_an_owner_stopped_after_its_check_was_acknowledged_and_is_found(self, store):
        with owner(store) as (stopped, _):
            append(stopped, 1, {b"a": b"1"})
            with owner(store) as (_, image):
                assert image.parts == {b"a": b"1"}
            assert stopped.acknowledge() == 1

    def test_a_block_that_lands_when_its_owner_is_fenced_stands_beside_and_is_removed(self, store):
        with owner(store) as (first, _):
            append(first, 1, {b"a": b"1"})
            late = first.end.next(first.mark)
        with owner(store) as (second, _):
            store.write(Batch({CheckpointId(NAME, late.encode()): block(2, {b"a": b"late"}).encode()}))
            append(second, 2, {b"a": b"2"})
        with owner(store) as (third, image):
            assert image.parts == {b"a": b"2"}
            assert late in blocks_of(store)
            append(third, 3, {b"a": b"3"})
            assert late not in blocks_of(store)

    def test_what_an_owner_has_found_is_found_by_all_later_ones_whatever_lands_between(self, store):
        with owner(store) as (first, _):
            append(first, 1, {b"a": b"1"})
            late = CheckpointId(NAME, first.end.next(first.mark).encode())
        faulty = Faulty(store)
        with owner(faulty) as (stopped, _):
            with faulty.hold("write") as gate:
                stopped.append(block(2, {b"a": b"stopped"}))
                gate.wait_for(1)
                store.write(Batch({late: block(2, {b"a": b"late"}).encode()}))
                with owner(store) as (third, image):
                    assert image.parts == {b"a": b"late"}  # what it has emitted is sent now
                    assert (third.acknowledged, third.end.mark) == (3, third.mark)
            with pytest.raises(Conflict):  # but it has landed, above what the first one wrote
                until(stopped, 2)
        with owner(store) as (_, image):
            assert image.parts == {b"a": b"late"}

    def test_an_owner_that_lists_late_goes_on_from_nothing_that_its_successor_has_not_seen(self, store):
        with owner(store) as (first, _):
            append(first, 1, {b"a": b"1"})
            late = CheckpointId(NAME, first.end.next(first.mark).encode())
        with SafeKeeper(store) as keeper:
            stopped = Journal(keeper, NAME)
            listed, blocks = stopped._blocks.listed, stopped._blocks

            def listed_late():
                with owner(store) as (_, image):
                    assert image.parts == {b"a": b"1"}
                store.write(Batch({late: block(2, {b"a": b"late"}).encode()}))
                return listed()

            blocks.listed = listed_late
            with pytest.raises(Conflict, match="taken"):
                stopped.own()

    def test_a_claim_that_lands_when_its_writer_is_dead_ends_nobody_and_nothing_is_lost(self, store):
        with owner(store) as (first, _):
            append(first, 1, {b"a": b"1"})
            dead = claims.Mark(first.mark.epoch + 1, "f" * 16)
            store.write(Batch({CheckpointId(f"{NAME}.claims", dead.key()): b'{"host": "gone", "pid": 1}'}))
            append(first, 2, {b"a": b"2"})
        with owner(store) as (again, image):
            assert (image.parts, again.mark.epoch) == ({b"a": b"2"}, 3)

    def test_a_hole_in_a_batch_ends_the_chain_and_its_rest_is_removed(self, store):
        with owner(store) as (first, _):
            for number in range(1, 5):
                append(first, number, {b"a": b"%d" % number})
            hole = blocks_of(store)[2]
        batch = Batch()
        batch.delete(CheckpointId(NAME, hole.encode()))
        store.write(batch)
        with owner(store) as (second, image):
            assert image.parts == {b"a": b"2"}
            append(second, 3, {b"a": b"x"})
            assert [(key.mark.epoch, key.number) for key in blocks_of(store)] == [(1, 1), (1, 2), (2, 3)]

    def test_acknowledged_blocks_that_are_gone_are_noticed(self, store):
        with owner(store) as (first, _):
            for number in range(1, MOST_IN_FLIGHT + 4):
                append(first, number, {b"a": b"1"})
        batch = Batch()
        batch.delete(CheckpointId(NAME, blocks_of(store)[1].encode()))
        store.write(batch)
        with pytest.raises(Corruption, match=f"journal {NAME}: block 2 is missing"), owner(store):
            pass

    def test_a_store_that_is_away_between_write_and_check_loses_nothing(self, store):
        faulty = Faulty(store)
        with owner(faulty) as (journal, _):
            faulty.fail("read", times=3)  # of the check
            append(journal, 1, {b"a": b"1"})
            assert journal.acknowledged == 1
        with owner(store) as (_, image):
            assert image.parts == {b"a": b"1"}

    def test_a_store_that_stays_away_fails_the_journal_and_later_blocks_are_not_acknowledged(self, store):
        faulty = Faulty(store)
        with owner(faulty, deadline=0.2, close_deadline=0.5) as (journal, _):
            faulty.fail("write", times=1_000_000)
            journal.append(block(1))
            with pytest.raises(Unavailable):
                until(journal, 1)
            with pytest.raises(Unavailable):
                journal.append(block(2))

    def test_the_journal_can_be_owned_again_after_a_failure(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            with owner(store) as (other, _):
                append(other, 2, {b"a": b"2"})
            journal.append(block(2))
            with pytest.raises(Conflict):
                until(journal, 2)
            assert journal.own().parts == {b"a": b"2"}
            append(journal, 3, {b"a": b"3"})
            assert journal.mark.epoch == 3

    def test_parts_of_a_dead_writers_large_block_are_swept_when_nothing_can_need_them(self, store):
        faulty = Faulty(store)
        with SafeKeeper(faulty, close_deadline=0.1, deadline=0.1) as keeper:
            dying = Journal(keeper, NAME)
            dying.own()
            faulty.fail("write", skip=2, times=1_000_000)  # after the note and a part
            dying.append(block(1, {b"a": bytes(MAX_VALUE_BYTES)}))
            with pytest.raises(Unavailable):
                until(dying, 1)
        assert list(store.keys(f"{NAME}.parts"))
        with owner(store) as (journal, image):
            assert image.parts == {}
            append(journal, 1, {b"a": b"1"})
            assert list(store.keys(f"{NAME}.parts")) == []


class TestManyOwnersAtRandom:
    """Three processes on a store whose writes are held up at random; each takes the journal whenever it likes."""

    @pytest.mark.crash
    def test_what_was_acknowledged_is_in_every_later_image(self, store):
        self.play_all(range(400 if LONG else 40))

    def test_without_the_check_after_the_write_something_is_missed(self, monkeypatch):
        monkeypatch.setattr("safekeeper.keeper.guards.Guard.check", lambda guard: None)
        with pytest.raises(AssertionError, match="missed"):
            self.play_all(range(200))

    def play_all(self, seeds):
        for seed in seeds:
            with MemoryBackend() as store:
                _Play(store, Random(seed)).run(f"seed {seed}")


class _Process:
    """One of several owners in turn."""

    def __init__(self, store):
        self.store = Faulty(store)
        self.keeper = SafeKeeper(self.store)
        self.journal = None
        self.held = ExitStack()
        self.is_held = False
        self.written, self.live = [], 0

    def hold(self, when):
        self.held.enter_context(self.store.hold("write", when=when))
        self.is_held = True

    def go_on(self):
        self.held.close()
        self.is_held = False

    def give_up(self):
        self.keeper.flush()
        self.journal.release()
        self.journal = None


class _Play:
    def __init__(self, store, random):
        self.random = random
        self.processes = [_Process(store) for _ in range(3)]
        self.acknowledged = set()

    def run(self, name):
        with ExitStack() as stack:
            for process in self.processes:
                stack.callback(process.keeper.close)
            for process in self.processes:
                stack.callback(process.go_on)
            for step in range(80):
                process = self.random.choice(self.processes)
                try:
                    self.step(process, b"%d" % step, f"{name}, step {step}")
                except Conflict:
                    process.give_up()

    def step(self, process, key, name):
        if process.is_held and self.random.random() < 0.4:
            process.go_on()
        draw = self.random.random()
        if process.journal is None:
            if not process.is_held:
                journal = Journal(process.keeper, NAME)
                image = journal.own()
                assert self.acknowledged <= set(image.parts), f"{name}: missed {self.acknowledged - set(image.parts)}"
                self.acknowledged.update(image.parts)  # it sends what these blocks have emitted
                process.journal, process.written, process.live = journal, [], len(image.parts)
        elif draw < 0.2 and not process.is_held:
            process.hold(self.random.choice(["before", "after"]))
        elif draw < 0.8 and process.journal.in_flight < MOST_IN_FLIGHT:
            process.live += 1
            process.journal.append(block(1, {key: b""}, live=process.live))
            process.written.append(key)
        elif draw < 0.85 and not process.is_held:  # as if it had died
            process.give_up()
        self.acknowledge(process)

    def acknowledge(self, process):
        if process.journal is None or process.is_held:
            return
        process.keeper.flush()
        before = process.journal.acknowledged
        count = process.journal.acknowledge() - before
        self.acknowledged.update(process.written[:count])
        del process.written[:count]


class BusyOwner(Faulty):
    """The store of a follower whose owner appends *meanwhile* blocks before every call of it, and cleans away all but
    the *needed* newest."""

    def __init__(self, store, journal, meanwhile, needed):
        super().__init__(store)
        self.journal, self.meanwhile, self.needed = journal, meanwhile, needed

    def work(self):
        for _ in range(self.meanwhile):
            number = self.journal.next_number
            parts = {b"%d" % (number % self.needed): b"%d" % number}
            append(self.journal, number, parts, oldest=max(number - self.needed + 1, 1), live=min(number, self.needed))
        self.journal._keeper.flush()

    def is_right(self, follow):
        last = follow.end.number
        numbers = range(max(last - self.needed, 0) + 1, last + 1)
        return follow.image.parts == {b"%d" % (number % self.needed): b"%d" % number for number in numbers}

    def keys(self, group):
        self.work()
        return super().keys(group)

    def read(self, ids):
        self.work()
        return super().read(ids)


class TestFollowing:
    def test_a_follower_keeps_up_without_listing(self, store):
        faulty = Faulty(store)
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            follow = Follow(faulty, NAME)
            assert follow.poll() == 1
            before = faulty.calls["keys"]
            for number in range(2, 6):
                append(journal, number, {b"a": b"%d" % number})
            assert follow.poll() == 4
            assert (follow.image.parts, faulty.calls["keys"]) == ({b"a": b"5"}, before)
            assert follow.poll() == 0

    def test_blocks_that_were_deleted_under_it_make_it_load_anew(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            follow = Follow(store, NAME)
            follow.poll()
            for number in range(2, 40):
                append(journal, number, {b"a": b"%d" % number}, oldest=number)
            journal._keeper.flush()
            assert follow.poll() > 0
            assert (follow.image.parts, follow.loads) == ({b"a": b"39"}, 2)

    def test_it_goes_over_to_the_next_owner(self, store):
        follow = Follow(store, NAME)
        with owner(store) as (first, _):
            append(first, 1, {b"a": b"1"})
            follow.poll()
        with owner(store) as (second, _):
            append(second, 2, {b"b": b"2"}, live=2)
            follow.poll()
        assert (follow.image.parts, follow.loads) == ({b"a": b"1", b"b": b"2"}, 1)

    def test_what_it_saw_of_a_fenced_owner_is_dropped(self, store):
        faulty = Faulty(store)
        with owner(faulty) as (first, _):
            append(first, 1, {b"a": b"1"})
            with faulty.hold("write") as gate:
                first.append(block(2, {b"a": b"late"}))
                gate.wait_for(1)
                with owner(store) as (second, _):
                    gate.release()
                    first._keeper.flush()
                    follow = Follow(store, NAME)
                    follow.poll()
                    assert follow.image.parts == {b"a": b"late"}
                    append(second, 2, {b"a": b"2"})
                    follow.poll()
                    assert (follow.image.parts, follow.loads) == ({b"a": b"2"}, 2)

    def test_what_was_received_waits_until_it_is_pasted_also_if_it_is_cleaned_away_meanwhile(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            follow = Follow(store, NAME)
            assert follow.receive() == 1  # by a listing: pasted at once
            for number in range(2, 10):
                append(journal, number, {b"a": b"%d" % number})
            assert follow.receive() == follow.waiting == 8
            assert (follow.image.parts, follow.end.number, follow.newest.number) == ({b"a": b"1"}, 1, 9)
            assert follow.waiting_bytes > 8
            for number in range(10, 13):
                append(journal, number, {b"a": b"%d" % number}, oldest=10)
            journal._keeper.flush()
            assert len(list(store.keys(NAME))) < 9
            assert follow.receive() == 3
            assert (follow.paste(), follow.paste()) == (11, 0)
            assert (follow.image.parts, follow.loads, follow.waiting_bytes) == ({b"a": b"12"}, 1, 0)

    def test_what_was_received_of_a_fenced_owner_is_dropped_unpasted(self, store):
        faulty = Faulty(store)
        with owner(faulty) as (first, _):
            append(first, 1, {b"a": b"1"})
            follow = Follow(store, NAME)
            follow.poll()
            with faulty.hold("write") as gate:
                first.append(block(2, {b"a": b"late"}))
                gate.wait_for(1)
                with owner(store) as (second, _):
                    gate.release()
                    first._keeper.flush()
                    assert follow.receive(look=False) == follow.waiting == 1
                    append(second, 2, {b"a": b"2"})
                    assert follow.receive() > 0
                    assert (follow.image.parts, follow.loads, follow.waiting) == ({b"a": b"2"}, 1, 0)

    @pytest.mark.parametrize("meanwhile", [1, 3, 20])
    @pytest.mark.parametrize("needed", [1, 4])
    def test_a_follower_goes_on_behind_what_a_busy_owner_has_cleaned_away(self, store, meanwhile, needed):
        with owner(store) as (journal, _):
            busy = BusyOwner(store, journal, meanwhile, needed)
            busy.work()
            follow = Follow(busy, NAME)
            for _ in range(3):
                assert follow.poll() > 0
                assert follow.end.number > journal.end.number - 6 * meanwhile
                assert busy.is_right(follow)
            busy.meanwhile = 0
            follow.poll()
            assert (follow.end, busy.is_right(follow)) == (journal.end, True)

    def test_what_waits_is_dropped_when_it_goes_on_behind_what_was_cleaned_away(self, store):
        with owner(store) as (journal, _):
            busy = BusyOwner(store, journal, 1, 1)
            busy.work()
            follow = Follow(busy, NAME)
            busy.meanwhile = 0
            follow.poll()
            busy.meanwhile = 1
            assert follow.receive(look=False) == follow.waiting == 1
            busy.meanwhile = 20
            assert follow.receive() > 0
            busy.meanwhile = 0
            assert (follow.waiting, follow.waiting_bytes, follow.paste()) == (0, 0, 0)
            follow.poll()
            assert (follow.end, busy.is_right(follow)) == (journal.end, True)

    def test_it_goes_on_behind_a_gap_without_listing(self, store):
        faulty = Faulty(store)
        with owner(store) as (journal, _):
            busy = BusyOwner(faulty, journal, 1, 3)
            busy.work()
            follow = Follow(faulty, NAME)
            follow.poll()
            for _ in range(10):
                busy.work()
            listed = faulty.calls["keys"]
            assert follow.receive(look=False) == 3
            assert (follow.end, busy.is_right(follow)) == (journal.end, True)
            assert faulty.calls["keys"] == listed

    def test_what_has_not_come_yet_is_waited_for(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            follow = Follow(store, NAME)
            follow.poll()
            append(journal, 2, {b"b": b"2"}, live=2)
            append(journal, 3, {b"a": b"3"}, live=2)
            late = CheckpointId(NAME, BlockKey(journal.mark, 2).encode())
            (value,) = store.read([late])
            batch = Batch()
            batch.delete(late)
            store.write(batch)
            assert follow.receive(look=False) == 0
            store.write(Batch({late: value}))
            assert follow.poll() == 2
            assert (follow.image.parts, follow.loads) == ({b"a": b"3", b"b": b"2"}, 1)

    def test_a_damaged_block_is_an_error_and_what_was_pasted_before_it_counts_once(self, store):
        with owner(store) as (journal, _):
            append(journal, 1, {b"a": b"1"})
            follow = Follow(store, NAME)
            follow.poll()
            append(journal, 2, {b"b": b"2"}, live=2)
            append(journal, 3, {b"c": b"3"}, live=3)
            third = CheckpointId(NAME, journal.end.encode())
            (value,) = store.read([third])
            store.write(Batch({third: b"damaged"}))
            for _ in range(2):
                with pytest.raises(Corruption, match="not a block"):
                    follow.poll()
            assert follow.end.number == 2
            store.write(Batch({third: value}))
            follow.poll()
            assert (follow.image.parts, follow.loads) == ({b"a": b"1", b"b": b"2", b"c": b"3"}, 1)

    def test_who_has_taken_the_journal_and_lost_it_at_once_goes_on_following(self, store):
        follow = Follow(store, NAME)
        with owner(store) as (first, _):
            append(first, 1, {b"a": b"1"})
            follow.poll()
        with owner(store) as (silent, _), SafeKeeper(store) as keeper:
            loser = Journal(keeper, NAME)
            assert loser.own_after(silent.mark, follow) is follow.image
            assert loser.end.number == follow.image.number == 2  # a block that changes nothing
            with owner(store) as (third, _):
                with pytest.raises(Conflict, match="taken"):
                    loser.check()
                for number in range(third.next_number, 9):
                    append(third, number, {b"a": b"%d" % number}, oldest=max(number - 2, 1))
                    follow.poll()
                assert (follow.end, follow.loads) == (third.end, 1)
                assert (follow.image.parts, follow.image.extent.blocks) == ({b"a": b"8"}, 1)

    def test_nothing_is_nothing(self, store):
        assert Follow(store, NAME).poll() == 0


@pytest.mark.parametrize("scheme", ["file", "log", "lmdb", "objects+file"])
def test_it_is_kept_on_disk(tmp_path, scheme):
    url = f"{scheme}://{tmp_path}/store"
    with owner(url) as (journal, _):
        for number in range(1, 20):
            append(journal, number, {b"a": b"%d" % number}, oldest=max(number - 3, 1))
    with safekeeper.open(url) as store:
        follow = Follow(store, NAME)
        follow.poll()
        assert follow.image.parts == {b"a": b"19"}
    with owner(url) as (journal, image):
        assert image.parts == {b"a": b"19"}
        assert len(list(journal._keeper.backend.keys(NAME))) <= 5
