"""Blocks as they are read: which ones count, and their contents, several reads under way at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from safekeeper import large
from safekeeper.backend import Backend, CheckpointId, Scope
from safekeeper.errors import Corruption
from safekeeper.journal.block import Block
from safekeeper.journal.chain import BlockKey, choose

_PAGE_BYTES = 4 << 20
_MOST_IDS = 256
_UNDER_WAY = 4

Whole: TypeAlias = Callable[[CheckpointId, bytes], bytes | None]
"""The bytes of which a head was read; None if they are gone by now. `SafeKeeper.whole` is one."""


class ReadBlocks:
    """Reads blocks of the journal *name* in *store*. *whole* gives those that are in parts there."""

    def __init__(self, store: Backend, name: str, whole: Whole | None = None) -> None:
        self.store, self.name = store, name
        self._large = whole or partial(large.whole, store)
        self._newest: dict[BlockKey, bytes] = {}  # read to choose the chain, and needed again at once

    def listed(self) -> list[BlockKey]:
        """The keys of all blocks that are there, in any order."""
        return list({BlockKey.decode(key) for key in self.store.keys(self.name)})

    def chain(self, keys: Sequence[BlockKey]) -> list[BlockKey]:
        """Those of *keys* that count, the oldest first."""

        def oldest_of(key: BlockKey) -> int | None:
            (value,) = self.read([key])
            if value is None:
                return None
            self._newest = {key: value}
            return Block.decode(value, self.id(key)).oldest

        try:
            return choose(keys, oldest_of)
        except Corruption as error:
            raise Corruption(f"the journal {self.name}: {error}") from error

    def read(self, keys: Sequence[BlockKey]) -> list[bytes | None]:
        """The bytes of blocks; None where one is gone."""
        ids = [self.id(key) for key in keys if key not in self._newest]
        values = iter(self.store.read(ids) if ids else ())
        return [self._newest.get(key) or self._whole(self.id(key), next(values)) for key in keys]

    def read_all(self, keys: Sequence[BlockKey]) -> Iterator[tuple[BlockKey, bytes | None]]:
        """All of *keys* with their bytes, in their order."""
        yield from self._read_all(keys)
        self._newest.clear()

    def _read_all(self, keys: Sequence[BlockKey]) -> Iterator[tuple[BlockKey, bytes | None]]:
        pages = self._pages(keys)
        if self.store.scope < Scope.NETWORK:  # nothing to wait for: a thread only costs
            for page in pages:
                yield from zip(page, self.read(page), strict=True)
            return
        with ThreadPoolExecutor(_UNDER_WAY, "safekeeper-journal") as pool:
            under_way: deque[tuple[Sequence[BlockKey], Future[list[bytes | None]]]] = deque()
            for page in pages:
                under_way.append((page, pool.submit(self.read, page)))
                if len(under_way) == _UNDER_WAY:
                    page, values = under_way.popleft()
                    yield from zip(page, values.result(), strict=True)
            for page, values in under_way:
                yield from zip(page, values.result(), strict=True)

    def _pages(self, keys: Sequence[BlockKey]) -> Iterator[Sequence[BlockKey]]:
        """*keys* in pages that are small enough for memory, judged by the newest block."""
        if not keys:
            return
        size = len(self.read(keys[-1:])[0] or b"")
        count = max(1, min(_PAGE_BYTES // max(size, 1), _MOST_IDS))
        yield from (keys[start : start + count] for start in range(0, len(keys), count))

    def id(self, key: BlockKey) -> CheckpointId:
        """Where a block stands."""
        return CheckpointId(self.name, key.encode())

    def _whole(self, id: CheckpointId, value: bytes | None) -> bytes | None:
        if value is not None and large.is_head(value):
            return self._large(id, value)
        return value
