"""The files that this process has open: those of all folders and of all roots come from one pool with a bound.

How many files a process may have is limited (`ulimit -n`), and the application needs some as well. So the pool takes a
part of them, closes what nobody reads now when it has more, and closes all of that when a call finds none left. What is
small and looked at often, statuses and index files, is kept open as long as there are few.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Final, Protocol, TypeVar

R = TypeVar("R")

NO_ROOM: Final = (errno.EMFILE, errno.ENFILE)
"""What the kernel says when this process, or all of them, have no more files to open."""

_SEGMENTS: Final = 4  # a quarter of what the process may have open
_KEPT: Final = 8
_FEWEST: Final = 4
_MOST: Final = 256


class PooledFile(Protocol):
    """A file that is opened when it is needed. The pool guards its fields."""

    fd: int
    pins: int
    retired: bool

    def open(self) -> None:
        """Open it."""

    def close(self) -> None:
        """Close it; it can be opened again."""


def _part(of: int) -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max((_MOST * of if limit == resource.RLIM_INFINITY else limit) // of, _FEWEST), _MOST)


def most_open() -> int:
    """How many segments may be open for reading."""
    return _part(_SEGMENTS)


def most_kept() -> int:
    """How many files of another kind, each, may be kept open."""
    return _part(_KEPT)


F = TypeVar("F", bound=PooledFile)


class FilePool:
    """Files that are open for reading. One that is pinned stays open."""

    def __init__(self) -> None:
        self._open: dict[PooledFile, None] = {}  # the one that was used last is the last
        self._bound = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew, in the child of a fork: whoever held the lock is not there, and nobody reads these files."""
        self._lock = RLock()
        self._open.clear()

    def pin(self, file: PooledFile) -> None:
        """Keep *file* open until `unpin`."""
        with self._lock:
            if file.fd < 0:
                self._bound = most_open()
                if len(self._open) >= self._bound:
                    self._close_unpinned(self._bound // 4)
                file.open()
            self._open.pop(file, None)
            self._open[file] = None
            file.pins += 1

    def unpin(self, file: PooledFile) -> None:
        """Take back a `pin`."""
        with self._lock:
            file.pins -= 1
            if not file.pins and (file.retired or len(self._open) > self._bound):
                self._close(file)

    def read(self, file: F, read: Callable[[F], R]) -> R:
        """What *read* makes of *file*, which is open for it."""
        self.pin(file)
        try:
            return read(file)
        finally:
            self.unpin(file)

    def retire(self, file: PooledFile) -> None:
        """Close *file* for good, when nobody reads it any more."""
        with self._lock:
            file.retired = True
            if not file.pins:
                self._close(file)

    def make_room(self) -> bool:
        """Close all that nobody reads now; whether that was any."""
        with self._lock:
            return self._close_unpinned(len(self._open)) > 0

    def _close_unpinned(self, most: int) -> int:
        unpinned = [file for file in self._open if not file.pins][: max(most, 1)]
        for file in unpinned:
            self._close(file)
        return len(unpinned)

    def _close(self, file: PooledFile) -> None:
        self._open.pop(file, None)
        file.close()


POOL: Final = FilePool()
os.register_at_fork(after_in_child=POOL.forget)


def with_room(call: Callable[[], R]) -> R:
    """What *call* returns, which opens a file; if there is no room for that, files that nobody reads now make some."""
    try:
        return call()
    except OSError as error:
        if error.errno not in NO_ROOM or not POOL.make_room():
            raise
    return call()


def list_folder(path: Path) -> list[str]:
    """The names in a folder."""
    return with_room(lambda: os.listdir(path))
