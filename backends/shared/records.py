"""The bytes of segments, blocks and records, which `log:` and `hdfs:` share.

`docs/format.md` says what may be believed of them and when.

    segment:  "SKLOGSEG" | version u32 | number u32 | nonce u64 | xxh3 u64 of the 24 bytes before | block... | zeros
    block:    xxh3 u64 | mark u32 | epoch u32 | sequence u64 | synced u64 | length u64 | count u32 | kind u32 | payload
              the checksum covers the rest of the header, seeded with the nonce and the block's offset
    record:   xxh3 u64 | value xxh3 u64 | sequence u64 | epoch u32 | value_len u32 | key_len u16 | group_len u8
              | flags u8 | group | key | value | zeros to a multiple of 8
              the first checksum covers everything from the second to the end of the key
              flags: 1 = tombstone, without a value; 2 = created (`log:` only): the value begins with a token, 16 bytes

Little endian. Frozen: another layout is another version. The payload of a block of columns is in `log/column_block.py`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

VERSION: Final = 1

SEGMENT_MARK: Final = b"SKLOGSEG"
SEGMENT_HEAD: Final = struct.Struct("<8sIIQQ")
_SEGMENT_CHECKED: Final = 24

BLOCK: Final = struct.Struct("<QIIQQQII")
_BLOCK_REST: Final = struct.Struct("<IIQQQII")
BLOCK_MARK: Final = int.from_bytes(b"SKLB", "little")
RECORDS, COLUMNS, MOVED = 1, 2, 3

RECORD: Final = struct.Struct("<QQQIIHBB")
_RECORD_REST: Final = struct.Struct("<QQIIHBB")
_U64: Final = struct.Struct("<Q")
TOMBSTONE_FLAG: Final = 1
CREATED_FLAG: Final = 2

_SPREAD: Final = 0x9E3779B97F4A7C15
_MASK64: Final = (1 << 64) - 1
_PADDING: Final = [bytes(-n % 8) for n in range(8)]
EMPTY_CHECK: Final = xxhash.xxh3_64_intdigest(b"")


def padding(size: int) -> bytes:
    """The zeros that bring *size* to a multiple of 8."""
    return _PADDING[size % 8]


def padded(size: int) -> int:
    """*size* with its `padding`: the next multiple of 8. Loops over records write it out, since a call costs more."""
    return size + 7 & ~7


def padded_sizes(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same for many sizes."""
    return sizes + 7 & ~7


# --- segments ---------------------------------------------------------------------------------------------------------


def encode_segment_head(number: int, nonce: int) -> bytes:
    """The first bytes of a segment."""
    head = SEGMENT_HEAD.pack(SEGMENT_MARK, VERSION, number, nonce, 0)[:_SEGMENT_CHECKED]
    return head + _U64.pack(xxhash.xxh3_64_intdigest(head))


# --- blocks -----------------------------------------------------------------------------------------------------------


class BlockHeader(NamedTuple):
    """The header of a block, without its checksum and mark."""

    epoch: int
    sequence: int
    synced: int
    """The highest sequence that was durable when the block was written."""
    length: int
    """The bytes of the payload."""
    records: int
    """How many records or rows it holds."""
    kind: int

    @property
    def size(self) -> int:
        """The bytes of the whole block."""
        return BLOCK.size + self.length


def block_seed(nonce: int, offset: int) -> int:
    """The seed of the checksum of a header, which therefore holds at one offset only."""
    return (nonce ^ offset * _SPREAD) & _MASK64


