"""Reading a journal while another process appends to it, and cleans away what nobody needs any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

from safekeeper.backend import Backend
from safekeeper.errors import Corruption
from safekeeper.journal.block import Block
from safekeeper.journal.chain import BlockKey
from safekeeper.journal.image import Image
from safekeeper.journal.journal import load
from safekeeper.journal.reading import ReadBlocks

_AHEAD = 16  # ids after the newest block that are read together; twice as many with each attempt that found nothing
_ATTEMPTS = 5


class Follow:
    """The image of the journal *name* in *store*, kept up with whoever owns it.

    What it has seen may be more than was acknowledged. If a new owner goes on before that, the image is loaded anew.
    Blocks may be received first and pasted later: then their bytes wait, also if the owner cleans them away.
    """

    def __init__(self, store: Backend, name: str) -> None:
        self.image = Image()
        self.end: BlockKey | None = None
        """The newest block that is in the image."""
        self.loads = 0
        """How often everything was loaded, because blocks had gone or another owner went on from elsewhere."""
        self.waiting_bytes = 0
        """How many bytes of blocks were received and are not pasted yet."""
        self._received: deque[tuple[BlockKey, bytes]] = deque()  # those, of one owner, after the end
        self._blocks = ReadBlocks(store, name)

    @property
    def newest(self) -> BlockKey | None:
        """The newest block that was received, whether or not it is pasted."""
        return self._received[-1][0] if self._received else self.end

    @property
    def waiting(self) -> int:
        """How many blocks were received and are not pasted yet."""
        return len(self._received)

    def poll(self, *, look: bool = True) -> int:
        """Paste the blocks that have come; how many. Mostly one read of the next ids, without a listing.

        Without *look* there is no listing, so that it costs little when nothing has come: then look now and then,
        since another owner may have gone on, or blocks may be gone.
        """
        waiting = self.paste()
        received = self.receive(look=look)
        self.paste()
        return waiting + received

    def receive(self, *, look: bool = True) -> int:
        """Read the blocks that have come, and let them wait for `paste`; how many. *look* is as for `poll`: what is
        found by a listing is pasted at once."""
        newest = self.newest
        if newest is None:
            return self._catch_up() if look else 0
        found = self._read(_ahead(newest, _AHEAD))
        for key, value in takewhile(_is_there, found):
            assert value is not None
            self._received.append((key, value))
            self.waiting_bytes += len(value)
        received = self._received[-1][0].number - newest.number if self._received else 0
        if received > 0 or (received := self._go_on_behind(found)) > 0:
            return received
        return self._catch_up() if look else 0

    def paste(self) -> int:
        """Paste what was received; how many blocks."""
        received, self._received, self.waiting_bytes = self._received, deque(), 0  # a damaged one is read again
        for key, value in received:
            self._paste(key, value)
        return len(received)

    def reach(self, chain: list[BlockKey]) -> Image:
        """The image of *chain*, which was listed after the journal was claimed: only what is missing is read. Raise
        `Corruption` if a block of it is damaged or gone."""
        if not chain:
            return Image()
        self._paste_those_of(chain)
        if self.end in chain:
            for key, value in self._blocks.read_all(chain[chain.index(self.end) + 1 :]):
                if value is None:
                    raise Corruption(f"{self._blocks.id(key)} is missing, and it was acknowledged")
                self._paste(key, value)
            self.image.check()
        else:
            self.image, self.end = load(self._blocks, chain), chain[-1]
            self.loads += 1
        return self.image

    def _catch_up(self) -> int:
        """List the blocks, and paste or load what is new; how many."""
        for attempt in range(_ATTEMPTS):
            keys = self._blocks.listed()
            newest = self.newest
            if not keys or (newest is not None and max(keys) <= newest):
                return 0
            try:
                chain = self._chain(keys, newest, is_last=attempt == _ATTEMPTS - 1)
                if chain is None:
                    return 0
                if came := self._follow(chain, max(keys), _AHEAD << attempt):
                    return came
            except Corruption:  # it may be the owner, which deletes while we list and read
                if attempt == _ATTEMPTS - 1:
                    raise
        return 0

    def _chain(self, keys: list[BlockKey], newest: BlockKey | None, *, is_last: bool) -> list[BlockKey] | None:
        """Those of *keys* that count; none if the owner has deleted them by now, None if nothing is new."""
        try:
            chain = self._blocks.chain(keys)
        except Corruption:
            if is_last:
                raise
            return []
        if chain and newest is not None and chain[-1] <= newest:
            return None
        if chain:
            self._paste_those_of(chain)
        return chain

    def _follow(self, chain: list[BlockKey], highest: BlockKey, ahead: int) -> int:
        """Paste *chain*, or what has come since *highest* if the owner has cleaned it away (rule 9); how many blocks.
        Raise `Corruption` if that is not enough."""
        if self.end in chain:
            run = BlockRun(self._blocks, self.image, self.end)
            chain = chain[chain.index(self.end) + 1 :]
        else:
            run = BlockRun(self._blocks)
        try:
            run.take(self._blocks.read_all(chain))
            if run.missed or not chain:
                run.take(self._read([*([] if chain else [highest]), *_ahead(highest, ahead)]))
        finally:
            if run.whole is not None and run.whole[0] is self.image:
                self.end = run.whole[1]  # it was pasted, whatever came then
        if chain and run.whole is None:
            raise Corruption(f"block {run.missed} of the journal {self._blocks.name} is missing")
        return self._adopt(run)

    def _go_on_behind(self, found: list[tuple[BlockKey, bytes | None]]) -> int:
        """The next block is gone, or not there yet. If those after it need none before them, begin anew with them; how
        many."""
        run = BlockRun(self._blocks)
        run.take(found if any(map(_is_there, found)) else ())
        return self._adopt(run)

    def _adopt(self, run: BlockRun) -> int:
        """Go on from what *run* has read, if that is a whole image; how many blocks were pasted."""
        if run.whole is None:
            return 0
        image, end = run.whole
        if image is not self.image:
            image.check()
            self._received.clear()  # they come before it
            self.waiting_bytes = 0
            self.image = image
            self.loads += 1
        self.end = end
        return run.count

    def _read(self, keys: list[BlockKey]) -> list[tuple[BlockKey, bytes | None]]:
        return list(zip(keys, self._blocks.read(keys), strict=True))

    def _paste_those_of(self, chain: list[BlockKey]) -> None:
        """Paste what was received and belongs to *chain*, and drop the rest. What comes before one of them does, too:
        they are of one owner, without a gap; the owner may have cleaned it away by now."""
        counts = set(chain)
        while self._received and self._received[-1][0] not in counts:
            self.waiting_bytes -= len(self._received.pop()[1])
        self.paste()

    def _paste(self, key: BlockKey, value: bytes) -> None:
        self.image.paste(key.number, Block.decode(value, self._blocks.id(key)), len(value))
        self.end = key


class BlockRun:
    """Blocks that are read in order, and pasted onto *image*, which ends with *end*, or onto nothing.

    Where one is missing, a new run begins behind it. A run is whole when its newest block needs none before it.
    """

    def __init__(self, blocks: ReadBlocks, image: Image | None = None, end: BlockKey | None = None) -> None:
        self.whole: tuple[Image, BlockKey] | None = None
        """The newest image that is whole, and the block with which it ends."""
        self.missed = 0
        """The last block that was not there; 0 if all were."""
        self.count = 0
        """How many were."""
        self._blocks = blocks
        self._image, self._begin, self._end = image or Image(), 0, end

    def take(self, found: Iterable[tuple[BlockKey, bytes | None]]) -> None:
        """Paste what was *found*, in the order of the journal."""
        for key, value in found:
            if value is None:
                self.missed = key.number
                continue
            if self._end is None or key.parent != (self._end.number, self._end.mark):
                self._image, self._begin = Image(), key.number
            block = Block.decode(value, self._blocks.id(key))
            self._image.paste(key.number, block, len(value))
            self._end = key
            self.count += 1
            if self._begin <= block.oldest:
                self.whole = self._image, key


def _is_there(found: tuple[BlockKey, bytes | None]) -> bool:
    return found[1] is not None


def _ahead(key: BlockKey, count: int) -> list[BlockKey]:
    """The *count* blocks that the owner of *key* appends after it."""
    return [BlockKey(key.mark, key.number + ahead) for ahead in range(1, count + 1)]
