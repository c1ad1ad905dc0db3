"""The same streaming queries on Spark's state stores, on ours, and on one that stores nothing.

    python -m safekeeper.bench.studies.spark --quick
    python -m safekeeper.bench.studies.spark --only aggregation-1M --rounds 5 --html page.html
    python -m safekeeper.bench.studies.spark --runs runs.jsonl --seconds 240    again, until all turns are there

In each round every arm has one turn, in an order that rotates: a process with a JVM of its own, `local[2]`, its state
on the disk of `--folder`. `safekeeper` keeps it in `log:` with every commit synced. With `--runs` each finished turn is
kept in a file, and only those are run that are not there yet.

Columns, in ms and MB: what a batch took, and its updates and commits as sums over the tasks; restart to the end of the
first batch; the most memory resident until then, of JVM and agent together, what of it no file is behind at the end
(anon), and of the agent alone; files of the state that the measured batches made or appended to, in all and in a batch;
how much was added to them; what the processes sent to disks, shuffles and local files included; and the disk space that
all of it takes. After the restart the state of an aggregation is added up and compared with its input. What Spark
itself writes into a checkpoint is named below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from safekeeper.bench.harness.interleave import rotated
from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.studies.spark.arms import BEFORE, SETTINGS, before_jar, build_floor
from safekeeper.bench.studies.spark.memory_limit import limited
from safekeeper.bench.studies.spark.report import Results, goals, left_out, own_logs, tables, to_html
from safekeeper.bench.studies.spark.run import Measured, SparkTurn
from safekeeper.bench.studies.spark.workloads import (
    LARGE,
    LARGE_QUICK,
    QUICK,
    SPECIAL,
    WORKLOADS,
    SizedQuery,
    write_inputs,
)


class Bench:
    """Runs turns below a folder and remembers what they found, in *runs* if that is a file."""

    def __init__(self, folder: Path, runs: Path | None, before: Path | None = None) -> None:
        self._folder, self._runs = folder, runs
        self._before = before and before_jar(before, folder)
        self._floor: Path | None = None
        self._inputs: dict[str, list[Path]] = {}
        self._found: dict[SizedQuery, Results] = {}
        if runs is not None and runs.exists():
            for line in runs.read_text().splitlines():
                told = json.loads(line)
                self._keep(SizedQuery.of(told["workload"]), told["arm"], told["round"], Measured.of(told["measured"]))

    def of(self, workload: SizedQuery) -> Results:
        """All that is known of a workload."""
        return self._found.setdefault(workload, Results(workload))

    def run(self, workload: SizedQuery, arm: str, number: int) -> None:
        """Give *arm* its turn in round *number*, unless it has had it."""
        if number in self.of(workload).turns.get(arm, {}):
            return
        print(f"{workload.name}, round {number + 1}: {arm}", file=sys.stderr)
        measured = self._measure(workload, arm)
        self._keep(workload, arm, number, measured)
        if self._runs is not None:
            told = {"workload": asdict(workload), "arm": arm, "round": number, "measured": asdict(measured)}
            with self._runs.open("a") as file:
                file.write(json.dumps(told) + "\n")

    def _measure(self, workload: SizedQuery, arm: str) -> Measured:
        self._floor = self._floor or build_floor(self._folder)
        if workload.name not in self._inputs:
            self._inputs[workload.name] = write_inputs(workload, self._folder / "inputs" / workload.name)
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as folder:
            turn = SparkTurn(
                workload,
                arm,
                [str(path) for path in self._inputs[workload.name]],
                folder,
                str(self._floor),
                str(self._before or ""),
            )
            done = _run([sys.executable, "-m", "safekeeper.bench.studies.spark.run"], turn)
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise SystemExit(f"{arm} failed on {workload.name}: {last}") from RuntimeError(done.stderr)
        return Measured.of(json.loads(done.stdout))

    def _keep(self, workload: SizedQuery, arm: str, number: int, measured: Measured) -> None:
        self.of(workload).turns.setdefault(arm, {})[number] = measured


def _run(command: list[str], turn: SparkTurn) -> subprocess.CompletedProcess[str]:
    """One turn, in a cgroup if its workload wants one."""
    with ExitStack() as around:
        if megabytes := turn.workload.memory_mb:
            members = around.enter_context(limited(megabytes))
            command = ["sh", "-c", f'echo 0 > {members} && exec "$0" "$@"', *command]
        return subprocess.run(command, input=json.dumps(asdict(turn)), capture_output=True, text=True)


def plan(workloads: Sequence[SizedQuery], arms: Sequence[str], rounds: int) -> Iterator[tuple[SizedQuery, str, int]]:
    """All turns, round by round."""
    for workload in workloads:
        for number in range(rounds):
            for arm in rotated(list(arms), number):
                yield workload, arm, number


def chosen(text: str, known: Sequence[str], what: str) -> list[str]:
    """The names in a list with commas; all of them if it is empty."""
    names = text.split(",") if text else list(known)
    for name in names:
        if name not in known:
            raise SystemExit(f"there is no {what} {name!r}, only {', '.join(known)}")
    return names


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small state and one round")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAMES",
        help=f"some of {', '.join(WORKLOADS)}, with --quick of {', '.join(QUICK)}; also {', '.join(LARGE | SPECIAL)}",
    )
    parser.add_argument("--arms", default="", metavar="NAMES", help=f"some of {', '.join(SETTINGS)}")
    parser.add_argument(
        "--before", type=Path, help="the jar or the tree of another version of ours, which is an arm then: before"
    )
    parser.add_argument("--rounds", type=int, help="how often each arm has its turn")
    parser.add_argument("--batches", type=int, help="how many batches are measured")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no turn after so long")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--runs", type=Path, help="where finished turns are kept, to go on with the others later")
    parser.add_argument("--html", type=Path, help="where a page with plots goes")
    options = parser.parse_args()
    usual = QUICK if options.quick else WORKLOADS
    known = usual | (LARGE_QUICK if options.quick else LARGE | SPECIAL)
    workloads = [known[name] for name in chosen(options.only, list(known if options.only else usual), "workload")]
    if options.batches:
        workloads = [replace(workload, batches=options.batches) for workload in workloads]
    known_arms = [*SETTINGS, *([BEFORE] if options.before else [])]
    arms = chosen(options.arms, known_arms, "state store")
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), options.runs, options.before)
        for workload, arm, number in plan(workloads, arms, options.rounds or (1 if options.quick else 5)):
            if time.monotonic() < end:
                bench.run(workload, arm, number)
    found = [results for results in map(bench.of, workloads) if results.turns]
    # What is not a terminal has no width; cut cells would be useless.
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140)
    for results in found:
        for table in tables(results):
            console.print(table)
        console.print(own_logs(results))
    for results in found:
        for goal in goals(results):
            print(goal)
    if not options.only:
        for goal in left_out([workload.name for workload in workloads]):
            print(goal)
    if options.html:
        options.html.write_text(to_html(found, Machine.here(options.folder)))


if __name__ == "__main__":
    main()
