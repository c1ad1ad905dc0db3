"""Continuous eventual checkpoints (CEC): a few old parts now and then, so that recovery never has too much to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from safekeeper.policy.capture import CaptureView, What

_MARGIN = 0.7  # of the time that recovery may take: what is measured now is not what will be
_SHARE = 0.5  # of all time, at most, when recovery would take too long


class Eventual:
    """A block has the parts that were opened and closed, and for *budget* seconds in every *period* also the parts that
    lengthen recovery most:

    q               while recovery loads more than *q* records for each part that is alive: the part with the oldest
                    record
    u               while recovery replays more than *u* events: the part with the oldest event that is not recorded
    recover_within  instead of both: while loading and replaying would take longer than so many seconds, by the rates
                    that this process has; the budget then grows as far as it is needed

    It runs in the operator's own thread, between events. Recovery replays events, so the operator must be at least
    deterministic, and each of its events may touch one part only.
    """

    fuzzy = True
    by_time = True

    def __init__(
        self,
        q: float | None = None,
        u: int | None = None,
        *,
        budget: float = 0.005,
        period: float = 0.1,
        recover_within: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if recover_within is not None and (q is not None or u is not None):
            raise ValueError("recover_within= says what q and u are: give it, or them")
        if not 0 < budget <= period or (recover_within is not None and recover_within <= 0) or (q or 1) <= 0:
            raise ValueError(f"0 < budget <= period, q and recover_within above 0; not {budget}, {period}, {q}")
        if q is None and u is None and recover_within is None:
            q = 2.0
        self._q, self._u, self._within = q, u, recover_within
        self._budget, self._period, self._clock = budget, period, clock
        self._next = 0.0
        self.recorded = 0
        """How many parts were recorded in this way."""

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        return self._parts(view) if view.unsaved and view.since_block >= view.linger else None

    def _parts(self, view: CaptureView) -> Iterator[bytes]:
        """The parts to record, until there are enough or the time is over."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._period
        end = now + (self._budget if self._within is None else self._period * _SHARE)
        while self._clock() < end and (key := self._choose(view)) is not None:
            self.recorded += 1
            yield key

    def _choose(self, view: CaptureView) -> bytes | None:
        if self._within is None:
            key = None
            if self._q is not None and view.records > self._q * max(view.live, 1):
                key = view.oldest_record()
            if key is None and self._u is not None and view.replayed > self._u:
                key = view.oldest_change()
            return key
        load, replay = view.records / view.load_rate, view.replayed / view.replay_rate
        if view.opening + load + replay <= self._within * _MARGIN:
            return None
        least = view.live / view.load_rate  # what loading takes however much is recorded
        if replay >= load - least:
            return view.oldest_change()
        return view.oldest_record()
