"""The options of `lmdb:`."""

from __future__ import annotations

from dataclasses import dataclass

from safekeeper.backends.lmdb.environment import Sync
from safekeeper.url import Size, check_words

DEFAULT_MAP_SIZE = Size(1 << 30)


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """The options of `lmdb:`."""

    sync: Sync | None = None
    """`always` or `none`, for a new store; `always` if not given. Another store keeps what it was made with."""
    map_size: Size = DEFAULT_MAP_SIZE
    """How much address space to begin with. It doubles when it is full; only what is written takes up disk."""

    def __post_init__(self) -> None:
        check_words(self)
