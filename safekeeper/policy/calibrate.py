"""Checkpoint less often while the store cannot keep up: the S4 thesis' future work."""

from __future__ import annotations

from math import inf
from typing import Protocol


class HasFill(Protocol):
    """A keeper, seen from here."""

    @property
    def fill(self) -> float:
        """How full its fuller queue is, from 0 to 1."""


class Calibrate:
    """By how much the triggers of a keeper are to be stretched now.

    Up to *low* not at all; from there the stretch grows exponentially to *most* at *full*, so that it settles where as
    much is saved as the store takes, and is back at once when the queue is. Above *full* nothing is due: a queue in
    front of a store that cannot keep up never overflows, and what was not saved stays dirty and is saved later. One
    object serves all groups of a keeper.
    """

    def __init__(self, keeper: HasFill, *, low: float = 0.5, full: float = 0.9, most: float = 256.0) -> None:
        if not 0 <= low < full <= 1 or most <= 1:
            raise ValueError(f"0 <= low < full <= 1 < most, not {low}, {full} and {most}")
        self._keeper = keeper
        self._low, self._full, self._most = low, full, most

    def __repr__(self) -> str:
        return f"Calibrate({self._keeper!r}, low={self._low}, full={self._full}, most={self._most})"

    def stretch(self) -> float:
        """The factor for the events and seconds between checkpoints now: 1 or more, perhaps infinite."""
        fill = self._keeper.fill
        if fill <= self._low:
            return 1.0
        if fill > self._full:
            return inf
        return float(self._most ** ((fill - self._low) / (self._full - self._low)))
