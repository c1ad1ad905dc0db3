"""Reading a journal while another process appends to it."""

from __future__ import annotations

from collections import deque

from safekeeper.backend import Backend
from safekeeper.errors import Corruption
from safekeeper.journal.block import Block
from safekeeper.journal.chain import BlockKey
from safekeeper.journal.image import Image
from safekeeper.journal.journal import load
from safekeeper.journal.reading import ReadBlocks

_AHEAD = 16
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
        wanted = [BlockKey(newest.mark, newest.number + ahead) for ahead in range(1, _AHEAD + 1)]
        received = 0
        for key, value in zip(wanted, self._blocks.read(wanted), strict=True):
            if value is None:
                break
            self._received.append((key, value))
            self.waiting_bytes += len(value)
            received += 1
        return received or (self._catch_up() if look else 0)

    def paste(self) -> int:
        """Paste what was received; how many blocks."""
        received, self._received, self.waiting_bytes = self._received, deque(), 0  # a damaged one is read again
        for key, value in received:
            self._paste(key, value)
        return len(received)

    def reach(self, chain: list[BlockKey]) -> Image:
        """The image of *chain*, which was listed after the journal was claimed: only what is missing is read."""
        if not chain:
            return Image()
        self._paste_those_of(chain)
        if self.end != chain[-1]:
            self._follow(chain)
        self.image.check()
        return self.image

    def _catch_up(self) -> int:
        """List the blocks, and paste or load what is new."""
        for attempt in range(_ATTEMPTS):
            keys = self._blocks.listed()
            newest = self.newest
            if not keys or (newest is not None and max(keys) <= newest):
                return 0
            try:
                chain = self._blocks.chain(keys)
                if not chain or (newest is not None and chain[-1] <= newest):
                    return 0
                self._paste_those_of(chain)
                return self._follow(chain)
            except Corruption:  # the owner may have deleted blocks while we listed and read
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _follow(self, chain: list[BlockKey]) -> int:
        if self.end in chain:
            chain = chain[chain.index(self.end) + 1 :]
            for key, value in self._blocks.read_all(chain):
                if value is None:
                    raise Corruption(f"{self._blocks.id(key)} is gone")
                self._paste(key, value)
            return len(chain)
        self.image, self.end = load(self._blocks, chain), chain[-1]
        self.loads += 1
        return len(chain)

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
