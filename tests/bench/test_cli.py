import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from typer import Exit

from safekeeper.bench import cli
from safekeeper.bench.ycsb import recover
from safekeeper.bench.ycsb.recover import Recovery
from safekeeper.dev.redis import RedisServer
from safekeeper.errors import Unavailable

COMMAND = (sys.executable, "-m", "safekeeper.cli", "bench")


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"


def bench(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)


def answer(*arguments):
    done = bench(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_workload_is_loaded_and_run_from_the_command_line(url):
    small = ("-P", "workloada", "-p", "recordcount=20", "-p", "operationcount=50", "-p", "fieldlength=10")
    loaded = answer("load", url, *small)
    assert "[INSERT], Return=OK, 20\n" in loaded
    ran = answer("run", url, *small, "--threads", "2")
    counts = [int(count) for count in re.findall(r"Return=OK, (\d+)", ran)]
    assert sum(counts) == 50
    assert "FAILED" not in ran


def test_a_property_on_the_command_line_wins_and_a_misspelt_one_is_noticed(url):
    done = bench("load", url, "-p", "recordcount=3", "-P", "workloada", "-p", "feildlength=5")
    assert "Return=OK, 3\n" in done.stdout
    assert "feildlength means nothing here (did you mean fieldlength?)" in done.stderr


def test_results_go_to_the_file_in_the_format_that_was_asked_for(url, tmp_path):
    file = tmp_path / "out.json"
    exporter = "exporter=site.ycsb.measurements.exporter.JSONArrayMeasurementsExporter"
    assert answer("load", url, "-p", "recordcount=3", "-p", exporter, "-p", f"exportfile={file}") == ""
    assert {"metric": "INSERT", "measurement": "Return=OK", "value": 3} in json.loads(file.read_text())


def test_the_percentiles_of_every_interval_go_to_files(url, tmp_path):
    small = ("-p", "recordcount=300", "-p", "target=300", "-p", "fieldlength=1", "-p", "status.interval=0.2")
    files = ("-p", "hdrhistogram.fileoutput=true", "-p", f"hdrhistogram.output.path={tmp_path}/load-")
    answer("load", url, *small, *files, "--intervals", tmp_path / "i.csv")
    header, *lines = csv.reader((tmp_path / "i.csv").read_text().splitlines())
    assert header[:5] == ["from(s)", "to(s)", "operation", "count", "throughput(ops/sec)"]
    assert header[5:] == [f"{n}(us)" for n in ("min", "mean", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max")]
    rows = [dict(zip(header, line, strict=True)) for line in lines if line[2] == "INSERT"]
    assert len(rows) > 1
    assert sum(int(row["count"]) for row in rows) == 300
    for row in rows:
        percentiles = [float(row[name]) for name in ("min(us)", *header[7:])]
        assert percentiles == sorted(percentiles)
    assert (tmp_path / "load-INSERT.hgrm").read_text().split()[0] == "Value"
    log, total = HistogramLogReader(f"{tmp_path}/load-INSERT.hdr", HdrHistogram(1, 3600 * 10**6, 3)), 0
    while (interval := log.get_next_interval_histogram()) is not None:
        total += interval.get_total_count()
    log.close()
    assert total == 300


def test_intervals_as_json_have_the_same_names(url, tmp_path):
    answer("load", url, "-p", "recordcount=3", "--intervals", tmp_path / "i.json")
    lines = map(json.loads, (tmp_path / "i.json").read_text().splitlines())
    (inserts,) = (line for line in lines if line["operation"] == "INSERT")
    assert inserts["count"] == 3
    assert inserts["p99(us)"] > 0


def test_every_operation_goes_to_the_raw_file(url, tmp_path):
    raw = ("-p", "measurementtype=raw", "-p", f"measurement.raw.output_file={tmp_path}/raw")
    assert "[INSERT], Total Operations, 3\n" in answer("load", url, "-p", "recordcount=3", *raw)
    lines = (tmp_path / "raw").read_text().splitlines()
    assert "INSERT latency raw data: op, timestamp(ms), latency(us)" in lines
    assert sum(bool(re.fullmatch(r"INSERT,\d{13},\d+", line)) for line in lines) == 3


def test_a_terminal_sees_how_a_load_gets_on(url):
    ours, theirs = pty.openpty()
    slow = ("-p", "recordcount=100", "-p", "target=60", "-p", "fieldlength=1")
    with subprocess.Popen([*COMMAND, "load", url, *slow], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # what reading says when the other side is closed
            while part := os.read(ours, 1000):
                shown += part
    os.close(ours)
    assert process.returncode == 0
    assert re.search(rb"load: \d+ of 100, \d+%, \d+ operations/s, \d+ seconds? left", shown)
    assert re.search(rb"left\r\x1b\[K(safekeeper: |$)", shown)  # the line is gone


@pytest.mark.parametrize(
    ("arguments", "says"),
    (
        (("load", "memory:", "-p", "measurementtype=hdr"), "measurementtype=hdr: it is one of hdrhistogram, histogram"),
        (("load", "memory:", "--intervals", "i.txt"), "--intervals i.txt: give it a name that ends with .csv or .json"),
        (("load", "memory:", "--intervals", "i.csv", "--processes", "2"), "--intervals takes the intervals of one"),
        (("load", "memory:", "--intervals", "/no/such/i.csv"), "/no/such/i.csv: No such file or directory"),
        (("run", "memory:", "-p", "requestdistribution=zipf"), "requestdistribution=zipf: it is one of uniform"),
        (("load", "memory:"), "recordcount=0: say how many"),
        (("load", "memory:", "-P", "nosuch"), "nosuch: No such file or directory; bundled are"),
        (("load", "memory:", "-p", "recordcount=1", "-p", "backend.sync=none"), "memory: has no option 'sync'"),
        (("load", "nosuch:x", "-p", "recordcount=1"), "no backend for nosuch:"),
        (
            ("load", "memory:", "-p", "recordcount=1", "-p", "exportfile=/no/such/dir/f"),
            "/no/such/dir/f: No such file or directory",
        ),
        (("compare", "memory:", "--html", "/no/such/dir/f"), "/no/such/dir/f: there is no folder /no/such/dir"),
        (("all", "--output", "/no/such/dir/f"), "/no/such/dir/f: there is no folder /no/such/dir"),
        (("load", "memory:", "-p", "keeper.serializer=json"), "it is one of msgpack, raw, pickle"),
    ),
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(arguments, says):
    done = bench(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_keeps_what_was_measured_and_marks_it_as_partial():
    endless = ("-p", "recordcount=100000000", "-p", "fieldlength=1", "-s", "-p", "status.interval=0.2")
    process = subprocess.Popen(
        [*COMMAND, "load", "memory:", *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        first = process.stderr.readline()
        assert re.match(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3} \d+ sec: \d+ operations; [\d.]+ current ops/sec; ", first
        )
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert "PARTIAL RESULTS, interrupted after" in err
    assert "[OVERALL], Complete, 0\n" in out
    assert re.search(r"\[INSERT\], Return=OK, [1-9]", out)


def test_a_server_that_is_killed_half_way_leaves_partial_results_and_the_reason(tmp_path):
    with RedisServer(tmp_path, save="") as server:
        endless = ("-p", "recordcount=100000000", "-p", "fieldlength=1", "-s", "-p", "status.interval=0.2")
        command = [*COMMAND, "load", server.url, *endless]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert " operations; " in process.stderr.readline()
            server.kill()
            out, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "safekeeper: the store failed, first with: 127.0.0.1:" in err
    assert re.search(r"PARTIAL RESULTS, the store failed \d+ times in a row after", err)
    assert "[OVERALL], Complete, 0\n" in out
    assert re.search(r"\[INSERT\], Return=OK, [1-9]", out)
    assert re.search(r"\[INSERT\], Return=ERROR, [1-9]", out)


def test_stores_are_compared_and_the_results_written_as_asked(url, tmp_path):
    files = [f"--{kind}={tmp_path}/out.{kind}" for kind in ("csv", "json", "html")]
    small = ("-P", "s4thesis", "-p", "recordcount=10", "-p", "operationcount=20", "--threads", "1,2", "--repeat", "2")
    table = answer("compare", url, f"raw://{tmp_path}/raw", *small, *files)
    assert [line.split()[0] for line in table.splitlines()[1:]] == [url, f"raw://{tmp_path}/raw"] * 2
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 2 * 2 * 2
    assert len(json.loads((tmp_path / "out.json").read_text())["points"]) == 4
    assert "<h1>s4thesis on 2 stores</h1>" in (tmp_path / "out.html").read_text()


def test_recovery_is_measured_at_the_numbers_of_ids_that_were_asked_for(url):
    found = json.loads(answer("recover", url, "--ids", "3,6", "--json"))
    assert [one["ids"] for one in found] == [3, 6]


def test_a_store_without_records_is_not_compared_but_said():
    done = bench("compare", "memory:")
    assert done.returncode == 2
    assert "recordcount=0: say how many records to load" in done.stderr


@pytest.mark.parametrize("error", (Unavailable("the disk is full"), KeyboardInterrupt()), ids=("failure", "Ctrl-C"))
def test_what_was_recovered_before_a_failure_is_kept_and_marked_as_partial(error, url, monkeypatch, capsys):
    def measure(*_, **__):
        yield Recovery(5, 0.1, 1, 0.1, 0.1, 1)
        raise error

    monkeypatch.setattr(recover, "measure", measure)
    with pytest.raises(Exit) as end:
        cli.recover(url, as_json=True)
    assert end.value.exit_code == 1
    printed = capsys.readouterr()
    assert [one["ids"] for one in json.loads(printed.out)] == [5]
    assert f"PARTIAL RESULTS, after 5 ids: {str(error) or 'interrupted'}\n" in printed.err


@pytest.mark.parametrize("command", (("recover", "file:///x", "--ids"), ("compare", "memory:", "--threads")))
def test_a_list_of_numbers_is_checked(command):
    done = bench(*command, "1,two")
    assert done.returncode == 2
    assert f"{command[-1]} 1,two: it takes whole numbers with commas" in done.stderr


def test_no_report_and_no_message_shows_a_password(tmp_path):
    url = "memory://me:QUIET@h/x"
    reports = {kind: tmp_path / kind for kind in ("csv", "json", "html")}
    files = [part for kind, path in reports.items() for part in (f"--{kind}", path)]
    small = ("-p", "recordcount=3", "-p", "operationcount=3", "--threads", "1", "--repeat", "1")
    done = bench("compare", url, "memory:", *small, *files)
    shown = [done.stdout, done.stderr, *(path.read_text() for path in reports.values())]
    assert all("me:***@h" in text for text in shown)
    failed = [bench("recover", url), bench("load", url, "-p", "recordcount=3", "--processes", "2")]
    assert all(done.returncode == 2 and "me:***@h" in done.stderr for done in failed)
    assert "QUIET" not in "".join([*shown, *(done.stderr for done in failed)])
