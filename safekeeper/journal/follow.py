"""Reading a journal while another process appends to it."""

from __future__ import annotations

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
    """

    def __init__(self, store: Backend, name: str) -> None:
        self.image = Image()
        self.end: BlockKey | None = None
        """The newest block that is in the image."""
        self.loads = 0
        """How often everything was loaded, because blocks had gone or another owner went on from elsewhere."""
        self._blocks = ReadBlocks(store, name)

    def poll(self) -> int:
        """Paste the blocks that have come; how many. Mostly one read of the next ids, without a listing."""
        if self.end is None:
            return self._catch_up()
        wanted = [BlockKey(self.end.mark, self.end.number + ahead) for ahead in range(1, _AHEAD + 1)]
        pasted = 0
        for key, value in zip(wanted, self._blocks.read(wanted), strict=True):
            if value is None:
                break
            self._paste(key, value)
            pasted += 1
        return pasted or self._catch_up()

    def _catch_up(self) -> int:
        """List the blocks, and paste or load what is new."""
        for attempt in range(_ATTEMPTS):
            keys = self._blocks.listed()
            if not keys or (self.end is not None and max(keys) <= self.end):
                return 0
            try:
                chain = self._blocks.chain(keys)
                if not chain or (self.end is not None and chain[-1] <= self.end):
                    return 0
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

    def _paste(self, key: BlockKey, value: bytes) -> None:
        self.image.paste(key.number, Block.decode(value, self._blocks.id(key)), len(value))
        self.end = key
