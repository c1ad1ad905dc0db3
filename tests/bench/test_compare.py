import csv
import io
import json

import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench import compare as module
from safekeeper.bench.compare import compare
from safekeeper.bench.machine import Machine
from safekeeper.bench.properties import Settings
from safekeeper.bench.report import to_csv, to_html, to_json
from safekeeper.errors import BadUrl, Unavailable

SETTINGS = Settings(recordcount=20, operationcount=60, fieldlength=5, updateproportion=0.9, readproportion=0.1)


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
    settings = Settings(recordcount=20, operationcount=400, fieldlength=5, updateproportion=1, readproportion=0)
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
