"""Sweeping checkpoints (SW): a block is appended when an acknowledgement has trimmed the outputs.

The last operator of a chain appends a block now and then. Its acknowledgement lets the one before it forget outputs,
which appends a block in turn, and so on to the first: each block is made when there is least to be kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from safekeeper.policy.capture import CaptureView, Choice, What
from safekeeper.policy.every import Trigger


class Sweep:
    """Due when readers have acknowledged outputs since the block before, and when the first event that is not in a
    block is *at_least* seconds old: a reader may be away, and who comes before waits for an acknowledgement, too.

    The parts that have changed are in the block; with *whole* all there are, as in the paper. It is for operators that
    release their outputs at once: what readers have acknowledged meanwhile need not be in a block at all. The last
    operator of a chain, and one whose streams retain by themselves, takes `Every`.
    """

    fuzzy = False
    one_at_a_time = True

    def __init__(self, at_least: float = 5.0, *, whole: bool = False) -> None:
        if at_least <= 0:
            raise ValueError(f"at_least= takes more than 0 s, not {at_least}")
        self._at_least = at_least
        self._choice = Choice.ALL if whole else Choice.CHANGED
        self._trimmed: WeakKeyDictionary[CaptureView, int] = WeakKeyDictionary()

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        trimmed = view.trimmed
        if not view.unsaved or (trimmed <= self._trimmed.get(view, 0) and view.waited < self._at_least):
            return None
        self._trimmed[view] = trimmed
        return self._choice


class Together:
    """Due at every multiple of *seconds* of this host's clock, for all operators that have it: SW's synchronous
    checkpoints, to compare with. `Every(seconds=...)` is an individual timer. *whole* as with `Sweep`."""

    fuzzy = False
    one_at_a_time = True

    def __init__(self, seconds: float, *, whole: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        if seconds <= 0:
            raise ValueError(f"together every how many seconds? Not {seconds}")
        self._seconds, self._clock = seconds, clock
        self._choice = Choice.ALL if whole else Choice.CHANGED
        self._ticks: WeakKeyDictionary[CaptureView, int] = WeakKeyDictionary()

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        tick = int(self._clock() / self._seconds)
        if tick == self._ticks.setdefault(view, tick) or not view.unsaved:
            return None
        self._ticks[view] = tick
        return self._choice


class EveryWhole:
    """All parts there are, whenever *trigger* is due: SW's individual checkpoints, to compare with."""

    fuzzy = False
    one_at_a_time = True

    def __init__(self, trigger: Trigger) -> None:
        self._due = trigger.due

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        return Choice.ALL if self._due(view.unsaved, view.waited) else None
