"""What a query leaves on disk and takes of memory, counted from outside: by files and by `/proc`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class _File:
    """A file at some moment."""

    inode: int
    changed_ns: int
    data: int
    """Its size without zeros at its end: room that was made ahead is not yet data."""


class Watch:
    """Tells which files below some folders grow."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._files: dict[Path, _File] = {}
        self.look()

    def look(self) -> dict[Path, int]:
        """The files that were made, replaced or appended to since the last look, and how many bytes were added to each.

        What was only changed within its size is not among them, nor what has come and gone between two looks.
        """
        grown = {}
        for folder in self._folders:
            for path in folder.rglob("*"):
                with suppress(FileNotFoundError):  # it goes meanwhile
                    if path.is_file() and (added := self._added(path)) is not None:
                        grown[path] = added
        return grown

    def _added(self, path: Path) -> int | None:
        before, stat = self._files.get(path), path.stat()
        if before and (before.inode, before.changed_ns) == (stat.st_ino, stat.st_mtime_ns):
            return None
        now = self._files[path] = _File(stat.st_ino, stat.st_mtime_ns, data_size(path))
        if before is None or before.inode != now.inode:
            return now.data
        return now.data - before.data if now.data > before.data else None


def data_size(path: Path) -> int:
    """The size of a file without the zeros at its end."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _CHUNK)
            file.seek(start)
            if data := file.read(end - start).rstrip(b"\0"):
                return start + len(data)
            end = start
    return 0


def peak_memory(pid: int) -> int:
    """The most bytes that a process had resident so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def anonymous_memory(pid: int) -> int:
    """The bytes that a process has resident and that no file is behind: the kernel cannot drop them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def bytes_to_disk(pid: int) -> int:
    """How many bytes a process has caused to be written to disks so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
