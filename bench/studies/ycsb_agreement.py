"""Whether our benchmark does what YCSB does: both on one Redis, their operations and keys compared by chi-square.

    python -m safekeeper.bench.studies.ycsb_agreement [--quick]

YCSB's own client, 0.17.0 from Maven Central, and `safekeeper bench` run the same workloads against one server. One
parser reads both outputs; the mix of operations is compared by the numbers in them. Which records the operations go to
is seen by the server itself (Redis' MONITOR), which knows nothing of either; records count by how many are newer, since
inserts shift what `latest` chooses, and of a read-modify-write only the read counts. Two samples of one distribution
differ as much as these with the probability p; a p below one in ten thousand counts as a difference. To show that the
method can tell, each distribution of keys is compared with another one, too, and has to differ.
"""

from __future__ import annotations

import argparse
import math
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.laboratory import needs_laboratory
from safekeeper.bench.ycsb.exporters import ExportRow, read_rows
from safekeeper.bench.ycsb.generators import fnv64_of
from safekeeper.bench.ycsb.properties import load_file
from safekeeper.bench.ycsb.runner import Phase
from safekeeper.dev.redis import RedisServer

SIGNIFICANT = 1e-4
"""A difference that chance makes less often than this is one."""
RECORDS = 1000
LEAST_EXPECTED = 5.0
"""Rarer things are counted together, as chi-square wants it."""
READ_MODIFY_WRITE = "READ-MODIFY-WRITE"
WORKLOADS: dict[str, dict[str, str]] = {
    "workloada, zipfian": load_file("workloada"),
    "workloadb, uniform": load_file("workloadb") | {"requestdistribution": "uniform"},
    "workloadc, hotspot": load_file("workloadc") | {"requestdistribution": "hotspot"},
    "workloadd, latest": load_file("workloadd"),
    "workloadf, exponential": load_file("workloadf") | {"requestdistribution": "exponential"},
}

_KEY = re.compile(rb"user\d+")
_WRITE = re.compile(rb'\] "(SET|EVALSHA|MULTI|EXEC)"')


@dataclass(frozen=True, slots=True)
class Observed:
    """What one benchmark did in a run."""

    rows: list[ExportRow]
    """What it printed."""
    ages: Counter[int]
    """How often the server was asked for a record than which so many were newer."""

    @property
    def operations(self) -> Counter[str]:
        """How many there were of each kind, by what it printed. It counts a read-modify-write also as a read and an
        update: here it is one thing."""
        counts = Counter({row.metric: int(row.value) for row in self.rows if row.measurement == "Operations"})
        both = counts[READ_MODIFY_WRITE]
        return Counter(
            {
                "READ": counts["READ"] - both,
                "UPDATE": counts["UPDATE"] - both,
                "INSERT": counts["INSERT"],
                READ_MODIFY_WRITE: both,
            }
        )


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """A chi-square test of whether two samples are of one distribution."""

    statistic: float
    freedom: int

    @classmethod
    def of(cls, one: Mapping[Any, int], other: Mapping[Any, int]) -> ChiSquare:
        """Compare two samples, given as counts. What is rare in both together is counted as one thing."""
        sizes = sum(one.values()), sum(other.values())
        share = min(sizes) / sum(sizes)
        pooled: Counter[Any] = Counter(one)
        pooled.update(other)
        pooled = +pooled  # what neither has is no bin
        bins: Counter[Any] = Counter()
        pairs: dict[Any, list[int]] = {}
        for name, count in pooled.items():
            bin = name if count * share >= LEAST_EXPECTED else None
            bins[bin] += count
            pair = pairs.setdefault(bin, [0, 0])
            pair[0] += one.get(name, 0)
            pair[1] += other.get(name, 0)
        statistic = 0.0
        for bin, count in bins.items():
            for size, seen in zip(sizes, pairs[bin], strict=True):
                expected = count * size / sum(sizes)
                statistic += (seen - expected) ** 2 / expected
        return cls(statistic, len(bins) - 1)

    @property
    def p(self) -> float:
        """How probable so much difference is by chance (Wilson and Hilferty's approximation)."""
        if not self.freedom:
            return 1.0
        scale = 2 / (9 * self.freedom)
        z = ((self.statistic / self.freedom) ** (1 / 3) - (1 - scale)) / math.sqrt(scale)
        return math.erfc(z / math.sqrt(2)) / 2

    def __str__(self) -> str:
        return f"chi2 {self.statistic:.1f}, {self.freedom} degrees of freedom, p {self.p:.2g}"


