"""A disk that remembers every operation, and the states in which a power cut could leave it.

What was synced is there. Of what was not, anything may be: each write whole, torn at any sector or gone, and each
change of a name made or not, in any combination. A sync that fails leaves what it was for in memory, marked as if it
were on disk: no later sync brings it there, only to write it again does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Lock

from safekeeper.backends.log.files import Buffer, Files

_SECTOR = 512


@dataclass(frozen=True, slots=True)
class Operation:
    """One step: what was done to which file (a number) or folder, and with what."""

    kind: str
    file: int = 0
    path: Path = Path()
    name: str = ""
    offset: int = 0
    data: bytes = b""


class QuickFiles(Files):
    """The real file system without its syncs: for tests in which the power stays on."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write_synced(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        Files.write(self, fd, parts, offset)

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class RecordingFiles(QuickFiles):
    """The same, with a list of everything that was done to it, syncs included."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._numbers: dict[int, int] = {}
        self._created = 0
        self._lock = Lock()
        self.failing = False
        """Whether syncs of files fail from now on, with what they are for in memory."""

    def note(self, text: str) -> None:
        """Put a remark between the operations."""
        self._add(Operation("note", name=text))

    def note_content(self, path: Path) -> None:
        """Record a file that is changed by other means: it is in memory, and may or may not be on disk."""
        if path.exists():
            self._add(Operation("content", path=path.parent, name=path.name, data=path.read_bytes()))

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._add(Operation("folder", path=path))

    def create(self, path: Path) -> int:
        with self._lock:
            fd = super().create(path)
            self._created += 1
            self._numbers[os.fstat(fd).st_ino] = self._created
            self.operations.append(Operation("name", self._created, path.parent, path.name))
        return fd

    def write(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        self._add(Operation("write", self._number(fd), offset=offset, data=b"".join(parts)))
        super().write(fd, parts, offset)

    def write_synced(self, fd: int, parts: Sequence[Buffer], offset: int) -> None:
        self._add(Operation("write", self._number(fd), offset=offset, data=b"".join(parts)))
        super().write_synced(fd, parts, offset)
        self._sync(fd)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._sync(fd)

    def _sync(self, fd: int) -> None:
        self._add(Operation("failed sync" if self.failing else "sync", self._number(fd)))
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self._add(Operation("sync folder", path=path))

    def replace(self, source: Path, target: Path) -> None:
        number = self._numbers[source.stat().st_ino]
        super().replace(source, target)
        with self._lock:
            self.operations.append(Operation("name", number, target.parent, target.name))
            self.operations.append(Operation("no name", path=source.parent, name=source.name))

    def move_folder(self, source: Path, target: Path) -> None:
        super().move_folder(source, target)
        self._add(Operation("move", path=source, name=target.name))

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._add(Operation("no name", path=path.parent, name=path.name))

    def _number(self, fd: int) -> int:
        return self._numbers[os.fstat(fd).st_ino]

    def _add(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)


@dataclass(frozen=True, slots=True)
class Cut:
    """What is found after a power cut."""

    folders: set[Path]
    files: dict[Path, bytes]


@dataclass(slots=True)
class Disk:
    """What is durable, and what has been done since. A folder goes by its first name, wherever it is by now."""

    folders: set[Path] = field(default_factory=set)
    first_names: dict[Path, Path] = field(default_factory=dict)
    places: dict[Path, Path] = field(default_factory=dict)
    pending_moves: list[tuple[Path, Path]] = field(default_factory=list)
    names: dict[tuple[Path, str], int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)
    pending_names: list[Operation] = field(default_factory=list)
    pending_writes: list[Operation] = field(default_factory=list)
    failed_writes: list[Operation] = field(default_factory=list)
    """Those that only memory has, for good or until they are written again."""
    unsynced: dict[tuple[Path, str], bytes] = field(default_factory=dict)

    def do(self, operation: Operation) -> None:
        """Take one step."""
        path = self.first_names.get(operation.path, operation.path)
        operation = replace(operation, path=path)
        match operation.kind:
            case "move":
                target = path.parent / operation.name
                self.first_names[target] = path
                self.pending_moves.append((path, target))
            case "folder":
                self.folders.add(operation.path)
            case "name" | "no name":
                self.pending_names.append(operation)
            case "write":
                self.pending_writes.append(operation)
            case "sync":
                for write in self.pending_writes:
                    if write.file == operation.file:
                        _apply(self.contents.setdefault(write.file, bytearray()), write.offset, write.data)
                self.pending_writes = [write for write in self.pending_writes if write.file != operation.file]
            case "failed sync":
                self.failed_writes += [write for write in self.pending_writes if write.file == operation.file]
                self.pending_writes = [write for write in self.pending_writes if write.file != operation.file]
            case "sync folder":
                for change in self.pending_names:
                    if change.path == operation.path:
                        _rename(self.names, change)
                self.pending_names = [change for change in self.pending_names if change.path != operation.path]
                for folder, place in self.pending_moves:
                    if folder.parent == operation.path:
                        self.places[folder] = place
                self.pending_moves = [move for move in self.pending_moves if move[0].parent != operation.path]
            case "content":
                self.unsynced[operation.path, operation.name] = operation.data

    def after_a_power_cut(self, how: str, random: Random) -> Cut:
        """A state in which the files may be found.

        *how* is "lost" (all that was not synced), "kept" (nothing is lost), "names" (only writes are lost), "writes"
        (only names are lost) or "random".
        """
        names = dict(self.names)
        for change in self.pending_names:
            if how in ("kept", "names") or (how == "random" and random.random() < 0.5):
                _rename(names, change)
        contents = {number: bytearray(content) for number, content in self.contents.items()}
        for write in (*self.failed_writes, *self.pending_writes):
            if how in ("kept", "writes"):
                _apply(contents.setdefault(write.file, bytearray()), write.offset, write.data)
            elif how == "random":
                for offset, piece in _torn(write, random):
                    _apply(contents.setdefault(write.file, bytearray()), offset, piece)
        places = {folder: folder for folder in self.folders} | self.places
        for folder, place in self.pending_moves:
            if how in ("kept", "names") or (how == "random" and random.random() < 0.5):
                places[folder] = place
        found = {places[folder] / name: bytes(contents.get(number, b"")) for (folder, name), number in names.items()}
        for (folder, name), content in self.unsynced.items():
            if how in ("kept", "names", "writes") or (how == "random" and random.random() < 0.5):
                found[places[folder] / name] = content
        return Cut({*places.values()}, found)


def _rename(names: dict[tuple[Path, str], int], change: Operation) -> None:
    if change.kind == "name":
        names[change.path, change.name] = change.file
    else:
        names.pop((change.path, change.name), None)


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    content.extend(bytes(max(offset + len(data) - len(content), 0)))
    content[offset : offset + len(data)] = data


def _torn(write: Operation, random: Random) -> Iterator[tuple[int, bytes]]:
    """Some of the sectors of a write: none, all, or any of them."""
    share = random.choice((0.0, 0.5, 1.0))
    start, end = write.offset, write.offset + len(write.data)
    for sector in range(start // _SECTOR, -(-end // _SECTOR)):
        low, high = max(start, sector * _SECTOR), min(end, (sector + 1) * _SECTOR)
        if random.random() < share:
            yield low, write.data[low - start : high - start]


def restore(cut: Cut, source: Path, target: Path) -> None:
    """Put the files of a power cut below *target*, as they were below *source*."""
    for folder in sorted(cut.folders):
        (target / folder.relative_to(source)).mkdir(parents=True, exist_ok=True)
    for path, content in cut.files.items():
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
