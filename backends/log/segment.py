"""A segment: a file of blocks that grows at its end and is otherwise never changed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from safekeeper.backend import TOKEN_BYTES
from safekeeper.backends.log import column_block
from safekeeper.backends.log.location import ROW_BIT, offset_of
from safekeeper.backends.log.manifest import SegmentEntry
from safekeeper.backends.log.open_files import with_room
from safekeeper.backends.shared.records import (
    CREATED_FLAG,
    SEGMENT_HEAD,
    RecordHead,
    check_value,
    decode_record_head,
    encode_record_head,
    encode_segment_head,
    padding,
    verified_id,
)
from safekeeper.errors import Corruption

_FIRST_READ = 4096  # the head and the id of nearly every record, and all of a small one


class LogSegment:
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

    def open(self, checked: bool = True) -> None:
        """Open the file for reading. Raise `Corruption` if it is missing or not the file that the manifest means."""
        try:
            fd = with_room(lambda: os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError as error:
            raise Corruption(f"{self.path}: offset 0: the segment is missing") from error
        try:
            if checked and os.pread(fd, SEGMENT_HEAD.size, 0) != encode_segment_head(self.number, self.nonce):
                raise Corruption(f"{self.path}: offset 0: is not the segment that the manifest names")
        except BaseException:
            os.close(fd)
            raise
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

    def read_id(self, location: int) -> tuple[bytes, bytes]:
        """The group and key at *location*, verified, without reading the value."""
        if location & ROW_BIT:
            row = self._read_row(location)
            return row.group, row.key
        return self._read_head(location)[1]

    def read_value(self, location: int, group: bytes, key: bytes) -> bytes:
        """The value at *location*, verified to be that of *group* and *key*."""
        if location & ROW_BIT:
            row = self._read_row(location)
            found, value = (row.group, row.key), row.value()
        else:
            head, found, raw = self._read_head(location)
            value = self._value(head, raw, location)
            if value is not None and head.flags & CREATED_FLAG:
                value = value[TOKEN_BYTES:]
        if value is None:
            self.corrupt(location)
        if found != (group, key):
            raise Corruption(f"{self._at(location)}: holds {found!r} where the index says {(group, key)!r}")
        return value

    def read_token(self, location: int) -> bytes:
        """The token of what was created at *location*; nothing if it was written."""
        if location & ROW_BIT:
            return b""
        head, _, raw = self._read_head(location)
        if not head.flags & CREATED_FLAG:
            return b""
        return (self._value(head, raw, location) or self.corrupt(location))[:TOKEN_BYTES]

    def read_stamp(self, location: int) -> tuple[int, int]:
        """The sequence and epoch of the record at *location*, verified: of two of one id the higher is the newer."""
        if location & ROW_BIT:
            row = self._read_row(location)
            return row.sequence, row.epoch
        head, _, _ = self._read_head(location)
        return head.sequence, head.epoch

    def read_record(self, location: int) -> tuple[bytes, int]:
        """The whole record at *location*, verified, and its sequence. A row comes as a record."""
        if location & ROW_BIT:
            row = self._read_row(location)
            value = row.value()
            if value is None:
                self.corrupt(location)
            record = encode_record_head(row.sequence, row.epoch, row.group, row.key, value, check_value(value)) + value
            return record + padding(len(record)), row.sequence
        head, _, raw = self._read_head(location)
        value = self._value(head, raw, location)
        if value is None:
            self.corrupt(location)
        return raw[: head.value_start] + value + padding(head.value_start + head.value_size), head.sequence

    def read_as_tombstone(self, location: int) -> tuple[bytes, int]:
        """The record at *location* as if it were a delete with the same sequence, and that sequence."""
        if location & ROW_BIT:
            row = self._read_row(location)
            group, key, sequence, epoch = row.group, row.key, row.sequence, row.epoch
        else:
            head, (group, key), _ = self._read_head(location)
            sequence, epoch = head.sequence, head.epoch
        record = encode_record_head(sequence, epoch, group, key, None, check_value(None))
        return record + padding(len(record)), sequence

    def _read_row(self, location: int) -> column_block.ColumnRow:
        return column_block.read_row(self.read, offset_of(location), self.nonce) or self.corrupt(location)

    def _read_head(self, location: int) -> tuple[RecordHead, tuple[bytes, bytes], bytes]:
        """A record's head and id, verified, and its first bytes."""
        offset = offset_of(location)
        raw = self.read(_FIRST_READ, offset)
        head = decode_record_head(raw)
        if head and head.value_start > len(raw):
            raw = self.read(head.value_start, offset)
        id = head and verified_id(head, raw)
        return (head, id, raw) if head and id else self.corrupt(location)

    def _value(self, head: RecordHead, raw: bytes, location: int) -> bytes | None:
        """The value of a record whose first bytes are *raw*; None if its checksum fails."""
        start, end = head.value_start, head.value_start + head.value_size
        value = raw[start:end] if end <= len(raw) else self.read(head.value_size, offset_of(location) + start)
        return value if check_value(value) == head.value_check else None

    def _at(self, location: int) -> str:
        return f"{self.path}: offset {offset_of(location)}"

    def corrupt(self, location: int) -> NoReturn:
        """Raise the `Corruption` of a record whose checksum fails."""
        raise Corruption(f"{self._at(location)}: a checksum does not match: damaged after it was written")


class SegmentCopies:
    """Segments of a folder that are opened when they are needed, a few at a time, apart from all others.

    Nothing keeps their files from being removed: then reading raises `Corruption`.
    """

    def __init__(self, folder: Path, entries: Iterable[SegmentEntry], most: int) -> None:
        self._folder = folder
        self._entries = {entry.number: entry for entry in entries}
        self._most = most
        self._open: dict[int, LogSegment] = {}

    def __getitem__(self, number: int) -> LogSegment:
        segment = self._open.get(number)
        if segment is None:
            if len(self._open) >= self._most:
                self.close()
            segment = LogSegment(self._folder, self._entries[number])
            segment.open()
            self._open[number] = segment
        return segment

    def close(self) -> None:
        """Close those that are open."""
        for segment in self._open.values():
            segment.close()
        self._open.clear()
