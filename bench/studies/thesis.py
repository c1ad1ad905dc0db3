"""The measurements of the S4 thesis again, with its settings, ours beside its figures.

    python -m safekeeper.bench.studies.thesis [--quick] [--only 4.5] [--folder DIR] [--embedded] [--store URL ...]

The thesis' file backends were on NFS with a filer behind it; here they are on a local disk, which is its figure 5.1.
In 4.5 to 4.7 states are saved through a SafeKeeper: by three processes if all the stores can be shared by them, else by
one. For 4.6 a Redis that syncs every write and an HBase are started on this machine; `--store` adds others.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import InitVar, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from safekeeper.backend import Scope
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Spread, interleave
from safekeeper.bench.ycsb.clients import Share, run_in_processes
from safekeeper.bench.ycsb.compare import compare
from safekeeper.bench.ycsb.properties import YcsbSettings, load_file
from safekeeper.bench.ycsb.recover import measure
from safekeeper.bench.ycsb.runner import RunResult
from safekeeper.bench.ycsb.stores import open_store
from safekeeper.dev.process import DevError

PROCESSES = 3
RATE = 400.0
"""Events a second in 4.5, at the most."""

KEEPER = {"driver": "async", "keeper.queue": "1000"}
"""As S4 had it: a thousand saves may wait in each queue."""

_KEPT = 0.9  # of a rate; the end of a short run takes a part of it


@dataclass(frozen=True, slots=True)
class ThesisScale:
    """How much to measure."""

    rounds: int
    threads: tuple[int, ...]
    operations: int
    events: int
    rebuilt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    seconds: float
    """Of each rate in 4.7."""
    small_writes: int
    """In table 5.1 without a sync each; with one it is a hundredth."""


FULL = ThesisScale(
    10, (1, 2, 4, 8, 16, 32), 10_000, 10_000, (1000, 10_000, 100_000, 1_000_000), (1000, 10_000, 100_000), 30, 10**6
)
QUICK = ThesisScale(3, (1, 4, 16), 500, 1_000, (1000, 1_000_000), (1000, 3000), 3, 10**5)


@dataclass(slots=True)
class Finding:
    """What an experiment found."""

    title: str
    thesis: str
    """What the thesis found."""
    table: Table = field(init=False)
    goals: list[Goal] = field(default_factory=list)
    header: InitVar[Sequence[str]] = ()

    def __post_init__(self, header: Sequence[str]) -> None:
        self.table = Table(box=None, header_style="bold")
        for name in header:
            self.table.add_column(name, justify="right")

    remarks: list[str] = field(default_factory=list)

    def expect(self, text: str, found: Spread, wanted: float) -> None:
        """Say whether it is as high as the thesis' *wanted*, or that the rounds do not agree on that."""
        said = f"{text}: {found} x, thesis {wanted:g} x"
        if found.low < wanted <= found.high:
            self.remarks.append(f"no verdict, the rounds disagree: {said}")
        else:
            self.goals.append(Goal(said, found.median >= wanted))

    def print(self) -> None:
        """Print everything."""
        console = Console(highlight=False, width=110)
        console.print(self.title, style="bold")
        console.print(self.table)
        console.print(f"thesis: {self.thesis}")
        for remark in self.remarks:
            print(remark)
        for goal in self.goals:
            print(goal)
        print()


@dataclass(frozen=True, slots=True)
class ThesisSite:
    """Where to measure."""

    folder: Path
    servers: Sequence[str] = ()
    """The URLs of empty stores in servers."""
    missing: Sequence[str] = ()
    """Which servers could not be had, and why."""

    def urls(self, experiment: str) -> list[str]:
        """The stores of one experiment, empty: file first."""
        return [f"{scheme}://{self.folder}/{experiment}-{scheme}" for scheme in ("file", "log")]


