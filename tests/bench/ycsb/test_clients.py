import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.ycsb import clients
from safekeeper.bench.ycsb.clients import Share, merge, run_in_processes, split
from safekeeper.bench.ycsb.measurements import Measurements
from safekeeper.bench.ycsb.properties import YcsbSettings
from safekeeper.bench.ycsb.runner import RunResult
from safekeeper.errors import BadUrl, Unavailable
from safekeeper.keeper.metrics import Metrics
from safekeeper.registry import open

SETTINGS = YcsbSettings(recordcount=25, operationcount=100, fieldlength=5, updateproportion=0.5, readproportion=0.5)


def counted(result):
    """How many operations of all kinds ended with each code."""
    codes = Counter()
    for (_, code), count in result.measurements.returns.items():
        codes[code] += count
    return codes


def test_shares_add_up_and_a_load_inserts_every_record_once():
    loads = split(Share("memory:", "load", SETTINGS), 3)
    numbers = [n for s in loads for n in range(s.settings.insertstart, s.settings.insertstart + s.settings.insertcount)]
    assert numbers == list(range(25))
    runs = split(Share("memory:", "run", YcsbSettings(**{**_fields(SETTINGS), "target": 300.0, "seed": 5})), 3)
    assert [share.settings.operationcount for share in runs] == [34, 33, 33]
    assert [share.settings.target for share in runs] == [100] * 3
    assert len({share.settings.seed for share in runs}) == 3
    assert len(split(Share("memory:", "load", SETTINGS), 100)) == 25


def _fields(settings):
    return {name: getattr(settings, name) for name in ("recordcount", "operationcount", "fieldlength")}


def test_what_clients_measured_is_merged_exactly():
    times = np.random.default_rng(14).integers(1, 10**9, (3, 1000))
    whole, results = Measurements(), []
    whole.add("READ", times.ravel(), 3000)
    for number, part in enumerate(times):
        measurements = Measurements()
        measurements.add("READ", part, 1000)
        measurements.keeper = Metrics(saves=number)
        measurements.keeper.store.record(0.001)
        if number == 1:
            measurements.count_return("READ", "ERROR")
            measurements.first_error = Unavailable("gone")
        results.append(
            RunResult("run", 1.0 + number, 1000, pickle.loads(pickle.dumps(measurements)), "", ("note",), 100.0)
        )
    merged = merge(results)
    assert pickle.dumps(merged.measurements.totals()["READ"]) == pickle.dumps(whole.totals()["READ"])
    assert (merged.operations, merged.seconds, merged.remarks) == (3000, 3.0, ("note",))
    assert (merged.target, merged.notes) == (300, ("note",))
    assert str(merged.measurements.first_error) == "gone"
    assert merged.measurements.returns == {("READ", "OK"): 3000, ("READ", "ERROR"): 1}
    assert (merged.measurements.keeper.saves, merged.measurements.keeper.store.count) == (3, 3)


@pytest.mark.parametrize("driver", ("sync", "async"))
def test_processes_load_and_run_one_store_together(tmp_path, driver):
    url = f"file://{tmp_path}/store"
    settings = YcsbSettings(**_fields(SETTINGS), driver=driver, keeper_overflow="block")
    assert counted(run_in_processes(Share(url, "load", settings), 2)) == {"OK": 25}
    with open(url) as store:
        assert len(set(store.keys("usertable"))) == 25
    result = run_in_processes(Share(url, "run", settings), 2)
    assert counted(result) == {"OK": 100}
    assert result.operations == 100


def test_a_target_that_all_clients_together_missed_is_said_once():
    results = [
        RunResult("run", 1.0, 90, Measurements(), target=100.0),
        RunResult("run", 1.0, 70, Measurements(), target=100.0),
    ]
    assert merge(results).notes == ("the target of 200 operations a second was not kept: 160.0 were reached",)


def test_closing_the_store_is_measured_and_what_was_measured_outlives_its_failure(monkeypatch):
    class Stuck(MemoryBackend):
        def close(self):
            if self._open:
                super().close()
                raise Unavailable("the last flush failed")

    done = Share("memory:", "load", SETTINGS).run()
    assert done.measurements.totals()["CLEANUP"].count == 1
    assert not any(name == "CLEANUP" for name, _ in done.measurements.returns)
    monkeypatch.setattr(clients, "open_store", lambda url: Stuck())
    failed = Share("memory:", "load", SETTINGS).run()
    assert counted(failed) == {"OK": 25, "ERROR": 1}
    assert failed.partial == "the store could not be closed"
    assert str(failed.measurements.first_error) == "the last flush failed"


def test_a_store_of_one_process_is_refused():
    with pytest.raises(BadUrl, match="seen in the process only"):
        run_in_processes(Share("memory:", "run", SETTINGS), 2)


@pytest.mark.timeout(900)  # a busy machine takes minutes to start a JVM and its workers
@pytest.mark.parametrize(
    "clients", (("--processes", "2"), ("--spark", "local[2]", "--clients", "2")), ids=("processes", "Spark")
)
def test_ctrl_c_ends_the_clients_and_keeps_what_they_measured(tmp_path, clients):
    command = [sys.executable, "-m", "safekeeper.cli", "bench", "load", f"file://{tmp_path}/store", *clients]
    process = subprocess.Popen(
        [*command, "-p", "recordcount=10000000", "-p", "fieldlength=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to every process of the terminal
    )
    try:
        while len(list(tmp_path.glob("store/usertable/*"))) < 100:  # both are in the middle of it
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1, err
    assert "PARTIAL RESULTS, interrupted after" in err
    assert re.search(r"\[INSERT\], Return=OK, [1-9]", out)


@pytest.mark.timeout(900)  # a busy machine takes minutes to start a JVM and its workers
def test_executors_of_spark_run_on_one_store_together(tmp_path):
    url = f"file://{tmp_path}/store"
    Share(url, "load", SETTINGS).run()
    given = [f"-pupdateproportion={SETTINGS.updateproportion}", f"-preadproportion={SETTINGS.readproportion}"]
    given += [f"-p{name}={value}" for name, value in _fields(SETTINGS).items()]
    command = [sys.executable, "-m", "safekeeper.cli", "bench", "run", url, "--spark", "local[2]", "--clients", "2"]
    result = subprocess.run([*command, *given], capture_output=True, text=True)  # a process has one JVM, for good
    assert result.returncode == 0, result.stderr
    returned = re.findall(r"\[(\w+)\], Return=(\w+), (\d+)", result.stdout)
    assert {code for _, code, _ in returned} == {"OK"}
    assert sum(int(count) for name, _, count in returned if name != "SYNC") == 100
