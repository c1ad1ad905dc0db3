"""The time that every write carries, so that whichever write began later wins, however late another one arrives.

HBase keeps, of all that was put into a cell, what has the highest timestamp; a delete hides what is not newer than
itself. A reader of `hdfs:` takes, of all records of an id, the one with the highest sequence. So the writer gives a
time. Given by the server instead, it would be the moment of arrival: a put whose caller gave up long ago would undo a
newer one. Taken from the writer's own clock, a host whose clock is behind could write without effect. So all writers go
by one clock: that of the region server which holds the rows of clocks, or that of the NameNode.

A handle measures how far that clock is ahead of its own. It is somewhere between two bounds: not behind what it showed
when an answer came, not ahead of what it showed when the question was sent. A write takes the upper bound as its time,
and returns only when the lower bound has passed that. So when it has returned the server's clock has passed its time,
and whoever writes after that takes a later one. The bounds are about as far apart as the quickest question took, and a
write takes longer than that: there is hardly ever anything left to wait for.

Times are in microseconds; they are compared and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from safekeeper.errors import Unavailable

_FIRST_READINGS, _FEW_READINGS = 8, 2
_WORTH = 8
"""Writers that have waited so many times as long as a reading takes read again. So readings cost little beside what is
waited for, slow ones are soon followed by better ones, and who never waits needs none."""
_SELDOM = 10_000_000
"""How often the clock is read at least, in microseconds."""
_DRIFT = 50e-6
"""How far two clocks come apart, at most: 50 microseconds in a second."""
_OVERSLEPT = 1_000
"""A shorter wait gives way to other threads and processes, again and again: a sleep could take much longer."""
_JUMP = 1_000_000
"""A wait longer than this means that the server's clock was set back; waiting for it would help nobody."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the server's clock showed at a moment between two moments of ours, all in microseconds."""

    sent: int
    received: int
    shown: int
    """In whole milliseconds, as the server gives it: it was up to one more."""


@dataclass(frozen=True, slots=True)
class ClockBounds:
    """How far the server's clock is ahead of ours, at least and at most, at the moment `at` of ours."""

    low: float
    high: float
    at: int

    @classmethod
    def of(cls, reading: Reading) -> ClockBounds:
        """What one reading tells."""
        return cls(reading.shown - reading.received, reading.shown + 1000 - reading.sent, reading.received)

    def later(self, moment: int) -> ClockBounds:
        """The bounds at a later *moment*: wider, by as much as clocks drift."""
        return ClockBounds(self.low_at(moment), self.high_at(moment), moment)

    def low_at(self, moment: int) -> float:
        """The lower bound alone, for those who ask often."""
        return self.low - (moment - self.at) * _DRIFT

    def high_at(self, moment: int) -> float:
        """The upper one."""
        return self.high + (moment - self.at) * _DRIFT

    def narrowed(self, new: ClockBounds) -> ClockBounds:
        """What both tell together; the *new* ones alone if they contradict each other, since the clock was then set."""
        moment = max(self.at, new.at)
        one, other = self.later(moment), new.later(moment)
        low, high = max(one.low, other.low), min(one.high, other.high)
        return ClockBounds(low, high, moment) if low <= high else new


def now() -> int:
    """Our own clock, which nobody sets and which goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Clock:
    """Gives out the times of writes. *read* asks the server; None means that this time nothing was learned.

    With *eager*, somebody who has waited much asks more often than every ten seconds, for narrower bounds.
    """

    def __init__(self, read: Callable[[], Reading | None], *, eager: bool = True) -> None:
        self._read = read
        self._eager = eager
        self._lock = threading.Lock()
        self._bounds: ClockBounds | None = None
        self._learned_at = self._reading_took = 0
        self._way = 0.0
        self._waited = 0
        self._last = 0

    def next(self, after: int = 0) -> int:
        """The time of a write that begins now: later than all that have returned, and than *after*."""
        bounds = self._current_bounds()
        with self._lock:
            moment = now()
            self._last = max(self._last, after, int(moment + bounds.high_at(moment))) + 1
            return self._last

    def settle(self, timestamp: int) -> None:
        """Return when every write that begins afterwards, anywhere, gets a later time than *timestamp*."""
        if self._passed() > timestamp:
            return
        started = now()
        while 0 <= (left := timestamp - self._passed()) <= _JUMP:
            time.sleep(max(0, left - _OVERSLEPT) / 1_000_000)
        with self._lock:
            self._waited += now() - started

    def uncertainty(self) -> float:
        """How far apart the bounds are now, in microseconds."""
        bounds, moment = self._bounds, now()
        return bounds.high_at(moment) - bounds.low_at(moment) if bounds is not None else float("inf")

    def _passed(self) -> int:
        """What the server's clock has passed for certain."""
        bounds, moment = self._bounds, now()
        return int(moment + bounds.low_at(moment)) if bounds is not None else moment

    def _current_bounds(self) -> ClockBounds:
        with self._lock:
            bounds, age = self._bounds, now() - self._learned_at
            worth_it = self._eager and self._waited > _WORTH * self._reading_took
            due = bounds is None or worth_it or age > _SELDOM
            if due:  # this thread reads; the others go on with what is known
                self._learned_at, self._waited = now(), 0
        if not due and bounds is not None:
            return bounds
        return self._learn(_FIRST_READINGS if bounds is None else 1 if worth_it else _FEW_READINGS)

    def _learn(self, readings: int) -> ClockBounds:
        """Ask the server, without keeping other threads waiting for the answers."""
        for _ in range(readings):
            started = now()
            self._wait_for_tick()
            reading = self._read()
            if reading is not None:
                self._way = (reading.received - reading.sent) / 2
                bounds = ClockBounds.of(reading)
                with self._lock:
                    self._bounds = bounds if self._bounds is None else self._bounds.narrowed(bounds)
        with self._lock:
            self._learned_at = now()
            self._reading_took = self._learned_at - started
        if self._bounds is None:
            raise Unavailable("the server's clock could not be read: too many others read it, try again")
        return self._bounds

    def _wait_for_tick(self) -> None:
        """Return when a question would get to the server as its clock shows a new millisecond, if it takes as long as
        the last one.

        Whether it then comes a little before or after that, one of the bounds gets as close as it can; at any other
        moment the answer tells less, by up to a millisecond.
        """
        if self._bounds is not None:
            moment = now()
            bounds = self._bounds.later(moment)
            time.sleep(-(moment + self._way + (bounds.low + bounds.high) / 2) % 1000 / 1_000_000)
