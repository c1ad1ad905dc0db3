"""The log's own thread: syncs at an interval where that is asked for, and runs the pass when enough was written."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final

from safekeeper.backends.log.abandoned import tidy_abandoned
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.compaction import LogCompactor, Pace, paced
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.writer import LogWriter
from safekeeper.errors import SafekeeperError

_MANY_RECORDS: Final = 100_000
_OVERDUE: Final = 4  # a pass that is so many times late holds up the writers
_SHARE: Final = 8  # a pass costs in proportion to the ids and the bytes, so it waits until an eighth of either is new


class _Stopped(SafekeeperError):
    """The log is being closed: the pass ends where it is."""


class Background:
    """Works beside the writers. Its thread starts when there is something to do and ends with `stop`."""

    def __init__(self, root: Root, writer: LogWriter, appender: Appender) -> None:
        self._root = root
        self._folder = folder = appender.folder
        self._writer = writer
        self._appender = appender
        self._compactor = LogCompactor(root, folder, writer)
        self._sync = folder.options.sync
        self._wake = Event()
        self._stopping = Event()
        self._lock = Lock()
        self._helping = Lock()
        self._thread: Thread | None = None
        self.problem = ""
        """What kept the last pass from ending well."""
        self._plan()
        if self._sync != "always":
            self._start()

    def _plan(self) -> None:
        state = self._folder.state
        size = sum(entry.end or 0 for entry in state.manifest.segments)
        step = max(self._folder.options.segment, size // _SHARE)
        self._due_bytes = self._appender.appended + step
        self._overdue_bytes = self._appender.appended + _OVERDUE * step
        self._due_records = self._appender.records + max(_MANY_RECORDS, len(state.index.table) // _SHARE)

    def due(self) -> bool:
        """Whether enough was written for a pass."""
        return self._appender.appended >= self._due_bytes or self._appender.records >= self._due_records

    def keep_up(self) -> None:
        """Begin a pass soon; if the writers are faster than the passes, end one before the caller goes on."""
        if not self._wake.is_set():
            self._start()
            self._wake.set()
        if self._appender.appended >= self._overdue_bytes:
            with self._helping:
                if self._appender.appended >= self._overdue_bytes:
                    self._pass(lambda _: None)

    def stop(self) -> None:
        """End the thread. A pass under way is given up; nothing is lost with it."""
        self._stopping.set()
        self._wake.set()
        with self._lock:
            if self._thread is not None:
                self._thread.join()

    def run_pass(self, everything: bool) -> None:
        """Run a pass now, in this thread, as fast as it goes."""
        self._compactor.run(lambda _: None, everything)
        self._plan()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = Thread(target=self._work, name=f"safekeeper log {self._folder.root}", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        timeout = None if self._sync == "always" else self._folder.options.sync_interval
        while True:
            self._wake.wait(timeout)
            if self._stopping.is_set():
                return
            self._wake.clear()
            if self._sync != "always":
                self._bring_to_disk()
            if self.due():
                self._pass(paced(self._folder.options.compact_rate, self._sleep))

    def _bring_to_disk(self) -> None:
        # If it fails, the next write tells its caller.
        with suppress(OSError, SafekeeperError), self._writer.exclusive() as appender:
            if self._sync == "interval":
                appender.sync()
            else:
                appender.flush()

    def _pass(self, pace: Pace) -> None:
        self._plan()
        try:
            self._compactor.run(pace)
            tidy_abandoned(self._root, pace)
            self.problem = ""
        except Exception as error:  # whatever it is, the thread goes on: it may be the one that syncs
            self.problem = str(error) or repr(error)  # shown by `stats`; what was not compacted is there, and safe

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise _Stopped("the log is being closed")
