"""A segment: a file of blocks that grows at its end and is otherwise never changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from safekeeper.backends.log import columnar
from safekeeper.backends.log.format import (
    ROW_BIT,
    SEGMENT_HEAD,
    check_value,
    decode_record_head,
    encode_segment_head,
    offset_of,
    verified_id,
)
from safekeeper.backends.log.manifest import SegmentEntry
from safekeeper.errors import Corruption

_FIRST_READ = 4096  # the head and the id of nearly every record, and all of a small one


class Segment:
    """Reads one segment. The file is opened when it is first needed; the one who reads holds a pin meanwhile."""

    def __init__(self, folder: Path, entry: SegmentEntry) -> None:
        self.path = folder / entry.file_name
        self.number = entry.number
        self.nonce = entry.nonce
        self.fd = -1
        self.pins = 0
        self.retired = False
        self.pending: tuple[int, bytearray] | None = None
        """Blocks that are acknowledged but not yet in the file, and their offset: only where `sync` is not `always`."""

    def open(self) -> None:
        """Open the file for reading. Raise `Corruption` if it is not the file that the manifest means."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if os.pread(fd, SEGMENT_HEAD.size, 0) != encode_segment_head(self.number, self.nonce):
            os.close(fd)
            raise Corruption(f"{self.path}: offset 0: is not the segment that the manifest names")
        self.fd = fd

    def close(self) -> None:
        """Close the file; it can be opened again."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def read(self, size: int, offset: int) -> bytes:
        """The bytes at *offset*, fewer where the segment ends before."""
        pending = self.pending
        if pending is not None and offset >= pending[0]:
            start = offset - pending[0]
            return bytes(pending[1][start : start + size])
        return os.pread(self.fd, size, offset)

    def read_id(self, place: int) -> tuple[bytes, bytes]:
        """The group and key at *place*, verified, without reading the value."""
        offset = offset_of(place)
        if place & ROW_BIT:
            row = columnar.read_row(self.read, offset, self.nonce)
            return (row.group, row.key) if row else self.corrupt(offset)
        raw = self.read(_FIRST_READ, offset)
        head = decode_record_head(raw)
        if head and len(raw) < head.value_start:
            raw = self.read(head.value_start, offset)
        return (head and verified_id(head, raw)) or self.corrupt(offset)

    def read_value(self, place: int, group: bytes, key: bytes) -> bytes:
        """The value at *place*, verified to be that of *group* and *key*."""
        offset = offset_of(place)
        if place & ROW_BIT:
            row = columnar.read_row(self.read, offset, self.nonce)
            found, value = (row and (row.group, row.key)), (row and row.value())
        else:
            found, value = self._read_record(offset)
        if found is None or value is None:
            self.corrupt(offset)
        if found != (group, key):
            raise Corruption(f"{self.path}: offset {offset}: holds {found!r} where the index says {(group, key)!r}")
        return value

    def _read_record(self, offset: int) -> tuple[tuple[bytes, bytes] | None, bytes | None]:
        raw = self.read(_FIRST_READ, offset)
        head = decode_record_head(raw)
        if head is None:
            return None, None
        start, end = head.value_start, head.value_start + head.value_size
        if start > len(raw):
            raw = self.read(start, offset)
        found = verified_id(head, raw)
        if found is None:
            return None, None
        value = raw[start:end] if end <= len(raw) else self.read(head.value_size, offset + start)
        return found, value if check_value(value) == head.value_check else None

    def corrupt(self, offset: int) -> NoReturn:
        """Raise the `Corruption` of a record at *offset* that fails its checksum."""
        raise Corruption(f"{self.path}: offset {offset}: a checksum does not match: damaged after it was written")
