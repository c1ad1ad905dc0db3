"""Which blocks of a journal count.

    group NAME    block_NUMBER_EPOCH_OWNER                        the parent is NUMBER - 1 of the same epoch and owner
                  block_NUMBER_EPOCH_OWNER_after_EPOCH_OWNER      an owner's first one names the claim of its parent
                                                                  NUMBER and EPOCH have 19 digits, OWNER 16 hex digits

A listing of the keys shows every chain. The one that counts ends with the highest block, by claim and then by number,
whose parents are all there back to the oldest that it needs. All others are rubbish: what a fenced owner wrote too
late, what came after a hole in a batch, what is older than needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from safekeeper.claims import Mark
from safekeeper.errors import BadState, Corruption

MOST_IN_FLIGHT = 8
"""How many blocks an owner may have appended that are not acknowledged. So a block that is so much higher than a hole
says that an acknowledged one is lost; frozen, or at least never to be lowered."""

_KEY = re.compile(rb"block_(\d{19})_(\d{19})_([0-9a-f]{16})(?:_after_(\d{19})_([0-9a-f]{16}))?")


@dataclass(frozen=True, slots=True, order=True)
class BlockKey:
    """The name of a block. The higher one is the newer one."""

    mark: Mark
    """The claim of its owner."""
    number: int
    after: Mark | None = field(default=None, compare=False)
    """The claim of the parent's owner; None if it is the same, or if there is no parent."""

    def encode(self) -> bytes:
        """The key under which the block stands."""
        key = f"block_{self.number:019}_{self.mark.epoch:019}_{self.mark.owner}"
        return (key if self.after is None else f"{key}_after_{self.after.epoch:019}_{self.after.owner}").encode()

    @classmethod
    def decode(cls, key: bytes) -> BlockKey:
        """The name in *key*. Raise `BadState` if it is not the key of a block."""
        if not (found := _KEY.fullmatch(key)):
            raise BadState(f"{key!r:.80} is not a block of a journal: nothing else may be stored in its group")
        number, epoch, owner, after_epoch, after_owner = found.groups()
        after = None if after_epoch is None else Mark(int(after_epoch), after_owner.decode())
        return cls(Mark(int(epoch), owner.decode()), int(number), after)

    @property
    def parent(self) -> tuple[int, Mark]:
        """The number and the claim of the block before it."""
        return self.number - 1, self.after or self.mark

    def next(self, mark: Mark) -> BlockKey:
        """The block that *mark* appends after this one."""
        return BlockKey(mark, self.number + 1, None if mark == self.mark else self.mark)


def choose(keys: Iterable[BlockKey], oldest_of: Callable[[BlockKey], int | None]) -> list[BlockKey]:
    """The blocks that count, the oldest that is needed first; none if nothing was ever acknowledged.

    *oldest_of* reads a block and says what its `oldest` is; None if it is gone. Raise `Corruption` if a block is
    missing that was acknowledged.
    """
    there = {(key.number, key.mark): key for key in keys}
    for end in sorted(there.values(), reverse=True):
        if (oldest := oldest_of(end)) is None:
            continue
        chain = [end, *_ancestors(there, end, oldest)]
        missing = chain[-1].number - 1
        if missing < oldest:
            return chain[::-1]
        if end.number - missing >= MOST_IN_FLIGHT:
            raise Corruption(f"block {missing} is missing, and block {end.number} came after it was acknowledged")
    return []


def _ancestors(there: dict[tuple[int, Mark], BlockKey], key: BlockKey, oldest: int) -> Iterator[BlockKey]:
    while key.number > oldest and (found := there.get(key.parent)) is not None:
        key = found
        yield key