def block_seeds(nonce: int, offsets: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same for many offsets."""
    return np.uint64(nonce) ^ offsets * np.uint64(_SPREAD)


def encode_block(
    nonce: int, offset: int, epoch: int, sequence: int, synced: int, length: int, records: int, kind: int
) -> bytes:
    """The header of a block at *offset* of the segment with *nonce*; the rest is as in `BlockHeader`."""
    raw = _BLOCK_REST.pack(BLOCK_MARK, epoch, sequence, synced, length, records, kind)
    return _U64.pack(xxhash.xxh3_64_intdigest(raw, block_seed(nonce, offset))) + raw


def decode_block(raw: bytes | memoryview, nonce: int, offset: int) -> BlockHeader | None:
    """The header in the first bytes of *raw*, or None if they are no header of a block at this offset."""
    if len(raw) < BLOCK.size:
        return None
    check, mark, *fields = BLOCK.unpack_from(raw)
    if mark != BLOCK_MARK or check != xxhash.xxh3_64_intdigest(raw[8 : BLOCK.size], block_seed(nonce, offset)):
        return None
    return BlockHeader(*fields)


# --- records ----------------------------------------------------------------------------------------------------------


class RecordHead(NamedTuple):
    """The fields of a record in front of its group."""

    check: int
    value_check: int
    sequence: int
    epoch: int
    value_size: int
    key_size: int
    group_size: int
    flags: int

    @property
    def value_start(self) -> int:
        """Where the value begins, counted from the record's first byte."""
        return RECORD.size + self.group_size + self.key_size

    @property
    def size(self) -> int:
        """The bytes of the whole record, padding included."""
        return (self.value_start + self.value_size + 7) & ~7


def encode_record_head(
    sequence: int, epoch: int, group: bytes, key: bytes, value: bytes | None, value_check: int, token: bytes = b""
) -> bytes:
    """A record up to where its value starts, or its token if it has one; None is a tombstone."""
    flags, size = (TOMBSTONE_FLAG, 0) if value is None else (CREATED_FLAG if token else 0, len(token) + len(value))
    raw = _RECORD_REST.pack(value_check, sequence, epoch, size, len(key), len(group), flags) + group + key
    return _U64.pack(xxhash.xxh3_64_intdigest(raw)) + raw


def check_value(value: bytes | memoryview | None) -> int:
    """The checksum of a value, or of a tombstone's lack of one."""
    return xxhash.xxh3_64_intdigest(value) if value else EMPTY_CHECK


def decode_record_head(raw: bytes | memoryview) -> RecordHead | None:
    """The head in the first bytes of *raw*, None if there are too few. Not verified: see `verified_id`."""
    return RecordHead._make(RECORD.unpack_from(raw)) if len(raw) >= RECORD.size else None


def verified_id(head: RecordHead, raw: bytes | memoryview) -> tuple[bytes, bytes] | None:
    """The group and key of the record that *raw* begins with, or None if its first checksum fails."""
    end = head.value_start
    if len(raw) < end or xxhash.xxh3_64_intdigest(raw[8:end]) != head.check:
        return None
    return bytes(raw[RECORD.size : RECORD.size + head.group_size]), bytes(raw[RECORD.size + head.group_size : end])


NewRecord = tuple[str, bytes, bytes, bytes | None, int]
"""What a record is made from: group, the same in bytes, key, value or None (a tombstone), and the value's checksum."""


def encode_records(records: list[NewRecord], sequence: int, epoch: int) -> tuple[list[bytes], list[int], int]:
    """The payload of a block of records, where in it each record starts, and its length."""
    # As `encode_record_head`, without a call for each: a save spends a good part of its time here.
    pack, pack_check, digest, fixed = _RECORD_REST.pack, _U64.pack, xxhash.xxh3_64_intdigest, RECORD.size
    parts: list[bytes] = []
    starts: list[int] = []
    position = 0
    for _, group, key, value, value_check in records:
        starts.append(position)
        flags = 0
        if value is None:
            flags, value = TOMBSTONE_FLAG, b""
        key_size, group_size, value_size = len(key), len(group), len(value)
        raw = pack(value_check, sequence, epoch, value_size, key_size, group_size, flags) + group + key
        size = fixed + group_size + key_size + value_size
        parts += (pack_check(digest(raw)), raw, value, _PADDING[size & 7])
        position += size + 7 & ~7
    return parts, starts, position
