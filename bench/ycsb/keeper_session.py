"""Sessions that save through a SafeKeeper: the same workloads, asynchronously.

A write's latency ends when its ticket completes, as in the measuring tool of the S4 thesis. Saves that a newer one took
the place of are counted as `Return=SUPERSEDED` and those that a full queue refused or dropped as `Return=DROPPED`, both
timed apart: neither was stored. What the keeper measures itself stands beside: queue waits, serializing, storing,
syncing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns as now

from safekeeper.backend import Backend, CheckpointId, Receipt
from safekeeper.bench.ycsb.measurements import Measurements, Recorder
from safekeeper.bench.ycsb.properties import SessionKind
from safekeeper.bench.ycsb.session import OpenSessions, Session, Timer, direct_sessions
from safekeeper.bench.ycsb.workload import Source, Workload
from safekeeper.errors import QueueFull, SafekeeperError
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.ticket import Ticket


class KeeperSession(Session):
    """Saves and fetches through a keeper that all threads share."""

    def __init__(self, keeper: SafeKeeper, workload: Workload, source: Source, recorder: Recorder) -> None:
        super().__init__(keeper.backend, workload, source, recorder)
        self._keeper = keeper
        self._last_failure: SafekeeperError | None = None

    def finish(self) -> None:
        """Wait until everything saved has completed."""
        self._keeper.flush()

    def _fetch(self, id: CheckpointId) -> bytes | None:
        value: bytes | None = self._keeper.fetch(id)
        return value

    def _write(self, timer: Timer, id: CheckpointId, value: bytes, read_at: int = 0) -> None:
        start, intended = now(), self.intended

        def completed(ticket: Ticket) -> None:
            outcome = ticket.outcome()
            if isinstance(outcome, QueueFull):
                timer.fail("DROPPED", start, now(), intended, kind="DROPPED")
            elif outcome is self._last_failure:  # of a batch: that is one failure of the store, whatever was in it
                timer.fail("ERROR", start, now(), intended, outcome)
            elif not isinstance(outcome, Receipt):
                self._last_failure = outcome
                self._fail(timer, start, intended, outcome)
            elif ticket.superseded:
                timer.fail("SUPERSEDED", start, now(), intended, kind="SUPERSEDED")
            else:
                self._written(timer, start, read_at, intended)

        self._keeper.save(id, value, callback=completed)


@contextmanager
def keeper_sessions(
    backend: Backend, workload: Workload, sources: list[Source], measurements: Measurements
) -> Iterator[list[Session]]:
    """A session for each of *sources*, on one keeper in front of *backend*."""
    settings = workload.settings
    bounds = Bounds(count=settings.keeper_queue)
    with SafeKeeper(
        backend,
        serializer=settings.keeper_serializer,
        overflow=settings.keeper_overflow,
        serialization_queue=bounds,
        storage_queue=bounds,
        storage_workers=settings.keeper_storageworkers,
    ) as keeper:
        sessions = [KeeperSession(keeper, workload, source, Recorder(measurements)) for source in sources]
        yield list(sessions)
    for session in sessions:  # a flush waits for completions; the last callbacks come a moment later
        session.recorder.fold()
    measurements.keeper = keeper.metrics()


SESSIONS: dict[SessionKind, OpenSessions] = {"sync": direct_sessions, "async": keeper_sessions}
"""What the property `driver` chooses between."""
