"""What an operator has emitted to one stream, until the stream is sure to have it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from threading import Lock

from safekeeper.journal.block import Outputs, SpilledOutputs


class SpilledIndex:
    """Which outputs to a stream are in blocks and not in memory, in the order of their numbers. Any thread may ask."""

    def __init__(self) -> None:
        self.last = 0
        """The last of them, or of those that were."""
        self.nbytes = 0
        self._lock = Lock()
        self._lasts: list[int] = []
        self._spilled: list[SpilledOutputs] = []
        self._begin = 0  # before that they were confirmed

    def add(self, spilled: SpilledOutputs) -> None:
        """More of them, right behind the last."""
        with self._lock:
            self._spilled.append(spilled)
            self._lasts.append(spilled.last)
            self.last = spilled.last
            self.nbytes += spilled.nbytes

    def confirm(self, upto: int) -> int:
        """Nobody wants those up to number *upto*; how many bytes they have."""
        with self._lock:
            begin = bisect_right(self._lasts, upto, self._begin)
            nbytes = sum(some.nbytes for some in self._spilled[self._begin : begin])
            self.nbytes -= nbytes
            self._begin = begin
            if begin > len(self._spilled) // 2:
                del self._spilled[:begin], self._lasts[:begin]
                self._begin = 0
            return nbytes

    def after(self, number: int, most: int) -> list[int]:
        """The blocks that have the outputs after *number*, at most so many of them."""
        with self._lock:
            begin = max(bisect_right(self._lasts, number), self._begin)
            return [some.block for some in self._spilled[begin : begin + most]]


class Emitted:
    """Outputs to one stream: gathered by events, taken by blocks, released, confirmed.

    One thread emits and takes, another one releases and confirms.
    """

    __slots__ = (
        *("_held", "acknowledged", "bodies", "confirmed", "events", "keys", "nbytes", "number", "released", "skipped"),
        *("spilled", "taken"),
    )

    def __init__(self) -> None:
        self.number = 0
        """The number of the last output of a block."""
        self.confirmed = 0
        """Up to here the stream has them, or all readers have acknowledged them: they need not be kept."""
        self.acknowledged = 0
        """Up to here all readers have acknowledged them."""
        self.released = 0
        """Up to here they were given to whoever sends them."""
        self.events: list[int] = []
        self.keys: list[bytes] = []
        self.bodies: list[bytes] = []
        self.nbytes = 0
        """The bytes of all that was ever emitted."""
        self.taken = 0
        """How many of `nbytes` are of confirmed ones that were in a block."""
        self.skipped = 0
        """How many are of confirmed ones that were in none. Two numbers, since two threads count."""
        self.spilled = SpilledIndex()
        """Those that have left memory: their blocks have them."""
        self._held: deque[tuple[int, Outputs, int]] = deque()

    def take(self, block: int, *, all: bool = True) -> Outputs | None:
        """What was emitted since the last call; block *block* has it. Unless *all* of it is wanted, without what was
        sent before it was in a block and is confirmed by now: nobody will ask for it."""
        if not self.bodies:
            return None
        events, keys, bodies = self.events, self.keys, self.bodies
        first = self.number + 1
        self.events, self.keys, self.bodies = [], [], []
        if not all and (done := min(self.confirmed - self.number, len(bodies))) > 0:
            self.skipped += sum(map(len, bodies[:done])) + sum(map(len, keys[:done]))
            first, events, keys, bodies = first + done, events[done:], keys[done:], bodies[done:]
            self.number += done
            if not bodies:
                return None
        outputs = Outputs(first, events, keys, bodies)
        self.hold(block, outputs)
        return outputs

    def hold(self, block: int, outputs: Outputs) -> int:
        """Keep *outputs*, which are in block *block*, until they are confirmed; how many bytes they have."""
        nbytes = outputs.nbytes
        self._held.append((block, outputs, nbytes))
        self.number = outputs.last
        return nbytes

    def spill(self, block: int, keep: int, keep_bytes: int) -> int:
        """Let those of blocks up to *block* that were released leave memory, the oldest first, until no more than
        *keep* are there; the number of the last that has left."""
        while self._held and (self.in_memory > keep or self.bytes_in_memory > keep_bytes):
            number, outputs, nbytes = self._held[0]
            if number > block or outputs.last > self.released:
                break
            self.spilled.add(SpilledOutputs(number, outputs.first, outputs.last, nbytes))
            self._held.popleft()
        return self.spilled.last

    def fresh(self) -> Outputs | None:
        """What was emitted since the last call and is in no block; None if there is nothing. It counts as released."""
        begin = max(self.released - self.number, 0)
        if begin >= len(self.bodies):
            return None
        self.released = self.number + len(self.bodies)
        return Outputs(self.number + 1 + begin, self.events[begin:], self.keys[begin:], self.bodies[begin:])

    def release(self, block: int) -> Iterator[Outputs]:
        """Those of blocks up to *block* that were not released yet."""
        for number, outputs, _ in list(self._held):
            if number > block:
                break
            if outputs.last > self.released:
                self.released = outputs.last
                yield outputs

    def confirm(self, upto: int) -> None:
        """They need not be kept up to number *upto*."""
        self.confirmed = max(self.confirmed, upto)
        self.taken += self.spilled.confirm(upto)
        while self._held and self._held[0][1].last <= upto:
            self.taken += self._held.popleft()[2]

    def undo(self, event: int) -> None:
        """Drop what *event*, the last one, has emitted."""
        while self.events and self.events[-1] == event:
            self.events.pop()
            self.nbytes -= len(self.keys.pop()) + len(self.bodies.pop())

    @property
    def held(self) -> int:
        """How many are not confirmed."""
        return self.number + len(self.bodies) - self.confirmed

    @property
    def held_bytes(self) -> int:
        """How many bytes they have."""
        return self.nbytes - self.taken - self.skipped

    @property
    def in_memory(self) -> int:
        """How many of them are here."""
        return self.number + len(self.bodies) - max(self.confirmed, self.spilled.last)

    @property
    def bytes_in_memory(self) -> int:
        """How many bytes those have."""
        return self.held_bytes - self.spilled.nbytes
