from __future__ import annotations

import time
from math import inf

import pytest

from safekeeper import Bounds, Calibrate, Checkpointed, CheckpointId, Every, SafeKeeper
from safekeeper.backends.memory import MemoryBackend
from safekeeper.policy import Ttl


@pytest.mark.parametrize(
    ("trigger", "events", "seconds", "due"),
    (
        (Every(events=10), 9, 1e6, False),
        (Every(events=10), 10, 0.0, True),
        (Every(seconds=5), 1e6, 4.9, False),
        (Every(seconds=5), 1, 5.0, True),
        (Every(events=10, seconds=5), 9, 4.9, False),
        (Every(events=10, seconds=5), 10, 0.0, True),
        (Every(events=10, seconds=5), 1, 5.0, True),
    ),
)
def test_a_trigger_is_due_by_events_or_by_time(trigger, events, seconds, due):
    assert trigger.due(events, seconds) is due


@pytest.mark.parametrize("settings", ({}, {"events": 0}, {"seconds": 0}, {"events": 1, "seconds": -1}), ids=str)
def test_a_trigger_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match=r"\w"):
        Every(**settings)


def test_idle_keys_come_in_the_order_of_their_last_event():
    ttl = Ttl(10)
    for now, key in enumerate((b"a", b"b", b"c", b"a")):
        ttl.touch(key, now)
    ttl.drop(b"c")
    ttl.drop(b"never there")
    assert list(ttl.idle(10.9)) == []
    assert list(ttl.idle(11)) == [b"b"]
    assert list(ttl.idle(100)) == [b"b", b"a"]


class SimulatedStore:
    """A queue in front of a store that takes *rate* entries a second, without real time."""

    def __init__(self, rate: float, size: int) -> None:
        self.rate, self.size = rate, size
        self.queued = 0.0
        self.dropped = self.saved = 0

    @property
    def fill(self) -> float:
        return self.queued / self.size

    def save(self) -> None:
        self.saved += 1
        if self.queued + 1 > self.size:
            self.dropped += 1
        else:
            self.queued += 1

    def pass_time(self, seconds: float) -> None:
        self.queued = max(self.queued - self.rate * seconds, 0.0)


def offer(store: SimulatedStore, calibrate: Calibrate, rate: float, seconds: float) -> None:
    """Events of as many keys as come in a second, each to be saved at every event."""
    keys = int(rate)
    waiting = [0] * keys
    for n in range(int(rate * seconds)):
        store.pass_time(1 / rate)
        waiting[n % keys] += 1
        if Every(events=1).due(waiting[n % keys] / calibrate.stretch(), 0):
            waiting[n % keys] = 0
            store.save()


@pytest.mark.parametrize("rate", (50, 1000, 20_000))
def test_offered_twice_what_the_store_takes_nothing_is_dropped_and_the_rate_comes_back(rate):
    store = SimulatedStore(rate, size=1000)
    calibrate = Calibrate(store)
    offer(store, calibrate, 2 * rate, 30)
    assert calibrate.stretch() > 1
    assert store.dropped == 0
    assert store.saved > 0.9 * rate * 30, "and the store was kept busy"
    offer(store, calibrate, rate, 9)
    before = store.saved
    offer(store, calibrate, rate, 1)
    assert store.saved - before > 0.98 * rate, "within 10 s after the load halved, each event is saved again"
    assert store.dropped == 0


def test_without_calibration_the_same_load_overflows():
    store, idle = SimulatedStore(1000, size=1000), SimulatedStore(1000, size=1000)
    offer(store, Calibrate(idle), 2000, 20)
    assert store.dropped > 10_000


@pytest.mark.parametrize(
    ("fill", "stretch"), ((0.0, 1), (0.5, 1), (0.6, 4), (0.7, 16), (0.9, 256), (0.91, inf), (7.0, inf)), ids=str
)
def test_the_fuller_the_queue_the_more_the_triggers_are_stretched(fill, stretch):
    store = SimulatedStore(1, size=100)
    store.queued = fill * 100
    assert Calibrate(store).stretch() == pytest.approx(stretch)


@pytest.mark.parametrize("settings", ({"low": 0.9}, {"full": 1.1}, {"most": 1}, {"low": -1}), ids=str)
def test_a_calibration_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match="low < full"):
        Calibrate(SimulatedStore(1, 1), **settings)


class Limited(MemoryBackend):
    """Takes a thousand entries a second."""

    def write(self, batch):
        time.sleep(len(batch) / 1000)
        return super().write(batch)


def test_a_service_offered_twice_what_its_store_takes_drops_nothing(eventually):
    """The real thing, in real time: threads, queues, triggers and the sweeper together."""
    keeper = SafeKeeper(Limited(), overflow="drop-oldest", storage_queue=Bounds(count=300))
    calibrate = Calibrate(keeper)
    counters = Checkpointed(keeper, "counter", lambda: 0, trigger=Every(events=1), calibrate=calibrate, tick=0.02)
    events = 0
    until = time.monotonic() + 2
    while time.monotonic() < until:
        for _ in range(20):
            events += 1
            with counters.event(b"%d" % (events % 1000)) as element:
                element.state += 1
        time.sleep(0.01)
    eventually(lambda: keeper.metrics().pending == 0 and not counters._memory.dirty)
    counters.close()
    assert keeper.metrics().dropped == 0
    assert sum(state for _, state in keeper.recover("counter")) == events
    eventually(lambda: calibrate.stretch() == 1)
    keeper.close()


def test_a_fuller_queue_is_seen_in_the_fill(store):
    with SafeKeeper(store, serializer=None, storage_queue=Bounds(count=4, nbytes=1000)) as keeper:
        assert keeper.fill == 0
        with store.hold("write") as gate:
            keeper.save(CheckpointId("group", b"a"), b"")
            gate.wait_for(1)
            keeper.save(CheckpointId("group", b"b"), b"")
            assert keeper.fill == 0.25
            keeper.save(CheckpointId("group", b"c"), bytes(498))
            assert keeper.fill == 0.5
            keeper.save(CheckpointId("group", b"c"), bytes(748))
            assert keeper.fill == 0.75
