"""Warnings for people: one line of a kind now and then, however often it happens."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

_INTERVAL = 10.0  # seconds between two lines of a kind


class Notices:
    """Remembers warnings under its owner's lock, to be logged after that was given back: handlers take their time."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._silent: dict[str, int] = {}
        self.lines: list[tuple[str, BaseException | None]] = []
        """What is to be logged, some of it with the error that is shown with it."""

    def note(self, text: str, *values: object) -> None:
        """Remember the warning `text % values`, unless there was one with the same *text* just now: then count it."""
        now = time.monotonic()
        if now < self._next.get(text, 0.0):
            self._silent[text] = self._silent.get(text, 0) + 1
            return
        self._next[text] = now + _INTERVAL
        more = self._silent.pop(text, 0)
        line = text % values + (f" ({more} more like this since the last such line)" if more else "")
        self.lines.append((line, None))

    def take(self) -> list[tuple[str, BaseException | None]]:
        """What was remembered, which is now forgotten."""
        lines, self.lines = self.lines, []
        return lines


def log_safely(log: Callable[..., None], text: str, *values: object, **options: object) -> None:
    """Call *log*, a method of a logger. A handler that raises must not end the thread that stores: what it raised is
    printed, as `logging` does with the errors of its own handlers."""
    try:
        log(text, *values, **options)
    except Exception:
        traceback.print_exc()
