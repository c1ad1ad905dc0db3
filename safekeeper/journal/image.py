"""What the blocks of a journal say together: the state of an operator as bytes."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress

from safekeeper.errors import Corruption
from safekeeper.journal.block import CLOSE, DELTA, Block, Moment, Outputs, SpilledOutputs
from safekeeper.journal.extent import JournalExtent

_OUTPUTS, _OUTPUT_BYTES = 100_000, 64 << 20  # of readers that are away; more stay in the blocks


@dataclass(slots=True)
class _Spoken:
    """What a block said that is no state: needed until the block is not."""

    number: int
    at: Moment
    order: list[tuple[str, int]]
    out: Mapping[str, Outputs]
    spilled: Mapping[str, SpilledOutputs] = field(default_factory=dict)
    """Instead of `out`, if there are too many."""

    @property
    def size(self) -> tuple[int, int]:
        """How many outputs it holds, and their bytes."""
        return sum(len(some.bodies) for some in self.out.values()), sum(some.nbytes for some in self.out.values())


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
        self._holding: deque[_Spoken] = deque()  # those of them whose outputs are here
        self._outputs = self._output_bytes = 0  # of those

    def paste(self, number: int, block: Block, nbytes: int = 0) -> None:
        """Let block *number*, the next one, be the newest. Raise `Corruption` if it does not fit."""
        keys, kinds = block.keys, block.kinds
        if not len(keys) == len(kinds) == len(block.values):
            raise Corruption(f"block {number}: {len(keys)} keys, {len(kinds)} kinds and {len(block.values)} values")
        closing = list(compress(keys, map(CLOSE[0].__eq__, kinds))) if CLOSE in kinds else ()
        longer = self._lengthened(block) if DELTA in kinds else {}
        self.parts.update(zip(keys, block.values, strict=True))
        self.parts.update(longer)
        if self.closed:
            for key in keys:
                self.closed.pop(key, None)
        for key in closing:
            self.parts.pop(key, None)
            self.closed[key] = block.at.events
        obsolete = [key for key, value in longer.items() if not value]
        for key in obsolete:
            del longer[key], self.parts[key]
        outputs = {stream: some.last for stream, some in block.out.items() if some.bodies}
        self.extent.add(number, block.at.events, keys, [*closing, *obsolete], outputs, longer)
        self._spoken.append(spoken := _Spoken(number, block.at, block.order, block.out))
        self._hold(spoken)
        self.last, self.number = block, number
        self.nbytes += nbytes
        self._let_go(block)
        self._spill(block)

    def _lengthened(self, block: Block) -> dict[bytes, bytes]:
        """The parts of which *block* has a delta, with it; empty if what it stands on is gone: then a later block has
        the part anew, or its end, or `check` finds that one is missing."""
        longer = {}
        for key, kind, value in zip(block.keys, block.kinds, block.values, strict=True):
            if kind == DELTA[0]:
                longer[key] = self.parts[key] + value if key in self.parts else b""
        return longer

    def _let_go(self, block: Block) -> None:
        self.extent.trim(block.replay.events, block.confirmed)
        while self._spoken[0].number < block.oldest:
            self._spoken.popleft()
        while self._holding and self._holding[0].number < block.oldest:
            self._drop()
        while self.closed and next(iter(self.closed.values())) <= block.replay.events:
            self.closed.popitem(last=False)

    def _hold(self, spoken: _Spoken) -> None:
        if spoken.out:
            outputs, nbytes = spoken.size
            self._outputs += outputs
            self._output_bytes += nbytes
            self._holding.append(spoken)

    def _drop(self) -> _Spoken:
        """Hold the oldest outputs no longer."""
        spoken = self._holding.popleft()
        outputs, nbytes = spoken.size
        self._outputs -= outputs
        self._output_bytes -= nbytes
        return spoken

    def _spill(self, block: Block) -> None:
        """Let outputs stay in their blocks if there are too many, the oldest first; but a replay compares its own."""
        while self._outputs > _OUTPUTS or self._output_bytes > _OUTPUT_BYTES:
            if self._holding[0].at.events > block.replay.events:
                break
            spoken = self._drop()
            spoken.spilled = {
                stream: SpilledOutputs(spoken.number, some.first, some.last, some.nbytes)
                for stream, some in spoken.out.items()
            }
            spoken.out = {}

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

    def outputs(self) -> Iterator[tuple[int, str, Outputs]]:
        """What was emitted in the blocks that are needed, with the number of its block, in the order of its numbers
        for each stream; without those that are `spilled`, which come before them."""
        for spoken in self._holding:
            for stream, outputs in spoken.out.items():
                yield spoken.number, stream, outputs

    def spilled(self) -> Iterator[tuple[str, SpilledOutputs]]:
        """What was emitted, and is to be read from its block when somebody wants it."""
        for spoken in self._spoken:
            yield from spoken.spilled.items()

    def recorded_at(self, key: bytes) -> int:
        """How many events the newest record of a part covers, its tombstone if it has one; 0 if there is none."""
        if (number := self.extent.newest_of(key)) is not None:
            return self.extent.events_at(number)
        return self.closed.get(key, 0)
