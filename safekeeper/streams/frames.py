"""The names and bytes of a stream in a store. Frozen: another layout gets another version.

    group NAME.stream     frame_FIRST_LAST      19 digits each: the elements FIRST to LAST; written once, see below
    group NAME.readers    declared              JSON: the names that the producer has declared, a list
                          reader_NAME           JSON: how far this reader has acknowledged, a number

Two frames may overlap, if a producer that was killed comes to send again: their elements are the same. So it does not
matter which of them a reader takes, and no id is ever written with two different values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgpack
import xxhash

from safekeeper.errors import Corruption
from safekeeper.streams.carrier import StreamElement
from safekeeper.streams.retained import number_of
from safekeeper.streams.tables import ElementTable

# frame:   "SKS1" | xxh3 u64 | msgpack [first, key, body, key, body, ...]
#          big endian; the checksum covers everything after it
MAGIC = b"SKS1"
_HEAD = len(MAGIC) + 8
FRAME_BYTES = 1024 * 1024
"""A frame is closed when its elements have this many bytes; one element may be larger."""
_KEY = re.compile(rb"frame_(\d{19})_(\d{19})")

GROUP, READERS, DECLARED = ".stream", ".readers", b"declared"


class Frame(NamedTuple):
    """Some elements that are stored together."""

    first: int
    last: int

    @property
    def key(self) -> bytes:
        """Under which it is stored."""
        return b"frame_%019d_%019d" % self


def parse_key(key: bytes) -> Frame | None:
    """The frame with this key; None if it is not one."""
    found = _KEY.fullmatch(key)
    return Frame(int(found[1]), int(found[2])) if found else None


def reader_key(name: str) -> bytes:
    """Under which a reader's acknowledgement is stored."""
    return f"reader_{name}".encode()


def split(elements: Sequence[StreamElement]) -> list[Sequence[StreamElement]]:
    """*elements* in portions of one frame each."""
    portions, start, nbytes = [], 0, 0
    for index, element in enumerate(elements):
        size = len(element.key) + len(element.body)
        if nbytes and nbytes + size > FRAME_BYTES:
            portions.append(elements[start:index])
            start, nbytes = index, 0
        nbytes += size
    return [*portions, elements[start:]]


def encode(elements: Sequence[StreamElement]) -> tuple[Frame, bytes]:
    """The frame of *elements*, whose numbers follow one another, and its bytes."""
    frame = Frame(number_of(elements[0]), number_of(elements[-1]))
    fields: list[int | bytes] = [frame.first]
    for element in elements:
        fields += (element.key, element.body)
    body = msgpack.packb(fields)
    return frame, MAGIC + xxhash.xxh3_64_digest(body) + body


def decode(place: str, frame: Frame, value: bytes) -> list[StreamElement]:
    """The elements of *frame*, which lies at *place*. Raise `Corruption` if these are not its bytes."""
    return decode_table(place, frame, value).elements()


def decode_table(place: str, frame: Frame, value: bytes) -> ElementTable:
    """The same as columns."""
    body = value[_HEAD:]
    if value[: len(MAGIC)] != MAGIC or value[len(MAGIC) : _HEAD] != xxhash.xxh3_64_digest(body):
        raise Corruption(f"{place}/{frame.key.decode()} is damaged: its checksum is wrong")
    first, *fields = msgpack.unpackb(body)
    if first != frame.first or len(fields) != 2 * (frame.last - frame.first + 1):
        raise Corruption(f"{place}/{frame.key.decode()} is damaged: it has the elements of another frame")
    return ElementTable(first, fields[::2], fields[1::2])
