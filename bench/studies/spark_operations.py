"""Puts, deletes and evictions of single rows: Spark's own StateStoreBasicOperationsBenchmark, with our provider in it.

    python -m safekeeper.bench.studies.spark_operations [--quick] [--rounds 40] [--processor]

The benchmark is that of Spark 4.2.0's tests, as compiled by Apache: its data, its operations, its RocksDB and
HDFSBacked providers. Changed are two names in its class file: the provider in memory is ours in every second run, and
the cases of a benchmark take turns instead of running one after the other, so that what else the machine does hits all
alike. A turn puts, deletes or scans 10,000 rows; opening and aborting the store, commits and loads are not timed. Its
merges are left out: Spark has them for RocksDB only.
`--processor` compares the time that the thread was on a processor, for a machine that is busy: what RocksDB does in
threads of its own is then not counted against it.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections import defaultdict
from typing import IO

from rich.console import Console
from rich.table import Table

from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.laboratory import needs_laboratory

with needs_laboratory():
    from safekeeper.bench.lab.spark_tests import SparkTests

VERSION = "4.2.0"
OURS, MEMORY, ROCKSDB = "safekeeper", "HDFSBacked", "RocksDB (trackTotalNumberOfRows: false)"
MOST = 0.6
"""Of RocksDB's time for a row."""

_STATE = "org/apache/spark/sql/execution/streaming/state/"
_BENCHMARK = "org/apache/spark/sql/execution/benchmark/StateStoreBasicOperationsBenchmark"
_CLASSES = ["BenchmarkedProvider", "InterleavedBenchmark", "SuiteSettings"]
_IN_TURNS = {"org/apache/spark/benchmark/Benchmark": "io/safekeeper/spark/InterleavedBenchmark"}
_NAMES = {
    OURS: {**_IN_TURNS, f"{_STATE}HDFSBackedStateStoreProvider": "io/safekeeper/spark/BenchmarkedProvider"},
    MEMORY: _IN_TURNS,
}
_KINDS = {"putting": "put", "trying to delete": "delete", "evicting": "evict"}

Times = dict[str, dict[str, list[float]]]
"""Nanoseconds a row, turn by turn, by benchmark and case."""


def short(name: str) -> str:
    """`put, 50 % overwritten` for what Spark calls `putting 10000 rows (5000 rows to overwrite - rate 50)`."""
    kind = next(kind for words, kind in _KINDS.items() if name.startswith(words))
    if kind == "evict":
        return f"evict {int(name.split()[1]) // 100} %"
    rate = re.search(r"rate (\d+)", name)
    assert rate is not None
    return f"{kind}, {rate[1]} % {'absent' if kind == 'delete' else 'overwritten'}"


def read(lines: IO[str], memory: str, processor: bool, times: Times) -> None:
    """Add the turns that a run printed; *memory* is what its provider in memory was."""
    for line in lines:
        if line.startswith("turn\t"):
            _, name, case, rows, wall, used = line.rstrip("\n").split("\t")
            case = memory if case == "In-memory" else case
            times[short(name)][case].append(int(used if processor else wall) / int(rows))


def measure(rounds: int, warm_ups: int, runs: int, processor: bool) -> tuple[Times, Times]:
    """The turns of the runs with our provider, and of those with HDFSBacked."""
    found: dict[str, Times] = {arm: defaultdict(lambda: defaultdict(list)) for arm in _NAMES}
    with SparkTests(VERSION) as tests:
        tests.compile(_CLASSES)
        for _ in range(runs):
            for arm, names in _NAMES.items():
                tests.rename(f"{_BENCHMARK}$", names)
                with tempfile.TemporaryFile("w+") as out:
                    properties = {"safekeeper_rounds": str(rounds), "safekeeper_warmups": str(warm_ups)}
                    failed = tests.run(_BENCHMARK.replace("/", "."), out=out, **properties)
                    out.seek(0)
                    if failed:
                        raise SystemExit(f"Spark's benchmark failed: {out.read()[-2000:]}")
                    read(out, arm, processor, found[arm])
    return found[OURS], found[MEMORY]


def ratio(times: Times, name: str, case: str) -> list[float]:
    """How a case compares with RocksDB, turn by turn."""
    return [one / other for one, other in zip(times[name][case], times[name][ROCKSDB], strict=True)]


def table(ours: Times, memory: Times) -> Table:
    """What a row took, and compared with RocksDB in the same run."""
    shown = Table(title="nanoseconds a row, median; in brackets of RocksDB's without counting, quartiles")
    counting = ROCKSDB.replace("false", "true")
    for heading in ("", OURS, MEMORY, "RocksDB", "RocksDB, counting"):
        shown.add_column(heading)
    for name in ours:
        cells = []
        for times, case in ((ours, OURS), (memory, MEMORY), (ours, ROCKSDB), (ours, counting)):
            if not times[name].get(case):
                cells.append("-")
                continue
            low, middle, high = statistics.quantiles(ratio(times, name, case), n=4)
            compared = "" if case == ROCKSDB else f" ({middle:.2f}, {low:.2f}-{high:.2f})"
            cells.append(f"{statistics.median(times[name][case]):.0f}{compared}")
        shown.add_row(name, *cells)
    return shown


def goals(ours: Times) -> list[Goal]:
    """One for each kind of operation: its worst benchmark counts."""
    made = []
    for kind in ("put", "delete", "evict"):
        medians = {name: statistics.median(ratio(ours, name, OURS)) for name in ours if name.startswith(kind)}
        worst = max(medians, key=lambda name: medians[name])
        text = f"Spark's own benchmark, {kind} a row: at most {MOST} of RocksDB's time"
        made.append(Goal(f"{text}; worst {medians[worst]:.2f} ({worst})", medians[worst] <= MOST))
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns, for a look")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each case in a run")
    parser.add_argument("--warm-ups", type=int, default=20, help="turns that are not counted")
    parser.add_argument("--runs", type=int, default=1, help="JVMs for each arm")
    parser.add_argument("--processor", action="store_true", help="compare processor time")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.warm_ups = 10, 5
    ours, memory = measure(given.rounds, given.warm_ups, given.runs, given.processor)
    Console(width=130).print(table(ours, memory))
    for goal in goals(ours):
        print(goal)


if __name__ == "__main__":
    main()
