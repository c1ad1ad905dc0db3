"""What `hdfs:` stores, in files and in bytes. Version 1.

    ROOT/segments/WRITER-NUMBER      blocks of records, as in `log:`; the last one of each writer is open
    ROOT/segments/created-HASH-N     one record, of an id that was created (`creation.py`); HASH is that of the id
    ROOT/creating/RANDOM             such a segment before it gets its name
    ROOT/chunks/WRITER-NUMBER-PART   one chunk of a large value, one HDFS block
    ROOT/compaction/TIME-WRITER      the segment that a compaction is writing; while it is open it is a lock
    ROOT/clock/...                   folders that are made to see what time the NameNode gives them, and removed

    segment:   the head and the blocks of `log:` (safekeeper/backends/shared/records.py), then if it was sealed
               a block of contents | "SKHDFSEN" | nonce u64 | offset of the block of contents u64 | xxh3 u64
    kinds:     RECORDS      records of one moment: all have the sequence and the writer of the block's header
               HEADS        the same, but each value is the head of a large value
               MOVED, MOVED_HEADS   records that a compaction copied; each keeps its own sequence and writer
               CREATED      records that were created, or copies of such; each keeps its own sequence and writer, and
                            each value begins with the 16 bytes of its token
               CREATED_HEADS   the same, and what follows the token is the head of a large value
               CONTENTS     for each id in the segment its newest record, with a value that says where it is:
                            offset u64 | size u32 | kind of its block u32; that of a tombstone has none. In place of
                            the synced sequence its header has the number of all records in the segment
    head:      size u64 | xxh3 u64 of the value | chunk size u32 | writer u32 | number u64

The newest record of an id is the one with the highest (sequence, writer); of copies, the one in the newest file. What
was created counts only where no written value does, and only if no tombstone is newer than it. The
sequence is the time at which the write began by the NameNode's clock, in microseconds (`server_clock.py`), so a write
that starts after another one returned wins, whichever process made it. The writer is a random number.

HDFS checks its own bytes, so what is visible is what was written: a block that ends behind the visible end is one that
was never acknowledged; one that is all there and has a wrong checksum is damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import xxhash

from safekeeper.backends.shared.records import (
    BLOCK,
    MOVED,
    RECORD,
    RECORDS,
    SEGMENT_HEAD,
    TOMBSTONE_FLAG,
    VERSION,
    BlockHeader,
    check_value,
    decode_block,
    decode_record_head,
    encode_block,
    encode_record_head,
    encode_segment_head,
    padding,
    verified_id,
)
from safekeeper.errors import Corruption

HEADS, MOVED_HEADS, CONTENTS, CREATED, CREATED_HEADS = 16, 17, 18, 19, 20

FOOTER: Final = struct.Struct("<8sQQQ")
FOOTER_MARK: Final = b"SKHDFSEN"
_LOCATION: Final = struct.Struct("<QII")
_LARGE_VALUE: Final = struct.Struct("<QQIIQ")
_WINDOW: Final = 4 << 20

Read = Callable[[int, int], bytes]
"""Reads an offset and a size of a segment; all of it is there."""


class RecordLocation(NamedTuple):
    """Where a record is, and how new. Of two for one id the greater is the newer one, also among copies."""

    sequence: int
    writer: int
    file_id: int
    offset: int
    size: int
    kind: int
    """That of its block."""
    is_tombstone: bool

    @property
    def moved_kind(self) -> int:
        """The kind of block that a copy of it goes into."""
        return self.kind if self.is_created else MOVED_HEADS if self.is_head else MOVED

    @property
    def is_head(self) -> bool:
        """Whether its value is the head of a large value."""
        return self.kind in (HEADS, MOVED_HEADS, CREATED_HEADS)

    @property
    def is_created(self) -> bool:
        """Whether its value begins with the token that it was created with."""
        return self.kind in (CREATED, CREATED_HEADS)


class LocatedRecord(NamedTuple):
    """An id, and where a record of it is."""

    group: str
    key: bytes
    location: RecordLocation


class HdfsLargeValue(NamedTuple):
    """The head of a large value: what a segment has of a value that is stored in chunks."""

    size: int
    check: int
    chunk: int
    writer: int
    number: int

    def encode(self) -> bytes:
        """The bytes of the record's value."""
        return _LARGE_VALUE.pack(*self)

    @classmethod
    def decode(cls, raw: bytes, where: str) -> HdfsLargeValue:
        """The head in a record's value."""
        if len(raw) != _LARGE_VALUE.size:
            raise Corruption(f"{where}: the head of a large value has {len(raw)} bytes instead of {_LARGE_VALUE.size}")
        return cls(*_LARGE_VALUE.unpack(raw))

    def names(self) -> list[str]:
        """The names of the chunk files, in order."""
        return [f"{self.writer:08x}-{self.number:08x}-{part:04d}" for part in range(-(-self.size // self.chunk))]


def block_for(size: int) -> int:
    """The size of the HDFS block of a file with about *size* bytes: so much more that the file ends before its block.

    A block that is just full has ended: `hsync` then syncs nothing, and nobody can tell any more where its bytes are.
    """
    return (size + size // 8 + 511) // 512 * 512


# --- writing ----------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A record that is to be written into a block."""

    group: str
    key: bytes
    value: bytes | None
    check: int
    """The value's checksum."""


def encode_pieces(
    pieces: list[Piece], kind: int, nonce: int, offset: int, file_id: int, sequence: int, writer: int, synced: int
) -> tuple[list[bytes], list[LocatedRecord]]:
    """A block at *offset* with what was written at one moment, and what it tells the index."""
    parts: list[bytes] = [b""]
    found: list[LocatedRecord] = []
    position = BLOCK.size
    for group, key, value, check in pieces:
        head = encode_record_head(sequence, writer, group.encode(), key, value, check)
        size = len(head) + len(value or b"")
        zeros = padding(size)
        parts += (head, value or b"", zeros)
        size += len(zeros)
        location = RecordLocation(sequence, writer, file_id, offset + position, size, kind, value is None)
        found.append(LocatedRecord(group, key, location))
        position += size
    parts[0] = encode_block(nonce, offset, writer, sequence, synced, position - BLOCK.size, len(pieces), kind)
    return parts, found


def encode_copies(
    records: list[bytes], kind: int, nonce: int, offset: int, sequence: int, writer: int, synced: int = 0
) -> list[bytes]:
    """A block at *offset* with whole records from elsewhere, none of which is newer than *sequence*."""
    length = sum(map(len, records))
    return [encode_block(nonce, offset, writer, sequence, synced, length, len(records), kind), *records]


def encode_footer(found: list[LocatedRecord], count: int, nonce: int, offset: int, sequence: int, writer: int) -> bytes:
    """What a segment with *count* records is sealed with at *offset*: the newest of each id, and where this begins."""
    records = []
    for group, key, location in found:
        packed = None if location.is_tombstone else _LOCATION.pack(location.offset, location.size, location.kind)
        head = encode_record_head(location.sequence, location.writer, group.encode(), key, packed, check_value(packed))
        size = len(head) + len(packed or b"")
        records.append(head + (packed or b"") + padding(size))
    block = encode_copies(records, CONTENTS, nonce, offset, sequence, writer, count)
    raw = FOOTER.pack(FOOTER_MARK, nonce, offset, 0)[:-8]
    return b"".join(block) + raw + xxhash.xxh3_64_intdigest(raw).to_bytes(8, "little")


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_nonce(raw: bytes, where: str) -> int:
    """The nonce of the segment that begins with *raw*."""
    version: int
    number: int
    nonce: int
    _, version, number, nonce, _ = SEGMENT_HEAD.unpack(raw)
    if raw != encode_segment_head(number, nonce):
        other = version != VERSION and raw[:8] == encode_segment_head(0, 0)[:8]
        raise Corruption(
            f"{where}: is {f'of version {version}' if other else 'no segment'}: not written by this version"
        )
    return nonce


class Scanner:
    """Walks over the blocks of one segment, as far as they are there. It can go on where it stopped."""

    def __init__(self, where: str, file_id: int) -> None:
        self.where = where
        self._file_id = file_id
        self.nonce: int | None = None
        self.end = 0
        """Where the last whole block ends."""
        self.sequence = 0
        """The highest that was met."""
        self.records = 0
        """How many were met."""
        self.sealed = False

    def scan(self, read: Read, length: int) -> Iterator[LocatedRecord]:
        """What stands between the last whole block and *length*, block by block."""
        if self.nonce is None and length >= SEGMENT_HEAD.size:
            self.nonce = decode_nonce(read(0, SEGMENT_HEAD.size), self.where)
            self.end = SEGMENT_HEAD.size
        window, base = b"", self.end
        while self.nonce is not None and not self.sealed and length - self.end >= BLOCK.size:
            position = self.end - base
            if len(window) - position < BLOCK.size:
                base, position = self.end, 0
                window = read(base, min(_WINDOW, length - base))
            header = decode_block(window[position : position + BLOCK.size], self.nonce, self.end)
            if header is None:
                raise self._damaged(self.end)
            if self.end + header.size > length:
                return
            if len(window) - position < header.size:
                base, position = self.end, 0
                window = read(base, min(max(_WINDOW, header.size), length - base))
            yield from self._block(window[position : position + header.size], header)

    def _block(self, raw: bytes, header: BlockHeader) -> list[LocatedRecord]:
        start, self.end = self.end, self.end + header.size
        if header.kind == CONTENTS:
            self.sealed = True
            return []
        found = []
        position = BLOCK.size
        for _ in range(header.records):
            record = memoryview(raw)[position:]
            head = decode_record_head(record)
            id = head and verified_id(head, record)
            if head is None or id is None or head.size > len(record):
                raise self._damaged(start + position)
            if check_value(record[head.value_start : head.value_start + head.value_size]) != head.value_check:
                raise self._damaged(start + position)
            is_tombstone = bool(head.flags & TOMBSTONE_FLAG)
            location = RecordLocation(
                head.sequence, head.epoch, self._file_id, start + position, head.size, header.kind, is_tombstone
            )
            found.append(LocatedRecord(id[0].decode(), id[1], location))
            position += head.size
        self.sequence = max(self.sequence, header.sequence)
        self.records += len(found)
        return found

    def read_contents(self, read: Read, length: int) -> list[LocatedRecord] | None:
        """The same for a sealed segment of *length* bytes, from its contents alone; None if it was not sealed."""
        tail = read(max(0, length - _WINDOW), min(_WINDOW, length))
        if len(tail) < FOOTER.size + BLOCK.size:
            return None
        mark, nonce, start, check = FOOTER.unpack(tail[-FOOTER.size :])
        if mark != FOOTER_MARK or check != xxhash.xxh3_64_intdigest(tail[-FOOTER.size : -8]):
            return None
        first = length - len(tail)
        raw = tail[start - first : -FOOTER.size] if start >= first else read(start, length - FOOTER.size - start)
        header = decode_block(raw[: BLOCK.size], nonce, start)
        if header is None or header.kind != CONTENTS or header.size != len(raw):
            raise self._damaged(start)
        self.nonce, self.end, self.sequence, self.sealed = nonce, start + header.size, header.sequence, True
        self.records = header.synced
        return [self._located(raw, position, start) for position in _positions(raw, header)]

    def _located(self, raw: bytes, position: int, start: int) -> LocatedRecord:
        record = memoryview(raw)[position:]
        head = decode_record_head(record)
        id = head and verified_id(head, record)
        if head is None or id is None:
            raise self._damaged(start + position)
        value = bytes(record[head.value_start : head.value_start + head.value_size])
        is_tombstone = bool(head.flags & TOMBSTONE_FLAG)
        if check_value(value) != head.value_check or (not is_tombstone and len(value) != _LOCATION.size):
            raise self._damaged(start + position)
        offset, size, kind = (0, head.value_start, RECORDS) if is_tombstone else _LOCATION.unpack(value)
        location = RecordLocation(head.sequence, head.epoch, self._file_id, offset, size, kind, is_tombstone)
        return LocatedRecord(id[0].decode(), id[1], location)

    def _damaged(self, offset: int) -> Corruption:
        return Corruption(f"{self.where}: offset {offset}: a checksum does not match: damaged after it was written")


def _positions(raw: bytes, header: BlockHeader) -> Iterator[int]:
    """Where the records of a block begin."""
    position = BLOCK.size
    for _ in range(header.records):
        yield position
        head = decode_record_head(memoryview(raw)[position:])
        position += head.size if head else RECORD.size


def open_record(record: bytes, where: str) -> tuple[str, bytes, bytes]:
    """The group, the key and the value in a whole *record*, verified."""
    head = decode_record_head(record)
    id = head and verified_id(head, record)
    if head is None or id is None:
        raise Corruption(f"{where}: a checksum does not match: damaged after it was written")
    value = record[head.value_start : head.value_start + head.value_size]
    if check_value(value) != head.value_check:
        raise Corruption(f"{where}: a checksum does not match: damaged after it was written")
    return id[0].decode(), id[1], value
