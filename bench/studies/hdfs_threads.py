"""How fast one client writes to HDFS and reads from it, by the number of its threads: SGuard's Table 8.

    python -m safekeeper.bench.studies.hdfs_threads [--quick] [--rounds 5]

A batch of values of 16 MiB, a chunk each, through `hdfs:` with `sync=hsync` and `workers=` 1 to 16, on one replica and
on three, and read again; in each round all numbers of threads have their turn, in rotated order. A cluster of three
DataNodes is started for it on loopback: its disk and processors are shared by everybody, so what is shown is how far
threads help, not what a network of a gigabit would carry.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Measure, interleave, report
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode

THREADS = (1, 2, 4, 8, 16)
VALUE_BYTES = 16 << 20
PAPER = {"write": (64, 91, 102, 104, 105), "read": (61, 56, 95, 105, 110)}
"""MB/s on a wire of a gigabit, for as many threads."""
ALIKE = 1.25
"""What differs by less is called alike: two digits of another machine are no more exact."""


def writing(store: Backend, batch: Batch) -> Measure:
    """MB/s of a batch, all of it durable."""

    def run() -> float:
        started = time.perf_counter()
        store.write(batch)
        return batch.nbytes / (time.perf_counter() - started) / 1e6

    return run


def reading(store: Backend, batch: Batch) -> Measure:
    """MB/s of what was written, all of it checked."""
    ids = [id for id, _ in batch.items()]

    def run() -> float:
        started = time.perf_counter()
        values = store.read(ids)
        seconds = time.perf_counter() - started
        assert all(values)
        return batch.nbytes / seconds / 1e6

    return run


def beside_the_paper(kind: str, ours: dict[int, float]) -> Iterator[str]:
    """Each number of threads beside one thread, ours and the paper's; where they differ by a quarter, that is said."""
    for count, rate in zip(THREADS, PAPER[kind], strict=True):
        paper, found = rate / PAPER[kind][0], ours[count]
        agrees = 1 / ALIKE <= found / paper <= ALIKE
        verdict = "agrees with" if agrees else "gains more than" if found > paper else "gains less than"
        yield f"Table 8, {kind}, {count} threads beside one: {found:.2f}, the paper {paper:.2f}: {verdict} the paper"


def compare(cluster: HdfsCluster, replicas: int, given: argparse.Namespace) -> None:
    """Write and read with each number of threads."""
    data = random.Random(0).randbytes(VALUE_BYTES)  # noqa: S311
    batch = Batch({CheckpointId("bench", b"%d" % n): data for n in range(given.values)})
    with ExitStack() as stack:
        stores = {
            count: stack.enter_context(
                safekeeper.open(f"{cluster.url}-{replicas}-{count}?replication={replicas}&workers={count}")
            )
            for count in THREADS
        }
        for kind, measure in (("write", writing), ("read", reading)):
            arms = {f"{count} threads": measure(store, batch) for count, store in stores.items()}
            title = f"{kind}, {given.values} values of 16 MiB, {replicas} replica{'s' if replicas > 1 else ''}"
            result = interleave(arms, given.rounds, title, "MB/s")
            report([result], "1 threads")
            ratio = result.ratio("8 threads", "1 threads")
            print(Goal(f"hdfs, {title}: 8 threads are not slower than one: {ratio}", ratio.median >= 1.0))
            for line in beside_the_paper(kind, {n: result.ratio(f"{n} threads", "1 threads").median for n in THREADS}):
                print(line)


def main() -> None:
    """Run the study as the command line says."""
    parser = argparse.ArgumentParser(description="A client of HDFS by the number of its threads.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--values", type=int, default=16, help="how many values of 16 MiB a batch has")
    parser.add_argument("--replicas", default="1,3")
    parser.add_argument("--quick", action="store_true", help="one round with few values on one replica")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.values, given.replicas = 1, 8, "1"
    with (
        tempfile.TemporaryDirectory() as scratch,
        HdfsCluster(Path(scratch, "hdfs"), [HdfsNode()] * 3) as cluster,
    ):
        for replicas in map(int, given.replicas.split(",")):
            compare(cluster, replicas, given)


if __name__ == "__main__":
    main()
