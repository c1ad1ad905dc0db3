"""Checkpoint less often while the store cannot keep up: the S4 thesis' future work."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from threading import Lock
from typing import Protocol


class HasFill(Protocol):
    """A keeper, seen from here."""

    @property
    def fill(self) -> float:
        """How full its fuller queue is, from 0 to 1."""


class Calibrate:
    """By how much the triggers of a keeper are to be stretched now.

    Above *high* the stretch grows by half every *period*, below *low* it shrinks by a fifth, down to 1; in between it
    stays. Above *full* nothing is due at all, so that a queue in front of a store that cannot keep up never overflows:
    what was not saved stays dirty and is saved later. One object serves all groups of a keeper.
    """

    def __init__(
        self,
        keeper: HasFill,
        *,
        low: float = 0.5,
        high: float = 0.75,
        full: float = 0.9,
        period: float = 0.1,
        most: float = 256.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < low <= high <= full <= 1 or period <= 0 or most < 1:
            raise ValueError("0 < low <= high <= full <= 1, period > 0 and most >= 1")
        self._keeper = keeper
        self._low, self._high, self._full = low, high, full
        self._period = period
        self._most = most
        self._clock = clock
        self._lock = Lock()
        self._stretch = 1.0
        self._next = clock() + period

    def stretch(self) -> float:
        """The factor for the events and seconds between checkpoints now: 1 or more, perhaps infinite."""
        fill = self._keeper.fill
        if self._clock() >= self._next:
            with self._lock:
                self._adjust(fill, self._clock())
        return inf if fill > self._full else self._stretch

    def _adjust(self, fill: float, now: float) -> None:
        periods = int((now - self._next) / self._period) + 1
        if periods < 1:  # somebody else has just done it
            return
        self._next += periods * self._period
        if fill > self._high:
            self._stretch = min(self._stretch * 1.5, self._most)
        elif fill < self._low:
            # Nobody asked meanwhile, so nothing came: all that time the queue was no fuller than it is now.
            self._stretch = max(self._stretch * 0.8**periods, 1.0)
