"""What an operator says of itself, in numbers."""

import threading
import time

import pytest
from prometheus_client import parser

from safekeeper import Every
from safekeeper.backends.memory import MemoryBackend
from safekeeper.operators import Operator
from safekeeper.operators.metrics import OperatorMetrics
from safekeeper.policy import Eventual
from safekeeper.testing.peer import PATIENCE

from .streams import MemoryStream


def until(check):
    give_up = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def take(operator, numbers, keys=3):
    for number in numbers:
        with operator.event("in", number) as event:
            event.part(b"%d" % (number % keys), int).state += 1
            if "out" in operator._outputs:
                event.emit("out", b"12345")


@pytest.fixture
def store():
    with MemoryBackend() as store:
        yield store


def test_what_was_done_and_what_is_kept_is_counted(store):
    with Operator("counter", store, outputs={"out": MemoryStream(retains=False)}, capture=Every(events=10)) as counter:
        assert counter.metrics().owns == 1
        take(counter, range(1, 26))
        until(lambda: counter.metrics().blocks_in_flight == 0)
        now = counter.metrics()
        assert (now.events, now.outputs, now.parts) == (25, 25, 3)
        assert (now.blocks, now.unsaved_events) == (2, 5)
        assert now.capture.count == 2
        assert (now.held_outputs, now.held_output_bytes) == (25, 125)
        assert now.acknowledged_outputs == 0
        counter.flush()
        assert counter.metrics().unsaved_events == 0
    assert counter.metrics().owns == 0


def test_a_recovery_is_expected_to_take_longer_when_there_is_more_to_do(store):
    with Operator("counter", store, kind="deterministic", capture=Eventual(q=10_000, u=10_000)) as counter:
        take(counter, range(1, 101), keys=100)
        before = counter.expected_recovery
        take(counter, range(101, 5_001), keys=100)
        now = counter.metrics()
        assert now.replay_events > 1_000
        assert now.expected_recovery_seconds > before > 0
        assert now.expected_recovery_seconds == pytest.approx(counter.expected_recovery)


def test_who_asks_does_not_wait_for_a_long_event(store):
    with Operator("counter", store) as counter:
        take(counter, range(1, 11))
        assert counter.metrics().events == 10
        with counter.event("in", 11):
            found = []
            thread = threading.Thread(target=lambda: found.append(counter.metrics()))
            thread.start()
            thread.join(PATIENCE)
            assert [now.events for now in found] == [10]
            assert counter.metrics().events == 10  # who is inside it does not wait for itself
        assert counter.metrics().events == 11


def test_a_standby_says_how_far_it_is_behind_and_how_long_a_takeover_would_take(store):
    standby = Operator("counter", store, standby="warm", lease=PATIENCE)
    assert standby.metrics().prometheus() == OperatorMetrics().prometheus()
    with Operator("counter", store, standby="warm", lease=PATIENCE) as owner:
        take(owner, range(1, 11))
        owner.flush()
        thread = threading.Thread(target=standby.__enter__, daemon=True)
        thread.start()
        until(lambda: standby.metrics().events == 10)
        now = standby.metrics()
        assert (now.stands_by, now.owns, now.parts, now.standby_lag_blocks) == (1, 0, 3, 0)
        assert (now.blocks, now.standby_waiting_blocks, now.standby_loads) == (owner.metrics().blocks, 0, 1)
        assert standby.expected_recovery >= 0
        until(lambda: owner.metrics().standbys == 1)
    thread.join(PATIENCE)
    assert (standby.metrics().stands_by, standby.metrics().owns) == (0, 1)
    standby.__exit__(None, None, None)


def test_prometheus_reads_them(store):
    with Operator("counter", store) as counter:
        take(counter, range(1, 11))
        text = counter.metrics().prometheus(operator="counter")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["safekeeper_operator_events"].samples[0].value == 10
    assert families["safekeeper_operator_expected_recovery_seconds"].type == "gauge"
    assert families["safekeeper_operator_standby_lag_blocks"].samples[0].labels == {"operator": "counter"}
    assert families["safekeeper_operator_capture_seconds"].type == "histogram"
