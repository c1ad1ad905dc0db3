"""What an operator has emitted to one stream, until the stream is sure to have it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from safekeeper.journal.block import Outputs


class Emitted:
    """Outputs to one stream: gathered by events, taken by blocks, released, confirmed.

    One thread emits and takes, another one releases and confirms.
    """

    __slots__ = (
        *("_held", "acknowledged", "bodies", "confirmed", "events", "keys", "nbytes", "number", "released", "taken"),
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
        """How many of `nbytes` are of confirmed ones."""
        self._held: deque[tuple[int, Outputs, int]] = deque()

    def take(self, block: int) -> Outputs | None:
        """What was emitted since the last call; block *block* has it."""
        if not self.bodies:
            return None
        outputs = Outputs(self.number + 1, self.events, self.keys, self.bodies)
        self.events, self.keys, self.bodies = [], [], []
        self.hold(block, outputs)
        return outputs

    def hold(self, block: int, outputs: Outputs) -> int:
        """Keep *outputs*, which are in block *block*, until they are confirmed; how many bytes they have."""
        nbytes = sum(map(len, outputs.bodies)) + sum(map(len, outputs.keys))
        self._held.append((block, outputs, nbytes))
        self.number = outputs.last
        return nbytes

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
        return self.nbytes - self.taken
