"""A deadline counts the time without progress: slow is not failed, and stuck is."""

from __future__ import annotations

import threading
import time

import pytest

from safekeeper import Bounds, CheckpointId, SafeKeeper, Unavailable
from safekeeper.backend import Batch, Receipt, SupportsProgress
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.serializers import Raw
from safekeeper.testing import Slow

A, B, C = (CheckpointId("group", key) for key in (b"a", b"b", b"c"))

STEP, STEPS, DEADLINE = 0.4, 8, 2.0  # seconds for a step; all steps together take longer than the deadline


@pytest.mark.parametrize("kind", ("queued", "waiting for room", "by a worker"))
def test_a_slow_store_that_gets_on_stores_everything(kind):
    """Each batch takes one state of the id, so the last waits for all those before."""
    heard: list[object] = []
    bounds = Bounds(count=1) if kind == "waiting for room" else Bounds()
    with (
        Slow(MemoryBackend(), write=STEP) as store,
        SafeKeeper(store, overflow="block", deadline=DEADLINE, storage_queue=bounds, close_deadline=60) as keeper,
    ):
        tickets = [keeper.save(A, n, frozen=kind == "by a worker", callback=heard.append) for n in range(STEPS)]
        for ticket in tickets:
            ticket.result()
        assert keeper.metrics().stored == STEPS
        assert keeper.fetch(A) == STEPS - 1
    assert len(heard) == STEPS


class Steady(MemoryBackend):
    """One write takes many steps, and it shows that it gets on, if it does."""

    def __init__(self, shows: bool) -> None:
        super().__init__()
        self.last_progress = 0.0
        self._shows = shows

    def write(self, batch: Batch) -> Receipt:
        for _ in range(STEPS):
            time.sleep(STEP)
            if self._shows:
                self.last_progress = time.monotonic()
        return super().write(batch)


def test_a_write_that_shows_progress_may_take_longer_than_the_deadline():
    store = Steady(shows=True)
    assert isinstance(store, SupportsProgress)
    with SafeKeeper(store, deadline=DEADLINE, close_deadline=60) as keeper:
        tickets = [keeper.save(id, 1) for id in (A, B)]  # B waits for the write of A
        for ticket in tickets:
            ticket.result()


def test_a_write_that_shows_none_may_not():
    keeper = SafeKeeper(Steady(shows=False), deadline=0.05, close_deadline=60)
    with keeper, pytest.raises(Unavailable, match="deadline"):
        keeper.save(A, 1).result()


class StuckFor(MemoryBackend):
    """Never comes back from a write of one id, until it is let go."""

    def __init__(self, stuck: CheckpointId) -> None:
        super().__init__()
        self._stuck = stuck
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write(self, batch: Batch) -> Receipt:
        if any(id == self._stuck for id, _ in batch.items()):
            self.entered.set()
            assert self.go_on.wait(60)
        return super().write(batch)


def test_a_stuck_write_is_not_excused_by_others_that_get_on():
    store = StuckFor(A)
    with SafeKeeper(store, overflow="block", storage_workers=2, deadline=0.2, close_deadline=60) as keeper:
        writing = keeper.save(A, 1)
        assert store.entered.wait(60)
        behind = [keeper.save(A, n) for n in range(2, 5)]
        until = time.monotonic() + 60
        stored = 0
        while not all(ticket.done() for ticket in (writing, *behind)):
            assert time.monotonic() < until, "they never end"
            keeper.save(B, 1, deadline=60).result()
            stored += 1
        assert stored
        for ticket in (writing, *behind):
            with pytest.raises(Unavailable, match="deadline"):
                ticket.result()
        store.go_on.set()


class StuckSerializer(Raw):
    name = "stuck"

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def dumps(self, state):
        if len(state) > 10_000:
            assert self.go_on.wait(60)
        return super().dumps(state)


def test_a_stuck_serializer_is_not_excused_by_a_store_that_gets_on(store):
    serializer = StuckSerializer()
    with SafeKeeper(store, serializer=serializer, deadline=0.2, close_deadline=60) as keeper:
        tickets = [keeper.save(id, bytes(20_000)) for id in (A, B)]
        until = time.monotonic() + 60
        while not all(ticket.done() for ticket in tickets):
            assert time.monotonic() < until, "they never end"
            keeper.save(C, b"x", deadline=60).result()
        for ticket in tickets:
            with pytest.raises(Unavailable, match="deadline"):
                ticket.result()
        serializer.go_on.set()


def test_failed_tries_are_no_progress(store):
    store.fail("write", times=1_000_000)
    keeper = SafeKeeper(store, deadline=0.2, close_deadline=60)
    with keeper, pytest.raises(Unavailable, match="the store does not answer"):
        keeper.save(A, 1).result()
