"""Several stores, one workload, turn by turn: so that what else the machine does hits all of them alike.

Every round runs every store with every number of threads once. What is shown is the median of the rounds with the
smallest and the largest, and percentiles over all rounds together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from stat import S_ISREG

from safekeeper.backend import Backend, SupportsStats, Survives
from safekeeper.bench.harness.interleave import Spread, interleave
from safekeeper.bench.ycsb.keeper_session import SESSIONS
from safekeeper.bench.ycsb.measurements import Latencies
from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings
from safekeeper.bench.ycsb.recover import Recovery, measure
from safekeeper.bench.ycsb.runner import INTERRUPTED, Runner, RunResult
from safekeeper.bench.ycsb.stores import Baseline, open_store
from safekeeper.bench.ycsb.workload import Workload
from safekeeper.errors import BadUrl, SafekeeperError
from safekeeper.url import Url, show_url

OPERATIONS = ("READ", "UPDATE", "INSERT", "SCAN")
"""What counts as an operation of its own; a read-modify-write is a read and an update."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. Latencies are those of all operations together, in nanoseconds."""

    url: str
    threads: int
    round: int
    throughput: float
    mean: float
    p50: int
    p95: int
    p99: int
    errors: int
    """Operations that failed."""


@dataclass(slots=True)
class Point:
    """All rounds of one store with one number of threads."""

    url: str
    threads: int
    samples: list[Sample] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)

    @property
    def throughput(self) -> Spread:
        """Operations a second."""
        return Spread.of([sample.throughput for sample in self.samples])

    @property
    def mean(self) -> Spread:
        """The mean latency."""
        return Spread.of([sample.mean for sample in self.samples])

    @property
    def errors(self) -> int:
        """Failed operations of all rounds."""
        return sum(sample.errors for sample in self.samples)


@dataclass(slots=True)
class Comparison:
    """What `compare` found. A store that failed is in `failed` with the reason, and has only the rounds before that."""

    workload: str
    settings: YcsbSettings
    points: list[Point]
    partial: str = ""
    """Why it ended early; empty if it did not."""
    failed: dict[str, str] = field(default_factory=dict)
    recoveries: dict[str, list[Recovery]] = field(default_factory=dict)
    bytes_on_disk: dict[str, int] = field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        """The stores, in the order in which they were given."""
        return list(dict.fromkeys(point.url for point in self.points))

    def of(self, url: str) -> list[Point]:
        """The points of one store that have a sample."""
        return [point for point in self.points if point.url == url and point.samples]


def compare(
    urls: Sequence[str],
    settings: YcsbSettings,
    *,
    workload: str = "",
    threads: Sequence[int] = (1,),
    rounds: int = 5,
    recover: Sequence[int] = (),
    said: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Load every store, run the rounds, then measure recovery at each number of ids in *recover*.

    A store that fails does not stop the others. Ctrl-C ends it; what was measured is kept. *said* gets lines that tell
    how far it has come.
    """
    given = {show_url(url): url for url in urls}  # by what may be shown: passwords have no place in a report
    if len(given) < len(urls):
        raise BadUrl("a store is given twice: compare different ones")
    found = Comparison(workload, settings, [Point(shown, count) for count in threads for shown in given])
    stores: dict[str, Backend] = {}
    try:
        with ExitStack() as opened:
            for shown, url in given.items():
                stores[shown] = open_store(url)
                opened.callback(_leave, found, shown, stores[shown])
            for shown in given:
                said(f"loading {shown}")
                _keep(found, shown, _runner(settings, stores[shown]).load)
            arms = {f"{p.url}, threads {p.threads}": partial(_run, found, p, stores[p.url], said) for p in found.points}
            interleave(arms, rounds, workload, warm_up=False)
        for shown, url in given.items() if recover else ():
            if _can_recover(stores[shown]) and shown not in found.failed:
                said(f"recovering {shown}")
                with _noting_failures(found, shown):
                    for one in measure(url, recover):
                        found.recoveries.setdefault(shown, []).append(one)
    except KeyboardInterrupt:
        found.partial = INTERRUPTED
    return found


def _leave(found: Comparison, url: str, store: Backend) -> None:
    """Note what a store occupies, and close it."""
    with _noting_failures(found, url):
        if (size := stored_bytes(url, store)) is not None:
            found.bytes_on_disk[url] = size
    with _noting_failures(found, url):
        store.close()


@contextmanager
def _noting_failures(found: Comparison, url: str) -> Iterator[None]:
    """Keep why a store failed. What is wrong with the properties is wrong for all stores, and raised."""
    try:
        yield
    except BadProperty:
        raise
    except SafekeeperError as error:
        found.failed.setdefault(url, str(error))


def _can_recover(store: Backend) -> bool:
    return Survives.PROCESS in store.survives and not isinstance(store, Baseline)


def _runner(settings: YcsbSettings, store: Backend) -> Runner:
    return Runner(Workload(settings), store, open_sessions=SESSIONS[settings.driver])


def _run(found: Comparison, point: Point, store: Backend, said: Callable[[str], object]) -> float:
    """One round of one point. Return its throughput, 0 if the store has failed."""
    settings = dataclasses.replace(found.settings, threadcount=point.threads)
    said(f"round {len(point.samples) + 1}: {point.url}, threads {point.threads}")
    result = _keep(found, point.url, _runner(settings, store).run)
    if result is None:
        return 0.0
    latencies = all_operations(result)
    point.latencies.add(latencies)
    point.samples.append(
        Sample(
            url=point.url,
            threads=point.threads,
            round=len(point.samples),
            throughput=result.throughput,
            mean=latencies.mean,
            p50=latencies.percentile(50),
            p95=latencies.percentile(95),
            p99=latencies.percentile(99),
            errors=errors_of(result),
        )
    )
    return result.throughput


def _keep(found: Comparison, url: str, run: Callable[[], RunResult]) -> RunResult | None:
    """The whole result of *run*, or None, with the reason kept, if the store of *url* has failed now or before."""
    result = None
    if url not in found.failed:
        with _noting_failures(found, url):
            result = run()
    if result is None:
        return None
    if result.partial == INTERRUPTED:
        raise KeyboardInterrupt
    if result.partial:
        found.failed[url] = f"{result.partial}: {result.measurements.first_error}"
        return None
    return result


def all_operations(result: RunResult) -> Latencies:
    """The latencies of all operations that succeeded, together."""
    together = Latencies()
    for name, latencies in result.measurements.totals().items():
        if name in OPERATIONS:
            together.add(latencies)
    return together


def errors_of(result: RunResult) -> int:
    """How many operations failed; a save that a newer one took the place of did not."""
    counts = result.measurements.returns.items()
    return sum(count for (_, code), count in counts if code not in ("OK", "SUPERSEDED"))


def stored_bytes(url: str, store: Backend) -> int | None:
    """What a store occupies: its files' blocks, or what it says itself; None if neither can be told."""
    if (path := local_folder(url)) is not None and path.is_dir():
        return sum(map(_blocks, path.rglob("*"))) * 512
    return store.stats().bytes_stored if isinstance(store, SupportsStats) else None


def local_folder(url: str) -> Path | None:
    """Where a store has its files; None if it is not of this machine's disks."""
    parsed = Url.parse(url)
    return Path(parsed.path) if parsed.host is None and parsed.path.startswith("/") else None


def _blocks(path: Path) -> int:
    """Of 512 bytes; 0 for a folder, and for a file that the store has just removed."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return found.st_blocks if S_ISREG(found.st_mode) else 0
