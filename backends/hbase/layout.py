"""How checkpoints lie in a table of HBase: row keys, columns, and the bytes of the cells.

    row                                     column            cell
    hash u16 | group | 00 | k | key         data:checkpoint   the value, or the head of a value over 1 MiB
    hash u16 | group | 00 | h | sha256      data:checkpoint   the same for a key over 1 KiB
                                            data:key          that key
    either of these                         data:created      what was created; it counts while there is no checkpoint
                                            data:gate         the last one that tried to create it: 16 random bytes
    hash u16 | group | 01 | write id | n    data:part         chunk n (u16) of the value that was written under that id
                                            data:head         the row that its head belongs to
    00 00 00 | slot                         data:token        where handles read the server's clock

The hash of the group spreads groups over the table; within a group the rows lie together, the ids before the chunks. A
group has no control characters, so nothing runs into anything else. Frozen, all of it, numbers big endian.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from dataclasses import dataclass
from functools import lru_cache

from safekeeper.backend import TOKEN_BYTES
from safekeeper.backends.shared.checksums import check, checksum, damaged, seed_of
from safekeeper.errors import Corruption

FAMILY = b"data"
CHECKPOINT = b"data:checkpoint"
CREATED = b"data:created"
GATE = b"data:gate"
KEY = b"data:key"
CHUNK = b"data:part"
HEAD = b"data:head"
TOKEN = b"data:token"

VALUES = (CHECKPOINT, CREATED)
"""The columns that have the value of an id. The first one that is there counts; a row with neither has none."""

CHUNK_BYTES = 1024 * 1024
"""The largest cell. HBase takes 10 MB, but its Thrift server no frames over 2 MB by default."""

LONG_KEY_BYTES = 1024
"""HBase takes rows up to 32,767 bytes, but repeats the row in every cell and in its indexes."""

FIRST_GROUP = b"\0\0\1"
"""Every row of a group is at or after this one, every row of a clock before it."""

_IDS, _CHUNKS, _END = b"\0", b"\1", b"\2"
_SHORT, _LONG = b"k", b"h"
_SEPARATOR = re.compile(rb"[\0\1]")

# cell:    mark u8 | xxh3 u64 | mark 1: the bytes themselves
#                             | mark 2: write id, 16 bytes | number of chunks u16
#          what was created:  | mark 3: token, 16 bytes | the bytes themselves
#                             | mark 4: token, 16 bytes | write id | number of chunks u16
#          the checksum covers the whole value and is seeded with the id and the token, so that a value in another id's
#          row does not pass
_CELL = struct.Struct(">BQ")
_IN_CHUNKS_CELL = struct.Struct(">16sH")
_WHOLE, _IN_CHUNKS, _CREATED_WHOLE, _CREATED_IN_CHUNKS = 1, 2, 3, 4
_AFTER_TOKEN = _CELL.size + TOKEN_BYTES
_U16 = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class HBaseGroup:
    """Where a group lies."""

    name: str
    seed: int
    ids: bytes
    """What the rows of its ids start with."""
    chunks: bytes
    """What the rows of its chunks start with."""
    end: bytes
    """The first row that no longer belongs to it."""

    def row(self, key: bytes) -> bytes:
        """The row of an id."""
        if len(key) <= LONG_KEY_BYTES:
            return self.ids + _SHORT + key
        return self.ids + _LONG + hashlib.sha256(key).digest()

    def key(self, row: bytes) -> bytes | None:
        """The key of an id's row; None if the key is a long one, which stands in the row's column `KEY`."""
        start = len(self.ids)
        return row[start + 1 :] if row[start : start + 1] == _SHORT else None

    def describe(self, key: bytes) -> str:
        """What the value of *key* lies in, for people."""
        return f"row {self.row(key)[:80]!r}"


@lru_cache(maxsize=4096)
def locate(name: str) -> HBaseGroup:
    """Where the group *name* lies."""
    raw = name.encode()
    seed = seed_of(raw)
    prefix = _U16.pack(seed >> 48) + raw
    return HBaseGroup(name, seed, prefix + _IDS, prefix + _CHUNKS, prefix + _END)


def group_of(row: bytes) -> tuple[HBaseGroup, bool]:
    """The group that *row* belongs to, and whether it is the row of an id."""
    found = _SEPARATOR.search(row, 2)
    if found is None:
        raise Corruption(f"row {row!r}: holds no checkpoint: the table is used by somebody else too")
    return locate(row[2 : found.start()].decode("utf-8", "replace")), found.group() == _IDS


@dataclass(frozen=True, slots=True)
class HBaseLargeValue:
    """A large value as its head tells it: which chunks it has, and the checksum of them all together."""

    checksum: int
    write_id: bytes
    chunks: int
    token: bytes = b""
    """What it was created with."""

    def rows(self, group: HBaseGroup) -> list[bytes]:
        """The rows of the chunks, in order."""
        return [group.chunks + self.write_id + _U16.pack(number) for number in range(self.chunks)]

    def encode(self) -> bytes:
        """The head as a cell."""
        mark = _CREATED_IN_CHUNKS if self.token else _IN_CHUNKS
        return _CELL.pack(mark, self.checksum) + self.token + _IN_CHUNKS_CELL.pack(self.write_id, self.chunks)


def write_id_of(group: HBaseGroup, row: bytes) -> bytes:
    """The write id in the row of a chunk."""
    return row[len(group.chunks) : -_U16.size]


def encode(group: HBaseGroup, key: bytes, value: bytes, token: bytes = b"") -> bytes:
    """A value as a cell; with a *token* if it is created."""
    mark = _CREATED_WHOLE if token else _WHOLE
    return _CELL.pack(mark, checksum(group, key, value, token)) + token + value


def split(group: HBaseGroup, key: bytes, value: bytes, token: bytes = b"") -> tuple[HBaseLargeValue, list[bytes]]:
    """A large value as its head and its chunks, under a fresh write id."""
    chunks = [value[start : start + CHUNK_BYTES] for start in range(0, len(value), CHUNK_BYTES)]
    head = HBaseLargeValue(checksum(group, key, value, token), secrets.token_bytes(16), len(chunks), token)
    return head, chunks


def decode(group: HBaseGroup, key: bytes, cell: bytes) -> bytes | HBaseLargeValue:
    """The value that *cell* holds, checked, or the head of a large one."""
    if len(cell) >= _CELL.size:
        mark, expected = _CELL.unpack_from(cell)
        if mark == _WHOLE:
            return check(group, key, expected, cell[_CELL.size :])
        if mark == _CREATED_WHOLE and len(cell) >= _AFTER_TOKEN:
            return check(group, key, expected, cell[_AFTER_TOKEN:], cell[_CELL.size : _AFTER_TOKEN])
        if head := head_in(cell):
            return head
    raise damaged(group, key, "holds no value of a known version")


def head_in(cell: bytes) -> HBaseLargeValue | None:
    """The head of a large value that *cell* holds; None if it holds something else, damaged or not."""
    if len(cell) < _CELL.size:
        return None
    mark, expected = _CELL.unpack_from(cell)
    start = {_IN_CHUNKS: _CELL.size, _CREATED_IN_CHUNKS: _AFTER_TOKEN}.get(mark, len(cell))
    if len(cell) != start + _IN_CHUNKS_CELL.size:
        return None
    write_id, chunks = _IN_CHUNKS_CELL.unpack_from(cell, start)
    return HBaseLargeValue(expected, write_id, chunks, cell[_CELL.size : start])


def token_of(group: HBaseGroup, key: bytes, cell: bytes) -> bytes | None:
    """The token with which the value in *cell* was created; None if it was written."""
    decode(group, key, cell)
    return cell[_CELL.size : _AFTER_TOKEN] if cell[0] in (_CREATED_WHOLE, _CREATED_IN_CHUNKS) else None
