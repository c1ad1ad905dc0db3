"""Warnings for people: one line of a kind now and then, however often it happens."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger("safekeeper")

_INTERVAL = 10.0  # seconds between two lines of a kind


class Notices:
    """Remembers warnings under its owner's lock and logs them after it was given back."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._silent: dict[str, int] = {}
        self._lines: list[str] = []

    def __bool__(self) -> bool:
        """Whether there is anything to log."""
        return bool(self._lines)

    def note(self, text: str, *values: object) -> None:
        """Remember the warning `text % values`, unless there was one with the same *text* just now: then count it."""
        now = time.monotonic()
        if now < self._next.get(text, 0.0):
            self._silent[text] = self._silent.get(text, 0) + 1
            return
        self._next[text] = now + _INTERVAL
        more = self._silent.pop(text, 0)
        self._lines.append(text % values + (f" ({more} more like this since the last such line)" if more else ""))

    def log(self) -> None:
        """Log what was remembered. Without the owner's lock: handlers take their time."""
        lines, self._lines = self._lines, []
        for line in lines:
            _log.warning(line)
