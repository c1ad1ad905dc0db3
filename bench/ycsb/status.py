"""YCSB's status line: what was done so far and how quickly, on standard error, every few seconds."""

from __future__ import annotations

import sys
import time
from datetime import datetime

from safekeeper.bench.ycsb.measurements import Latencies, Measurements


class StatusLine:
    """Prints a line every *interval* seconds, and one at the end; an infinite interval prints none."""

    def __init__(self, measurements: Measurements, operations: int, interval: float) -> None:
        self._measurements = measurements
        self._wanted = operations
        self._interval = interval
        self._started = self._last = time.monotonic()
        self._last_operations = 0

    def print_if_due(self, operations: int) -> None:
        """Print a line if the last one was an interval ago."""
        if time.monotonic() - self._last >= self._interval:
            self._print(operations, self._estimate(operations))

    def finish(self, operations: int) -> None:
        """Print the last line."""
        if self._interval < float("inf"):
            self._print(operations, "")

    def _print(self, operations: int, estimate: str) -> None:
        now = time.monotonic()
        rate = _two_digits((operations - self._last_operations) / max(now - self._last, 1e-9))
        self._last, self._last_operations = now, operations
        clock = datetime.now().strftime("%Y-%m-%d %H:%M:%S:%f")[:-3]
        latencies = " ".join(_summary(name, one) for name, one in self._measurements.take_interval().items())
        print(
            f"{clock} {int(now - self._started)} sec: {operations} operations; {rate} current ops/sec;"
            f"{estimate} {latencies}",
            file=sys.stderr,
            flush=True,
        )

    def _estimate(self, operations: int) -> str:
        if not operations or not self._wanted:
            return ""
        seconds = (self._wanted - operations) * (time.monotonic() - self._started) / operations
        return f" est completion in {_in_words(int(seconds) + 1)}"


def _summary(name: str, latencies: Latencies) -> str:
    """`[READ: Count=5, Max=..., ...]`, in microseconds."""
    percentiles = ", ".join(f"{p:g}={latencies.percentile(p) // 1000}" for p in (90, 99, 99.9, 99.99))
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
