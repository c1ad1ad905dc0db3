"""YCSB's kinds of measurement: the same numbers, under the same names, in the same order."""

import pickle
import time

import numpy as np
import pytest

from safekeeper.bench.ycsb.exporters import export, raw_lines, read_rows, rows, write_percentile_files
from safekeeper.bench.ycsb.measurements import Measurements, Recorder
from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings
from safekeeper.bench.ycsb.runner import RunResult

MS = 1_000_000
KINDS = ("histogram", "hdrhistogram+histogram", "hdrhistogram+raw", "timeseries", "raw")


def measured(kind, milliseconds, ended=None, **settings):
    named = YcsbSettings.of({"measurementtype": kind} | {name.replace("_", "."): v for name, v in settings.items()})
    measurements = Measurements(named)
    values = np.array([int(ms * MS) for ms in milliseconds])
    measurements.add("READ", values, len(values), np.array(ended or [0] * len(values)))
    return named, measurements


def numbers(settings, measurements):
    result = RunResult("run", 1.0, 1, measurements)
    return {row.measurement: row.value for row in rows(result, settings) if row.metric == "READ"}


def test_a_histogram_has_buckets_of_a_millisecond():
    found = numbers(*measured("histogram", [0.5] * 95 + [3.2] * 4 + [9.9], measurement_histogram_verbose="true"))
    assert list(found)[:8] == [
        "Operations",
        "AverageLatency(us)",
        "LatencyVariance(us)",
        "MinLatency(us)",
        "MaxLatency(us)",
        "95thPercentileLatency(us)",
        "99thPercentileLatency(us)",
        "Return=OK",
    ]
    exact = np.array([500] * 95 + [3200] * 4 + [9900])
    assert found["AverageLatency(us)"] == pytest.approx(exact.mean())
    assert found["LatencyVariance(us)"] == pytest.approx(exact.var())
    assert (found["95thPercentileLatency(us)"], found["99thPercentileLatency(us)"]) == (0, 3000)
    assert (found["0"], found["3"], found["9"], found[">1000"]) == (95, 4, 1, 0)


def test_what_is_longer_than_all_buckets_is_counted_and_has_no_percentile():
    found = numbers(*measured("histogram", [1, 50, 60], histogram_buckets="10", measurement_histogram_verbose="true"))
    assert found[">10"] == 2
    assert "95thPercentileLatency(us)" not in found


def test_a_time_series_has_the_mean_of_every_step():
    found = numbers(*measured("timeseries", [1, 3, 8], [10_000, 10_400, 11_100], timeseries_granularity="500"))
    assert found == {
        "Operations": 3,
        "AverageLatency(us)": 4000,
        "MinLatency(us)": 1000,
        "MaxLatency(us)": 8000,
        "Return=OK": 3,
        "0": 2000,
        "1000": 8000,
    }


def test_raw_has_every_operation_and_a_summary_that_can_be_left_out():
    settings, measurements = measured("raw", [4, 2, 3], [30, 10, 20])
    assert list(raw_lines(measurements)) == [
        "READ latency raw data: op, timestamp(ms), latency(us)\n",
        "READ,10,2000\n",
        "READ,20,3000\n",
        "READ,30,4000\n",
    ]
    found = numbers(settings, measurements)
    assert (found["Total Operations"], found["Average"], found["p50"], found["p99.99"]) == (3, 3000, 3000, 4000)
    short = YcsbSettings.of({"measurementtype": "raw", "measurement.raw.no_summary": "true"})
    alone = Measurements(short)
    alone.add("READ", np.array([MS]), 1, np.array([1]))
    assert numbers(short, alone) == {"Total Operations": 1, "Return=OK": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_what_two_clients_measured_is_put_together(kind):
    settings, first = measured(kind, [1, 2], [1000, 2000])
    _, second = measured(kind, [30, 4], [2500, 9000])
    together = Measurements()
    for one in (first, second):
        together.merge(pickle.loads(pickle.dumps(one)))
    assert numbers(settings, together) == numbers(*measured(kind, [1, 2, 30, 4], [1000, 2000, 2500, 9000]))


def test_two_kinds_at_once_are_both_shown():
    found = numbers(*measured("hdrhistogram+raw", [1, 2]))
    assert {"95thPercentileLatency(us)", "p95", "Return=OK"} <= found.keys()


def test_moments_are_taken_only_where_they_are_wanted():
    before = time.time_ns() // MS
    for kind, wanted in (("raw", True), ("hdrhistogram", False)):
        measurements = Measurements(YcsbSettings(measurementtype=kind))
        recorder = Recorder(measurements)
        recorder.list_of("READ").append(5 * MS)
        recorder.fold()
        assert bool(measurements.kept) is wanted
        assert measurements.totals()["READ"].count == 1
        if wanted:
            (_, line) = raw_lines(measurements)
            assert before <= int(line.split(",")[1]) <= time.time_ns() // MS


def test_a_file_of_percentiles_is_hdrhistograms(tmp_path):
    _, measurements = measured("hdrhistogram", [1] * 90 + [100] * 10)
    write_percentile_files(measurements, f"{tmp_path}/run-")
    header, _, *lines = (tmp_path / "run-READ.hgrm").read_text().splitlines()
    assert header.split() == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    points = [tuple(map(float, line.split()[:3])) for line in lines if not line.startswith("#")]
    assert all(value == pytest.approx(1000 if share <= 0.9 else 100_000, rel=0.001) for value, share, _ in points)
    assert points[-1][1:] == (1.0, 100)
    with pytest.raises(BadProperty, match="No such file or directory"):
        write_percentile_files(measurements, f"{tmp_path}/none/")


@pytest.mark.parametrize("name", ("histogram.buckets", "timeseries.granularity"))
def test_a_size_of_nothing_is_refused(name):
    with pytest.raises(BadProperty, match=f"{name}=0: it is at least 1"):
        YcsbSettings.of({name: "0"})


YCSB_0_17 = """\
YCSB Client 0.17.0

Loading workload...
[OVERALL], RunTime(ms), 1021
[OVERALL], Throughput(ops/sec), 4897.159647404506
[TOTAL_GCs_G1_Young_Generation], Count, 2
[READ], Operations, 2501
[READ], 95thPercentileLatency(us), 171
[READ], Return=OK, 2501
"""


def test_one_parser_reads_the_output_of_ycsb_and_of_every_exporter_here():
    found = {(row.metric, row.measurement): row.value for row in read_rows(YCSB_0_17)}
    assert found["OVERALL", "Throughput(ops/sec)"] == pytest.approx(4897.16, abs=0.01)
    assert found["READ", "Return=OK"] == 2501
    assert len(found) == 6
    _, measurements = measured("raw", [1, 2])
    result = RunResult("run", 1.5, 2, measurements)
    for exporter in ("Text", "JSON", "JSONArray"):
        settings = YcsbSettings(exporter=f"{exporter}MeasurementsExporter", measurementtype="raw")
        assert list(read_rows(export(result, settings))) == list(rows(result, settings))
