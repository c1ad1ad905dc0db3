import csv
import io
import json
from pathlib import Path

import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.ycsb import compare as module
from safekeeper.bench.ycsb.compare import compare, errors_of, local_folder, stored_bytes
from safekeeper.bench.ycsb.measurements import Measurements
from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings
from safekeeper.bench.ycsb.recover import measure
from safekeeper.bench.ycsb.report import to_csv, to_html, to_json
from safekeeper.bench.ycsb.runner import RunResult
from safekeeper.errors import BadUrl, Unavailable

SETTINGS = YcsbSettings(recordcount=20, operationcount=60, fieldlength=5, updateproportion=0.9, readproportion=0.1)


def test_every_store_runs_with_every_number_of_threads_in_every_round_in_changing_order(tmp_path):
    said = []
    urls = [f"file://{tmp_path}/file", f"log://{tmp_path}/log"]
    found = compare(urls, SETTINGS, threads=[1, 3], rounds=2, recover=[4, 8], said=said.append)
    assert [(point.url, point.threads, len(point.samples)) for point in found.points] == [
        (url, threads, 2) for threads in (1, 3) for url in urls
    ]
    assert all(point.latencies.count == 120 and point.errors == 0 for point in found.points)
    rounds = [line.partition(": ")[2] for line in said if line.startswith("round")]
    assert sorted(rounds[:4]) == sorted(rounds[4:])
    assert rounds[:4] != rounds[4:]
    assert {url: [one.ids for one in found.recoveries[url]] for url in urls} == {url: [4, 8] for url in urls}
    assert all(found.bytes_on_disk[url] > 0 for url in urls)


def test_a_store_that_fails_does_not_stop_the_others_and_its_reason_is_kept(tmp_path, monkeypatch):
    class Failing(MemoryBackend):
        writes = 0

        def write(self, batch):
            self.writes += 1
            if self.writes > 60:
                raise Unavailable("the disk is full")
            return super().write(batch)

    opened = module.open_store
    monkeypatch.setattr(module, "open_store", lambda url: Failing() if url == "memory:bad" else opened(url))
    settings = YcsbSettings(recordcount=20, operationcount=400, fieldlength=5, updateproportion=1, readproportion=0)
    found = compare(["memory:bad", "memory:"], settings, rounds=2)
    assert "the disk is full" in found.failed["memory:bad"]
    assert [len(point.samples) for point in found.points] == [0, 2]
    assert "memory:bad failed: " in to_html(found, Machine.here())


def test_ctrl_c_keeps_the_rounds_that_are_done():
    def interrupt_in_round_2(line):
        if line.startswith("round 2"):
            raise KeyboardInterrupt

    found = compare(["memory:"], SETTINGS, rounds=3, said=interrupt_in_round_2)
    assert found.partial == "interrupted"
    assert [len(point.samples) for point in found.points] == [1]
    assert "Partial results: interrupted" in to_html(found, Machine.here())


def test_ctrl_c_or_a_failure_during_recovery_keeps_what_was_measured_before(tmp_path):
    def interrupt(line):
        if line.startswith("recovering"):
            raise KeyboardInterrupt

    url = f"file://{tmp_path}/store"
    found = compare([url], SETTINGS, rounds=2, recover=[3], said=interrupt)
    assert (found.partial, len(found.points[0].samples)) == ("interrupted", 2)
    assert len(list(measure(url, [5]))) == 1
    found = compare([url, "memory:"], SETTINGS, rounds=2, recover=[3])
    assert [len(point.samples) for point in found.points] == [2, 2]
    assert "has 5 ids" in found.failed[url]
    assert not found.partial


def test_a_store_that_is_gone_at_the_end_keeps_its_rounds(monkeypatch):
    class Gone(MemoryBackend):
        def stats(self):
            raise Unavailable("nobody answers")

        def close(self):
            super().close()
            raise Unavailable("nobody listens")

    monkeypatch.setattr(module, "open_store", lambda url: Gone())
    found = compare(["memory:"], SETTINGS, rounds=2)
    assert found.failed == {"memory:": "nobody answers"}
    assert len(found.points[0].samples) == 2


def test_what_is_wrong_with_the_properties_is_raised_not_blamed_on_the_stores():
    with pytest.raises(BadProperty, match="recordcount=0"):
        compare(["memory:"], YcsbSettings(operationcount=5))


def test_a_store_without_a_folder_that_does_not_tell_what_it_occupies_has_no_size():
    assert stored_bytes("memory:", MemoryBackend()) is None


@pytest.mark.parametrize(
    ("url", "folder"), (("log:///var/lib/a?sync=none", Path("/var/lib/a")), ("memory:", None), ("redis://h:1/0", None))
)
def test_a_store_on_a_disk_of_this_machine_has_a_folder(url, folder):
    assert local_folder(url) == folder


def test_a_file_that_is_removed_meanwhile_counts_as_nothing(tmp_path, monkeypatch):
    (tmp_path / "there").write_bytes(bytes(4096))
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: [self / "there", self / "gone", self])
    assert stored_bytes(f"file://{tmp_path}", MemoryBackend()) == (tmp_path / "there").stat().st_blocks * 512


def test_a_superseded_save_is_no_error_but_a_dropped_one_is():
    measurements = Measurements()
    for number, code in enumerate(("OK", "SUPERSEDED", "DROPPED", "ERROR")):
        measurements.count_return("UPDATE", code, 10**number)
    result = RunResult("run", 1.0, 1111, measurements)
    assert errors_of(result) == 1100
    assert result.notes == (
        "110 saves were superseded or dropped: the throughput counts them, though they were not stored",
    )


def test_a_store_is_given_once():
    with pytest.raises(BadUrl, match="given twice"):
        compare(["memory:", "memory:"], SETTINGS)


def test_csv_and_json_hold_every_round():
    found = compare(["memory:"], SETTINGS, threads=[1, 2], rounds=3)
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert [(row["threads"], row["round"]) for row in rows] == [(t, r) for t in "12" for r in "012"]
    data = json.loads(to_json(found, Machine.here()))
    assert [point["threads"] for point in data["points"]] == [1, 2]
    first = data["points"][0]
    assert first["throughput"]["low"] <= first["throughput"]["median"] <= first["throughput"]["high"]
    assert len(first["rounds"]) == 3
    assert data["settings"]["recordcount"] == 20
    assert data["machine"]["versions"]["safekeeper"]
