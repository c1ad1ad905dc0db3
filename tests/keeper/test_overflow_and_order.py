from __future__ import annotations

import threading
import time

import pytest

from safekeeper import Backoff, Bounds, CheckpointId, QueueFull, Receipt, SafeKeeper, Unavailable
from safekeeper.backend import Batch
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty, Slow

A, B, C, D = (CheckpointId("group", key) for key in (b"a", b"b", b"c", b"d"))


class Recording(MemoryBackend):
    """Remembers every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[CheckpointId, bytes | None]] = []

    def write(self, batch: Batch) -> Receipt:
        self.batches.append(dict(batch.items()))
        return super().write(batch)


def test_what_was_saved_is_fetched(store):
    with SafeKeeper(store) as keeper:
        assert keeper.fetch(A) is None
        keeper.save(A, {"count": 41}).result()
        assert keeper.fetch(A) == {"count": 41}


def test_a_fetch_comes_after_the_saves_made_before(store):
    with SafeKeeper(store) as keeper:
        for n in range(200):
            keeper.save(A, n)
            assert keeper.fetch(A) == n


def test_forget_deletes_in_order_with_saves(store):
    with SafeKeeper(store) as keeper:
        keeper.save(A, 1)
        forgotten = keeper.forget(A)
        assert keeper.fetch(A) is None
        forgotten.result()
        keeper.forget(A).result()  # not there: no error
        keeper.save(A, 2)
        assert keeper.fetch(A) == 2


def test_what_waits_is_written_as_one_batch():
    recording = Recording()
    with Faulty(recording) as store, SafeKeeper(store, serializer=None) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"1")
            gate.wait_for(1)
            for id in (B, C, D):
                keeper.save(id, b"1")
        keeper.flush()
    assert recording.batches == [{A: b"1"}, {B: b"1", C: b"1", D: b"1"}]


def test_coalesce_keeps_the_newest_of_each_id_and_says_so():
    recording = Recording()
    with Faulty(recording) as store, SafeKeeper(store, serializer=None) as keeper:
        with store.hold("write") as gate:
            first = keeper.save(A, b"0")
            gate.wait_for(1)
            tickets = [keeper.save(one, b"%d" % n) for n in range(1, 100) for one in (A, B)]
            metrics = keeper.metrics()
            assert (metrics.storage_queue_entries, metrics.superseded) == (2, 2 * 98)
            assert not any(ticket.done() for ticket in tickets)
        receipts = {id(ticket.result()) for ticket in tickets}
        assert len(receipts) == 1, "a superseded ticket has the outcome of what took its place"
        assert [t.superseded for t in tickets] == [True] * (2 * 98) + [False] * 2
        assert not first.superseded
    assert recording.batches == [{A: b"0"}, {A: b"99", B: b"99"}]


@pytest.mark.parametrize("overflow", ("block", "reject", "drop-oldest"))
def test_only_coalesce_leaves_out_an_accepted_state(overflow):
    recording = Recording()
    with SafeKeeper(recording, serializer=None, overflow=overflow) as keeper:
        tickets = [keeper.save(A, b"%d" % n) for n in range(50)]
        keeper.flush()
        assert not any(ticket.superseded for ticket in tickets)
    assert [batch[A] for batch in recording.batches] == [b"%d" % n for n in range(50)]


def test_drop_oldest_drops_the_oldest_and_says_so(store):
    bounds = Bounds(count=3)
    with SafeKeeper(store, serializer=None, overflow="drop-oldest", storage_queue=bounds) as keeper:
        with store.hold("write") as gate:
            writing = keeper.save(A, b"0")
            gate.wait_for(1)
            # Also behind the entry being written, where nothing is ready to be taken.
            tickets = [keeper.save(id, b"%d" % n) for n, id in enumerate((A, B, A, C, A, D))]
            assert [ticket.done() for ticket in tickets] == [True, True, True, False, False, False]
            assert keeper.metrics().dropped == 3
        for ticket in tickets[:3]:
            with pytest.raises(QueueFull, match="dropped as the oldest"):
                ticket.result()
        for ticket in (writing, *tickets[3:]):
            ticket.result()
        assert [keeper.fetch(id) for id in (A, B, C, D)] == [b"4", None, b"3", b"5"]


def test_what_is_dropped_leaves_no_trace_while_the_store_is_stuck(store):
    keeper = SafeKeeper(store, serializer=None, overflow="drop-oldest", storage_queue=Bounds(count=3))
    with store.hold("write") as gate:
        keeper.save(A, b"0")
        gate.wait_for(1)
        for n in range(1000):
            keeper.save(A if n % 2 else CheckpointId("group", b"%d" % n), b"x")
        queue = keeper._pipeline.storage.queue
        assert len(queue._waiting) == 3
        assert len(queue.lanes) <= 4
        assert len(queue._ready) <= 3
        assert len(keeper._pipeline.completions) == 4
    keeper.close()


def test_reject_refuses_the_newest(store):
    bounds = Bounds(count=2)
    with SafeKeeper(store, serializer=None, overflow="reject", storage_queue=bounds) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            kept = [keeper.save(B, b"1"), keeper.save(C, b"2")]
            refused = keeper.save(D, b"3")
            with pytest.raises(QueueFull, match="rejected"):
                refused.result(timeout=0)
            assert keeper.metrics().rejected == 1
        for ticket in kept:
            ticket.result()


@pytest.mark.parametrize("overflow", ("block", "coalesce"))
def test_a_save_waits_for_room(store, overflow, eventually):
    with SafeKeeper(store, serializer=None, overflow=overflow, storage_queue=Bounds(count=2)) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            keeper.save(B, b"1")
            keeper.save(C, b"1")
            saver = threading.Thread(target=keeper.save, args=(D, b"1"))
            saver.start()
            eventually(lambda: keeper._pipeline.storage.queue.blocked == 1)
            assert keeper.metrics().storage_queue_entries == 2
        saver.join()
        assert keeper.fetch(D) == b"1"


def test_a_save_that_finds_no_room_fails_at_its_deadline(store):
    with SafeKeeper(store, serializer=None, overflow="block", storage_queue=Bounds(count=1)) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            keeper.save(B, b"1")
            with pytest.raises(Unavailable, match="deadline"):
                keeper.save(C, b"1", deadline=0.05).result()
        keeper.flush()
        assert keeper.fetch(C) is None


def test_queues_are_bounded_in_bytes_and_a_larger_entry_enters_an_empty_one(store):
    bounds = Bounds(count=100, nbytes=1000)
    with SafeKeeper(store, serializer=None, overflow="reject", storage_queue=bounds) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            large = keeper.save(B, bytes(5000))
            assert not large.done()
            assert keeper.fill > 1
            assert keeper.save(C, b"x").done(), "nothing enters behind it"
        large.result()
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            assert not keeper.save(B, bytes(600)).done()
            assert keeper.save(C, bytes(600)).done(), "the two together are over the bound"
            assert not keeper.save(D, bytes(300)).done()


@pytest.mark.parametrize("size", (90_000, 200_000), ids=("fits", "larger than the bound"))
@pytest.mark.parametrize("overflow", ("block", "coalesce"))
def test_a_large_state_finds_room_although_small_ones_keep_coming(overflow, size, eventually):
    """They may not overtake it for ever, although there is always room for one of them."""

    class Slowly:
        name = "slowly"

        def dumps(self, state):
            time.sleep(0.001)
            return state

        def loads(self, data):
            return data

    stop, bounds = threading.Event(), Bounds(nbytes=100_000)
    with SafeKeeper("memory:", serializer=Slowly(), overflow=overflow, serialization_queue=bounds) as keeper:

        def go_on_saving(thread: int) -> None:
            n = 0
            while not stop.is_set():
                n += 1
                keeper.save(CheckpointId("small", b"%d-%d" % (thread, n)), bytes(5000))

        savers = [threading.Thread(target=go_on_saving, args=(thread,)) for thread in range(3)]
        for saver in savers:
            saver.start()
        try:
            eventually(lambda: keeper._pipeline.serialization.queue.blocked == 3)
            large = keeper.save(A, bytes(size), deadline=60)
            assert keeper.metrics().expired == 0
        finally:
            stop.set()
            for saver in savers:
                saver.join()
        large.result()


def test_a_coalesced_state_that_grows_respects_the_bytes(store, eventually):
    with SafeKeeper(store, serializer=None, storage_queue=Bounds(count=10, nbytes=1000)) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            keeper.save(B, bytes(100))
            keeper.save(C, bytes(800))
            saver = threading.Thread(target=keeper.save, args=(B, bytes(500)))
            saver.start()
            eventually(lambda: keeper._pipeline.storage.queue.blocked == 1)
        saver.join()
        assert keeper.fetch(B) == bytes(500)


@pytest.mark.parametrize("overflow", ("block", "coalesce", "drop-oldest"))
def test_a_later_save_never_loses_to_an_earlier_one_whatever_the_workers(overflow):
    """States of every kind go different ways: small and mutable ones straight to the storage queue, large ones through
    the other queue, some under a lock, and deletes."""
    ids = [CheckpointId("group", b"%d" % n) for n in range(8)]
    lock = threading.Lock()
    with (
        Slow(MemoryBackend(), write=0.001) as store,
        SafeKeeper(store, serializer="pickle", overflow=overflow, serialization_workers=4, storage_workers=4) as keeper,
    ):
        last: dict[CheckpointId, object] = {}
        for n in range(3000):
            id = ids[n * 7919 % len(ids)]
            state: object = [n, "x" * 5000, [n] * 3, (n, "y" * 5000), None][n % 5]
            if state is None:
                keeper.forget(id)
            else:
                keeper.save(id, state, lock=lock if n % 3 == 0 else None)
            last[id] = state
        keeper.flush()
        assert {id: keeper.fetch(id) for id in ids} == last


class Away(MemoryBackend):
    """Does not answer until it is back."""

    back = False

    def write(self, batch: Batch) -> Receipt:
        if not self.back:
            raise Unavailable("away")
        return super().write(batch)


def test_what_is_tried_again_is_not_dropped_for_what_has_come_meanwhile(eventually):
    """A worker's batch is on top of the bounds, and stays so between two tries."""
    store, stop, bounds = Away(), threading.Event(), Bounds(count=3)
    backoff = Backoff(first=0.0001, most=0.0002)
    with SafeKeeper(store, overflow="drop-oldest", storage_queue=bounds, backoff=backoff, deadline=1000) as keeper:

        def go_on_saving():
            while not stop.is_set():
                keeper.save(B, 1)

        in_hand = keeper.save(A, 1)
        eventually(lambda: keeper.metrics().retries > 0)
        savers = [threading.Thread(target=go_on_saving) for _ in range(4)]
        for saver in savers:
            saver.start()
        eventually(lambda: keeper.metrics().retries > 200 and keeper.metrics().dropped > 200)
        store.back = True
        stop.set()
        for saver in savers:
            saver.join()
        in_hand.result()


def test_order_is_kept_across_failed_tries():
    with Faulty(MemoryBackend()) as store, SafeKeeper(store, overflow="block", storage_workers=3) as keeper:
        for when in ("before", "after"):
            store.fail("write", when=when, times=5)
            for n in range(20):
                keeper.save(A, n)
            assert keeper.fetch(A) == 19
