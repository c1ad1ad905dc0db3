"""One `Log` per root and process, however many handles there are."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from safekeeper.backend import Batch
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.store import Store
from safekeeper.backends.log.writer import Writer
from safekeeper.errors import BadUrl


class Log:
    """A root in this process: its store, and its writer from the first write on."""

    def __init__(self, root: Path, options: LogOptions, files: Files) -> None:
        self.store = Store(root, options, files)
        self.handles = 0
        self._claiming = Lock()
        self._writer: Writer | None = None

    def write(self, batch: Batch) -> float:
        """Append a batch; how many seconds its sync took."""
        return (self._writer or self._claim()).write(batch)

    def _claim(self) -> Writer:
        with self._claiming:
            if self._writer is None:
                self._writer = Writer(Appender.claim(self.store))
            return self._writer

    def close(self) -> None:
        """Leave the root to others."""
        if self._writer is not None:
            with self._writer.exclusive() as appender:
                appender.close()
        self.store.close()


_lock = Lock()
_logs: dict[tuple[int, int], Log] = {}


def share(root: Path, options: LogOptions, files: Files) -> Log:
    """The log of a folder that exists, for one more handle."""
    stat = os.stat(root)
    with _lock:
        log = _logs.setdefault((stat.st_dev, stat.st_ino), Log(root, options, files))
        log.handles += 1
        return log
def unshare(log: Log) -> None:
    """Take back a `share`; the last one closes the log."""
    with _lock:
        log.handles -= 1
        if log.handles:
            return
        for key in [key for key, other in _logs.items() if other is log]:
            del _logs[key]
        log.close()
