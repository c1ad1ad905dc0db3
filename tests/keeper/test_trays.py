"""Saves that come close together travel as one entry, a tray, and nobody can tell it from single ones."""

from __future__ import annotations

import threading
import time

import pytest

from safekeeper import Bounds, CheckpointId, Conflict, QueueFull, Receipt, SafeKeeper, Unavailable
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.ticket import Tray
from safekeeper.large import MAX_VALUE_BYTES
from safekeeper.testing import Faulty

IDS = [CheckpointId("group", b"%d" % n) for n in range(5)]
FIRST = CheckpointId("first", b"")


@pytest.fixture(autouse=True)
def long_trays(monkeypatch):
    """However slow the machine is, what is saved in a test is saved close together."""
    monkeypatch.setattr("safekeeper.keeper.ticket.TRAY_SECONDS", 60.0)


@pytest.fixture
def store():
    return Faulty(MemoryBackend())


class Held:
    """A keeper whose store holds a first save, so that all others wait."""

    def __init__(self, store: Faulty, **options) -> None:
        self.store, self.options = store, options

    def __enter__(self) -> SafeKeeper:
        self._hold = self.store.hold("write")
        self._gate = self._hold.__enter__()
        self.keeper = SafeKeeper(self.store, **self.options)
        self.keeper.save(FIRST, [0])
        self._gate.wait_for(1)
        return self.keeper

    def __exit__(self, *_: object) -> None:
        self._gate.release()
        self.keeper.close()
        self._hold.__exit__(None, None, None)


def entries(keeper: SafeKeeper) -> list:
    return list(keeper._pipeline.storage.queue._waiting)


def test_saves_that_wait_are_one_entry_and_one_batch_and_count_as_what_they_are(store):
    with Held(store) as keeper:
        tickets = [keeper.save(id, [n]) for n, id in enumerate(IDS)]
        assert [type(entry) for entry in entries(keeper)] == [Tray]
        metrics = keeper.metrics()
        assert (metrics.saves, metrics.pending, metrics.storage_queue_entries) == (6, 6, 5)
        assert repr(keeper).endswith("6 saves under way>")
    assert [ticket.result(0).survives for ticket in tickets] == [store.survives] * 5
    assert [ticket.id for ticket in tickets] == IDS
    metrics = keeper.metrics()
    assert (metrics.stored, metrics.pending, metrics.batches) == (6, 0, 2)
    assert metrics.serialize.count == metrics.storage_wait.count == 6


def test_each_group_has_a_tray(store):
    others = [CheckpointId("other", id.key) for id in IDS]
    with Held(store) as keeper:
        for id in (pair for both in zip(IDS, others, strict=True) for pair in both):
            keeper.save(id, [1])
        assert [tray.saves for tray in entries(keeper)] == [5, 5]


def test_a_page_takes_nothing_more_when_its_time_is_over(store, monkeypatch):
    monkeypatch.setattr("safekeeper.keeper.ticket.TRAY_SECONDS", -1.0)
    with Held(store) as keeper:
        for id in IDS:
            keeper.save(id, [1])
        assert [tray.saves for tray in entries(keeper)] == [1] * 5


def test_a_newer_state_takes_its_place_in_a_page_and_the_older_ticket_says_so(store):
    with Held(store) as keeper:
        older, other = keeper.save(IDS[0], ["older"]), keeper.save(IDS[1], [1])
        newer = keeper.save(IDS[0], ["newer, and longer"])
        assert (older.superseded, newer.superseded, other.superseded) == (True, False, False)
        nbytes = keeper.metrics().storage_queue_bytes
        assert nbytes == sum(len(id.key) + len(value) for id, value in entries(keeper)[0].values.items())
    with SafeKeeper(store) as keeper:
        assert [keeper.fetch(id) for id in IDS[:2]] == [["newer, and longer"], [1]]
    assert older.result(0) is newer.result(0)


def test_without_coalescing_every_state_is_written(store):
    with Held(store, overflow="block") as keeper:
        for n in range(3):
            keeper.save(IDS[0], [n])
    assert keeper.metrics().superseded == 0
    assert keeper.metrics().batches == 4


@pytest.mark.parametrize("how", ["callback", "deadline", "frozen", "forget"])
def test_what_is_saved_alone_takes_the_place_of_one_in_a_page_and_no_other(store, how):
    heard = []
    with Held(store) as keeper:
        tickets = [keeper.save(id, ["old"]) for id in IDS]
        if how == "forget":
            newer = keeper.forget(IDS[2])
        else:
            options = {"callback": heard.append, "deadline": 60.0, "frozen": True}
            newer = keeper.save(IDS[2], ["new"], **{how: options[how]})
            while keeper._pipeline.serialization.queue.busy:
                time.sleep(0.001)
        flushed = threading.Thread(target=keeper.flush)
        flushed.start()
    flushed.join()
    assert all(isinstance(ticket.outcome(0), Receipt) for ticket in (*tickets, newer))
    assert [ticket.superseded for ticket in tickets] == [False, False, True, False, False]
    assert heard == ([newer] if how == "callback" else [])
    with SafeKeeper(store) as keeper:
        assert [keeper.fetch(id) for id in IDS] == [
            *([["old"]] * 2),
            None if how == "forget" else ["new"],
            *([["old"]] * 2),
        ]


def test_a_full_queue_drops_the_oldest_of_a_page_alone(store):
    with Held(store, overflow="drop-oldest", storage_queue=Bounds(count=3)) as keeper:
        tickets = [keeper.save(id, [n]) for n, id in enumerate(IDS)]
    outcomes = [type(ticket.outcome(0)) for ticket in tickets]
    assert outcomes == [QueueFull, QueueFull, Receipt, Receipt, Receipt]
    assert keeper.metrics().dropped == 2


