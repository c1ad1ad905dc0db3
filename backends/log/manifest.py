"""The manifest: which files belong to a writer folder. Replaced whole, so that several files come and go in one step.

safekeeper-log VERSION CHECK
{"generation": ..., "segments": [...], ...}

In version 1 a root had one folder, and its writer looked at no other. A folder is of version 2 until something is
created in it, and of version 3 from then on: records may have tokens, which version 2 would take for values.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import xxhash

from safekeeper.backends.log.files import Files
from safekeeper.backends.log.open_files import with_room
from safekeeper.backends.shared.records import SEGMENT_HEAD
from safekeeper.errors import Corruption

NAME: Final = "manifest"
USUAL_VERSION: Final = 2
VERSION: Final = 3
"""The version of a folder with tokens."""
_TEMPORARY: Final = "manifest.tmp"
_MARK: Final = b"safekeeper-log"
_LONGEST_LINE: Final = 100
_TOMBSTONES: Final = "graves"  # what `SegmentEntry.tombstones` is called in the file: frozen


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """What the manifest says of a segment."""

    number: int
    nonce: int
    sequence: int
    """No record in it has a lower one."""
    end: int | None = None
    """Where its last block ends, if it is sealed."""
    indexed: int = SEGMENT_HEAD.size
    """The index file knows every record before this offset."""
    puts: int = 0
    """The puts before `indexed`, live or dead."""
    tombstones: int = 0
    """The tombstones before `indexed`."""

    @property
    def file_name(self) -> str:
        """The segment's file in the writer's folder."""
        return f"{self.number:08}.segment"


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the manifest says of the index file."""

    number: int
    size: int
    check: int

    @property
    def file_name(self) -> str:
        """The index file in the writer's folder."""
        return f"{self.number:08}.index"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state of the folder's files."""

    seed: int
    """Seeds the fingerprints in index files; random, so that nobody can choose keys that collide."""
    generation: int = 0
    epoch: int = 0
    """Of the writer that wrote this."""
    sequence: int = 0
    """The last sequence when this was written; all up to it is durable."""
    next: int = 1
    """The next number for a segment or an index file."""
    segments: tuple[SegmentEntry, ...] = ()
    """In the order in which they were begun. All but the last are sealed."""
    index: IndexEntry | None = None
    version: int = USUAL_VERSION
    """Of the format; in the file it is in the first line."""

    def file_names(self) -> set[str]:
        """The files that the manifest names."""
        names = {entry.file_name for entry in self.segments}
        return names | {self.index.file_name} if self.index else names

    def save(self, folder: Path, files: Files) -> Manifest:
        """Make this the manifest of *folder*, as the next generation, durable; the manifest as it was written."""
        new = replace(self, generation=self.generation + 1)
        temporary = folder / _TEMPORARY
        files.remove(temporary)
        fd = files.create(temporary)
        try:
            files.write_synced(fd, [new._encode()], 0)
        finally:
            os.close(fd)
        files.replace(temporary, folder / NAME)
        files.sync_folder(folder)
        return new

    def _encode(self) -> bytes:
        fields = asdict(self)
        version = fields.pop("version")
        for entry in fields["segments"]:
            entry[_TOMBSTONES] = entry.pop("tombstones")
        body = json.dumps(fields, separators=(",", ":")).encode()
        return b"%b %d %016x\n%b" % (_MARK, version, xxhash.xxh3_64_intdigest(body), body)


def load_manifest(folder: Path) -> Manifest | None:
    """The manifest of *folder*, None if there is none yet. Raise `Corruption` if it is damaged."""
    path = folder / NAME
    try:
        raw = with_room(path.read_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    line, _, body = raw.partition(b"\n")
    words = line.split(b" ")
    if len(words) != 3 or words[0] != _MARK:
        raise Corruption(f"{path}: offset 0: is no manifest of a log")
    if words[2] != b"%016x" % xxhash.xxh3_64_intdigest(body):
        raise Corruption(
            f"{path}: offset {len(line) + 1}: the checksum does not match: it was damaged after it was written"
        )
    if words[1] not in (b"1", b"2", b"3"):
        raise Corruption(
            f"{path}: offset {len(_MARK) + 1}: is of version {words[1]!r}, this safekeeper reads 1 to {VERSION}"
        )
    fields = json.loads(body)
    for entry in fields["segments"]:
        entry["tombstones"] = entry.pop(_TOMBSTONES, 0)
    fields["segments"] = tuple(SegmentEntry(**entry) for entry in fields["segments"])
    fields["index"] = IndexEntry(**fields["index"]) if fields["index"] else None
    return Manifest(**fields, version=max(int(words[1]), USUAL_VERSION))


def first_line(folder: Path) -> bytes | None:
    """What tells the manifest of *folder* from the one before: its checksum, which covers the generation. None if there
    is none. (Inode numbers are used again, and two files may have one time.)"""
    try:
        with with_room(lambda: (folder / NAME).open("rb")) as file:
            return file.readline(_LONGEST_LINE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_of_single_writer(folder: Path) -> bool:
    """Whether the manifest of *folder* was written by a safekeeper that shares no root."""
    return (first_line(folder) or b"").startswith(_MARK + b" 1 ")
