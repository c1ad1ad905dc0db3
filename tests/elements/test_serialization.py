"""Large elements are serialized by the keeper's worker, small ones at once; none of them in the middle of an event."""

from __future__ import annotations

import json
import threading

import pytest

from safekeeper import Bounds, Checkpointed, CheckpointId, SafeKeeper

KEY = b"foo"
ID = CheckpointId("words", KEY)
WORKER = "safekeeper-serialize"


class Watched:
    """JSON that remembers what it serialized and in which thread, and stops the worker where it is told to."""

    name = "watched"

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.counts: list[int] = []
        self.torn = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def dumps(self, state):
        thread = threading.current_thread().name
        assert thread != WORKER or self.go_on.wait(60)
        self.threads.append(thread)
        self.counts.append(state["count"])
        self.torn += state["count"] != state["again"]
        return json.dumps(state).encode()

    def loads(self, data):
        return json.loads(data)


@pytest.fixture
def serializer():
    return Watched()


def elements(keeper, nbytes, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0, "again": 0, "text": "x" * nbytes}, **settings)


def count(group, key=KEY):
    with group.event(key) as element:
        element.state["count"] += 1
        element.state["again"] += 1
    return element


def test_a_large_element_is_serialized_by_the_worker_and_the_event_does_not_wait_for_it(store, serializer):
    with SafeKeeper(store, serializer=serializer) as keeper, elements(keeper, 1_000_000) as group:
        serializer.go_on.clear()
        ticket = count(group).ticket
        assert not ticket.done()
        serializer.go_on.set()
        ticket.result()
    assert serializer.threads == [WORKER]


def test_a_small_element_is_serialized_at_once(store, serializer):
    with SafeKeeper(store, serializer=serializer) as keeper, elements(keeper, 100) as group:
        count(group)
    assert serializer.threads == [threading.current_thread().name]


def test_a_save_has_its_bytes_before_the_next_event_changes_the_state(store, serializer):
    """The worker is busy, so the next event serializes what it is about to change."""
    with SafeKeeper(store, serializer=serializer, overflow="block") as keeper, elements(keeper, 1_000_000) as group:
        serializer.go_on.clear()
        count(group, b"keeps the worker busy")
        for _ in range(3):
            count(group)
        assert serializer.counts == [1, 2, 3], "in the order of the events, each once"
        assert WORKER not in serializer.threads
        serializer.go_on.set()
        keeper.flush()
        assert keeper.fetch(ID)["count"] == 3
        assert keeper.metrics().stored == 4
    assert sorted(serializer.counts) == [1, 1, 2, 3]


def test_no_worker_ever_sees_an_event_half_way(store, serializer):
    with SafeKeeper(store, serializer=serializer, overflow="block", serialization_workers=2) as keeper:
        with elements(keeper, 20_000) as group:

            def handle() -> None:
                for n in range(300):
                    count(group, b"%d" % (n % 3))

            threads = [threading.Thread(target=handle) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(state["count"] for _, state in keeper.recover("words")) == 900
    assert serializer.torn == 0
    assert WORKER in serializer.threads


def test_the_saves_of_one_large_element_stay_within_the_bounds_of_the_queue(store, serializer):
    bounds = Bounds(nbytes=5_000_000)
    keeper = SafeKeeper(
        store, serializer=serializer, overflow="reject", serialization_queue=bounds, storage_queue=bounds
    )
    with keeper, elements(keeper, 1_000_000) as group:
        with store.hold("write") as gate:
            count(group)
            gate.wait_for(1)
            for _ in range(50):
                count(group)
            metrics = keeper.metrics()
            assert metrics.rejected > 30
            assert metrics.storage_queue_bytes <= bounds.nbytes
            assert metrics.serialization_queue_bytes <= bounds.nbytes
            assert metrics.serialization_queue_entries <= 6, "one of them, at most, is not counted with its bytes"
        keeper.flush()
    with SafeKeeper(store, serializer=serializer) as keeper:
        assert keeper.fetch(ID)["count"] == 51
