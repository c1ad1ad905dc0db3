"""A checkpoint and close respect the keeper's queues under every policy, and save again what was pushed out of them."""

from __future__ import annotations

import threading
import time

import pytest

from safekeeper import Bounds, Checkpointed, CheckpointId, Conflict, QueueFull, SafeKeeper
from safekeeper.testing import Slow

POLICIES = ("block", "coalesce", "reject", "drop-oldest")
SIZES = pytest.mark.parametrize("nbytes", (10, 20_000), ids=("small", "large"))
QUEUE = Bounds(count=20, nbytes=1_000_000)
MANY = 3000


def keeper_of(store, overflow):
    return SafeKeeper(store, overflow=overflow, serialization_queue=QUEUE, storage_queue=QUEUE)


def elements(keeper, nbytes, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0, "text": "x" * nbytes}, tick=0.01, **settings)


def count(group, many):
    for n in range(many):
        with group.event(b"%d" % n) as element:
            element.state["count"] += 1


def stored(keeper):
    return {int(key): state["count"] for key, state in keeper.recover("words")}


def many_of(nbytes):
    return MANY if nbytes < 1000 else MANY // 10


@SIZES
@pytest.mark.parametrize("overflow", POLICIES)
def test_close_stores_everything(store, overflow, nbytes):
    many = many_of(nbytes)
    with keeper_of(store, overflow) as keeper:
        with elements(keeper, nbytes, trigger=None) as group:
            count(group, many)
        assert stored(keeper) == dict.fromkeys(range(many), 1)


@SIZES
@pytest.mark.parametrize("overflow", POLICIES)
def test_when_the_tickets_of_a_checkpoint_have_completed_everything_is_stored(store, overflow, nbytes):
    many = many_of(nbytes)
    with keeper_of(store, overflow) as keeper, elements(keeper, nbytes, trigger=None) as group:
        count(group, many)
        tickets = group.checkpoint()
        assert len(tickets) == many
        for ticket in tickets:
            ticket.result()
        assert stored(keeper) == dict.fromkeys(range(many), 1)


@pytest.mark.parametrize("overflow", POLICIES)
def test_what_events_have_pushed_out_of_the_queue_is_stored_by_close(store, overflow):
    """The store is slow, so most saves of the events were rejected or dropped."""
    with keeper_of(Slow(store, write=0.002), overflow) as keeper:
        with elements(keeper, 10) as group:
            for _ in range(3):
                count(group, 500)
        assert stored(keeper) == dict.fromkeys(range(500), 3)


@pytest.mark.parametrize("overflow", POLICIES)
def test_what_others_push_out_of_the_queue_is_saved_again(store, overflow):
    stop = threading.Event()

    def disturb() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            keeper.save(CheckpointId("others", b"%d" % (n % 100)), n)
            if n % 50 == 0:
                time.sleep(0.001)

    with keeper_of(store, overflow) as keeper:
        others = threading.Thread(target=disturb)
        others.start()
        try:
            with elements(keeper, 10, trigger=None) as group:
                count(group, 300)
            assert stored(keeper) == dict.fromkeys(range(300), 1)
        finally:
            stop.set()
            others.join()


@pytest.mark.parametrize("overflow", POLICIES)
def test_the_sweeper_respects_the_queue_too(store, overflow, eventually):
    with keeper_of(store, overflow) as keeper, elements(keeper, 10, trigger=None, ttl=0.01) as group:
        count(group, 500)
        eventually(lambda: len(group) == 0)
        assert stored(keeper) == dict.fromkeys(range(500), 1)
        metrics = keeper.metrics()
        assert metrics.rejected + metrics.dropped == 0


@pytest.mark.parametrize("overflow", POLICIES)
def test_close_names_what_is_not_stored(store, overflow):
    with keeper_of(store, overflow) as keeper:
        group = elements(keeper, 10, trigger=None)
        count(group, 30)
        store.fail("write", times=1000, error=Conflict("injected"))
        with pytest.raises(Conflict, match=r"30 elements are not stored: words/\d+, .* and 20 more: injected"):
            group.close()
        store._faults.clear()
        group.close()
        assert stored(keeper) == dict.fromkeys(range(30), 1)


def test_a_queue_that_others_keep_full_is_an_error_in_the_end(store):
    """With the names, and not after a deadline for each of them."""
    with SafeKeeper(store, overflow="reject", storage_queue=Bounds(count=1), deadline=0.3) as keeper:
        group = elements(keeper, 10, trigger=None)
        count(group, 1000)
        with store.hold("write") as gate:
            keeper.save(CheckpointId("others", b"1"), 1, deadline=600)
            gate.wait_for(1)
            keeper.save(CheckpointId("others", b"2"), 1, deadline=600)
            with pytest.raises(QueueFull, match=r"1000 elements are not stored: words/\d+, .* and 990 more: "):
                group.close()
        keeper.flush()
        group.close()
        assert stored(keeper) == dict.fromkeys(range(1000), 1)
