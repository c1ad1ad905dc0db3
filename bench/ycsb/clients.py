"""One workload from several clients at once, processes here or executors of Spark: split, run, and merged exactly.

Every client goes over all records with its share of the operations and of the target rate. Histograms are merged, not
averaged; the run time is that of the slowest client. Clients that insert during a run insert the same new records, as
YCSB's do.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from time import perf_counter_ns as now

from safekeeper.backend import Backend, Scope
from safekeeper.bench.ycsb.keeper_session import SESSIONS
from safekeeper.bench.ycsb.measurements import Measurements, Recorder
from safekeeper.bench.ycsb.properties import YcsbSettings
from safekeeper.bench.ycsb.runner import INTERRUPTED, Phase, Runner, RunResult
from safekeeper.bench.ycsb.status import IntervalSink
from safekeeper.bench.ycsb.stores import open_store
from safekeeper.bench.ycsb.workload import Workload
from safekeeper.errors import BadUrl, SafekeeperError, Unavailable
from safekeeper.url import show_url


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What one client does. It can be sent to another process."""

    url: str = dataclasses.field(repr=False)  # it may hold a password
    phase: Phase
    settings: YcsbSettings

    def run(self, *, sinks: Sequence[IntervalSink] = (), stop: Callable[[], bool] = lambda: False) -> RunResult:
        """Open the store, do it and close the store, which is measured as YCSB's `CLEANUP`.

        *sinks* get the intervals. When *stop* says so, it ends early with what it has.
        """
        with open_store(self.url) as store:
            sessions = SESSIONS[self.settings.driver]
            runner = Runner(Workload(self.settings), store, open_sessions=sessions, sinks=sinks, stop=stop)
            result = runner.load() if self.phase == "load" else runner.run()
            return _close(store, result)


def _close(store: Backend, result: RunResult) -> RunResult:
    """Close *store*; *result* with how long that took. What was measured is kept also if it fails."""
    recorder, started, partial = Recorder(result.measurements), now(), result.partial
    try:
        store.close()
    except SafekeeperError as error:
        recorder.failed("CLEANUP", "ERROR", now() - started, error)
        partial = partial or "the store could not be closed"
    else:
        recorder.list_of("CLEANUP", counts_as_ok=False).append(now() - started)
    recorder.fold()
    return dataclasses.replace(result, partial=partial)


def split(share: Share, clients: int) -> list[Share]:
    """*share* as so many shares; fewer if there is not that much to do."""
    settings, phase = share.settings, share.phase
    total = settings.inserts if phase == "load" else settings.operationcount
    clients = max(min(clients, total or clients), 1)
    shares = []
    start = settings.insertstart
    for number in range(clients):
        part = total // clients + (number < total % clients)
        own = dataclasses.replace(
            settings,
            target=settings.target / clients,
            seed=settings.seed + number if settings.seed >= 0 else -1,
            operationcount=settings.operationcount if phase == "load" else part,
            insertstart=start if phase == "load" else settings.insertstart,
            insertcount=part if phase == "load" else settings.insertcount,
        )
        shares.append(dataclasses.replace(share, settings=own))
        start += part
    return shares


def merge(results: Sequence[RunResult]) -> RunResult:
    """What all clients measured, as one result."""
    together = Measurements()
    for result in results:
        together.merge(result.measurements)
    return RunResult(
        results[0].phase,
        max(result.seconds for result in results),
        sum(result.operations for result in results),
        together,
        partial=next((result.partial for result in results if result.partial), ""),
        remarks=next((result.remarks for result in results if result.remarks), ()),
        target=sum(result.target for result in results),
    )


def run_in_processes(share: Share, processes: int) -> RunResult:
    """Run *share* from so many processes of this machine. At Ctrl-C they end and what they measured is kept."""
    require_scope(share.url, Scope.HOST)
    shares = split(share, processes)
    context = multiprocessing.get_context("spawn")  # a forked child would inherit other threads' locks
    gate = context.Barrier(len(shares))
    with _ctrl_c_is_for_the_children(), ProcessPoolExecutor(len(shares), context, _set_gate, (gate,)) as pool:
        try:
            return merge(list(pool.map(_run_together, shares)))
        except BrokenProcessPool as error:
            raise Unavailable("a process was killed, and what it measured is lost with it: run it again") from error


def require_scope(url: str, scope: Scope) -> None:
    """Raise `BadUrl` unless clients in *scope* see each other's writes."""
    with open_store(url) as store:
        if store.scope < scope:
            seen = f"writes are seen in the {store.scope.name.lower()} only"
            raise BadUrl(f"{show_url(url)}: {seen}: run it from one client")


_gate: Barrier | None = None


def _set_gate(gate: Barrier) -> None:
    global _gate
    _gate = gate


def _run_together(share: Share) -> RunResult:
    try:
        if _gate is not None:
            _gate.wait()  # what it takes to start a process is no part of the run
        return share.run()
    except KeyboardInterrupt:  # before or after the part in which the runner keeps what it has
        return RunResult(share.phase, 0.0, 0, Measurements(), INTERRUPTED)


@contextmanager
def _ctrl_c_is_for_the_children() -> Iterator[None]:
    """Every process of a terminal gets Ctrl-C. The children then return partial results, which are waited for here."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
