"""What a keeper counts and times, as a value to look at and as text for Prometheus.

print(keeper.metrics().stored, keeper.metrics().store.quantile(0.99))
return Response(keeper.metrics().prometheus(keeper="orders"), media_type=CONTENT_TYPE)
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `Metrics.prometheus`."""

_BUCKETS = 28  # up to 67 seconds, and one for what is longer


class Histogram:
    """Durations, counted in buckets whose upper bounds double from one microsecond on."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        """How many were shorter than 1, 2, 4, ... microseconds and not shorter than the bound before; the last has all
        the rest."""
        self.total = 0.0
        """The sum of all, in seconds."""

    def record(self, seconds: float, times: int = 1) -> None:
        """Count one, or as many *times*."""
        bucket = int(seconds * 1e6).bit_length()
        self.counts[bucket if bucket < _BUCKETS else -1] += times
        self.total += seconds * times

    def record_all(self, times: list[float]) -> None:
        """Count each of *times*."""
        times.sort()
        before = 0
        for bucket in range(_BUCKETS):
            upto = bisect_left(times, 2**bucket / 1e6) if bucket < _BUCKETS - 1 else len(times)
            self.counts[bucket] += upto - before
            if upto == len(times):
                break
            before = upto
        self.total += sum(times)

    def __repr__(self) -> str:
        return f"<Histogram of {self.count}, mean {self.mean:.6f} s, 99 % within {self.quantile(0.99):.6f} s>"

    @property
    def count(self) -> int:
        """How many were recorded."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean in seconds, 0 if there is none."""
        return self.total / (self.count or 1)

    def quantile(self, share: float) -> float:
        """Seconds that *share* of all did not exceed, at most twice the least such; 0 if there is none."""
        wanted, so_far = share * self.count, 0
        for bucket, count in enumerate(self.counts):
            so_far += count
            if count and so_far >= wanted:
                return float(2**bucket) / 1e6
        return 0.0

    def copy(self) -> Histogram:
        """The same numbers, from now on on their own."""
        copy = Histogram()
        copy.counts, copy.total = list(self.counts), self.total
        return copy


def counter(text: str) -> dict[str, str]:
    """What a field of `Numbers` is that only grows."""
    return {"kind": "counter", "suffix": "_total", "help": text}


def gauge(text: str) -> dict[str, str]:
    """What a field of `Numbers` is that goes up and down."""
    return {"kind": "gauge", "suffix": "", "help": text}


def times(text: str) -> dict[str, str]:
    """What a field of `Numbers` is that has durations."""
    return {"kind": "histogram", "suffix": "_seconds", "help": text}


@dataclass(slots=True)
class Numbers:
    """Numbers as a dataclass: each field is a `counter`, a `gauge` or has `times`."""

    prefix: ClassVar[str] = "safekeeper"
    """With what the names in Prometheus begin."""

    def copy(self) -> Self:
        """The numbers as they are now."""
        copy = dataclasses.replace(self)
        for f in dataclasses.fields(self):
            if isinstance(histogram := getattr(self, f.name), Histogram):
                setattr(copy, f.name, histogram.copy())
        return copy

    def prometheus(self, **labels: str) -> str:
        """The numbers in Prometheus' text format, each with *labels*."""
        return "".join(f"{line}\n" for f in dataclasses.fields(self) for line in self._lines(f, labels))

    def _lines(self, f: dataclasses.Field[Any], labels: dict[str, str]) -> Iterator[str]:
        name = f"{self.prefix}_{f.name}{f.metadata['suffix']}"
        value = getattr(self, f.name)
        yield f"# HELP {name} {f.metadata['help']}"
        yield f"# TYPE {name} {f.metadata['kind']}"
        if not isinstance(value, Histogram):
            yield f"{name}{_labels(labels)} {value}"
            return
        so_far = 0
        for bucket, count in enumerate(value.counts):
            so_far += count
            bound = "+Inf" if bucket == _BUCKETS - 1 else repr(2**bucket / 1e6)
            yield f"{name}_bucket{_labels({**labels, 'le': bound})} {so_far}"
        yield f"{name}_sum{_labels(labels)} {value.total!r}"
        yield f"{name}_count{_labels(labels)} {so_far}"


@dataclass(slots=True)
class Metrics(Numbers):
    """Counters since the keeper was made. Every save is in exactly one of `pending` and the seven ways to complete.

    A forget counts as a save.
    """

    saves: int = field(default=0, metadata=counter("Saves and forgets that were accepted"))
    stored: int = field(default=0, metadata=counter("Saves that the store acknowledged"))
    superseded: int = field(default=0, metadata=counter("Saves whose place a newer state of the same id took"))
    dropped: int = field(default=0, metadata=counter("Saves that were pushed out of a full queue"))
    rejected: int = field(default=0, metadata=counter("Saves that found no room in a full queue"))
    expired: int = field(default=0, metadata=counter("Saves that were not stored within their deadline"))
    failed: int = field(default=0, metadata=counter("Saves that ended with an error of the serializer or the store"))
    closed: int = field(default=0, metadata=counter("Saves that were still under way when the keeper closed"))
    pending: int = field(default=0, metadata=gauge("Saves that are under way"))
    serialization_queue_entries: int = field(default=0, metadata=gauge("Entries in the serialization queue"))
    serialization_queue_bytes: int = field(default=0, metadata=gauge("Bytes in the serialization queue"))
    storage_queue_entries: int = field(default=0, metadata=gauge("Entries in the storage queue"))
    storage_queue_bytes: int = field(default=0, metadata=gauge("Bytes in the storage queue"))
    batches: int = field(default=0, metadata=counter("Batches that were written"))
    bytes_written: int = field(default=0, metadata=counter("Bytes of keys and values in these batches"))
    retries: int = field(default=0, metadata=counter("Batches that failed and were tried again"))
    callback_errors: int = field(default=0, metadata=counter("Callbacks that raised"))
    fetches: int = field(default=0, metadata=counter("Fetches that were answered, also with nothing"))
    failed_fetches: int = field(default=0, metadata=counter("Fetches that failed"))
    serialization_wait: Histogram = field(default_factory=Histogram, metadata=times("Time in the serialization queue"))
    serialize: Histogram = field(default_factory=Histogram, metadata=times("Time to turn a state into bytes"))
    storage_wait: Histogram = field(default_factory=Histogram, metadata=times("Time in the storage queue"))
    store: Histogram = field(default_factory=Histogram, metadata=times("Time of a batch in the store"))
    sync: Histogram = field(
        default_factory=Histogram, metadata=times("The part of it that the store needed to make it durable")
    )
    fetch: Histogram = field(default_factory=Histogram, metadata=times("Time of a fetch"))


def _labels(labels: dict[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