def test_a_full_queue_rejects_what_finds_no_room_in_a_tray(store):
    with Held(store, overflow="reject", storage_queue=Bounds(count=3)) as keeper:
        tickets = [keeper.save(id, [n]) for n, id in enumerate(IDS)]
    assert [type(ticket.outcome(0)) for ticket in tickets] == [Receipt] * 3 + [QueueFull] * 2


def test_a_page_expires_as_a_whole_and_says_how_many_that_are(store, monkeypatch):
    monkeypatch.setattr("safekeeper.keeper.ticket.TRAY_SECONDS", 0.2)
    with Held(store, deadline=0.1) as keeper:
        tickets = [keeper.save(id, [1]) for id in IDS]
        outcomes = {str(ticket.outcome(60)) for ticket in tickets}
        assert outcomes == {"group/0 and 4 more: not stored within its deadline: nothing was stored in that time"}
        assert keeper.metrics().expired == 6  # and the one that is stuck
    assert list(store.inner.keys("group")) == []


def test_a_lost_claim_fails_the_saves_of_its_group_and_no_other(store):
    class Lost:
        def check(self):
            raise Conflict("somebody else has it")

    with Held(store) as keeper:
        keeper.guard(Lost(), "group")
        mine, others = keeper.save(IDS[0], [1]), keeper.save(CheckpointId("other", b""), [2])
        also_mine = keeper.save(IDS[1], [1])
    assert [type(ticket.outcome(0)) for ticket in (mine, also_mine, others)] == [Conflict, Conflict, Receipt]


def test_a_ticket_that_is_kept_keeps_no_states(store):
    with Held(store) as keeper:
        ticket, taken_apart = keeper.save(IDS[0], [1]), keeper.save(IDS[1], [1])
        keeper.save(IDS[0], [2], callback=lambda _: None)
    assert ticket._entry is taken_apart._entry
    assert ticket._entry.values == {}
    assert [entry.value for entry in ticket._entry.moved.values()] == [None, None]


def test_a_page_is_tried_again_while_the_store_is_unavailable(store):
    with Held(store) as keeper:
        tickets = [keeper.save(id, [1]) for id in IDS]
        store.fail("write", times=3, error=Unavailable("injected"))
    assert [type(ticket.outcome(0)) for ticket in tickets] == [Receipt] * 5


def test_bulk_goes_in_trays_and_counts_every_state(store):
    with SafeKeeper(store) as keeper:
        ids = [CheckpointId(f"group{n % 3}", b"%d" % n) for n in range(3500)]
        assert keeper.save_many((id, [n]) for n, id in enumerate(ids)) == 3500
        assert keeper.save_many([(IDS[0], ["older"]), (IDS[1], [1]), (IDS[0], ["newer"])]) == 3
        assert keeper.save_many({}) == 0
        assert [keeper.fetch(id) for id in (ids[7], ids[3499], *IDS[:2])] == [[7], [3499], ["newer"], [1]]
        metrics = keeper.metrics()
        assert metrics.saves == metrics.stored + metrics.superseded == 3503


def test_bulk_stores_what_comes_before_a_state_that_has_no_bytes(store):
    with SafeKeeper(store) as keeper:
        with pytest.raises(Exception, match=r"group/2: not stored: msgpack cannot serialize"):
            keeper.save_many([(IDS[0], [0]), (IDS[1], [1]), (IDS[2], {"no": object()}), (IDS[3], [3])])
        keeper.flush()
        assert [keeper.fetch(id) for id in IDS[:3]] == [[0], [1], None]


def test_bulk_waits_for_room_in_a_small_queue(store):
    with SafeKeeper(store, storage_queue=Bounds(count=2), overflow="block") as keeper:
        assert keeper.save_many({id: [1] for id in IDS}) == 5
    assert len(list(store.inner.keys("group"))) == 5


def test_a_tray_that_takes_the_place_of_something_in_parts_leaves_nothing_of_that(store):
    with SafeKeeper(store) as keeper:
        keeper.save(IDS[1], b"x" * (MAX_VALUE_BYTES + 1)).result()
    with Held(store) as keeper:
        tickets = [keeper.save(id, [1]) for id in IDS[:3]]
        assert [type(entry) for entry in entries(keeper)] == [Tray]
        assert dict(keeper.recover("group")).keys() == {b"1"}  # by which it learns that there is something in parts
        assert IDS[1] in keeper._pipeline.in_parts
    assert all(isinstance(ticket.outcome(0), Receipt) for ticket in tickets)
    assert keeper.metrics().serialize.count == keeper.metrics().stored == 4
    with SafeKeeper(store) as keeper:
        assert dict(keeper.recover("group")) == {b"0": [1], b"1": [1], b"2": [1]}
        assert list(keeper.backend.keys("group.parts")) == []


def test_states_in_parts_do_not_travel_in_trays(store):
    large = b"x" * (MAX_VALUE_BYTES + 1)
    with SafeKeeper(store) as keeper:
        keeper.save_many({IDS[0]: [1], IDS[1]: large, IDS[2]: [2]})
        assert keeper.fetch(IDS[1]) == large
        keeper.save_many({IDS[0]: [3], IDS[1]: [4]})
        keeper.save(IDS[1], [5]).result()
        assert [keeper.fetch(id) for id in IDS[:3]] == [[3], [5], [2]]
        assert not keeper._pipeline.in_parts
