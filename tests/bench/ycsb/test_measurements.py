import pickle
import threading

import numpy as np
import pytest

from safekeeper.bench.ycsb.measurements import Latencies, Measurements, Recorder


def latencies_of(*values):
    latencies = Latencies()
    latencies.record(np.array(values, np.int64))
    return latencies


def test_percentiles_are_right_to_three_digits_and_the_rest_is_exact():
    values = np.random.default_rng(14).lognormal(10, 2, 50_000).astype(np.int64)
    latencies = Latencies()
    for part in np.array_split(values, 7):
        latencies.record(part)
    assert latencies.count == len(values)
    assert latencies.mean == pytest.approx(values.mean(), rel=1e-12)
    assert (latencies.least, latencies.most) == (values.min(), values.max())
    for percent in (1, 50, 95, 99, 99.99, 100):
        exact = np.percentile(values, percent, method="inverted_cdf")
        assert latencies.percentile(percent) == pytest.approx(exact, rel=0.001)


def test_recording_in_bulk_is_the_same_as_one_by_one():
    values = np.random.default_rng(14).integers(1, 10**10, 200)
    bulk, single = latencies_of(*values), Latencies()
    for value in values:
        single.record(np.array([value]))
    percents = np.linspace(0.5, 100, 40)
    assert [bulk.percentile(p) for p in percents] == [single.percentile(p) for p in percents]


def test_merging_is_the_same_as_recording_everything_in_one_place():
    first, second = np.random.default_rng(14).integers(1, 10**9, (2, 3000))
    whole, merged = latencies_of(*first, *second), latencies_of(*first)
    merged.add(pickle.loads(pickle.dumps(latencies_of(*second))))
    assert pickle.dumps(whole) == pickle.dumps(merged)


def test_nothing_measured_is_zero():
    empty = Latencies()
    assert (empty.count, empty.mean, empty.least, empty.most, empty.percentile(99)) == (0, 0, 0, 0, 0)


def test_what_is_beyond_the_histogram_is_counted_at_its_end():
    latencies = latencies_of(0, 10**15)
    assert (latencies.count, latencies.least, latencies.most) == (2, 1, 3600 * 10**9)


def test_nothing_is_lost_while_others_append_during_a_fold():
    measurements = Measurements()
    recorder = Recorder(measurements)
    pending = recorder.list_of("READ")
    appenders = [threading.Thread(target=lambda: [pending.append(1000) for _ in range(20_000)]) for _ in range(3)]
    for appender in appenders:
        appender.start()
    while any(appender.is_alive() for appender in appenders):
        recorder.fold()
        measurements.take_interval()
    recorder.fold()
    assert measurements.totals()["READ"].count == measurements.returns["READ", "OK"] == 60_000


def test_a_failure_is_timed_apart_and_counted_by_its_code():
    measurements = Measurements()
    recorder = Recorder(measurements)
    recorder.failed("READ", "NOT_FOUND", 5)
    recorder.fold()
    assert measurements.totals().keys() == {"READ-FAILED"}
    assert measurements.returns == {("READ", "NOT_FOUND"): 1}


def test_an_interval_holds_what_is_new():
    measurements = Measurements()
    measurements.add("READ", np.array([5, 6]), 2)
    assert measurements.take_interval()["READ"].count == 2
    measurements.add("READ", np.array([7]), 1)
    assert measurements.take_interval()["READ"].count == 1
    assert measurements.totals()["READ"].count == 3
