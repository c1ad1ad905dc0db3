"""The blocks of one operator, in order, in any backend, written by one owner at a time.

    journal = Journal(keeper, "counter")
    image = journal.own()                   whoever owned it before acknowledges nothing more; what its blocks say
    number = journal.append(block)          on its way, in one batch with what else the keeper has
    journal.acknowledge()                   the number up to which blocks are stored, and the journal was ours after it

`docs/journal.md` has the rules, and what they were attacked with.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from safekeeper import claims, large
from safekeeper.backend import Batch, Receipt
from safekeeper.errors import Closed, Conflict, Corruption, QueueFull, SafekeeperError, Unavailable
from safekeeper.journal.block import Block
from safekeeper.journal.chain import MOST_IN_FLIGHT, BlockKey
from safekeeper.journal.image import Image
from safekeeper.journal.reading import ReadBlocks
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.guards import Guard
from safekeeper.keeper.ticket import Ticket

if TYPE_CHECKING:
    from safekeeper.journal.follow import Follow

_ATTEMPTS = 5
_DELETED_AT_ONCE = 1_000


class Journal:
    """The blocks under *name*, appended through *keeper*. Blocks of all journals of a keeper share its batches.

    *on_news* is called, in a thread of the keeper, when there is something to `acknowledge`. Any thread may do
    that, one at a time, while another appends.
    """

    def __init__(self, keeper: SafeKeeper, name: str, *, on_news: Callable[[], object] = lambda: None) -> None:
        self.name = name
        self.end: BlockKey | None = None
        """The newest block; None if there is none."""
        self.acknowledged = 0
        """The number up to which blocks are acknowledged."""
        self._keeper = keeper
        self._on_news = on_news
        self._blocks = ReadBlocks(keeper.backend, name, keeper.whole)
        self._guard: Guard | None = None
        self._rubbish: list[BlockKey] = []
        self._swept = False
        self._begun_at = 1  # the first block of ours
        # For what follows: blocks are appended in one thread, stored in another and acknowledged in a third.
        self._lock = Lock()
        self._appended: dict[int, tuple[BlockKey, int]] = {}  # not deleted yet, with the oldest that each needs
        self._first = 1  # the oldest of them
        self._stored: set[int] = set()
        self._stored_up_to = 0
        self._failure: SafekeeperError | None = None

    def own(self, **about: str) -> Image:
        """Take the journal, whoever has it; what its blocks say. *about* is for those who look who has it.

        Raise `Conflict` if others always come at the same moment, `Corruption` if blocks are damaged or missing.
        """
        return self._begin(self._take(about))

    def own_after(self, mark: claims.Mark | None, follow: Follow, **about: str) -> Image:
        """Take the journal from whoever has the claim *mark*; what its blocks say, most of which *follow* has read.

        Raise `Conflict` if somebody else has it by now.
        """
        return self._begin(claims.take(self._keeper.backend, self.name, after=mark, **about), follow)

    def _begin(self, claim: claims.Claim, follow: Follow | None = None) -> Image:
        if self._guard is not None:
            self._guard.end()
        self._guard = self._keeper.guard(claim, self.name)
        listed = self._blocks.listed()
        chain = self._blocks.chain(listed)
        image = load(self._blocks, chain) if follow is None else follow.reach(chain)
        self.end = chain[-1] if chain else None
        self._rubbish = list(set(listed) - set(chain))
        self._swept = not self._rubbish and next(self._keeper.backend.keys(large.parts_group(self.name)), None) is None
        self._appended = {key.number: (key, 1) for key in chain}
        self._first = chain[0].number if chain else 1
        self.acknowledged = self._stored_up_to = 0 if self.end is None else self.end.number
        self._begun_at = self.acknowledged + 1
        self._stored.clear()
        self._failure = None
        if self.end is not None:
            if max(claim.others, default=None) == self.end.mark:
                self.check()  # or another has it by now, and has read before what we have found had landed
            else:
                self._confirm(image)
                if follow is not None:
                    follow.end = self.end  # its image has that block now, also if the journal is lost at once
        return image

    def _confirm(self, image: Image) -> None:
        """Append a block that changes nothing, so that no later owner goes on from anywhere else than *image*.

        An owner between the newest block and us may have been stopped before it wrote one. If its first block lands
        now, it stands beside the newest one, and above it: the next owner would go on from there.
        """
        assert image.last is not None
        block = replace(image.last, order=[], keys=[], kinds=b"", values=[], out={})
        key, data = self._next_key(block), block.encode()
        self._keeper.save_bytes(self._blocks.id(key), data).result()
        self.acknowledged = self._stored_up_to = key.number
        image.paste(key.number, block, len(data))

    def _next_key(self, block: Block) -> BlockKey:
        """Let *block* be the newest one; its key."""
        mark = self._owned().mark
        key = BlockKey(mark, 1) if self.end is None else self.end.next(mark)
        self._appended[key.number] = (key, block.oldest)
        self.end = key
        return key

    def _take(self, about: dict[str, str]) -> claims.Claim:
        for attempt in range(_ATTEMPTS):
            try:
                return claims.take(self._keeper.backend, self.name, after="whoever", **about)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(random.uniform(0, 0.05 * 2**attempt))  # noqa: S311 (so that two do not meet again)
        raise AssertionError("unreachable")

    @property
    def mark(self) -> claims.Mark:
        """The claim by which the journal is owned."""
        return self._owned().mark

    @property
    def next_number(self) -> int:
        """What the next block will be called."""
        return 1 if self.end is None else self.end.number + 1

    @property
    def in_flight(self) -> int:
        """How many blocks were appended and are not acknowledged."""
        return (0 if self.end is None else self.end.number) - self.acknowledged

    def append(self, block: Block) -> int:
        """Send *block* on its way; its number. Raise `QueueFull` if `MOST_IN_FLIGHT` others are not acknowledged."""
        self._owned()
        if self.in_flight >= MOST_IN_FLIGHT:
            raise QueueFull(f"{self.in_flight} blocks of {self.name} are not acknowledged: append less often")
        data = block.encode()
        with self._lock:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            key = self._next_key(block)
        self._keeper.save_bytes(self._blocks.id(key), data, callback=lambda ticket: self._settle(key, ticket))
        return key.number

    def _settle(self, key: BlockKey, ticket: Ticket) -> None:
        outcome = ticket.outcome()
        with self._lock:
            if self._guard is None or self._guard.claim.mark != key.mark:
                return  # it was appended before the journal was owned again
            if isinstance(outcome, Receipt):
                self._stored.add(key.number)
                while self._stored_up_to + 1 in self._stored:
                    self._stored_up_to += 1
                    self._stored.remove(self._stored_up_to)
            else:
                self._failure = self._failure or outcome
        self._on_news()

    def read(self, numbers: Sequence[int]) -> list[Block]:
        """The blocks with these numbers, as far as they are needed still. Raise `Corruption` if one is gone that is."""
        with self._lock:
            keys = [self._appended[number][0] for number in numbers if number in self._appended]
        found = []
        for key, value in zip(keys, self._blocks.read(keys), strict=True):
            if value is not None:
                found.append(Block.decode(value, self._blocks.id(key)))
                continue
            with self._lock:
                if key.number in self._appended:
                    raise Corruption(f"{self._blocks.id(key)} is missing, and readers want what is in it")
        return found

    def acknowledge(self) -> int:
        """The number up to which blocks are acknowledged: stored, and after that no higher claim was listed.

        What is not needed any more is deleted. Raise `Conflict` if another has taken the journal, or what the store
        said if a block could not be stored: then nothing more is acknowledged, and the journal has to be owned again.
        """
        with self._lock:
            stored, failure = self._stored_up_to, self._failure
        if stored > self.acknowledged:
            self.acknowledged = stored
            self._forget_below(self._appended[stored][1])
        if failure is not None:
            raise failure.with_traceback(None)
        return self.acknowledged

    def check(self) -> None:
        """Raise `Conflict` if another has taken the journal, `Unavailable` if the store does not say."""
        self._owned()
        assert self._guard is not None
        self._guard.check()
        if self._guard.lost is not None:
            raise self._guard.lost.with_traceback(None)

    def _forget_below(self, oldest: int) -> None:
        with self._lock:
            numbers, self._first = range(self._first, oldest), max(self._first, oldest)
            keys = [self._appended.pop(number)[0] for number in numbers if number in self._appended]
        for key in keys:
            self._keeper.forget(self._blocks.id(key))

    def clean(self) -> None:
        """Remove, once, what fenced owners have left: to be called after `acknowledge`, when nobody waits. Not before a
        block of ours is acknowledged: then every later owner goes on behind it, whatever still lands beside it."""
        if self._swept or self.end is None or self.acknowledged < self._begun_at:
            return
        with self._lock, suppress(Unavailable):  # what is left takes space and nothing else
            if self._stored_up_to < self.end.number:
                return  # a large block that is under way would look like one of a dead writer
            store = self._keeper.backend
            while self._rubbish:
                batch = Batch()
                for key in self._rubbish[:_DELETED_AT_ONCE]:
                    batch.delete(self._blocks.id(key))
                store.write(batch)
                del self._rubbish[:_DELETED_AT_ONCE]
            large.sweep(store, self.name)
            self._swept = True

    def release(self) -> None:
        """End: others may have the journal, and need not wait for it."""
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.end()
            if guard.lost is None:
                with suppress(Unavailable):  # it is a hint
                    guard.claim.release()

    def _owned(self) -> claims.Claim:
        if self._guard is None:
            raise Closed(f"the journal {self.name} is not owned: call own() first")
        return self._guard.claim


def load(blocks: ReadBlocks, chain: list[BlockKey]) -> Image:
    """What the blocks of *chain* say. Raise `Corruption` if one is damaged or gone."""
    image = Image()
    for key, value in blocks.read_all(chain):
        if value is None:
            raise Corruption(f"{blocks.id(key)} is missing, and later blocks need it")
        image.paste(key.number, Block.decode(value, blocks.id(key)), len(value))
    image.check()
    return image
