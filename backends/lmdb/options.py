"""The options of `lmdb:`."""

from __future__ import annotations

from dataclasses import dataclass

from safekeeper.backends.lmdb.environment import Sync
from safekeeper.url import Size, check_words

DEFAULT_MAP_SIZE = Size(1 << 30)


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """`lmdb:///var/lib/app` or `lmdb:relative/path`."""

    sync: Sync | None = None
    """When a write is durable: before it returns, or when the system pleases. A new store is made with `always` if this
    is left out; one that is there keeps what it was made with."""
    map_size: Size = DEFAULT_MAP_SIZE
    """How much address space to begin with. It doubles when it is full; only what is written takes up disk."""

    def __post_init__(self) -> None:
        check_words(self)