def throughput_and_latency(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.1 and 5.1: nine writes to one read of 1 KB, more and more threads."""
    settings = YcsbSettings.of(load_file("s4thesis") | {"operationcount": str(scale.operations)})
    urls = site.urls("4.1")
    found = compare(urls, settings, threads=scale.threads, rounds=scale.rounds)
    finding = Finding(
        "4.1, 5.1  throughput and latency, 90 % writes, 1 KB, 1,000 ids",
        "on NFS file to 700/s, log to 2,100/s at 20 ms; on a local disk file below 500/s, log to 700/s",
        header=("threads", "file, ops/s", "file, ms", "log, ops/s", "log, ms", "log/file"),
    )
    for threads, file, log in zip(scale.threads, found.of(urls[0]), found.of(urls[1]), strict=True):
        rates = file.throughput.median, log.throughput.median
        finding.table.add_row(
            str(threads),
            f"{rates[0]:,.0f}",
            f"{file.mean.median / 1e6:.2f}",
            f"{rates[1]:,.0f}",
            f"{log.mean.median / 1e6:.2f}",
            f"{rates[1] / rates[0]:.1f} x",
        )
    ratios = (a.throughput / b.throughput for a, b in zip(log.samples, file.samples, strict=True))
    finding.expect(f"4.1 log over file with {threads} threads", Spread.of(ratios), 3)
    return finding


def index_rebuild(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.2: opening a log whose writer was killed, against the number of ids."""
    finding = Finding(
        "4.2  opening a log after a kill, entries of some 70 bytes",
        "linear, below 250 ms at one million",
        header=("ids", "open, ms", "memory, MB"),
    )
    for one in measure(site.urls("4.2")[1], scale.rebuilt_ids, value_size=54, end="kill", only_open=True):
        finding.table.add_row(f"{one.ids:,}", f"{one.open_seconds * 1000:.1f}", f"{one.open_bytes / 1e6:.1f}")
    milliseconds = one.open_seconds * 1000
    finding.goals.append(Goal(f"4.2 {one.ids:,} ids below 250 ms: {milliseconds:.0f} ms", milliseconds < 250))
    return finding


def word_count(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.5 and 4.6: one checkpoint an event, at a rate that every store keeps, then lazy reads.

    The thesis took 400/s because that was the most that file took. A store that is given more than it takes builds up a
    queue, and its latency then tells how long the run was, not how fast the store is. So the rate is found first, and
    if a store does not keep it all the same, there is no verdict.
    """
    urls = [*site.urls("4.5"), *site.servers]
    processes = _processes(urls)
    slowest = min(_most_without_drops(url, 1000, scale.seconds, processes) for url in urls)
    target = min(RATE, slowest / 2)
    given = {"operationcount": str(scale.events), "target": str(target), "keeper.overflow": "drop-oldest"}
    writing = YcsbSettings.of(load_file("wordcount") | KEEPER | given)
    reading = dataclasses.replace(
        writing,
        readproportion=1.0,
        updateproportion=0.0,
        target=0.0,
        operationcount=1000,
        requestdistribution="sequential",
    )
    not_kept: set[str] = set()

    def write(url: str) -> float:
        result = _run(Share(url, "run", writing), processes)
        if result.throughput < _KEPT * target or result.measurements.returns["UPDATE", "DROPPED"]:
            not_kept.add(url)
        return 1e9 / result.measurements.totals()["UPDATE"].mean

    def read(url: str) -> float:
        return 1e9 / Share(url, "run", reading).run().measurements.totals()["READ"].mean

    writes = interleave({url: partial(write, url) for url in urls}, scale.rounds, "writes", warm_up=False)
    reads = interleave({url: partial(read, url) for url in urls}, scale.rounds, "reads", warm_up=False)
    finding = Finding(
        f"4.5, 4.6  {scale.events:,} word count events at {target:.0f}/s, then 1,000 lazy reads, {scale.rounds} rounds",
        "at 400/s log writes 4.85 x and reads 3 x as fast as file; Redis and HBase far below both",
        header=("store", "processes", "write, ms (low-high)", "read, ms (low-high)", "kept the rate"),
    )
    for url in urls:
        times = (_milliseconds(result.rate(url)) for result in (writes, reads))
        finding.table.add_row(url.partition(":")[0], str(processes), *times, "no" if url in not_kept else "yes")
    file, log = urls[:2]
    if not_kept & {file, log}:
        finding.remarks.append("4.5 no verdict on writes: a store did not keep the rate, so its latency is its queue's")
    else:
        finding.expect("4.5 log's writes as fast as file's", writes.ratio(log, file), 4.85)
    finding.expect("4.5 log's reads as fast as file's", reads.ratio(log, file), 3)
    found = {url.partition(":")[0]: url for url in site.servers}
    if {"redis", "hbase"} <= found.keys() and not not_kept & set(site.servers):
        finding.expect("4.6 Redis' writes as fast as HBase's", writes.ratio(found["redis"], found["hbase"]), 1)
    finding.remarks += site.missing
    return finding


def throughput_against_ids(site: ThesisSite, scale: ThesisScale) -> Finding:
    """4.7: the most checkpoints a second without a drop, against the number of ids."""
    finding = Finding(
        f"4.7  checkpoints a second without drops, against the number of ids, {scale.rounds} rounds",
        "with three nodes file 400/s falling to 150/s at one million ids, log 1,300/s at any number",
        header=("ids", "processes", "file (low-high)", "log (low-high)"),
    )
    for ids in scale.ids:
        urls = site.urls(f"4.7-{ids}")
        processes = _processes(urls)
        arms = {url: partial(_most_without_drops, url, ids, scale.seconds, processes) for url in urls}
        result = interleave(arms, scale.rounds, "rates", warm_up=False)
        finding.table.add_row(f"{ids:,}", str(processes), *(str(result.rate(url)) for url in urls))
    finding.expect(f"4.7 log over file at {ids:,} ids", result.ratio(urls[1], urls[0]), 1300 / 400)
    finding.remarks.append("a keeper writes all that is queued as one batch: log syncs it once, file once for each id")
    return finding


def _most_without_drops(url: str, ids: int, seconds: float, processes: int) -> float:
    """Checkpoints a second with a queue that makes the caller wait: the most that it takes without dropping any."""
    properties = {"recordcount": str(ids), "target": "0", "operationcount": "0", "requestdistribution": "uniform"}
    properties |= {"maxexecutiontime": str(seconds), "keeper.overflow": "block"}
    settings = YcsbSettings.of(load_file("wordcount") | KEEPER | properties)
    Share(url, "load", dataclasses.replace(settings, maxexecutiontime=0.0)).run()
    return _run(Share(url, "run", settings), processes).throughput


def _milliseconds(rate: Spread) -> str:
    return f"{1000 / rate.median:.2f} ({1000 / rate.high:.2f}-{1000 / rate.low:.2f})"


def small_writes(site: ThesisSite, scale: ThesisScale) -> Finding:
    """Table 5.1, without its contradictions: 10-byte writes into one file, one sync each or one at the end."""
    few = scale.small_writes // 100
    finding = Finding(
        f"table 5.1  seconds for 1,000 writes of 10 bytes ({few:,} with a sync each, {scale.small_writes:,} without)",
        "its numbers contradict each other (a million syncs in 0.035 s), so there is nothing to compare with",
        header=("offsets", "a sync each", "one sync at the end"),
    )
    for order in ("sequential", "random"):
        each = _write_small(site.folder, order, few, sync_each=True)
        once = _write_small(site.folder, order, scale.small_writes, sync_each=False)
        finding.table.add_row(order, f"{each:.4f}", f"{once:.6f}")
    return finding


def _write_small(folder: Path, order: str, count: int, *, sync_each: bool) -> float:
    offsets = [number * 10 for number in range(count)]
    if order == "random":
        Random(0).shuffle(offsets)  # noqa: S311
    fd = os.open(folder / "small", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        started = time.perf_counter()
        for offset in offsets:
            os.pwrite(fd, b"0123456789", offset)
            if sync_each:
                os.fdatasync(fd)
        os.fdatasync(fd)
        return (time.perf_counter() - started) / count * 1000
    finally:
        os.close(fd)


def _processes(urls: Sequence[str]) -> int:
    """From how many processes to measure stores that are compared: the same for all."""
    scopes = []
    for url in urls:
        with open_store(url) as store:
            scopes.append(store.scope)
    return PROCESSES if min(scopes) >= Scope.HOST else 1


def _run(share: Share, processes: int) -> RunResult:
    return run_in_processes(share, processes) if processes > 1 else share.run()


EXPERIMENTS: dict[str, Callable[[ThesisSite, ThesisScale], Finding]] = {
    "4.1": throughput_and_latency,
    "4.2": index_rebuild,
    "4.5": word_count,
    "4.7": throughput_against_ids,
    "5.1": small_writes,
}
"""By the number of the figure or table."""


@contextmanager
def started_servers(folder: Path) -> Iterator[ThesisSite]:
    """A place with Redis and HBase running beside it, or with what is missing for that."""
    starts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "redis": lambda: _dev("redis").RedisServer(folder / "redis", appendonly="yes", appendfsync="always"),
        "hbase": lambda: _dev("hbase").HBaseServer(folder / "hbase"),
    }
    urls, missing = [], []
    with ExitStack() as running:
        for name, start in starts.items():
            try:
                urls.append(running.enter_context(start()).url)
            except (ModuleNotFoundError, DevError) as error:
                missing.append(f"{name} is not measured: {error}")
        yield ThesisSite(folder, urls, missing)


def _dev(name: str) -> Any:
    return import_module(f"safekeeper.dev.{name}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer operations, rounds and ids")
    parser.add_argument("--only", choices=list(EXPERIMENTS), help="one experiment")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--embedded", action="store_true", help="start no servers for 4.6")
    parser.add_argument("--store", action="append", default=[], help="another store for 4.5, empty")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        alone = ThesisSite(Path(folder), options.store)
        for name, experiment in EXPERIMENTS.items():
            if options.only not in (None, name):
                continue
            if name == "4.5" and not options.embedded:
                with started_servers(Path(folder)) as site:
                    experiment(dataclasses.replace(site, servers=[*site.servers, *options.store]), scale).print()
            else:
                experiment(alone, scale).print()


if __name__ == "__main__":
    main()
