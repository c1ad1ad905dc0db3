"""What came within the last so many seconds, as a state that knows its changes: one side of a join.

    left = operator.part(b"left", new=lambda: Buffer(10.0)).state
    left.add(at, item)
    matches = left.between(at - 2, at)

A capture has what entered since the one before, and the bound below which everything left; so it never has more than
there is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any


class Buffer:
    """Items by the time at which they came, of the last *window* before the newest of them."""

    def __init__(self, window: float) -> None:
        if window <= 0:
            raise ValueError(f"the window of a buffer is longer than 0, not {window}")
        self._window = window
        self._times: list[float] = []
        self._items: list[Any] = []
        self._left = 0  # so many of them, from the first, have left
        self._entered = 0  # so many, from the last, are in no capture

    def __len__(self) -> int:
        return len(self._times) - self._left

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items[self._left :])

    @property
    def dirty(self) -> int:
        """How many have entered since the last capture, and are still there."""
        return min(self._entered, len(self))

    def add(self, at: float, item: Any) -> None:
        """Let *item*, which came at *at*, enter. None may come before the newest: raise `ValueError`."""
        if self._times and at < self._times[-1]:
            raise ValueError(f"{at} is before {self._times[-1]}, the newest in the buffer: sort what comes")
        self._times.append(at)
        self._items.append(item)
        self._entered += 1
        self._drop(at - self._window)

    def between(self, first: float, last: float) -> list[Any]:
        """The items that came from *first* to *last*."""
        begin = max(bisect_left(self._times, first), self._left)
        return self._items[begin : bisect_right(self._times, last)]

    def _drop(self, before: float) -> None:
        """Let those leave that came before *before*."""
        while self._left < len(self._times) and self._times[self._left] < before:
            self._left += 1
        if self._left > 32 and self._left * 2 > len(self._times):
            del self._times[: self._left], self._items[: self._left]
            self._left = 0

    def changes(self) -> list[Any]:
        """As `SupportsChanges.changes`: what entered, and the bound below which everything left."""
        begin = len(self._times) - self.dirty
        self._entered = 0
        bound = self._times[self._left] if len(self) else None
        return [bound, self._times[begin:], self._items[begin:]]

    def everything(self) -> list[Any]:
        """As `SupportsChanges.everything`."""
        self._entered = len(self)
        return self.changes()

    def paste(self, data: Any) -> None:
        """As `SupportsChanges.paste`."""
        bound, times, items = data
        self._times += times
        self._items += items
        if bound is not None:
            self._drop(bound)
