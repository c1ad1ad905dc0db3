"""What LMDB raises, as errors of the contract."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType

import lmdb

from safekeeper.backends.lmdb.environment import MAX_READERS
from safekeeper.backends.shared.local_files import unavailable, unusable
from safekeeper.errors import BadUrl, Corruption, Unavailable

_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)


class ErrorsAsOurs:
    """Turns what LMDB and the operating system raise inside a `with` block into errors of the contract.

    Not a generator: this stands around every write, and a generator would take a good part of its time.
    """

    __slots__ = ("_of_system", "_root")

    def __init__(self, root: Path, first: bool = False) -> None:
        self._root = root
        self._of_system = unusable if first else unavailable

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, OSError):
            raise self._of_system(self._root, error) from error
        if isinstance(error, _DAMAGED):
            place = self._root / "data.mdb"
            raise Corruption(f"{place}: {error}: it is no LMDB file, or it was damaged") from error
        if isinstance(error, lmdb.Error):
            raise self._explained(error) from error

    def _explained(self, error: lmdb.Error) -> BadUrl | Unavailable:
        if isinstance(error, lmdb.ReadersFullError):
            return Unavailable(f"{self._root}: {MAX_READERS} reads are going on in all processes: try again")
        number = errno.EROFS if isinstance(error, lmdb.ReadonlyError) else getattr(error, "code", 0)
        if number == errno.EIO and os.statvfs(self._root).f_bavail == 0:
            number = errno.ENOSPC  # LMDB calls a write that was cut short EIO
        if number > 0:  # of the operating system; LMDB's own are negative
            return self._of_system(self._root, OSError(number, os.strerror(number)))
        return Unavailable(f"{self._root}: {error}")