class Ages:
    """Counts the records that operations go to, as the server sees them."""

    def __init__(self, records: int, operations: int, only_reads: bool) -> None:
        self.counts: Counter[int] = Counter()
        self._numbers: dict[bytes, int] = {}
        self._newest = records - 1
        self._only_reads = only_reads
        for number in range(records + operations // 10):  # of workload d every twentieth inserts one
            self._numbers[b"user%d" % fnv64_of(number)] = number

    def see(self, line: bytes) -> None:
        """A line of MONITOR. A script's own commands are not a client's; an operation names its record once."""
        if b" lua] " in line or not (found := _KEY.search(line)):
            return
        number = self._numbers[found[0]]
        if number > self._newest:  # an insert, which chooses nothing
            self._newest = number
        elif not self._only_reads or not _WRITE.search(line):
            self.counts[self._newest - number] += 1


@contextmanager
def seen_by_server(server: RedisServer, ages: Ages) -> Iterator[None]:
    """Show *ages* what clients ask *server* for, until the block ends."""
    with server.client() as client, socket.create_connection(("127.0.0.1", server.port)) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        lines = monitor.makefile("rb")
        lines.readline()

        def read() -> None:
            for line in lines:
                if b'"ECHO" "done"' in line:
                    return
                ages.see(line)

        reading = Thread(target=read, daemon=True)
        reading.start()
        yield
        client.echo("done")
        reading.join()
        lines.close()


def by_ours(server: RedisServer, phase: Phase, properties: Mapping[str, str]) -> str:
    """What `safekeeper bench` prints."""
    words = [word for name, value in properties.items() for word in ("-p", f"{name}={value}")]
    command = [sys.executable, "-m", "safekeeper.cli", "bench", phase, server.url, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"safekeeper bench ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def observe(operations: int) -> dict[str, dict[str, Observed]]:
    """What YCSB and we did, for each workload."""
    with needs_laboratory():
        from safekeeper.bench.lab.ycsb_core import YcsbCore
    found: dict[str, dict[str, Observed]] = {}
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server, YcsbCore() as ycsb:
        benches: dict[str, Callable[[Phase, Mapping[str, str]], str]] = {
            "YCSB": lambda phase, given: ycsb.run(phase, server.port, given),
            "safekeeper": lambda phase, given: by_ours(server, phase, given),
        }
        for workload, properties in WORKLOADS.items():
            small = {"recordcount": str(RECORDS), "operationcount": str(operations)}
            given = properties | small | {"fieldcount": "1", "fieldlength": "10", "writeallfields": "true"}
            found[workload] = {}
            for name, bench in benches.items():
                with server.client() as client:
                    client.flushall()
                bench("load", given)
                ages = Ages(RECORDS, operations, only_reads="readmodifywriteproportion" in properties)
                with seen_by_server(server, ages):
                    text = bench("run", given)
                found[workload][name] = Observed(list(read_rows(text)), ages.counts)
    return found


def compare(found: Mapping[str, Mapping[str, Observed]]) -> Iterator[Goal]:
    """Whether both agree in every workload; and whether different workloads are told apart."""
    goals: list[Goal] = []
    for workload, both in found.items():
        ycsb, ours = both["YCSB"], both["safekeeper"]
        total = {name: sum(one.operations.values()) for name, one in both.items()}
        print(f"{workload}: {total['YCSB']:,} operations by YCSB, {total['safekeeper']:,} by safekeeper")
        for what, one, other in (
            ("the mix of operations", ycsb.operations, ours.operations),
            ("the records they go to", ycsb.ages, ours.ages),
        ):
            test = ChiSquare.of(one, other)
            goals.append(Goal(f"{workload}: {what} agree: {test}", bool(one) and test.p >= SIGNIFICANT))
    names = list(found)
    for name, another in zip(names, [*names[1:], names[0]], strict=True):
        test = ChiSquare.of(found[name]["YCSB"].ages, found[another]["safekeeper"].ages)
        goals.append(Goal(f"YCSB's {name} differs from our {another}: {test}", test.p < SIGNIFICANT))
    yield from goals


def main() -> None:
    """Run the study as the command line says."""
    parser = argparse.ArgumentParser(description="Whether our benchmark does what YCSB does.")
    parser.add_argument("--quick", action="store_true", help="fewer operations")
    given = parser.parse_args()
    goals = list(compare(observe(5_000 if given.quick else 100_000)))
    for goal in goals:
        print(goal)
    if not all(goal.met for goal in goals):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
