"""The benchmark of state stores: what it counts, what it compares, and that it runs."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace

import pyarrow.parquet as pq
import pytest

from safekeeper.bench.harness.goals import Goal, goals_in
from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.harness.run_all import studies
from safekeeper.bench.studies.spark.__main__ import Bench, chosen, plan
from safekeeper.bench.studies.spark.footprint import Watch, data_size
from safekeeper.bench.studies.spark.report import Results, goals, left_out, tables, to_html
from safekeeper.bench.studies.spark.run import BatchCost, Measured
from safekeeper.bench.studies.spark.workloads import (
    LARGE,
    LARGE_QUICK,
    QUICK,
    SPECIAL,
    WORKLOADS,
    SizedQuery,
    write_inputs,
)


def measured(trigger=100, commits=(10, 12, 30), restart=1000.0, files=1):
    return Measured(
        batches=[BatchCost(trigger, 50, commit, files) for commit in commits],
        restart_ms=restart,
        jvm_bytes=10**9,
        agent_bytes=10**7,
        files=files,
        bytes=10**6,
        own_files=6,
        own_bytes=900,
        disk_bytes=10**7,
    )


def table_of(workload, folder):
    return [pq.read_table(path).to_pydict() for path in write_inputs(workload, folder)]


# --- what streams in


def test_an_aggregation_first_meets_every_key_once_then_as_many_as_said(tmp_path):
    workload = QUICK["aggregation"]
    batches = [batch["key"] for batch in table_of(workload, tmp_path)]
    assert Counter(key for batch in batches[: workload.fills] for key in batch) == Counter(range(workload.keys))
    for batch in batches[workload.fills :]:
        assert len(batch) == len(set(batch)) == workload.rows
        assert set(batch) <= set(range(workload.keys))
    assert len(batches) == workload.fills + workload.warm_ups + workload.batches + 1  # one for the restart


def test_half_of_what_a_deduplication_meets_is_new(tmp_path):
    workload = QUICK["deduplication"]
    last = table_of(workload, tmp_path)[-1]["key"]
    assert sum(key >= workload.keys for key in last) == pytest.approx(workload.rows / 2, rel=0.1)


def test_every_row_of_a_join_finds_its_partner_while_it_waits(tmp_path):
    workload = QUICK["join"]
    waiting, found = {}, []
    for number, batch in enumerate(table_of(workload, tmp_path)):
        rows = list(zip(batch["key"], batch["side"], strict=True))
        waiting |= {key: number for key, side in rows if side == 0}
        found.append([number - waiting[key] for key, side in rows if side == 1])
    wait = 2 * workload.keys // workload.rows
    assert {batches for late in found[wait:] for batches in late} == {wait // 2}


def test_the_input_is_the_same_in_every_run(tmp_path):
    assert table_of(QUICK["join"], tmp_path / "a") == table_of(QUICK["join"], tmp_path / "b")


def test_states_beyond_the_heap_run_only_where_they_are_asked_for():
    assert not set(LARGE) & set(WORKLOADS)
    assert all(int(workload.heap.removesuffix("g")) * 10**7 <= workload.keys for workload in LARGE.values())


# --- what is counted


def test_files_that_were_made_replaced_or_appended_to_are_counted_and_no_others(tmp_path):
    same, appended, changed, replaced, filled, gone = (
        tmp_path / name for name in ("same", "appended", "changed", "replaced", "filled", "gone")
    )
    for path in (same, appended, changed, replaced, gone):
        path.write_bytes(b"12")
    filled.write_bytes(b"12" + bytes(1 << 21))
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    watch = Watch([tmp_path, tmp_path / "nothing"])
    with appended.open("ab") as file:
        file.write(b"3")
    for path, place in ((changed, 0), (filled, 2)):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"345")
    with changed.open("r+b") as file:
        file.truncate(2)
    (tmp_path / "hidden").write_bytes(b"1234")
    os.rename(tmp_path / "hidden", replaced)
    gone.unlink()
    (tmp_path / "below").mkdir()
    new = tmp_path / "below" / "new"
    new.touch()
    assert watch.look() == {appended: 1, filled: 3, replaced: 4, new: 0}
    assert watch.look() == {}


@pytest.mark.parametrize("room", (0, 1, 1 << 20, (3 << 20) + 5))
@pytest.mark.parametrize("data", (b"", b"a", b"a\0b" * 1000, b"x" * (1 << 20)), ids=len)
def test_room_made_ahead_is_no_data(data, room, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(data + bytes(room))
    assert data_size(path) == len(data)


# --- what is compared


def test_every_arm_has_its_turn_in_each_round_and_another_is_the_first():
    turns = list(plan([QUICK["join"]], ["floor", "safekeeper"], 2))
    assert [arm for _, arm, _ in turns] == ["floor", "safekeeper", "safekeeper", "floor"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match="no workload 'nope', only aggregation-1M"):
        chosen("join,nope", list(WORKLOADS), "workload")


def results(**triggers):
    """Results of 1M keys: a list of triggers a round for each arm."""
    turns = {arm: {n: measured(trigger) for n, trigger in enumerate(found)} for arm, found in triggers.items()}
    return Results(WORKLOADS["aggregation-1M"], turns)


def test_a_goal_is_judged_by_the_median_of_the_rounds_each_against_its_own_peers():
    found = results(floor=[100, 200, 300], safekeeper=[110, 220, 900], tuned=[220, 200, 1800])
    assert list(goals(found))[:2] == [
        Goal("aggregation-1M, trigger: 1.10 (1.10-3.00) of floor, wanted 1.15 at most", True),
        Goal("aggregation-1M, trigger: 0.50 (0.50-1.10) of tuned, wanted 0.5 at most", True),
    ]


def test_a_goal_takes_the_best_of_its_peers_and_is_silent_without_them():
    found = results(safekeeper=[100])
    assert list(goals(found)) == []
    found.turns["hdfs"] = {0: measured(restart=3000.0)}
    found.turns["rocksdb"] = {0: measured(restart=1800.0)}
    found.turns["changelog"] = {0: measured(restart=9000.0)}
    (restart,) = [goal for goal in goals(found) if "restart" in goal.text]
    assert not restart.met
    assert "0.56" in restart.text


def test_goals_for_workloads_that_did_not_run_are_named_as_such():
    assert list(left_out(WORKLOADS)) == []
    missing = list(left_out(set(WORKLOADS) - {"partitions-200", "aggregation-5M"}))
    assert Goal("aggregation-5M, RSS: wanted 1 at most of rocksdb", None) in missing
    assert missing[-1] == Goal("partitions-200, a batch: wanted 1 at most", None)
    assert not any("1M" in goal.text for goal in missing)


def test_the_page_has_a_plot_of_batches_and_one_of_commits_for_each_workload():
    html = to_html([results(floor=[1], safekeeper=[2]), results(safekeeper=[3])], Machine.here())
    assert html.count("<svg") == 4
    assert html.count("<circle") == 2 * 3 * 3
    assert not re.search(r"https?:|src=|<script", html)


def test_memory_that_no_file_is_behind_is_compared_with_all_that_rocksdb_has_resident():
    found = results(safekeeper=[100], rocksdb=[100])
    found.turns["safekeeper"][0] = replace(measured(), anonymous_bytes=505 * 10**6)
    text = "aggregation-1M, anon: 0.50 (0.50-0.50) of rocksdb's RSS, wanted 1 at most"
    assert Goal(text, True) in list(goals(found))


def test_the_page_has_the_restart_by_size_and_the_latency_of_batches_by_the_clock():
    large = Results(WORKLOADS["aggregation-5M"], {"safekeeper": {0: measured(restart=5000.0)}})
    slow = Results(SPECIAL["slow-store"], {"safekeeper": {0: measured()}})
    html = to_html([results(safekeeper=[1]), large, slow], Machine.here())
    assert html.count("<svg") == 3 * 2 + 1 + 1
    assert "Restart by the number of keys" in html
    assert "Latency over time" in html


def test_what_runs_only_by_name_has_a_small_form_of_the_same_name():
    assert set(LARGE_QUICK) == set(LARGE | SPECIAL)
    for name, large in (LARGE | SPECIAL).items():
        assert LARGE_QUICK[name].kind == large.kind
        assert bool(LARGE_QUICK[name].slow_ms) == bool(large.slow_ms)
        assert bool(LARGE_QUICK[name].memory_mb) == bool(large.memory_mb)
    assert not set(SPECIAL) & set(WORKLOADS)


def test_a_workload_comes_back_from_json():
    slow = SPECIAL["slow-store"]
    assert SizedQuery.of(json.loads(json.dumps(asdict(slow)))) == slow


def test_the_tables_name_every_arm_that_ran():
    numbers, shares = tables(results(floor=[1], safekeeper=[2]))
    assert list(numbers.columns[0].cells) == ["floor", "safekeeper"]
    assert list(shares.columns[0].cells) == ["floor"]


# --- that it runs


def test_it_is_part_of_all_benchmarks():
    assert "spark" in {study.name for study in studies()}


@pytest.mark.timeout(900)  # a busy machine takes minutes to start a JVM
def test_a_turn_is_measured_kept_and_not_run_again_and_200_partitions_write_to_one_file(tmp_path):
    runs = tmp_path / "runs.jsonl"
    command = [sys.executable, "-m", "safekeeper.bench.studies.spark", "--quick", "--only", "partitions-200"]
    command += ["--arms", "safekeeper", "--runs", str(runs), "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(goals_in(done.stdout)) == [
        Goal("partitions-200, a batch: 1.00 (1.00-1.00), wanted 1 at most", True),
    ]
    (kept,) = map(json.loads, runs.read_text().splitlines())
    found = Measured.of(kept["measured"])
    assert len(found.batches) == 3
    assert found.bytes > 1000
    assert found.jvm_bytes > found.agent_bytes > 10**7
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]

    Bench(tmp_path, runs).run(QUICK["partitions-200"], "safekeeper", 0)  # it would take a JVM otherwise
    assert len(runs.read_text().splitlines()) == 1
