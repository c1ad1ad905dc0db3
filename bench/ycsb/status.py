"""How a run gets on, every few seconds: YCSB's status line, a line that is rewritten on a terminal, and files.

The runner has a `RunWatch`. It takes what was measured in each interval of `status.interval` seconds and gives it to
whoever wants it: `PrintedStatus` for people, `IntervalFile` for other programs, `HdrLogs` for HdrHistogram's tools.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TextIO

from hdrh.log import HistogramLogWriter  # type: ignore[import-untyped]

from safekeeper.bench.ycsb.measurements import Latencies, Measurements
from safekeeper.bench.ycsb.properties import BadProperty

PERCENTS = (50, 90, 95, 99, 99.9, 99.99)
"""The percentiles of an interval in files."""
_REWRITTEN_EVERY = 0.5  # seconds


@dataclass(frozen=True, slots=True)
class StatusInterval:
    """What was done in one interval. Moments are seconds from the start of the run."""

    began: float
    ended: float
    operations: int
    """Since the start."""
    rate: float
    """Operations a second, in this interval."""
    left: float | None
    """Seconds until the run is done, if that can be told and it is not."""
    latencies: Mapping[str, Latencies]


class IntervalSink(Protocol):
    """Takes the intervals of a run, one after the other."""

    def take(self, interval: StatusInterval) -> None:
        """An interval has ended."""


class RunWatch:
    """Looks at a run every now and then: gives its intervals to *sinks*, the last one when it is finished."""

    def __init__(
        self, measurements: Measurements, operations: int, interval: float, sinks: Sequence[IntervalSink]
    ) -> None:
        self._measurements = measurements
        self._wanted = operations
        self._interval = interval
        self._sinks = sinks
        self._last_operations = 0
        self.start()
        # A line that is rewritten needs no latencies: it costs the threads nothing.
        self._rewritten = [sink for sink in sinks if isinstance(sink, RewrittenLine)]

    def start(self) -> None:
        """The run begins now."""
        self._started = self._last = time.monotonic()

    def look(self, operations: int) -> None:
        """So many operations are done. Call it often."""
        now = time.monotonic()
        for line in self._rewritten:
            line.show(operations, self._wanted, now - self._started)
        if now - self._last >= self._interval:
            self._end_interval(now, operations, self._left(now, operations))

    def finish(self, operations: int) -> None:
        """The run is over."""
        if self._sinks:
            self._end_interval(time.monotonic(), operations, None)

    def _end_interval(self, now: float, operations: int, left: float | None) -> None:
        if not self._sinks:
            return
        rate = (operations - self._last_operations) / max(now - self._last, 1e-9)
        began, self._last, self._last_operations = self._last, now, operations
        latencies = self._measurements.take_interval()
        interval = StatusInterval(began - self._started, now - self._started, operations, rate, left, latencies)
        for sink in self._sinks:
            sink.take(interval)

    def _left(self, now: float, operations: int) -> float | None:
        if not operations or not self._wanted:
            return None
        return (self._wanted - operations) * (now - self._started) / operations


class PrintedStatus:
    """YCSB's status line for each interval, on standard error. Latencies are in microseconds."""

    def take(self, interval: StatusInterval) -> None:
        """Print the line."""
        clock = datetime.now().strftime("%Y-%m-%d %H:%M:%S:%f")[:-3]
        estimate = "" if interval.left is None else f" est completion in {_in_words(int(interval.left) + 1)}"
        latencies = " ".join(_summary(name, one) for name, one in interval.latencies.items())
        print(
            f"{clock} {int(interval.ended)} sec: {interval.operations} operations;"
            f" {_two_digits(interval.rate)} current ops/sec;{estimate} {latencies}",
            file=sys.stderr,
            flush=True,
        )


