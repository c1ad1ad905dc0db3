"""Which of its units a process captures next, and when it rather pastes what others have captured (Hwang, 4.3).

A process holds several **units**, such as operators. Each is backed up by another process: it gets what was captured
and pastes it. If the process fails, each of its backups recovers its units one after the other, all backups at the same
time. So the **expected recovery time** of a unit is what its backup would have to paste and to process again, that of a
process the longest sum over the units of one backup, and each of these rules tries to keep it short:

    RoundRobin    one unit after the other, captures and pastes in turns
    ThesisRule    min-max as it is printed: the worst backup's unit that gains most for its cost; or a paste, if that
                  leaves a longer recovery than the capture would
    RootRule      the unit with the largest load x age^2 / cost, captures and pastes in turns: then a unit's interval
                  goes to sqrt(cost / load), which makes the mean recovery time the shortest. A unit counts for less if
                  its backup would be done before the others
    PayingRule    the unit that RootRule takes, of those whose capture pays for itself; what waits is pasted first. It
                  is the one that is shipped: `bench/studies/minmax_simulator.py` says why
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

_IN_A_ROW = 8  # pastes; so many may wait of as many other processes


@dataclass(slots=True)
class CaptureUnit:
    """What is known of one unit. Times are in seconds, loads in seconds of processing a second."""

    name: str
    backup: str
    """The process that pastes what is captured of it."""
    load: float
    capture: float
    """How long a capture of it takes."""
    paste: float
    """How long it takes to paste that."""
    since: float = 0.0
    """When its last capture that the backup has was begun."""
    waiting: float = 0.0
    """How long it takes to paste what the backup has and has not pasted."""
    free: bool = True
    """Whether it may be captured: what was captured before is pasted."""

    def recovery(self, at: float) -> float:
        """Its expected recovery time."""
        return self.waiting + self.load * (at - self.since)


@dataclass(frozen=True, slots=True)
class WaitingPaste:
    """What another process has captured, the oldest that this one has not pasted."""

    owner: str
    unit: str
    paste: float
    """How long it takes to paste it."""
    recovery: float
    """How long it would take to recover all units of the owner that are backed up here."""
    load: float
    """Their load: by so much that grows every second."""


Deed: TypeAlias = CaptureUnit | WaitingPaste


class CaptureRule(Protocol):
    """Chooses what a process does that has nothing to process."""

    def choose(self, now: float, units: Sequence[CaptureUnit], pastes: Sequence[WaitingPaste]) -> Deed | None:
        """Which of *units* to capture, or which of *pastes*, at most one of each owner, to paste; None: neither."""


def segments(units: Iterable[CaptureUnit], at: float) -> dict[str, float]:
    """The expected recovery time of the units of each backup."""
    found: dict[str, float] = {}
    for unit in units:
        found[unit.backup] = found.get(unit.backup, 0.0) + unit.recovery(at)
    return found


def expected_recovery(units: Iterable[CaptureUnit], at: float) -> float:
    """The expected recovery time of a process: of the backup that takes longest."""
    return max(segments(units, at).values(), default=0.0)


class _InTurns:
    """Captures and pastes in turns."""

    def __init__(self) -> None:
        self._pasted = True

    def choose(self, now: float, units: Sequence[CaptureUnit], pastes: Sequence[WaitingPaste]) -> Deed | None:
        """As `CaptureRule.choose`."""
        free = [unit for unit in units if unit.free]
        if pastes and (not self._pasted or not free):
            self._pasted = True
            return max(pastes, key=lambda paste: paste.recovery)
        if not free:
            return None
        self._pasted = False
        return self._best(now, free, units)

    def _best(self, now: float, free: Sequence[CaptureUnit], units: Sequence[CaptureUnit]) -> CaptureUnit:
        raise NotImplementedError


class RoundRobin(_InTurns):
    """One unit after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[str, int] = {}

    def _best(self, now: float, free: Sequence[CaptureUnit], units: Sequence[CaptureUnit]) -> CaptureUnit:
        unit = min(free, key=lambda unit: self._turns.get(unit.name, 0))
        self._turns[unit.name] = max(self._turns.values(), default=0) + 1
        return unit


class RootRule(_InTurns):
    """The unit that has cost most since its last capture, for what a capture takes."""

    def _best(self, now: float, free: Sequence[CaptureUnit], units: Sequence[CaptureUnit]) -> CaptureUnit:
        weights = segments(units, now)

        def index(unit: CaptureUnit) -> float:
            return unit.load * (now - unit.since) ** 2 / max(unit.capture, 1e-9) * weights[unit.backup]

        return max(free, key=index)


class PayingRule(RootRule):
    """As `RootRule`, of the units whose capture pays for itself; what waits is pasted first.

    A capture takes away what was to be processed again, and adds what is to be pasted, until that is done: at once
    where nobody is busy, later where everybody is. So it pays when there is more to be processed again than the root of
    the process's load of what it takes to paste. No more than a few pastes come one after the other while one pays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._in_a_row = 0

    def choose(self, now: float, units: Sequence[CaptureUnit], pastes: Sequence[WaitingPaste]) -> Deed | None:
        """As `CaptureRule.choose`."""
        busy = math.sqrt(min(sum(unit.load for unit in units), 1.0))
        paying = [unit for unit in units if unit.free and unit.load * (now - unit.since) > busy * unit.paste]
        if pastes and (not paying or self._in_a_row < _IN_A_ROW):
            self._in_a_row += 1
            return max(pastes, key=lambda paste: paste.recovery)
        self._in_a_row = 0
        return self._best(now, paying, units) if paying else None


class ThesisRule:
    """Min-max as it is printed."""

    def choose(self, now: float, units: Sequence[CaptureUnit], pastes: Sequence[WaitingPaste]) -> Deed | None:
        """As `CaptureRule.choose`."""
        unit = self._capture(now, units)
        if not pastes:
            return unit
        paste = max(pastes, key=_after_paste)
        if unit is None or _after_paste(paste) > _after_capture(unit, units, now):
            return paste
        return unit

    def _capture(self, now: float, units: Sequence[CaptureUnit]) -> CaptureUnit | None:
        best, most = None, float("-inf")
        for unit in units:
            if not unit.free:
                continue
            then = segments(units, now + unit.capture)
            if then[unit.backup] < max(then.values()) - 1e-12:
                continue
            gain = (unit.load * (now - unit.since) - unit.paste) / max(unit.capture, 1e-9)
            if gain > most + 1e-12:
                best, most = unit, gain
        return best


def _after_paste(paste: WaitingPaste) -> float:
    return paste.recovery + (paste.load - 1.0) * paste.paste


def _after_capture(unit: CaptureUnit, units: Sequence[CaptureUnit], now: float) -> float:
    """The recovery time of a unit's backup when it was captured."""
    then = now + unit.capture
    others = [other for other in units if other.backup == unit.backup and other is not unit]
    return sum(other.recovery(then) for other in others) + unit.load * unit.capture + unit.paste
