"""Which blocks of a journal are still needed, and which part has been in them for the longest time.

The *extent* of a journal are the records from the oldest block that is needed to the newest. It is bounded by bringing
old parts forward: whoever records the part with the oldest record often enough lets the oldest block go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Row:
    """What is known of a block."""

    number: int
    events: int
    """The events until it was captured."""
    keys: list[bytes]
    outputs: dict[str, int]
    """The number of its last output to each stream."""
    seen: int = 0
    """So many of its keys, from the first, have newer records or none any more."""


class JournalExtent:
    """The blocks of a journal from the oldest that is needed to the newest."""

    def __init__(self) -> None:
        self.records = 0
        """How many records of parts they have."""
        self.recorded: dict[bytes, int] = {}
        """The block with the newest record of each part that is alive; of its whole records, where deltas follow."""
        self._deltas: dict[bytes, int] = {}  # the block with the newest delta, of parts that have any since then
        self._rows: deque[_Row] = deque()
        self._events: dict[int, int] = {}  # by block, as in the rows
        self._passed = 0  # so many rows, from the first, have no newest record of any part

    def add(
        self,
        number: int,
        events: int,
        keys: list[bytes],
        closed: Sequence[bytes],
        outputs: dict[str, int],
        deltas: Iterable[bytes] = (),
    ) -> None:
        """Block *number* has records of *keys*, of which the *closed* ones are not alive any more, and those of
        *deltas* need the ones before. The list stays here: `also` appends to it."""
        needed = {key: self.recorded[key] for key in deltas}
        self.recorded.update(dict.fromkeys(keys, number))
        self.recorded.update(needed)
        for key in closed:
            self.recorded.pop(key, None)
        if self._deltas:
            for key in keys:
                self._deltas.pop(key, None)
        self._deltas.update(dict.fromkeys(needed, number))
        self._rows.append(_Row(number, events, keys, outputs))
        self._events[number] = events
        self.records += len(keys)

    def also(self, key: bytes) -> None:
        """The newest block has a record of *key* as well."""
        self._rows[-1].keys.append(key)
        self.records += 1
        self.whole(key)

    def whole(self, key: bytes) -> None:
        """The newest block has a whole record of *key*, after all."""
        self.recorded[key] = self._rows[-1].number
        self._deltas.pop(key, None)

    def newest_of(self, key: bytes) -> int | None:
        """The block with the newest record of *key*, whole or not; None if it is not alive."""
        return self._deltas.get(key) or self.recorded.get(key)

    @property
    def oldest(self) -> int:
        """The oldest block that is needed; 1 if there is none yet."""
        return self._rows[0].number if self._rows else 1

    @property
    def newest(self) -> int:
        """The newest block; 0 if there is none yet."""
        return self._rows[-1].number if self._rows else 0

    @property
    def blocks(self) -> int:
        """How many blocks are needed."""
        return len(self._rows)

    def events_at(self, number: int) -> int:
        """How many events had been taken when block *number* was captured; it must be needed still."""
        return self._events[number]

    def trim(self, replay: int, confirmed: Mapping[str, int]) -> int:
        """Let go what is not needed if replay begins after *replay* events and outputs up to *confirmed* need not be
        kept; the oldest block that is needed. The newest always is."""
        rows = self._rows
        while len(rows) > 1:
            row = rows[0]
            if row.events > replay or self._newest_in(row) is not None:
                break
            if any(number > confirmed.get(stream, 0) for stream, number in row.outputs.items()):
                break
            rows.popleft()
            del self._events[row.number]
            self.records -= len(row.keys)
            self._passed = max(self._passed - 1, 0)
        return self.oldest

    def waits_for_readers(self, confirmed: Mapping[str, int]) -> bool:
        """Whether the oldest block is needed for its outputs: then no part that is brought forward lets it go."""
        row = self._rows[0]
        return any(number > confirmed.get(stream, 0) for stream, number in row.outputs.items())

    def oldest_part(self, before: int) -> bytes | None:
        """The part whose newest record is the oldest, if that is in a block before *before*."""
        rows = self._rows
        while self._passed < len(rows) and (row := rows[self._passed]).number < before:
            if (key := self._newest_in(row)) is not None:
                return key
            self._passed += 1
        return None

    def _newest_in(self, row: _Row) -> bytes | None:
        """A part whose newest record is in *row*."""
        recorded, keys, number = self.recorded, row.keys, row.number
        while row.seen < len(keys):
            if recorded.get(keys[row.seen]) == number:
                return keys[row.seen]
            row.seen += 1
        return None
