"""Frozen and locked states are the worker's to serialize, and their bytes are bounded once it knows them."""

from __future__ import annotations

import threading

import pytest

from safekeeper import Bounds, CheckpointId, QueueFull, SafeKeeper
from safekeeper.keeper.serializers import Raw

A, B, C, D = (CheckpointId("group", key) for key in (b"a", b"b", b"c", b"d"))


class Noting(Raw):
    """Remembers which thread serialized what, and stops where it is told to. A state is a list with bytes in it."""

    name = "noting"

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def dumps(self, state):
        self.threads.append(threading.current_thread().name)
        assert self.go_on.wait(60)
        return b"".join(state)


@pytest.mark.parametrize("how", ("frozen", "lock"))
def test_a_frozen_or_locked_state_is_serialized_by_the_worker_however_small_its_outside_is(store, how):
    options = {"frozen": True} if how == "frozen" else {"lock": threading.Lock()}
    serializer = Noting()
    with SafeKeeper(store, serializer=serializer) as keeper:
        keeper.save(A, [bytes(1_000_000)], **options).result()
    assert serializer.threads == ["safekeeper-serialize"]


def test_a_small_state_that_cannot_change_saves_itself_the_hop_to_the_worker(store):
    with SafeKeeper(store, serializer="pickle") as keeper:
        with store.hold("write"):
            for state in (1, "text", b"bytes", (1, "two", (3.0,)), frozenset({1})):
                keeper.save(A, state)
                keeper.save(A, state, frozen=True)
        keeper.flush()  # a tray tells when it is written
        assert keeper.metrics().serialize.count == 10
        assert keeper.metrics().serialization_wait.count == 0


def test_a_tuple_is_as_large_as_what_is_in_it(store):
    """Its outside has 56 bytes. It is not serialized where `save` is called."""
    serializer = Noting()
    with SafeKeeper(store, serializer=serializer) as keeper:
        keeper.save(A, (bytes(5000),)).result()
    assert serializer.threads == ["safekeeper-serialize"]


@pytest.mark.parametrize("overflow", ("block", "coalesce", "reject", "drop-oldest"))
@pytest.mark.parametrize("how", ("frozen", "lock"))
def test_the_worker_waits_for_room_for_the_bytes_before_it_takes_the_next(store, overflow, how, eventually):
    """None that was accepted is rejected or dropped for that, and what is serialized stays within the bounds."""
    options = {"frozen": True} if how == "frozen" else {"lock": threading.Lock()}
    serializer, bounds = Noting(), Bounds(count=100, nbytes=1_000_000)
    with SafeKeeper(store, serializer=serializer, overflow=overflow, storage_queue=bounds) as keeper:
        with store.hold("write") as gate:
            tickets = [keeper.save(D, [b"first"])]
            gate.wait_for(1)
            ids = [CheckpointId("group", b"%d" % n) for n in range(50)]
            tickets += [keeper.save(id, [bytes(100_000)], **options) for id in ids]
            eventually(lambda: keeper._pipeline.storage.queue.blocked == 1)
            metrics = keeper.metrics()
            assert len(serializer.threads) == 1 + 9 + 1, "the first, what has room, and what the worker has in hand"
            assert metrics.storage_queue_bytes <= bounds.nbytes
            assert metrics.serialization_queue_entries == 50 - 9 - 1
        for ticket in tickets:
            ticket.result()


@pytest.mark.parametrize("overflow", ("reject", "drop-oldest"))
def test_the_serialization_queue_is_bounded_by_entries(store, overflow):
    serializer = Noting()
    keeper = SafeKeeper(store, serializer=serializer, overflow=overflow, serialization_queue=Bounds(count=3))
    with keeper:
        serializer.go_on.clear()
        tickets = [keeper.save(CheckpointId("group", b"%d" % n), [bytes(10_000_000)], frozen=True) for n in range(8)]
        refused = [ticket for ticket in tickets if ticket.done()]
        assert 4 <= len(refused) <= 5, "three wait, and the worker may have one in hand"
        serializer.go_on.set()
        for ticket in tickets:
            assert isinstance(ticket.outcome(), QueueFull) == (ticket in refused)


@pytest.mark.parametrize("overflow", ("reject", "drop-oldest"))
def test_saves_that_go_straight_to_the_store_do_not_keep_the_worker_out_for_ever(store, overflow, eventually):
    stop, bounds = threading.Event(), Bounds(count=4)
    with SafeKeeper(store, overflow=overflow, storage_queue=bounds, serializer=Raw()) as keeper:

        def go_on_saving(thread: int) -> None:
            n = 0
            while not stop.is_set():
                n += 1
                keeper.save(CheckpointId("direct", b"%d-%d" % (thread, n % 100)), bytes(1))

        savers = [threading.Thread(target=go_on_saving, args=(thread,)) for thread in range(2)]
        with store.hold("write") as gate:
            for saver in savers:
                saver.start()
            gate.wait_for(1)
            eventually(lambda: keeper.metrics().rejected + keeper.metrics().dropped > 0)
            accepted = keeper.save(A, bytes(10_000), lock=threading.Lock())
            if overflow == "drop-oldest":
                # It waits behind what is full of newer ones, until one of these lets it in and is dropped after it.
                eventually(accepted.done)
                assert isinstance(accepted.outcome(), QueueFull)
        if overflow == "reject":
            accepted.result()
        stop.set()
        for saver in savers:
            saver.join()


def test_a_worker_that_waits_for_room_is_let_go_by_close(store, eventually):
    keeper = SafeKeeper(store, overflow="reject", storage_queue=Bounds(count=1))
    with store.hold("write") as gate:
        keeper.save(A, 1)
        gate.wait_for(1)
        tickets = [keeper.save(id, {}, frozen=True) for id in (B, C, D)]
        eventually(lambda: keeper._pipeline.storage.queue.blocked == 1)
        with pytest.raises(Exception, match="4 saves were not stored"):
            keeper.close(0.01)
        assert all(ticket.done() for ticket in tickets)
