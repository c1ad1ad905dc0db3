"""Sliding windows of one key, as a state that knows its changes.

    part = operator.part(key, new=lambda: Windows(10, 1, lambda count, value: (count or 0) + 1))
    part.state.add(at, value)                        it falls into ten windows
    for window in part.state.close(at - 5): ...      those that have ended by then

A capture has the windows that are new whole, and of others that have changed the summary, and says below which number
they were closed: one dirty bit a window, as in Hwang's thesis (4.5).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Summary = Callable[[Any, Any], Any]
"""Gets what there was, None at first, and what comes in addition; gives what there is then, as data."""


class Window(NamedTuple):
    """One window: what came at *begin* or later, and before its end."""

    begin: float
    first: float
    """When the first of it came."""
    summary: Any


class Windows:
    """Windows of *size* that begin at every multiple of *step*, each with a summary of what fell into it."""

    def __init__(self, size: float, step: float, summary: Summary) -> None:
        if not 0 < step <= size:
            raise ValueError(f"windows have 0 < step <= size, not a step of {step} and a size of {size}")
        self._size, self._step, self._summary = size, step, summary
        self._windows: dict[int, list[Any]] = {}  # by number: [first, summary]
        self._below: int | None = None  # all windows below this number are closed
        self._new: dict[int, None] = {}
        self._updated: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def dirty(self) -> tuple[int, int]:
        """How many windows are new, and how many others were updated, since the last capture."""
        return len(self._new), len(self._updated)

    def add(self, at: float, value: Any = None) -> int:
        """Let *value*, which came at *at*, fall into its windows, but not into closed ones; how many those are."""
        step, summary = self._step, self._summary
        last = int(at // step)
        first = int((at - self._size) // step) + 1
        if self._below is not None and first < self._below:
            first = self._below
        for number in range(first, last + 1):
            window = self._windows.get(number)
            if window is None:
                self._windows[number] = [at, summary(None, value)]
                self._new[number] = None
                continue
            window[1] = summary(window[1], value)
            if number not in self._new:
                self._updated[number] = None
        return max(last + 1 - first, 0)

    def close(self, upto: float) -> list[Window]:
        """Remove the windows that end at *upto* or before, and give them, the oldest first. They stay closed."""
        below = int((upto - self._size) // self._step) + 1
        if self._below is not None and below <= self._below:
            return []
        return [Window(number * self._step, *window) for number, window in self._remove(below)]

    def _remove(self, below: int) -> list[tuple[int, list[Any]]]:
        self._below = below
        numbers = sorted(number for number in self._windows if number < below)
        for number in numbers:
            self._new.pop(number, None)
            self._updated.pop(number, None)
        return [(number, self._windows.pop(number)) for number in numbers]

    def open(self) -> list[Window]:
        """The windows that there are, the oldest first."""
        return [Window(number * self._step, *self._windows[number]) for number in sorted(self._windows)]

    def changes(self) -> list[Any]:
        """As `SupportsChanges.changes`: what is closed, the new windows, of the others that changed the summaries."""
        windows = self._windows
        whole = [windows[number] for number in self._new]
        data = [
            self._below,
            [list(self._new), [first for first, _ in whole], [summary for _, summary in whole]],
            [list(self._updated), [windows[number][1] for number in self._updated]],
        ]
        self._new, self._updated = {}, {}
        return data

    def everything(self) -> list[Any]:
        """As `SupportsChanges.everything`."""
        self._new, self._updated = dict.fromkeys(self._windows), {}
        return self.changes()

    def paste(self, data: Any) -> None:
        """As `SupportsChanges.paste`."""
        below, (new, firsts, summaries), (updated, others) = data
        for number, first, summary in zip(new, firsts, summaries, strict=True):
            self._windows[number] = [first, summary]
        for number, summary in zip(updated, others, strict=True):
            self._windows[number][1] = summary
        if below is not None:
            self._remove(below)
