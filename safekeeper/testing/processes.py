"""Finding processes by what they descend from: executors below a worker, agents below an executor."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

AGENT = b"safekeeper.agent"
"""What the command line of an agent has."""


def descendants(roots: Collection[int], having: bytes) -> list[int]:
    """The processes below *roots* whose command line has the text *having*, by their ids."""
    parents, found = {}, []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            pid = int(process.name)
            parents[pid] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if having in (process / "cmdline").read_bytes():
                found.append(pid)
    return sorted(pid for pid in found if any(above in roots for above in _ancestors(pid, parents)))


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid := parents.get(pid, 0):
        yield pid
