"""Every change that the log makes to the file system, in one place: a test puts a recorder or a failing disk here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from safekeeper.backends.log.open_files import with_room
from safekeeper.backends.shared import local_files

Buffer = bytes | bytearray | memoryview

_MOST_BUFFERS = 1024  # IOV_MAX on Linux
_MOST_BYTES = 1 << 30  # a call of 2 GiB and more would be cut short


class Files:
    """The real file system. A method that says so has made its effect durable when it returns."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents, durable. One that exists is not an error."""
        with_room(lambda: local_files.make_folder(path))

    def create(self, path: Path) -> int:
        """Create a file that must not exist and open it for reading and writing. Its name is not yet durable."""
        return with_room(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write *parts* one after the other at *offset*. Not yet durable."""
        for chunk, size in _calls(parts):
            self._write_chunk(fd, chunk, size, offset, 0)
            offset += size

    def write_synced(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        """Write *parts* one after the other at *offset*, durable."""
        size = sum(map(len, parts))
        if len(parts) <= _MOST_BUFFERS and size <= _MOST_BYTES:
            self._write_chunk(fd, parts, size, offset, os.RWF_DSYNC)
        else:
            self.write(fd, parts, offset)
            self.sync(fd)

    def _write_chunk(self, fd: int, parts: Sequence[Buffer], size: int, offset: int, flags: int) -> None:
        written = os.pwritev(fd, parts, offset, flags)
        while written < size:
            rest = memoryview(b"".join(parts))[written:]
            written += os.pwritev(fd, [rest], offset + written, flags)

    def sync(self, fd: int) -> None:
        """Make everything written to the file durable."""
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        with_room(lambda: local_files.sync_folder(path))

    def replace(self, source: Path, target: Path) -> None:
        """Rename over what is there. Not yet durable."""
        os.rename(source, target)

    def move_folder(self, source: Path, target: Path) -> None:
        """Give a folder another name, that nothing has. Not yet durable."""
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        """Remove a file; that it is gone is not an error. Not yet durable."""
        path.unlink(missing_ok=True)


def place_of(file: int | Path) -> tuple[int, int] | None:
    """What tells a file from all others as long as it is open, or has a name; None if there is none of that name."""
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _calls(parts: Sequence[Buffer]) -> list[tuple[Sequence[Buffer], int]]:
    """*parts* divided into what one call of the kernel takes, each with its number of bytes."""
    size = sum(map(len, parts))
    if len(parts) <= _MOST_BUFFERS and size <= _MOST_BYTES:
        return [(parts, size)]
    calls: list[tuple[Sequence[Buffer], int]] = []
    chunk: list[Buffer] = []
    size = 0
    for part in parts:
        for start in range(0, len(part), _MOST_BYTES):
            piece = memoryview(part)[start : start + _MOST_BYTES]
            if len(chunk) == _MOST_BUFFERS or size + len(piece) > _MOST_BYTES:
                calls.append((chunk, size))
                chunk, size = [], 0
            chunk.append(piece)
            size += len(piece)
    return [*calls, (chunk, size)]
