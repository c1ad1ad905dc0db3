"""Keys and values in pages, for `scan`: large enough to be quick, small enough to be held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST_PAIRS = 4096
MOST_BYTES = 16 << 20
"""A page ends when it has so many pairs, or so many bytes of values."""


def pages(pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """*pairs* in lists; a list ends when it has so many pairs, or so many bytes that one value more may be too much."""
    page: list[tuple[bytes, bytes]] = []
    size = 0
    for pair in pairs:
        page.append(pair)
        size += len(pair[1])
        if size >= MOST_BYTES or len(page) >= MOST_PAIRS:
            yield page
            page, size = [], 0
    if page:
        yield page