class RewrittenLine:
    """How far a run has come, in one line of a terminal that is written again and again, and gone at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = 0.0

    def show(self, operations: int, wanted: int, seconds: float) -> None:
        """Write it again, if it was not written just now."""
        if seconds - self._shown >= _REWRITTEN_EVERY:
            self._shown = seconds
            print(f"\r\033[K{self._line(operations, wanted, seconds)}", end="", file=sys.stderr, flush=True)

    def _line(self, operations: int, wanted: int, seconds: float) -> str:
        rate = f"{operations / seconds:,.0f} operations/s"
        if not wanted:
            return f"{self._what}: {operations:,} operations, {rate}"
        left = f", {_in_words(int((wanted - operations) * seconds / operations) + 1)} left" if operations else ""
        return f"{self._what}: {operations:,} of {wanted:,}, {operations / wanted:.0%}, {rate}{left}"

    def take(self, interval: StatusInterval) -> None:
        """Nothing: an interval is of no interest here. When it is the last one, the line goes."""
        if interval.left is None and self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class IntervalFile:
    """A file with a line for each interval and kind of operation: CSV, or JSON objects if its name ends so.

    Every line is there when its interval has ended, whatever becomes of the run.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in (".csv", ".json"):
            raise BadProperty(f"--intervals {path}: give it a name that ends with .csv or .json")
        self._file = open_output(path)
        self._csv = csv.writer(self._file, lineterminator="\n") if path.suffix == ".csv" else None
        if self._csv is not None:
            self._csv.writerow(_COLUMNS)

    def take(self, interval: StatusInterval) -> None:
        """Write its lines."""
        for name, latencies in interval.latencies.items():
            row = [*_row(interval, name, latencies)]
            if self._csv is not None:
                self._csv.writerow(row)
            else:
                self._file.write(f"{json.dumps(dict(zip(_COLUMNS, row, strict=True)))}\n")
        self._file.flush()

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


_COLUMNS = (
    "from(s)",
    "to(s)",
    "operation",
    "count",
    "throughput(ops/sec)",
    "min(us)",
    "mean(us)",
    *(f"p{percent:g}(us)" for percent in PERCENTS),
    "max(us)",
)


def _row(interval: StatusInterval, name: str, latencies: Latencies) -> Iterator[str | int | float]:
    yield round(interval.began, 3)
    yield round(interval.ended, 3)
    yield name
    yield latencies.count
    yield round(latencies.count / max(interval.ended - interval.began, 1e-9), 2)
    yield latencies.least / 1000
    yield round(latencies.mean / 1000, 3)
    yield from (latencies.percentile(percent) / 1000 for percent in PERCENTS)
    yield latencies.most / 1000


class HdrLogs:
    """A log of HdrHistogram for each kind of operation, `READ.hdr`: the histogram of every interval, in microseconds.

    HdrHistogram's own tools and those that read YCSB's files read it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = time.time_ns() // 1_000_000
        self._files: dict[str, TextIO] = {}

    def take(self, interval: StatusInterval) -> None:
        """Write its histograms."""
        for name, latencies in interval.latencies.items():
            if name not in self._files:
                self._files[name] = self._open(name)
            histogram = latencies.in_microseconds
            histogram.set_start_time_stamp(self._began + int(interval.began * 1000))
            histogram.set_end_time_stamp(self._began + int(interval.ended * 1000))
            writer = HistogramLogWriter(self._files[name])
            writer.base_time = self._began
            writer.output_interval_histogram(histogram, max_value_unit_ratio=1000.0)  # the longest, in milliseconds
            self._files[name].flush()

    def _open(self, name: str) -> TextIO:
        file = open_output(Path(f"{self._path}{name}.hdr"))
        writer = HistogramLogWriter(file)
        writer.output_comment(f"[Logging for: {name}, latencies in microseconds]")
        writer.output_log_format_version()
        began = datetime.fromtimestamp(self._began / 1000).astimezone().isoformat(" ")
        writer.output_comment(f"[StartTime: {self._began / 1000:.3f} (seconds since epoch), {began}]")
        writer.output_legend()
        return file

    def close(self) -> None:
        """Nothing more comes."""
        for file in self._files.values():
            file.close()


def open_output(path: Path) -> TextIO:
    """A new file for results. Raise `BadProperty` if there cannot be one."""
    try:
        return open(path, "w", newline="")
    except OSError as error:
        raise BadProperty(f"{path}: {error.strerror}") from error


def _summary(name: str, latencies: Latencies) -> str:
    """`[READ: Count=5, Max=..., ...]`, in microseconds."""
    percentiles = ", ".join(f"{p:g}={latencies.percentile(p) // 1000}" for p in (50, 90, 99, 99.9, 99.99))
    return (
        f"[{name}: Count={latencies.count}, Max={latencies.most // 1000}, Min={latencies.least // 1000},"
        f" Avg={_two_digits(latencies.mean / 1000)}, {percentiles}]"
    )


def _two_digits(value: float) -> str:
    """With two digits behind the point at the most, as Java's `#.##`."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _in_words(seconds: int) -> str:
    words = []
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            words.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " ".join(words[:2])
