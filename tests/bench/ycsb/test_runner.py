import re
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest

from safekeeper.backend import Batch
from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.ycsb import session
from safekeeper.bench.ycsb.exporters import export, rows
from safekeeper.bench.ycsb.measurements import Measurements
from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings
from safekeeper.bench.ycsb.runner import Runner
from safekeeper.bench.ycsb.status import PrintedStatus, RunWatch
from safekeeper.bench.ycsb.workload import Workload
from safekeeper.errors import Unavailable


class Failing(MemoryBackend):
    """Can do so many more writes; then it is gone, or only once."""

    def __init__(self, writes, *, for_ever):
        super().__init__()
        self.writes, self.for_ever = writes, for_ever
        self.counting = Lock()

    def write(self, batch):
        with self.counting:
            self.writes -= 1
            left = self.writes
        if left == -1 or (self.for_ever and left < 0):
            raise Unavailable("the disk is full: buy one")
        return super().write(batch)


def runner_of(backend, **properties):
    given = {"recordcount": 100, "operationcount": 1000, "fieldlength": 10, "seed": 14} | properties
    named = {name.replace("_", "."): str(value) for name, value in given.items()}
    workload = Workload(YcsbSettings.of(named))
    return workload, Runner(workload, backend)


def loaded(backend, **properties):
    workload, runner = runner_of(backend, **properties)
    runner.load()
    return workload, runner


def numbers(result):
    return {(row.metric, row.measurement): row.value for row in rows(result, YcsbSettings(percentiles=(50, 99.9)))}


def test_the_lines_are_ycsbs():
    _, runner = loaded(MemoryBackend())
    lines = export(runner.run(), YcsbSettings(percentiles=(50.0, 99.99999, 11.0, 1.0))).splitlines()
    assert [line.rpartition(", ")[0] for line in lines] == [
        "[OVERALL], RunTime(ms)",
        "[OVERALL], Throughput(ops/sec)",
        *(
            f"[{name}], {measurement}"
            for name in ("READ", "UPDATE")
            for measurement in (
                "Operations",
                "AverageLatency(us)",
                "MinLatency(us)",
                "MaxLatency(us)",
                "50thPercentileLatency(us)",
                "99.99999PercentileLatency(us)",
                "11thPercentileLatency(us)",
                "1stPercentileLatency(us)",
                "Return=OK",
            )
        ),
    ]


def test_what_is_not_there_is_not_found_and_timed_apart():
    _, runner = runner_of(MemoryBackend(), readproportion=1, updateproportion=0)
    result = runner.run()
    assert result.notes == ("1000 reads found no record: load the workload first, with the same properties",)
    found = numbers(result)
    assert found["READ", "Return=NOT_FOUND"] == found["READ-FAILED", "Operations"] == 1000
    assert ("READ", "Return=OK") not in found


def test_a_failure_is_counted_and_the_run_goes_on():
    _, runner = loaded(Failing(150, for_ever=False), readproportion=0, updateproportion=1)
    result = runner.run()
    found = numbers(result)
    assert found["UPDATE", "Return=ERROR"] == found["UPDATE-FAILED", "Operations"] == 1
    assert found["UPDATE", "Return=OK"] == 999
    assert not result.partial
    assert str(result.measurements.first_error) == "the disk is full: buy one"


def test_a_store_that_is_gone_ends_the_run_and_what_was_measured_is_kept():
    _, runner = loaded(Failing(150, for_ever=True), readproportion=0, updateproportion=1, threadcount=2)
    result = runner.run()
    assert "times in a row" in result.partial
    found = numbers(result)
    assert found["UPDATE", "Return=OK"] == 50
    assert session.GIVE_UP_AFTER <= found["UPDATE", "Return=ERROR"] < 1000 - 50
    assert found["OVERALL", "Complete"] == 0


def test_a_store_that_needs_long_for_each_failure_is_given_up_sooner(monkeypatch):
    monkeypatch.setattr(session, "GIVE_UP_AFTER_SECONDS", 0.0)
    _, runner = loaded(Failing(150, for_ever=True), readproportion=0, updateproportion=1)
    result = runner.run()
    assert result.partial == "the store failed 2 times in a row"
    assert result.operations == 52


def test_a_mistake_in_a_backend_is_raised_not_counted():
    class Broken(MemoryBackend):
        def write(self, batch):
            raise ZeroDivisionError

    _, runner = runner_of(Broken())
    with pytest.raises(ZeroDivisionError):
        runner.load()


def test_the_time_limit_ends_a_run_that_is_not_partial():
    _, runner = loaded(MemoryBackend(), operationcount=0, maxexecutiontime=0.2)
    result = runner.run()
    assert result.operations > 0
    assert not result.partial


def test_whoever_starts_a_run_may_end_it_and_what_was_measured_is_kept():
    workload, _ = loaded(backend := MemoryBackend(), operationcount=0, maxexecutiontime=600)
    result = Runner(workload, backend, stop=lambda: True).run()
    assert result.partial == "interrupted"
    assert result.operations > 0
    assert result.seconds < 60


