"""One thread's operations on a store: each is timed around the call to the store, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter_ns as now

from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.bench.ycsb.measurements import Measurements, Recorder
from safekeeper.bench.ycsb.properties import Interval
from safekeeper.bench.ycsb.workload import Source, Workload
from safekeeper.errors import SafekeeperError

GIVE_UP_AFTER = 100
"""After so many failures in a row of one thread the store counts as gone."""

GIVE_UP_AFTER_SECONDS = 30.0
"""Likewise after so long with nothing but failures: a store that is gone may need long for each."""


class Session:
    """Does operations straight on a backend and waits for each.

    A failure of the store is recorded as `Return=ERROR` and does not end the session; too many call `give_up`.
    """

    def __init__(self, backend: Backend, workload: Workload, source: Source, recorder: Recorder) -> None:
        self._backend = backend
        self._workload = workload
        self._source = source
        self.recorder = recorder
        self.intended = 0
        """When the operation was meant to start; 0 if it was not meant to start at any moment."""
        self.give_up: Callable[[str], object] = lambda reason: None
        """Called with the reason when the store counts as gone."""
        self._failures = 0  # since the last operation that did not fail
        self._failing_since = 0
        settings = workload.settings
        self._scans = settings.scanproportion > 0
        self._check = settings.dataintegrity
        interval = settings.measurement_interval
        self._reads = Timer(recorder, "READ", interval)
        self._updates = Timer(recorder, "UPDATE", interval)
        self._inserts = Timer(recorder, "INSERT", interval)
        self._scanned = Timer(recorder, "SCAN", interval)
        self._read_modify_writes = Timer(recorder, "READ-MODIFY-WRITE", interval, counts_as_ok=False)
        self._syncs = recorder.list_of("SYNC", counts_as_ok=False)
        self._actions = (self.read, self.update, self.insert, self.scan, self.read_modify_write)

    def prepare_run(self) -> None:
        """Prepare what takes time or is shared, before the threads start and the clock runs."""
        self._pick = self._source.pick
        self._kinds = self._source.kinds
        if self._scans:
            _ = self._workload.scan_order

    def run_one(self) -> None:
        """Do the next operation of a run."""
        self._actions[next(self._kinds)]()

    def load_one(self) -> None:
        """Write the next record of a load."""
        id = self._workload.ids[next(self._workload.to_load)]
        self._write(self._inserts, id, self._source.values.make(id))

    def read(self) -> None:
        """Read one record."""
        self._read(self._workload.ids[self._pick()])

    def update(self) -> None:
        """Write a new value for a record that is there."""
        id = self._workload.ids[self._pick()]
        self._write(self._updates, id, self._source.values.make(id))

    def insert(self) -> None:
        """Add a record."""
        number = self._workload.inserted.next()
        id = self._workload.ids[number]
        self._write(self._inserts, id, self._source.values.make(id))
        if self._scans:
            self._workload.scan_order.add(id)
        self._workload.inserted.acknowledge(number)

    def scan(self) -> None:
        """Read some records that follow each other in the order of their keys."""
        first = self._workload.ids[self._pick()]
        ids = self._workload.scan_order.after(first, next(self._source.scan_lengths))
        start = now()
        try:
            self._backend.read(ids)
        except SafekeeperError as error:
            self._fail(self._scanned, start, self.intended, error)
            return
        self._scanned.record(start, now(), self.intended)
        self._failures = 0

    def read_modify_write(self) -> None:
        """Read a record and write it anew."""
        id = self._workload.ids[self._pick()]
        value = self._source.values.make(id)
        start = now()
        self._read(id)
        self._write(self._updates, id, value, start)

    def finish(self) -> None:
        """Wait for what is still under way."""

    def _read(self, id: CheckpointId) -> None:
        start = now()
        try:
            value = self._fetch(id)
        except SafekeeperError as error:
            self._fail(self._reads, start, self.intended, error)
            return
        end = now()
        self._failures = 0
        if value is None:
            self._reads.fail("NOT_FOUND", start, end, self.intended)
            if self._check:
                self.recorder.failed("VERIFY", "ERROR", 0)
            return
        self._reads.record(start, end, self.intended)
        if self._check:
            self._verify(id, value)

    def _fetch(self, id: CheckpointId) -> bytes | None:
        return self._backend.read((id,))[0]

    def _verify(self, id: CheckpointId, value: bytes) -> None:
        start = now()
        right = value == self._source.values.expected(id)
        if right:
            self.recorder.list_of("VERIFY").append(now() - start)
        else:
            self.recorder.failed("VERIFY", "UNEXPECTED_STATE", now() - start)

    def _write(self, timer: Timer, id: CheckpointId, value: bytes, read_at: int = 0) -> None:
        """Write *value*. It ends a read-modify-write if that began with a read at *read_at*."""
        batch = Batch()
        batch.put(id, value)
        start = now()
        try:
            receipt = self._backend.write(batch)
        except SafekeeperError as error:
            self._fail(timer, start, self.intended, error)
            return
        self._written(timer, start, read_at, self.intended)
        if receipt.sync_seconds:
            self._syncs.append(int(receipt.sync_seconds * 1e9))

    def _written(self, timer: Timer, start: int, read_at: int, intended: int) -> None:
        end = now()
        timer.record(start, end, intended)
        if read_at:
            self._read_modify_writes.record(read_at, end, intended)
        self._failures = 0

    def _fail(self, timer: Timer, start: int, intended: int, error: SafekeeperError) -> None:
        end = now()
        timer.fail("ERROR", start, end, intended, error)
        if not self._failures:
            self._failing_since = end
        self._failures += 1
        if self._failures >= GIVE_UP_AFTER or end - self._failing_since > GIVE_UP_AFTER_SECONDS * 1e9:
            self.give_up(f"the store failed {self._failures} times in a row")


OpenSessions = Callable[[Backend, Workload, list[Source], Measurements], AbstractContextManager[list[Session]]]
"""Makes a session for each thread of a run, and ends what they share when it is over."""


@contextmanager
def direct_sessions(
    backend: Backend, workload: Workload, sources: list[Source], measurements: Measurements
) -> Iterator[list[Session]]:
    """A session on *backend* itself for each of *sources*."""
    yield [Session(backend, workload, source, Recorder(measurements)) for source in sources]


class Timer:
    """Records the latencies of one kind of operation as `measurement.interval` asks."""

    def __init__(self, recorder: Recorder, name: str, interval: Interval, *, counts_as_ok: bool = True) -> None:
        self._recorder, self._name, self._interval = recorder, name, interval
        measured = recorder.list_of(name, counts_as_ok=counts_as_ok)
        if interval == "op":
            self.record: Callable[[int, int, int], None] = lambda start, end, intended: measured.append(end - start)
        elif interval == "intended":
            self.record = lambda start, end, intended: measured.append(end - (intended or start))
        else:
            meant = recorder.list_of(f"Intended-{name}", counts_as_ok=False)

            def record_both(start: int, end: int, intended: int) -> None:
                measured.append(end - start)
                meant.append(end - (intended or start))

            self.record = record_both

    def fail(
        self,
        code: str,
        start: int,
        end: int,
        intended: int,
        error: SafekeeperError | None = None,
        *,
        kind: str = "FAILED",
    ) -> None:
        """Record an operation that did not succeed, as YCSB does: its time apart, its code among the returns."""
        meant = end - (intended or start)
        took = meant if self._interval == "intended" else end - start
        self._recorder.failed(self._name, code, took, error, kind=kind)
        if self._interval == "both":
            self._recorder.list_of(f"Intended-{self._name}-{kind}", counts_as_ok=False).append(meant)
