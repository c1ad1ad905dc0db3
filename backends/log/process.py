"""One `Log` per root and process, however many handles there are."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event, Lock

from safekeeper.backend import Batch, CheckpointId, Compaction, Receipt, Stats, Survives
from safekeeper.backends.log.abandoned import settle, tidy_abandoned
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.background import Background
from safekeeper.backends.log.blocks import NewId
from safekeeper.backends.log.claim import creating
from safekeeper.backends.log.compaction import MANY_SMALL
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.writer import LogWriter
from safekeeper.errors import BadUrl, Conflict, SafekeeperError


class _Writing:
    """What a log has from its first write on."""

    def __init__(self, root: Root, appender: Appender, survives: Survives) -> None:
        self.appender = appender
        self.writer = LogWriter(appender, survives)
        self.background = Background(root, self.writer, appender)

    def end(self) -> None:
        """Leave the folder to others."""
        self.background.stop()
        with self.writer.exclusive() as appender:
            appender.close()


class Log:
    """A root in this process: what is read of it, and its own writer from the first write on."""

    def __init__(self, root: Path, options: LogOptions, files: Files, survives: Survives) -> None:
        self.options = options
        self._survives = survives
        self.root = Root(root, options, files, settle)
        self.handles = 0
        """How many share it; below 0 while it is being closed."""
        self.closed = Event()
        self._claiming = Lock()
        self._creating = Lock()
        self._writing: _Writing | None = None

    def write(self, batch: Batch) -> Receipt:
        """Append a batch."""
        writing = self._writing or self._claim()
        try:
            receipt = writing.writer.write(batch)
        except Conflict:
            self._leave(writing)
            raise
        if writing.background.due():
            writing.background.keep_up()
        return receipt

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Append a value unless *id* has one; whether the one it has was created with *token*."""
        found = self.root.token(id)
        if found is None:
            writing = self._writing or self._claim()
            with self._creating, creating(self.root.path):
                found = self._create(writing, NewId(id, value, token))
            if writing.background.due():
                writing.background.keep_up()
        return found == token

    def _create(self, writing: _Writing, new: NewId) -> bytes:
        """Append *new* unless its id has a value by now; the token of the one that counts."""
        try:
            with writing.writer.exclusive() as appender:
                found = self.root.token(new.id)
                if found is None:
                    appender.append([], [], [new])
                    return new.token
                return found
        except Conflict:
            self._leave(writing)
            raise

    def compact(self) -> Compaction:
        """Drop and rewrite whatever has a dead record."""
        before = self.root.bytes_stored()
        if self._writing is not None:
            self._writing.background.run_pass(everything=True)
        tidy_abandoned(self.root, lambda _: None, everything=True)
        return Compaction(before, self.root.bytes_stored())

    def stats(self) -> Stats:
        """What the log holds."""
        problem = self._writing.background.problem if self._writing else ""
        return self.root.stats({"background": problem} if problem else {})

    def _claim(self) -> _Writing:
        with self._claiming:
            if self._writing is None:
                writing = _Writing(self.root, Appender.claim(self.root), self._survives)
                try:
                    if writing.appender.folder.small_segments() >= MANY_SMALL:
                        # Now, not in the background: writers that are killed early would leave one more each time.
                        writing.background.run_pass(everything=False)
                except BaseException:
                    writing.end()
                    raise
                self._writing = writing
            return self._writing

    def _leave(self, writing: _Writing) -> None:
        """Give up a folder that another process has taken over; the next write claims another one."""
        with self._claiming:
            if self._writing is not writing:
                return
            self._writing = None
        writing.end()

    def close(self) -> None:
        """Leave the root to others."""
        try:
            if (writing := self._writing) is not None:
                self._leave_in_order(writing)
        finally:
            self.root.close()

    def _leave_in_order(self, writing: _Writing) -> None:
        writing.background.stop()
        try:
            if writing.appender.folder.tail_is_long():
                writing.background.run_pass(everything=False)
        except (OSError, SafekeeperError):
            pass  # the next one to open it reads the tail instead
        finally:
            writing.end()


_lock = Lock()
_logs: dict[tuple[int, int], Log] = {}


class ThisProcess:
    """Its id, without a system call."""

    pid = os.getpid()


def _forget_in_child() -> None:
    global _lock
    _lock = Lock()
    ThisProcess.pid = os.getpid()
    for log in _logs.values():
        log.root.renew_locks()
    _logs.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def share(root: Path, options: LogOptions, files: Files, survives: Survives) -> Log:
    """The log of a folder that exists, for one more handle. Handles with different options cannot share one."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        stat = os.fstat(fd)
    finally:
        os.close(fd)
    key = (stat.st_dev, stat.st_ino)
    while True:
        with _lock:
            log = _logs.get(key)
            if log is None or log.root.is_removed():  # the number of a folder that is gone may be used again
                log = _logs[key] = Log(root, options, files, survives)
            if log.handles >= 0:
                if log.options != options:
                    raise BadUrl(f"{root} is open in this process with other options: {log.options}")
                log.handles += 1
                return log
        log.closed.wait()


def unshare(log: Log) -> None:
    """Take back a `share`; the last one closes the log."""
    with _lock:
        log.handles -= 1
        if log.handles:
            return
        log.handles = -1  # whoever opens the root again waits until it is given back
    try:
        log.close()
    finally:
        with _lock:
            for key in [key for key, other in _logs.items() if other is log]:
                del _logs[key]
        log.closed.set()