def test_what_runs_during_the_warm_up_is_not_measured():
    workload, runner = loaded(MemoryBackend(), warmup=0.1, insertproportion=1, readproportion=0, updateproportion=0)
    result = runner.run()
    assert numbers(result)["INSERT", "Operations"] == result.operations == 1000
    assert workload.inserted.newest > 100 + 1000


def test_a_target_that_cannot_be_kept_is_said():
    _, runner = loaded(MemoryBackend(), target=50_000_000)
    assert any("target of 5e+07 operations a second was not kept" in note for note in runner.run().notes)


def test_a_target_is_not_exceeded_and_the_intended_latency_counts_the_delay():
    _, runner = loaded(MemoryBackend(), target=2000, operationcount=200, threadcount=2, measurement_interval="both")
    result = runner.run()
    assert result.seconds > 0.09
    found = numbers(result)
    assert found["Intended-READ", "Operations"] == found["READ", "Operations"]
    assert found["Intended-READ", "AverageLatency(us)"] > found["READ", "AverageLatency(us)"]
    assert ("Intended-READ", "Return=OK") not in found


@pytest.mark.parametrize(
    ("interval", "names"),
    (
        ("op", {"READ-FAILED"}),
        ("intended", {"READ-FAILED"}),
        ("both", {"READ-FAILED", "Intended-READ-FAILED"}),
    ),
)
def test_failures_are_timed_as_measurement_interval_asks(interval, names):
    _, runner = runner_of(
        MemoryBackend(), target=2000, operationcount=50, updateproportion=0, measurement_interval=interval
    )
    assert set(runner.run().measurements.totals()) == names


def test_intended_alone_keeps_the_name():
    _, runner = loaded(MemoryBackend(), measurement_interval="intended")
    assert set(runner.run().measurements.totals()) == {"READ", "UPDATE"}


def test_data_integrity_finds_a_record_that_is_not_what_was_written():
    backend = MemoryBackend()
    workload, runner = loaded(backend, dataintegrity="true", requestdistribution="sequential", updateproportion=0)
    assert numbers(runner.run())["VERIFY", "Return=OK"] == 1000
    (value,) = backend.read([workload.ids[3]])
    backend.write(Batch({workload.ids[3]: value[:-1] + b"?"}))
    found = numbers(runner.run())
    assert (found["VERIFY", "Return=OK"], found["VERIFY", "Return=UNEXPECTED_STATE"]) == (990, 10)
    lost = Batch()
    lost.delete(workload.ids[5])
    backend.write(lost)
    assert numbers(runner.run())["VERIFY", "Return=ERROR"] == 10


def test_data_integrity_holds_across_updates_and_processes():
    backend = MemoryBackend()
    loaded(backend, dataintegrity="true")[1].run()
    _, another = runner_of(backend, dataintegrity="true", seed=15, requestdistribution="zipfian")
    assert numbers(another.run())[("VERIFY", "Return=OK")] > 900


@pytest.mark.parametrize(
    ("properties", "says"),
    (
        ({"recordcount": 0}, "recordcount=0"),
        ({"operationcount": 0}, "say how many operations, or for how long"),
        ({"insertstart": 50, "insertcount": 60}, "below insertstart"),
    ),
)
def test_a_run_without_records_or_end_is_refused(properties, says):
    _, runner = runner_of(MemoryBackend(), **properties)
    with pytest.raises(BadProperty, match=says):
        runner.run()


def test_a_record_over_the_limit_is_refused():
    with pytest.raises(BadProperty, match="at most 67108864 bytes"):
        runner_of(MemoryBackend(), fieldlength=10_000_000)


@pytest.mark.parametrize(
    ("operations", "seconds", "says"),
    (
        (0, 0.0, "0 sec: 0 operations; 0 current ops/sec; "),
        (250, 2.5, "2 sec: 250 operations; 100 current ops/sec; est completion in 8 seconds "),
        (300, 7.0, "7 sec: 300 operations; 42.86 current ops/sec; est completion in 17 seconds "),
        (10, 1000.0, "1000 sec: 10 operations; 0.01 current ops/sec; est completion in 1 day 3 hours "),
    ),
)
def test_the_status_line_is_ycsbs(operations, seconds, says, monkeypatch, capsys):
    clock = iter([0.0])
    monkeypatch.setattr("safekeeper.bench.ycsb.status.time", SimpleNamespace(monotonic=lambda: next(clock, seconds)))
    measurements = Measurements()
    watch = RunWatch(measurements, 1000, 0.0, [PrintedStatus()])
    measurements.add("READ", np.array([1000, 2000, 4000]), 3)
    watch.look(operations)
    printed = capsys.readouterr().err
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3} ", printed)
    assert printed[24:] == f"{says}[READ: Count=3, Max=4, Min=1, Avg=2.33, 50=2, 90=4, 99=4, 99.9=4, 99.99=4]\n"
