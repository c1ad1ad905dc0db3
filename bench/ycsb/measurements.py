"""What was measured: HDR histograms of latencies and counts of outcomes, by YCSB's names.

Each thread appends latencies to lists of its own, which costs next to nothing, and folds them into the shared
histograms now and then.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from threading import Lock
from typing import cast

import numpy as np
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]
from numpy.typing import NDArray

from safekeeper.bench.ycsb.kinds import Kept, Moments, kept_beside
from safekeeper.bench.ycsb.properties import YcsbSettings
from safekeeper.errors import SafekeeperError
from safekeeper.keeper.metrics import Histogram, Metrics

_LONGEST = 3600 * 10**9  # nanoseconds
_DIGITS = 3
_SIGNIFICANT_BITS = 11  # what 3 digits need; two values alike in these are in the same place of the histogram
_FOLD_AFTER_SECONDS = 0.5  # and several times in an interval, or what is in it would be of the one before
_FOLD_AFTER = 1 << 15


class Latencies:
    """A distribution of times, kept to three digits; sum, least and most are exact. All times are nanoseconds."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(1, _LONGEST, _DIGITS)
        self._sum = 0
        self._least = _LONGEST
        self.most = 0
        """The longest, 0 if there is none."""

    def record(self, nanoseconds: NDArray[np.int64]) -> None:
        """Count many."""
        if not len(nanoseconds):
            return
        values = np.clip(nanoseconds, 1, _LONGEST)
        self._include(int(values.sum()), int(values.min()), int(values.max()))
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - _SIGNIFICANT_BITS, 0)
        alike, counts = np.unique(values >> shift << shift, return_counts=True)
        for value, count in zip(alike.tolist(), counts.tolist(), strict=True):
            self._histogram.record_value(value, count)

    def add(self, other: Latencies) -> None:
        """Count everything that *other* has; nothing is rounded again."""
        self._histogram.add(other._histogram)
        self._include(other._sum, other._least, other.most)

    def _include(self, total: int, least: int, most: int) -> None:
        self._sum += total
        self._least = min(self._least, least)
        self.most = max(self.most, most)

    @property
    def count(self) -> int:
        """How many were recorded."""
        return int(self._histogram.total_count)

    @property
    def mean(self) -> float:
        """The mean, 0 if there is none."""
        return self._sum / (self.count or 1)

    @property
    def least(self) -> int:
        """The shortest, 0 if there is none."""
        return self._least if self.count else 0

    def percentile(self, percent: float) -> int:
        """What *percent* of all did not exceed, to three digits; 0 if there is none."""
        return min(int(self._histogram.get_value_at_percentile(percent)), self.most) if self.count else 0

    @property
    def in_microseconds(self) -> HdrHistogram:
        """A copy as HdrHistogram's own, in whole microseconds as YCSB has them: for files that other programs read."""
        copy = HdrHistogram(1, _LONGEST // 1000, _DIGITS)
        for at in self._histogram.get_recorded_iterator():
            value = min(at.value_iterated_to, self.most)
            copy.record_value(max(value // 1000, 1), at.count_at_value_iterated_to)
        return copy

    def __getstate__(self) -> tuple[bytes, int, int, int]:
        """For another process: HdrHistogram's own compressed form, and what is kept beside it."""
        return bytes(self._histogram.encode()), self._sum, self._least, self.most

    def __setstate__(self, state: tuple[bytes, int, int, int]) -> None:
        self._histogram = HdrHistogram.decode(state[0])
        self._sum, self._least, self.most = state[1:]


_State = tuple[YcsbSettings, dict[str, Latencies], dict[str, Kept], Counter[tuple[str, str]], str, Metrics | None]


class Measurements:
    """All that a run has measured so far. Any thread may add to it."""

    def __init__(self, settings: YcsbSettings | None = None) -> None:
        self._settings = settings or YcsbSettings()
        self._lock = Lock()
        self._folded: dict[str, Latencies] = {}
        self._interval: dict[str, Latencies] = {}
        self._beside = kept_beside(self._settings)
        self.stamped = self._beside is not None
        """Whether the moments of operations are wanted, too."""
        self.fold_after = min(_FOLD_AFTER_SECONDS, self._settings.status_interval / 5)
        """Seconds after which a thread hands over what it has measured."""
        self.kept: dict[str, Kept] = {}
        """What `measurementtype` asks for besides the HDR histogram, by name."""
        self.returns: Counter[tuple[str, str]] = Counter()
        """How many operations of each kind ended with which of YCSB's return codes."""
        self.first_error: Exception | None = None
        """The first failure of the store, for a message."""
        self.keeper: Metrics | None = None
        """What the keeper measured itself, if there was one."""

    def add(
        self, name: str, nanoseconds: NDArray[np.int64], returns: int, ended: NDArray[np.int64] | None = None
    ) -> None:
        """Count latencies of *name*; so many of them also count as `Return=OK`. *ended* are the moments, if wanted."""
        with self._lock:
            self._interval.setdefault(name, Latencies()).record(nanoseconds)
            if self._beside is not None and ended is not None:
                if name not in self.kept:
                    self.kept[name] = self._beside(self._settings)  # type: ignore[call-arg]
                self.kept[name].record(Moments(nanoseconds, ended))
            if returns:
                self.returns[name, "OK"] += returns

    def count_return(self, name: str, code: str, times: int = 1) -> None:
        """Count one operation that ended with *code*."""
        with self._lock:
            self.returns[name, code] += times

    def take_interval(self) -> dict[str, Latencies]:
        """What was measured since this was called last."""
        with self._lock:
            interval, self._interval = self._interval, {}
            for name, latencies in interval.items():
                self._folded.setdefault(name, Latencies()).add(latencies)
        return interval

    def totals(self) -> dict[str, Latencies]:
        """Everything, by name."""
        self.take_interval()
        with self._lock:
            return dict(self._folded)

    def __getstate__(self) -> _State:
        """For another process; of the first error only its message goes there."""
        return self._settings, self.totals(), self.kept, self.returns, str(self.first_error or ""), self.keeper

    def __setstate__(self, state: _State) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        _, self._folded, self.kept, self.returns, error, self.keeper = state
        self.first_error = SafekeeperError(error) if error else None

    def merge(self, other: Measurements) -> None:
        """Count everything that *other* has, exactly."""
        self.take_interval()
        for name, latencies in other.totals().items():
            self._folded.setdefault(name, Latencies()).add(latencies)
        for name, kept in other.kept.items():
            if name in self.kept:
                self.kept[name].add(kept)
            else:
                self.kept[name] = kept
        self.returns.update(other.returns)
        self.keeper = _sum(self.keeper, other.keeper)
        self.first_error = self.first_error or other.first_error


def _sum(one: Metrics | None, other: Metrics | None) -> Metrics | None:
    """What two keepers measured together."""
    if one is None or other is None:
        return one or other
    together = one.copy()
    for field in dataclasses.fields(Metrics):
        mine, yours = getattr(together, field.name), getattr(other, field.name)
        if isinstance(mine, Histogram):
            mine.counts = [a + b for a, b in zip(mine.counts, yours.counts, strict=True)]
            mine.total += yours.total
        else:
            setattr(together, field.name, mine + yours)
    return together


class _Stamped(list[tuple[int, int]]):
    """Latencies, each with the moment at which it was appended, in milliseconds since 1970."""

    def append(self, nanoseconds: int) -> None:  # type: ignore[override]
        super().append((nanoseconds, time.time_ns() // 1_000_000))


class Recorder:
    """One thread's latencies, on their way to the shared `Measurements`."""

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements
        self._pending: dict[str, list[int]] = {}  # or `_Stamped`, which takes them, too
        self._without_return: set[str] = set()
        self._folded_at = time.monotonic()
        self.operations = 0
        """How many operations the thread has done; the status line adds them up."""

    def list_of(self, name: str, *, counts_as_ok: bool = True) -> list[int]:
        """The list to append latencies of *name* to, in nanoseconds; always the same one."""
        if not counts_as_ok:
            self._without_return.add(name)
        if name not in self._pending:  # several threads may be here at once
            self._pending.setdefault(name, cast("list[int]", _Stamped()) if self._measurements.stamped else [])
        return self._pending[name]

    def failed(
        self, name: str, code: str, nanoseconds: int, error: Exception | None = None, *, kind: str = "FAILED"
    ) -> None:
        """Record something that did not succeed: its time apart, its code among the returns."""
        self.list_of(f"{name}-{kind}", counts_as_ok=False).append(nanoseconds)
        self._measurements.count_return(name, code)
        if error is not None and self._measurements.first_error is None:
            self._measurements.first_error = error

    def fold_if_due(self) -> None:
        """Fold if it is time to."""
        if (
            time.monotonic() - self._folded_at > self._measurements.fold_after
            or max(map(len, self._pending.values()), default=0) > _FOLD_AFTER
        ):
            self.fold()

    def fold(self) -> None:
        """Move what is in the lists to the shared histograms. Others may go on appending meanwhile."""
        self._folded_at = time.monotonic()
        for name, values in self._drain():
            returns = 0 if name in self._without_return else len(values)
            if values.ndim == 1:
                self._measurements.add(name, values, returns)
            else:
                self._measurements.add(name, values[:, 0], returns, values[:, 1])

    def _drain(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        for name, pending in list(self._pending.items()):
            if count := len(pending):
                values = np.array(pending[:count], np.int64)
                del pending[:count]
                yield name, values
