"""What a query leaves on disk and takes of memory, counted from outside: by files and by `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileMark:
    """What changes when a file is written to."""

    inode: int
    size: int
    changed_ns: int


Marks = dict[Path, FileMark]
Sizes = dict[Path, int]


def marks(folders: Iterable[Path]) -> Marks:
    """The files below *folders*, as they are. One that goes meanwhile is left out."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    stat = path.stat()
                    found[path] = FileMark(stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return found


def written_to(before: Marks, after: Marks) -> list[Path]:
    """The files that were made or changed between two looks."""
    return [path for path, mark in after.items() if before.get(path) != mark]


def data_sizes(folders: Iterable[Path]) -> Sizes:
    """The sizes of the files below *folders*, without the zeros at their ends: room made ahead is not yet data."""
    found = {}
    for path in marks(folders):
        with suppress(FileNotFoundError), path.open("rb") as file:
            found[path] = _data_size(file)
    return found


def _data_size(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _CHUNK)
        file.seek(start)
        if data := file.read(end - start).rstrip(b"\0"):
            return start + len(data)
        end = start
    return 0


def growth(before: Sizes, after: Sizes) -> int:
    """By how many bytes files grew, new ones included. Files that went take nothing away from it."""
    return sum(max(0, size - before.get(path, 0)) for path, size in after.items())


def peak_memory(pid: int) -> int:
    """The most bytes that a process had resident so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def bytes_to_disk(pid: int) -> int:
    """How many bytes a process has caused to be written to disks so far."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
