"""The names and bytes of a stream that many tasks produce, in batches. Frozen: another layout gets another version.

    group NAME.pieces     piece_PRODUCER_BATCH_TOKEN_INDEX    elements without numbers, written by one task
    group NAME.stream     batch_FIRST                         created once: numbers the elements of some pieces

PRODUCER is 32 hex digits (a query's id), BATCH and FIRST 19 digits, TOKEN 16 hex digits that a task makes up, INDEX 6.
Nobody reads a piece that no batch lists, so a task may die, run twice, or write when all is over. What makes a batch a
part of the stream is one id, its **roll**, that is created where no id is. It says which rolls and batches came before:

- of two drivers that number the same elements one creates the roll; the other finds it, and that its batch is done;
- one that comes so late that its number was used, acknowledged and trimmed creates a roll that the next one does not
  name as the one before it: `in_order` leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgpack
import numpy as np
import xxhash

from safekeeper.errors import Corruption
from safekeeper.streams.frames import Frame
from safekeeper.streams.tables import ElementTable, PackedBytes

# roll:    "SKB1" | xxh3 u64 | msgpack [first, id, before or nil, {producer: batch}, [piece key, count, ...]]
#          before is [first, id] of the roll before; id 16 bytes; the map says which batch of each producer was the last
# piece:   "SKP1" | xxh3 u64 | count u32 | key ends u32... | keys | body ends u32... | bodies
#          a checksum is big endian and covers everything after it; other numbers are little endian
ROLL, PIECE = b"SKB1", b"SKP1"
_HEAD = 4 + 8
PIECES = ".pieces"
_ROLL_KEY = re.compile(rb"batch_(\d{19})")
_PIECE_KEY = re.compile(rb"piece_([0-9a-f]{32})_(\d{19})_[0-9a-f]{16}_\d{6}")


class RollId(NamedTuple):
    """Which roll it is: of several that begin with the same number only one counts."""

    first: int
    id: bytes


@dataclass(frozen=True, slots=True)
class Roll:
    """The elements of one batch, by the pieces that they are in."""

    first: int
    id: bytes
    before: RollId | None
    """The roll before it; None if it was the first."""
    done: Mapping[str, int]
    """The last batch of each producer, this one included."""
    pieces: Sequence[tuple[bytes, int]]
    """The keys of the pieces, in order, and how many elements each has."""

    @property
    def last(self) -> int:
        """The number of its last element."""
        return self.first + sum(count for _, count in self.pieces) - 1

    @property
    def key(self) -> bytes:
        """Under which it is stored."""
        return roll_key(self.first)

    def frames(self) -> dict[Frame, bytes]:
        """The elements of each piece, with its key."""
        found, first = {}, self.first
        for key, count in self.pieces:
            found[Frame(first, first + count - 1)] = key
            first += count
        return found

    def encode(self) -> bytes:
        """Its bytes."""
        pieces = [part for piece in self.pieces for part in piece]
        return _seal(ROLL, msgpack.packb([self.first, self.id, self.before, dict(self.done), pieces]))


def roll_key(first: int) -> bytes:
    """Under which the roll that begins with *first* is stored."""
    return b"batch_%019d" % first


def is_roll(key: bytes) -> bool:
    """Whether a roll is stored under *key*."""
    return _ROLL_KEY.fullmatch(key) is not None


def decode_roll(place: str, key: bytes, value: bytes) -> Roll:
    """The roll that is stored under *key* at *place*. Raise `Corruption` if these are not its bytes."""
    first, id, before, done, pieces = msgpack.unpackb(_open(place, key, ROLL, value))
    if roll_key(first) != key:
        raise Corruption(f"{place}/{key.decode()} is damaged: it is another batch")
    return Roll(first, id, before and RollId(*before), done, list(zip(pieces[::2], pieces[1::2], strict=True)))


def in_order(rolls: Iterable[Roll]) -> list[Roll]:
    """The rolls that count, in order: each one names the one before it.

    A roll is left out if a later one has another in its place, or if it reaches into the place of the one that a later
    one names. Where one is missing, since it was trimmed or the listing did not show it, nothing else is known of those
    before; there is a gap then, which readers look at anyway.
    """
    found: list[Roll] = []
    before: RollId | None = None
    for roll in sorted(rolls, key=lambda roll: roll.first, reverse=True):
        if found and (before is None or (roll.last >= before.first and RollId(roll.first, roll.id) != before)):
            continue
        found.append(roll)
        before = roll.before
    return found[::-1]


def piece_key(producer: str, batch: int, token: str, index: int) -> bytes:
    """Under which a piece is stored."""
    return f"piece_{producer}_{batch:019d}_{token}_{index:06d}".encode()


def batch_of(key: bytes) -> tuple[str, int] | None:
    """Which producer's and which batch's piece is stored under *key*; None if it is not a piece."""
    found = _PIECE_KEY.fullmatch(key)
    return (found[1].decode(), int(found[2])) if found else None


def encode_piece(count: int, keys: tuple[bytes, bytes], bodies: tuple[bytes, bytes]) -> bytes:
    """The bytes of a piece of *count* elements. Of both columns: where each value ends, as u32, and all values."""
    return _seal(PIECE, b"".join((count.to_bytes(4, "little"), *keys, *bodies)))


def column(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """*values* as `encode_piece` takes them."""
    ends = np.cumsum([len(value) for value in values], dtype="<u4")
    return ends.tobytes(), b"".join(values)


def decode_piece(place: str, key: bytes, value: bytes, first: int = 1) -> ElementTable:
    """The elements of the piece that is stored under *key* at *place*; their numbers begin with *first*."""
    body = _open(place, key, PIECE, value)
    count = int.from_bytes(body[:4], "little")
    keys, rest = _split(body, 4, count)
    bodies, end = _split(body, rest, count)
    if end != len(body):
        raise Corruption(f"{place}/{key.decode()} is damaged: it has {len(body)} bytes, not {end}")
    return ElementTable(first, keys, bodies)


def _split(body: bytes, start: int, count: int) -> tuple[PackedBytes, int]:
    """The values of a column that begins at *start*, and where it ends."""
    offsets = np.empty(count + 1, np.int32)
    offsets[0] = 0
    offsets[1:] = np.frombuffer(body, "<u4", count, start)
    offsets += start + 4 * count
    return PackedBytes(offsets, body), int(offsets[-1])


def _seal(magic: bytes, body: bytes) -> bytes:
    return magic + xxhash.xxh3_64_digest(body) + body


def _open(place: str, key: bytes, magic: bytes, value: bytes) -> bytes:
    body = value[_HEAD:]
    if value[:4] != magic or value[4:_HEAD] != xxhash.xxh3_64_digest(body):
        raise Corruption(f"{place}/{key.decode()} is damaged: its checksum is wrong")
    return body
