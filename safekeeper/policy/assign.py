"""Who backs up which unit: moves that shorten the longest expected recovery (Hwang, 4.4, algorithm 2).

Once in an epoch, when every process has captured all of its units, somebody asks for the moves of the next one. The
process with the longest recovery gives units of its slowest backup to its fastest, if that is faster than any process
as a whole; otherwise it is relieved of what it backs up for another. If the one is not possible the other is done. The
printed amount would exchange the two, so half of it is moved; and a unit is moved only if its new backup is then faster
than the old one was. So no move makes the longest recovery longer, and moves come to an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from safekeeper.policy.minmax import CaptureUnit


@dataclass(frozen=True, slots=True)
class BackupMove:
    """Let unit *unit* of *owner* be backed up by *to*, no longer by *source*."""

    owner: str
    unit: str
    source: str
    to: str


def assign(processes: Mapping[str, Sequence[CaptureUnit]], at: float) -> list[BackupMove]:
    """The moves for the units of *processes*, by the expected recovery times *at* this time; none if all is well."""
    if len(processes) < 3:
        return []  # nobody else could back it up
    times = {owner: _segments(owner, processes, at) for owner in processes}
    longest = {owner: max(segments.values()) for owner, segments in times.items()}
    worst = max(longest, key=lambda owner: longest[owner])
    best = min(longest, key=lambda owner: longest[owner])
    within = _within(worst, processes, times[worst], at)
    relief = _relief(worst, best, processes, times, at)
    fastest = min(times[worst].values())
    return (within or relief) if fastest < longest[best] else (relief or within)


def _within(
    worst: str, processes: Mapping[str, Sequence[CaptureUnit]], times: Mapping[str, float], at: float
) -> list[BackupMove]:
    """From the slowest backup of *worst* to its fastest."""
    slowest, fastest = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
    return _moves(worst, processes[worst], slowest, fastest, times, at)


def _relief(
    worst: str,
    best: str,
    processes: Mapping[str, Sequence[CaptureUnit]],
    times: Mapping[str, Mapping[str, float]],
    at: float,
) -> list[BackupMove]:
    """From *worst*, which backs up others, too, to *best*: those of whoever gains most."""
    others = [owner for owner in processes if owner not in (worst, best)]
    owner = max(others, key=lambda owner: times[owner][worst] - times[owner][best])
    return _moves(owner, processes[owner], worst, best, times[owner], at)


def _segments(owner: str, processes: Mapping[str, Sequence[CaptureUnit]], at: float) -> dict[str, float]:
    """How long each of the others would take to recover what it backs up of *owner*."""
    found = {other: 0.0 for other in processes if other != owner}
    for unit in processes[owner]:
        found[unit.backup] += unit.recovery(at)
    return found


def _moves(
    owner: str, units: Iterable[CaptureUnit], source: str, to: str, times: Mapping[str, float], at: float
) -> list[BackupMove]:
    """Units that go from one backup to another: up to half of the difference, the longest first that fit."""
    difference = times[source] - times[to]
    if difference <= 0:
        return []
    candidates = sorted((unit for unit in units if unit.backup == source), key=lambda unit: -unit.recovery(at))
    moves, moved = [], 0.0
    for unit in candidates:
        if moved + unit.recovery(at) <= difference / 2:
            moved += unit.recovery(at)
            moves.append(BackupMove(owner, unit.name, source, to))
    if not moves:
        smallest = candidates[-1]
        if 0 < smallest.recovery(at) < difference:
            moves.append(BackupMove(owner, smallest.name, source, to))
    return moves
