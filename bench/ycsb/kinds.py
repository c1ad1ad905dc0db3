"""YCSB's `measurementtype`: what is kept of each operation besides its place in the HDR histogram, and how it is shown.

    hdrhistogram              percentiles; nothing more is kept
    histogram                 buckets of a millisecond, as YCSB had before HDR histograms
    timeseries                the mean of every `timeseries.granularity` milliseconds
    raw                       every operation with its time
    hdrhistogram+histogram, hdrhistogram+raw

Names and order of the numbers are those of YCSB 0.17. In a time series the steps are whole ones of the clock, so that
those of several clients can be put together: the first one is shorter than the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from safekeeper.bench.ycsb.properties import YcsbSettings

MeasurementType = Literal[
    "hdrhistogram", "histogram", "hdrhistogram+histogram", "hdrhistogram+raw", "timeseries", "raw"
]

Numbers = Iterator[tuple[str, int | float]]
"""Names of measurements with their values."""

_NS_A_MS = 1_000_000
_RAW_PERCENTS = (1, 5, 50, 90, 95, 99, 99.9, 99.99)


class Moments(NamedTuple):
    """Operations with the moments at which they ended."""

    nanoseconds: NDArray[np.int64]
    """How long each took."""
    ended: NDArray[np.int64]
    """Milliseconds since 1970."""


class Kept(ABC):
    """What one kind of measurement keeps of one kind of operation."""

    @abstractmethod
    def record(self, moments: Moments) -> None:
        """Count many."""

    @abstractmethod
    def add(self, other: Self) -> None:
        """Count everything that *other* has, of another client perhaps."""

    @abstractmethod
    def summary(self) -> Numbers:
        """The numbers that stand before the return codes."""

    def details(self) -> Numbers:
        """The numbers that stand behind them."""
        return iter(())


class MillisecondBuckets(Kept):
    """`histogram`: how many operations took 0 ms, 1 ms, and so on; longer ones are counted together."""

    def __init__(self, settings: YcsbSettings) -> None:
        self._counts = np.zeros(settings.histogram_buckets + 1, np.int64)
        self._verbose = settings.histogram_verbose
        self._sum = self._squares = 0.0
        self._least, self._most = np.iinfo(np.int64).max, 0

    def record(self, moments: Moments) -> None:
        microseconds = moments.nanoseconds // 1000
        buckets = np.minimum(microseconds // 1000, len(self._counts) - 1)
        self._counts += np.bincount(buckets, minlength=len(self._counts))
        self._sum += float(microseconds.sum())
        self._squares += float((microseconds.astype(np.float64) ** 2).sum())
        self._least = min(self._least, int(microseconds.min()))
        self._most = max(self._most, int(microseconds.max()))

    def add(self, other: Self) -> None:
        self._counts += other._counts
        self._sum += other._sum
        self._squares += other._squares
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)

    def summary(self) -> Numbers:
        count = int(self._counts.sum())
        mean = self._sum / count
        yield "Operations", count
        yield "AverageLatency(us)", mean
        yield "LatencyVariance(us)", self._squares / count - mean**2
        yield "MinLatency(us)", self._least
        yield "MaxLatency(us)", self._most
        upto = self._counts[:-1].cumsum() / count
        for name, share in (("95thPercentileLatency(us)", 0.95), ("99thPercentileLatency(us)", 0.99)):
            if len(reached := np.flatnonzero(upto >= share)):  # else it lies beyond the last bucket
                yield name, int(reached[0]) * 1000

    def details(self) -> Numbers:
        if self._verbose:
            *buckets, longer = self._counts.tolist()
            yield from ((str(bucket), count) for bucket, count in enumerate(buckets))
            yield f">{len(buckets)}", longer


class TimeSeries(Kept):
    """`timeseries`: the mean latency in every step of time."""

    def __init__(self, settings: YcsbSettings) -> None:
        self._granularity = settings.timeseries_granularity
        self._steps: dict[int, tuple[int, int]] = {}  # number of the step: operations, sum of nanoseconds
        self._least, self._most = np.iinfo(np.int64).max, 0

    def record(self, moments: Moments) -> None:
        steps, which = np.unique(moments.ended // self._granularity, return_inverse=True)
        counts = np.bincount(which)
        sums = np.bincount(which, weights=moments.nanoseconds)
        for step, count, total in zip(steps.tolist(), counts.tolist(), sums.tolist(), strict=True):
            self._include(step, count, int(total))
        self._least = min(self._least, int(moments.nanoseconds.min()))
        self._most = max(self._most, int(moments.nanoseconds.max()))

    def _include(self, step: int, count: int, total: int) -> None:
        before = self._steps.get(step, (0, 0))
        self._steps[step] = before[0] + count, before[1] + total

    def add(self, other: Self) -> None:
        for step, (count, total) in other._steps.items():
            self._include(step, count, total)
        self._least, self._most = min(self._least, other._least), max(self._most, other._most)

    def summary(self) -> Numbers:
        count = sum(count for count, _ in self._steps.values())
        yield "Operations", count
        yield "AverageLatency(us)", sum(total for _, total in self._steps.values()) / count / 1000
        yield "MinLatency(us)", self._least // 1000
        yield "MaxLatency(us)", self._most // 1000

    def details(self) -> Numbers:
        first = min(self._steps)
        for step, (count, total) in sorted(self._steps.items()):
            yield str((step - first) * self._granularity), total / count / 1000


class RawPoints(Kept):
    """`raw`: every operation, 16 bytes of memory each until the end."""

    def __init__(self, settings: YcsbSettings) -> None:
        self._moments: list[Moments] = []
        self._summarized = not settings.raw_no_summary

    def record(self, moments: Moments) -> None:
        self._moments.append(moments)

    def add(self, other: Self) -> None:
        self._moments += other._moments

    def lines(self, name: str) -> Iterator[str]:
        """The operations as YCSB writes them, in the order of time, below a line that says so."""
        together = self._together()
        order = np.argsort(together.ended, kind="stable")
        yield f"{name} latency raw data: op, timestamp(ms), latency(us)\n"
        microseconds = (together.nanoseconds // 1000)[order].tolist()
        for ended, took in zip(together.ended[order].tolist(), microseconds, strict=True):
            yield f"{name},{ended},{took}\n"

    def _together(self) -> Moments:
        return Moments(*map(np.concatenate, zip(*self._moments, strict=True)))

    def summary(self) -> Numbers:
        took = np.sort(self._together().nanoseconds // 1000)
        yield "Total Operations", len(took)
        if self._summarized:
            yield "Below is a summary of latency in microseconds:", -1
            yield "Average", float(took.mean())
            yield "Min", int(took[0])
            yield "Max", int(took[-1])
            for percent in _RAW_PERCENTS:
                yield f"p{percent:g}", int(took[int(len(took) * percent / 100)])


_BESIDE: dict[MeasurementType, type[Kept]] = {
    "histogram": MillisecondBuckets,
    "hdrhistogram+histogram": MillisecondBuckets,
    "hdrhistogram+raw": RawPoints,
    "timeseries": TimeSeries,
    "raw": RawPoints,
}


def kept_beside(settings: YcsbSettings) -> type[Kept] | None:
    """What is kept besides the HDR histogram; None for nothing."""
    return _BESIDE.get(settings.measurementtype)
