"""What the blocks of a journal say together: the state of an operator as bytes."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import compress

from safekeeper.errors import Corruption
from safekeeper.journal.block import CLOSE, Block, Moment, Outputs
from safekeeper.journal.extent import JournalExtent


@dataclass(frozen=True, slots=True)
class _Spoken:
    """What a block said that is no state: needed until the block is not."""

    number: int
    at: Moment
    order: list[tuple[str, int]]
    out: Mapping[str, Outputs]


class Image:
    """Blocks pasted onto each other, the oldest first. Parts stay bytes: whoever touches one decodes it."""

    def __init__(self) -> None:
        self.parts: dict[bytes, bytes] = {}
        self.closed: OrderedDict[bytes, int] = OrderedDict()
        """Tombstones: parts that are not there any more, each with the number of events until the block that says so.
        Replay must not open them again with an event before that. The oldest first."""
        self.extent = JournalExtent()
        self.last: Block | None = None
        """The newest block."""
        self.number = 0
        """Its number; 0 if there is none."""
        self.nbytes = 0
        """How many bytes of blocks were pasted."""
        self._spoken: deque[_Spoken] = deque()

    def paste(self, number: int, block: Block, nbytes: int = 0) -> None:
        """Let block *number*, the next one, be the newest. Raise `Corruption` if it does not fit."""
        keys, kinds = block.keys, block.kinds
        if not len(keys) == len(kinds) == len(block.values):
            raise Corruption(f"block {number}: {len(keys)} keys, {len(kinds)} kinds and {len(block.values)} values")
        closing = list(compress(keys, map(CLOSE[0].__eq__, kinds))) if CLOSE in kinds else ()
        self.parts.update(zip(keys, block.values, strict=True))
        if self.closed:
            for key in keys:
                self.closed.pop(key, None)
        for key in closing:
            self.parts.pop(key, None)
            self.closed[key] = block.at.events
        outputs = {stream: some.last for stream, some in block.out.items() if some.bodies}
        self.extent.add(number, block.at.events, keys, closing, outputs)
        self._spoken.append(_Spoken(number, block.at, block.order, block.out))
        self.last, self.number = block, number
        self.nbytes += nbytes
        self._let_go(block)

    def _let_go(self, block: Block) -> None:
        self.extent.trim(block.replay.events, block.confirmed)
        while self._spoken[0].number < block.oldest:
            self._spoken.popleft()
        while self.closed and next(iter(self.closed.values())) <= block.replay.events:
            self.closed.popitem(last=False)

    def check(self) -> None:
        """Raise `Corruption` if there are not as many parts as the newest block says."""
        if self.last is not None and len(self.parts) != self.last.live:
            raise Corruption(f"block {self.number} says {self.last.live} parts, the blocks have {len(self.parts)}")

    @property
    def at(self) -> Moment:
        """Where the journal ends."""
        return Moment() if self.last is None else self.last.at

    @property
    def replay(self) -> Moment:
        """Where replay has to begin."""
        return Moment() if self.last is None else self.last.replay

    def order(self) -> Iterator[tuple[str, int]]:
        """How the inputs were taken from the beginning of the replay to the end: runs of (input, count)."""
        begin = self.replay.events
        for spoken in self._spoken:
            at = spoken.at.events - sum(count for _, count in spoken.order)
            for input, count in spoken.order:
                skipped = min(max(begin - at, 0), count)
                at += count
                if skipped < count:
                    yield input, count - skipped

    def moments(self) -> list[Moment]:
        """The moments at which replay could begin, from where it has to."""
        begin = self.replay
        return [begin, *(spoken.at for spoken in self._spoken if spoken.at.events > begin.events)]

    def outputs(self) -> Iterator[tuple[str, Outputs]]:
        """What was emitted in the blocks that are needed, in the order of its numbers for each stream."""
        for spoken in self._spoken:
            yield from spoken.out.items()

    def recorded_at(self, key: bytes) -> int:
        """How many events the newest record of a part covers, its tombstone if it has one; 0 if there is none."""
        if (number := self.extent.recorded.get(key)) is not None:
            return self.extent.events_at(number)
        return self.closed.get(key, 0)
