"""The bytes of a block: what an operator appends to its journal in one step.

    block:   "SKJ1" | xxh3 u64 | flags u8 | msgpack map          little endian; the checksum covers what follows it
                                                                 flags are 0; frozen: version 2 gets another mark
      at          [events, {input: position}]    the moment that it was captured at: how many events the operator had
                                                 taken, and the position after the last one of each input
      replay      [events, {input: position}]    replay begins after this moment; the same as `at` if the block, with
                                                 those before it, has every change
      order       [[input, count] ...]           how the inputs were taken since the block before
      keys        [key ...]                      the parts in it, each once; three columns, so that a million are
      kinds       bytes, one each                read at the speed of C:
      values      [value ...]                    o opened since the block before, c check: its state, m moved: brought
                                                 forward unchanged, x closed (its value is empty), d delta: its
                                                 value goes behind that of the record before it
      out         {stream: [first, [event ...], [key ...], [body ...]]}
                                                 outputs since the block before: the number of the first, and for each
                                                 the event that emitted it
      numbers     {stream: n}                    the number of the last output that was ever emitted
      confirmed   {stream: n}                    up to here outputs need not be kept: their stream is sure to have them,
                                                 or all readers have acknowledged them
      floor       {stream: n}                    acknowledged by all readers
      oldest      n                              the oldest block that a recovery from here needs
      live        n                              how many parts there are
      serializer  name                           what made the values
      rates       [records/s, events/s]          how quickly this process loads and replays, as far as it knows: 0 if
                                                 it does not. Only for those who ask how long a recovery will take

A position is an int, or a list of ints that is compared from the left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import xxhash

from safekeeper.errors import BadState, Corruption
from safekeeper.streams.carrier import Position

OPEN, CHECK, MOVED, CLOSE, DELTA = b"o", b"c", b"m", b"x", b"d"
KINDS = OPEN + CHECK + MOVED + CLOSE + DELTA
"""What a record of a part can be; frozen."""

_MARK = b"SKJ1"
_BODY = 13
_CHECKED_FROM = 12


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in the sequence of all events of an operator."""

    events: int = 0
    """How many events were taken until then."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """The position after the last event of each input; without those that had none."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs to one stream that follow each other, in columns."""

    first: int
    """The number of the first one; the others have the next ones."""
    events: list[int]
    """Which event emitted it, counted from the operator's first."""
    keys: list[bytes]
    bodies: list[bytes]

    @property
    def last(self) -> int:
        """The number of the last one."""
        return self.first + len(self.bodies) - 1

    @property
    def nbytes(self) -> int:
        """How many bytes of keys and bodies they have."""
        return sum(map(len, self.bodies)) + sum(map(len, self.keys))


@dataclass(frozen=True, slots=True)
class SpilledOutputs:
    """Outputs to one stream that are in a block, and not in memory."""

    block: int
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """What one step of an operator's journal says. The fields are explained with the bytes."""

    at: Moment
    replay: Moment
    order: list[tuple[str, int]] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    kinds: bytes = b""
    values: list[bytes] = field(default_factory=list)
    out: Mapping[str, Outputs] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    confirmed: Mapping[str, int] = field(default_factory=dict)
    floor: Mapping[str, int] = field(default_factory=dict)
    oldest: int = 1
    live: int = 0
    serializer: str = "msgpack"
    rates: tuple[float, float] = (0.0, 0.0)

    def encode(self) -> bytes:
        """Its bytes."""
        out = {stream: (some.first, some.events, some.keys, some.bodies) for stream, some in self.out.items()}
        body = msgpack.packb(
            {
                "at": (self.at.events, self.at.positions),
                "replay": (self.replay.events, self.replay.positions),
                "order": self.order,
                "keys": self.keys,
                "kinds": self.kinds,
                "values": self.values,
                "out": out,
                "numbers": self.numbers,
                "confirmed": self.confirmed,
                "floor": self.floor,
                "oldest": self.oldest,
                "live": self.live,
                "serializer": self.serializer,
                "rates": self.rates,
            }
        )
        checksum = xxhash.xxh3_64(b"\0")
        checksum.update(body)
        return b"".join((_MARK, checksum.intdigest().to_bytes(8, "little"), b"\0", body))

    @classmethod
    def decode(cls, data: bytes, name: object = "a block") -> Block:
        """The block with these bytes. Raise `Corruption` if they are damaged, `BadState` if they are of a later
        version; *name* is for the message."""
        if data[:3] != _MARK[:3] or len(data) < _BODY:
            raise Corruption(f"{name}: these bytes are not a block of a journal")
        if data[:4] != _MARK:
            raise BadState(f"{name} was written by a later version of safekeeper: update it")
        view = memoryview(data)
        if xxhash.xxh3_64_intdigest(view[_CHECKED_FROM:]) != int.from_bytes(data[4:_CHECKED_FROM], "little"):
            raise Corruption(f"{name}: the checksum does not match: it was damaged after it was written")
        if data[_CHECKED_FROM]:
            raise BadState(f"{name} was written by a later version of safekeeper: update it")
        return cls._of(msgpack.unpackb(view[_BODY:], strict_map_key=False), name)

    @classmethod
    def _of(cls, fields: dict[str, Any], name: object) -> Block:
        kinds = fields["kinds"]
        if kinds.translate(None, KINDS):
            raise BadState(f"{name} has records that this version of safekeeper does not know: update it")
        return cls(
            at=_moment(fields["at"]),
            replay=_moment(fields["replay"]),
            order=[(input, count) for input, count in fields["order"]],
            keys=fields["keys"],
            kinds=kinds,
            values=fields["values"],
            out={stream: Outputs(*some) for stream, some in fields["out"].items()},
            numbers=fields["numbers"],
            confirmed=fields["confirmed"],
            floor=fields["floor"],
            oldest=fields["oldest"],
            live=fields["live"],
            serializer=fields["serializer"],
            rates=(fields["rates"][0], fields["rates"][1]),
        )


def _moment(packed: list[Any]) -> Moment:
    events, positions = packed
    return Moment(events, {input: tuple(at) if type(at) is list else at for input, at in positions.items()})
