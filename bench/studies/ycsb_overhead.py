"""How fast the YCSB runner itself is: workloads on `memory:` with one thread.

    python -m safekeeper.bench.studies.ycsb_overhead [--quick]

On a machine with other work the clock on the wall counts that work too; processor time does not. `in the store` is the
share of the time that is spent inside the calls that are measured, the rest is the runner's own.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from rich.console import Console
from rich.table import Table

from safekeeper.backends.memory import MemoryBackend
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.ycsb.compare import all_operations
from safekeeper.bench.ycsb.properties import YcsbSettings, load_file
from safekeeper.bench.ycsb.runner import Runner
from safekeeper.bench.ycsb.workload import Workload

WORKLOADS = ("workloada", "workloadb", "workloadc", "workloadd", "workloadf", "s4thesis")
WANTED = 150_000


def measure(name: str, operations: int) -> tuple[float, float, float]:
    """Operations a second by the wall and by processor time, and the share inside the store."""
    settings = YcsbSettings.of(load_file(name) | {"operationcount": str(operations)})
    with MemoryBackend() as store:
        runner = Runner(Workload(settings), store)
        runner.load()
        before = time.process_time()
        result = runner.run()
        spent = time.process_time() - before
    latencies = all_operations(result)
    return result.throughput, operations / spent, latencies.mean * latencies.count / 1e9 / result.seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast the YCSB runner is on memory:, with one thread.")
    parser.add_argument("--quick", action="store_true", help="fewer operations and rounds")
    quick = parser.parse_args().quick
    rounds, operations = (3, 50_000) if quick else (5, 500_000)
    table = Table("workload", "operations/s", "by processor time", "in the store", box=None, header_style="bold")
    rates: dict[str, tuple[float, float]] = {}
    found = [(name, measure(name, operations)) for _ in range(rounds) for name in WORKLOADS]
    for name in WORKLOADS:
        wall, processor, inside = (median(column) for column in zip(*(m for n, m in found if n == name), strict=True))
        rates[name] = wall, processor
        table.add_row(name, f"{wall:,.0f}", f"{processor:,.0f}", f"{inside:.0%}")
    Console(highlight=False, width=100).print(table)
    wall, processor = rates["workloada"]
    text = f"workload A on memory: with one thread, {WANTED:,} operations/s"
    print(Goal(f"{text} of processor time: {processor:,.0f}", processor >= WANTED))
    print(Goal(f"{text} by the clock, with whatever else the machine did: {wall:,.0f}", wall >= WANTED))


if __name__ == "__main__":
    main()
