"""Large elements that are saved together are left to the worker one by one: the events of the others go on."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from safekeeper import CheckpointId, Every, SafeKeeper, Unavailable
from tests.elements.test_serialization import WORKER, Watched, count, elements

KEYS = [b"%d" % n for n in range(4)]


@pytest.fixture
def serializer():
    return Watched()


def wait_until(condition) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.005)


def test_while_one_large_element_waits_for_the_worker_the_others_can_change(store, serializer):
    with SafeKeeper(store, serializer=serializer) as keeper, elements(keeper, 1_000_000, trigger=None) as group:
        for key in KEYS:
            count(group, key)
        serializer.go_on.clear()
        tickets = []
        checkpoint = threading.Thread(target=lambda: tickets.extend(group.checkpoint()))
        checkpoint.start()
        wait_until(lambda: keeper.metrics().saves == 1)
        for key in KEYS[1:]:
            count(group, key)
        assert serializer.counts == [], "nobody had to serialize before it changed its element"
        assert keeper.metrics().saves == 1
        serializer.go_on.set()
        checkpoint.join()
        assert len(tickets) == len(KEYS)
        for ticket in tickets:
            ticket.result()
        assert sorted(serializer.counts) == [1, 2, 2, 2], "each as it was when it was left to the worker"
        assert {*serializer.threads} == {WORKER}


def test_what_is_due_by_time_is_saved_one_by_one_too(store, serializer):
    keeper = SafeKeeper(store, serializer=serializer)
    with keeper, elements(keeper, 1_000_000, trigger=Every(seconds=0.01), tick=0.01) as group:
        serializer.go_on.clear()
        for key in KEYS:
            count(group, key)
        wait_until(lambda: keeper.metrics().saves)
        time.sleep(0.1)  # the sweeper has come again by now
        saves = keeper.metrics().saves
        serializer.go_on.set()
        assert saves == 1
        wait_until(lambda: keeper.metrics().stored == len(KEYS))
    assert {*serializer.threads} == {WORKER}


def test_closing_does_not_wait_for_the_one_before(store, serializer):
    """The sweeper waits for a worker that is stuck: `close` ends that."""
    with SafeKeeper(store, serializer=serializer) as keeper:
        group = elements(keeper, 1_000_000, trigger=Every(seconds=0.01), tick=0.01)
        serializer.go_on.clear()
        for key in KEYS:
            count(group, key)
        wait_until(lambda: keeper.metrics().saves)
        closing = threading.Thread(target=group.close)
        closing.start()
        wait_until(lambda: keeper.metrics().saves == len(KEYS))
        serializer.go_on.set()
        closing.join()
        assert keeper.metrics().stored == len(KEYS)


def test_in_an_event_loop_and_in_a_callback_nobody_waits_for_the_one_before(store, serializer):
    async def in_loop() -> int:
        return len(group.checkpoint())

    with SafeKeeper(store, serializer=serializer) as keeper, elements(keeper, 1_000_000, trigger=None) as group:
        for key in KEYS:
            count(group, key)
        serializer.go_on.clear()
        assert asyncio.run(in_loop()) == len(KEYS)
        serializer.go_on.set()
        keeper.flush()
        for key in KEYS:
            count(group, key)
        called = []
        keeper.forget(
            CheckpointId("words", KEYS[0]), callback=lambda _: called.append(len(group.checkpoint()))
        ).result()
        wait_until(lambda: called)
        assert called == [len(KEYS)]


def test_a_save_that_fails_lets_the_next_come(store, serializer):
    with SafeKeeper(store, serializer=serializer, deadline=0.2) as keeper:
        group = elements(keeper, 1_000_000, trigger=None)
        for key in KEYS:
            count(group, key)
        serializer.go_on.clear()  # the worker is stuck with the first
        tickets = group.checkpoint()
        assert len(tickets) == len(KEYS)
        assert isinstance(tickets[0].outcome(), Unavailable)
        serializer.go_on.set()
