"""Runs a workload against a store: threads, target rate, warm-up, time limit, intervals.

    result = Runner(workload, backend).run()

Ctrl-C and a store that fails again and again end a run early; what was measured until then is kept, and the result says
that it is partial.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter_ns as now
from typing import Literal

import numpy as np

from safekeeper.backend import Backend
from safekeeper.bench.ycsb.measurements import Measurements, Recorder
from safekeeper.bench.ycsb.properties import BadProperty
from safekeeper.bench.ycsb.session import OpenSessions, Session, direct_sessions
from safekeeper.bench.ycsb.status import IntervalSink, RunWatch
from safekeeper.bench.ycsb.workload import Source, Workload

Phase = Literal["load", "run"]

INTERRUPTED = "interrupted"
"""Why a result is partial after Ctrl-C."""

_LOOK_EVERY = 32  # operations between two looks at whether latencies should be folded
_KEPT = 0.98  # of the target rate, to call it kept


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run or load measured."""

    phase: Phase
    seconds: float
    operations: int
    measurements: Measurements
    partial: str = ""
    """Why it was ended before it was done; empty if it was not."""
    remarks: tuple[str, ...] = ()
    """How the operations differ from YCSB's."""
    target: float = 0.0
    """The operations a second that were asked for; 0 for as many as possible."""

    @property
    def throughput(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds if self.seconds else 0.0

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the numbers must know."""
        return (*self.remarks, *self._caveats())

    def _caveats(self) -> Iterator[str]:
        if not self.partial and self.throughput < self.target * _KEPT:
            yield f"the target of {self.target:g} operations a second was not kept: {self.throughput:.1f} were reached"
        counts = self.measurements.returns
        if absent := counts["READ", "NOT_FOUND"]:
            yield f"{absent} reads found no record: load the workload first, with the same properties"
        if lost := sum(count for (_, code), count in counts.items() if code in ("SUPERSEDED", "DROPPED")):
            yield f"{lost} saves were superseded or dropped: the throughput counts them, though they were not stored"


@dataclass(slots=True)
class _Control:
    """What the threads of a run have in common."""

    stopped: bool = False
    """Looked at after each operation."""
    partial: str = ""
    recorders: list[Recorder] = field(default_factory=list)
    wake: SimpleQueue[None] = field(default_factory=SimpleQueue)
    """Gets an entry from each thread when it ends, for whoever waits."""

    def stop(self, partial: str = "") -> None:
        if not self.stopped:
            self.partial = partial
        self.stopped = True

    @property
    def operations(self) -> int:
        return sum(recorder.operations for recorder in self.recorders)


class Runner:
    """Runs one workload against one backend: `load` first, then `run`."""

    def __init__(
        self,
        workload: Workload,
        backend: Backend,
        *,
        open_sessions: OpenSessions = direct_sessions,
        sinks: Sequence[IntervalSink] = (),
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """*sinks* get what was measured in each interval of the run, not of its warm-up."""
        self._workload = workload
        self._settings = workload.settings
        self._backend = backend
        self._open_sessions = open_sessions
        self._sinks = sinks
        self._stop = stop

    def load(self) -> RunResult:
        """Insert the records."""
        if not self._settings.inserts:
            raise BadProperty("recordcount=0: say how many records to load, -p recordcount=1000")
        return self._do("load", self._settings.inserts, self._settings.maxexecutiontime)

    def run(self) -> RunResult:
        """Do the operations, after the warm-up if there is one."""
        settings = self._settings
        if not settings.operationcount and not settings.maxexecutiontime:
            raise BadProperty("operationcount=0 and maxexecutiontime=0: say how many operations, or for how long")
        if settings.warmup:
            warm = self._do("run", 0, settings.warmup, sinks=())
            if warm.partial:
                return warm
        return self._do("run", settings.operationcount, settings.maxexecutiontime)

    def _do(
        self, phase: Phase, operations: int, seconds: float, sinks: Sequence[IntervalSink] | None = None
    ) -> RunResult:
        measurements, control = Measurements(self._settings), _Control()
        watch = RunWatch(
            measurements, operations, self._settings.status_interval, self._sinks if sinks is None else sinks
        )
        with self._open_sessions(self._backend, self._workload, self._sources(), measurements) as sessions:
            control.recorders = [session.recorder for session in sessions]
            took = self._run_threads(phase, sessions, operations, seconds, control, watch)
        remarks = tuple(self._remarks()) if phase == "run" else ()
        return RunResult(phase, took, control.operations, measurements, control.partial, remarks, self._settings.target)

    def _run_threads(
        self,
        phase: Phase,
        sessions: list[Session],
        operations: int,
        seconds: float,
        control: _Control,
        watch: RunWatch,
    ) -> float:
        """Run a thread for each session until all are done. Return how many seconds that took."""
        if phase == "run":
            for session in sessions:
                session.prepare_run()
        workers = [
            _Worker(session, session.load_one if phase == "load" else session.run_one, share, self._tick, control)
            for session, share in zip(sessions, self._shares(operations), strict=True)
        ]
        watch.start()
        started = time.monotonic()
        for worker in workers:
            worker.start()
        self._watch(workers, control, started + seconds if seconds else math.inf, watch)
        took = time.monotonic() - started
        watch.finish(control.operations)
        for worker in workers:
            if worker.crash is not None:
                raise worker.crash
        return took

    def _sources(self) -> list[Source]:
        seed = None if self._settings.seed < 0 else self._settings.seed
        children = np.random.SeedSequence(seed).spawn(self._settings.threadcount)
        return [Source(self._workload, np.random.default_rng(child)) for child in children]

    def _shares(self, operations: int) -> list[int]:
        """How many operations each thread does; without a number, until it is stopped."""
        threads = self._settings.threadcount
        if not operations:
            return [sys.maxsize] * threads
        return [operations // threads + (n < operations % threads) for n in range(threads)]

    @property
    def _tick(self) -> int:
        """The nanoseconds from one operation of a thread to its next at the target rate, 0 if there is none."""
        settings = self._settings
        return int(1e9 * settings.threadcount / settings.target) if settings.target else 0

    def _watch(self, workers: list[_Worker], control: _Control, until: float, watch: RunWatch) -> None:
        """Wait for the workers; stop them when the time is up, when told to, or at the first Ctrl-C."""
        while not all(worker.ended for worker in workers):
            try:
                # Not `join`: in Python 3.11, a thread whose join was interrupted counts as ended.
                with suppress(Empty):
                    control.wake.get(timeout=min(0.1, max(until - time.monotonic(), 0.001)))
                watch.look(control.operations)
            except KeyboardInterrupt:
                if control.stopped:
                    raise
                control.stop(INTERRUPTED)
            if time.monotonic() >= until:
                control.stop()
            elif self._stop():
                control.stop(INTERRUPTED)

    def _remarks(self) -> Iterator[str]:
        settings = self._settings
        if settings.scanproportion:
            yield "a scan reads the next records of a key list that the runner keeps: stores have no ordered scan"
        if settings.updateproportion or settings.readmodifywriteproportion:
            yield "an update writes the whole record: stores have no fields"


class _Worker(Thread):
    """One thread of a run. It does *share* operations, one every *tick* nanoseconds if that is not 0."""

    def __init__(
        self, session: Session, operation: Callable[[], None], share: int, tick: int, control: _Control
    ) -> None:
        super().__init__(daemon=True)  # a thread that hangs in a store must not keep the process
        self._session = session
        self._operation = operation
        self._share = share
        self._tick = tick
        self._control = control
        session.give_up = control.stop
        self.crash: BaseException | None = None
        self.ended = False
        """Whether it has done its last."""

    def run(self) -> None:
        """Do the operations; keep what a mistake in a backend or here raises for the runner."""
        try:
            (self._run_paced if self._tick else self._run_freely)()
            self._session.finish()
        except BaseException as error:
            self.crash = error
            self._control.stop("a thread crashed")
        self._session.recorder.fold()
        self.ended = True
        self._control.wake.put(None)

    def _run_freely(self) -> None:
        control, operation, recorder = self._control, self._operation, self._session.recorder
        for done in range(1, self._share + 1):
            operation()
            recorder.operations = done
            if control.stopped:
                return
            if not done % _LOOK_EVERY:
                recorder.fold_if_due()

    def _run_paced(self) -> None:
        control, recorder, session = self._control, self._session.recorder, self._session
        # Threads that started together would otherwise hit the store together, at every tick.
        start = now() + int(self._tick * random.random())  # noqa: S311
        for done in range(self._share):
            session.intended = start + done * self._tick
            while (ahead := session.intended - now()) > 0 and not control.stopped:
                time.sleep(min(ahead / 1e9, 0.1))
            if control.stopped:
                return
            self._operation()
            recorder.operations = done + 1
            recorder.fold_if_due()
