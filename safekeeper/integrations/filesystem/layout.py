"""How paths become ids, and the bytes of entries: `docs/file-systems.md`, version 1."""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from safekeeper.backend import CheckpointId
from safekeeper.errors import BadId, BadState

INLINE_BYTES = 4096
"""Up to so many bytes of content stand in the entry."""
_VERSION, _DIRECTORY, _FILE = 1, ord("d"), ord("f")
_ENTRY = struct.Struct("<BBqQ16sII")
_NO_WRITE = bytes(16)
_VOLUME = re.compile(r"[A-Za-z0-9_-]{1,63}")
_GROUP = re.compile(r"files\.([A-Za-z0-9_-]{1,63}):.*")
_CONTENT = re.compile(r"files\.([A-Za-z0-9_-]{1,63})\.content")
_ESCAPED = re.compile(rb"[^\x20-\x7e]|%")
_MOST_GROUP_BYTES = 240


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file or a directory."""

    is_directory: bool
    modified: int
    """Milliseconds since 1970."""
    size: int = 0
    write: bytes | None = None
    """What the parts of the content are named after; None if it is `content`."""
    part_bytes: int = 0
    crc: int = 0
    content: bytes = b""

    def encode(self) -> bytes:
        """Its bytes."""
        kind = _DIRECTORY if self.is_directory else _FILE
        write = self.write or _NO_WRITE
        return _ENTRY.pack(_VERSION, kind, self.modified, self.size, write, self.part_bytes, self.crc) + self.content

    @classmethod
    def decode(cls, id: CheckpointId, value: bytes) -> FileEntry:
        """The entry that was read under *id*."""
        if len(value) < _ENTRY.size or value[0] != _VERSION or value[1] not in (_DIRECTORY, _FILE):
            raise BadState(f"{id} is not a file or directory of a version that is known: upgrade safekeeper")
        _, kind, modified, size, write, part_bytes, crc = _ENTRY.unpack_from(value)
        content = value[_ENTRY.size :]
        return cls(kind == _DIRECTORY, modified, size, None if write == _NO_WRITE else write, part_bytes, crc, content)

    @property
    def count(self) -> int:
        """How many parts there are."""
        return 0 if self.write is None else -(-self.size // self.part_bytes)


def directory() -> FileEntry:
    """The entry of a new directory."""
    return FileEntry(True, now())


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_write() -> bytes:
    """A name for the parts of one content."""
    return now().to_bytes(6) + secrets.token_bytes(10)


def begun(write: bytes) -> int:
    """When it was made, in milliseconds since 1970."""
    return int.from_bytes(write[:6])


@dataclass(frozen=True, slots=True)
class VolumePath:
    """A volume and the names below it."""

    volume: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> VolumePath:
        """`VOLUME/NAME/NAME`; slashes at the ends and double ones do not count."""
        volume, *names = [name for name in text.split("/") if name] or [""]
        if not _VOLUME.fullmatch(volume):
            raise BadId(f"{text!r}: a path begins with a volume, 1 to 63 of the characters a-z A-Z 0-9 _ -")
        if any(name in (".", "..") for name in names):
            raise BadId(f"{text!r}: a path has no . or .. in it: name the file directly")
        return cls(volume, tuple(names))

    def __str__(self) -> str:
        return "/".join((self.volume, *self.names))

    @property
    def above(self) -> Iterator[VolumePath]:
        """The directories that it is in, the root of the volume not counted; the highest first."""
        return (VolumePath(self.volume, self.names[:depth]) for depth in range(1, len(self.names)))

    @property
    def id(self) -> CheckpointId:
        """The id of its entry."""
        return CheckpointId(_directory_group(self.volume, self.names[:-1]), self.names[-1].encode())

    @property
    def group(self) -> str:
        """The group of what is in it."""
        return _directory_group(self.volume, self.names)

    def below(self, key: bytes) -> VolumePath:
        """What has *key* in it."""
        return VolumePath(self.volume, (*self.names, key.decode()))


def _directory_group(volume: str, names: tuple[str, ...]) -> str:
    path = ("/" + "/".join(names)).encode()
    escaped = _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], path).decode()
    group = f"files.{volume}:{escaped}"
    if len(group) > _MOST_GROUP_BYTES:
        group = f"files.{volume}:#{hashlib.sha256(path).hexdigest()[:40]}"
    return group


def content_group(volume: str) -> str:
    """The group of the parts of all files of a volume."""
    return f"files.{volume}.content"


def part_id(volume: str, write: bytes, number: int) -> CheckpointId:
    """The id of a part."""
    return CheckpointId(content_group(volume), f"{write.hex()}_{number:08}".encode())


def write_of(key: bytes) -> bytes:
    """What the part with *key* belongs to."""
    return bytes.fromhex(key.partition(b"_")[0].decode())


def directory_groups(volume: str, groups: Iterable[str]) -> set[str]:
    """Those of *groups* that are directories of *volume*."""
    return {group for group in groups if (found := _GROUP.fullmatch(group)) and found[1] == volume}


def volumes_in(groups: Iterable[str]) -> list[str]:
    """The volumes that have entries."""
    return sorted({found[1] for group in groups if (found := _GROUP.fullmatch(group))})


def volumes_with_parts_in(groups: Iterable[str]) -> list[str]:
    """The volumes that have parts of files, whether or not they have entries."""
    return sorted({found[1] for group in groups if (found := _CONTENT.fullmatch(group))})
