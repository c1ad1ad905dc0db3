"""What LMDB raises, as errors of the contract."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

import lmdb

from safekeeper.backends.lmdb.environment import MAX_READERS
from safekeeper.backends.shared.local_files import unavailable
from safekeeper.errors import Corruption, Unavailable

_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)


class ErrorsAsOurs:
    """Turns what LMDB and the operating system raise inside a `with` block into errors of the contract.

    Not a generator: this stands around every write, and a generator would take a good part of its time.
    """

    __slots__ = ("_root",)

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, OSError):
            raise unavailable(self._root, error) from error
        if isinstance(error, _DAMAGED):
            place = self._root / "data.mdb"
            raise Corruption(f"{place}: {error}: it is no LMDB file, or it was damaged") from error
        if isinstance(error, lmdb.Error):
            raise self._explained(error) from error

    def _explained(self, error: lmdb.Error) -> Unavailable:
        if isinstance(error, lmdb.ReadersFullError):
            return Unavailable(f"{self._root}: {MAX_READERS} reads are going on in all processes: try again")
        number = errno.EROFS if isinstance(error, lmdb.ReadonlyError) else getattr(error, "code", 0)
        if number == errno.EIO and os.statvfs(self._root).f_bavail == 0:
            number = errno.ENOSPC  # LMDB calls a write that was cut short EIO
        if number > 0:  # of the operating system; LMDB's own are negative
            return unavailable(self._root, OSError(number, os.strerror(number)))
        return Unavailable(f"{self._root}: {error}")
