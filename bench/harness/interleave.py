"""Measuring several candidates in one run, so that a noisy machine is noisy for all of them.

    result = interleave({"raw": measure_raw, "log": measure_log}, rounds=5)
    result.ratio("log", "raw").median

In each round every arm runs once, in an order that rotates from round to round. Arms are compared within a round, and
the median over the rounds is given with its spread: a ratio holds on other machines, a rate does not.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from safekeeper.bench.harness.goals import Goal

Measure = Callable[[], float]
"""Runs one round of an arm and returns its rate: more is better."""


AT_MOST_15_PERCENT_OVER = 0.87
"""As a ratio of rates: what a backend may cost on top of its driver doing the same."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the lowest and the highest value."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of *values*."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.low)}-{_short(self.high)})"


@dataclass(slots=True)
class Interleaved:
    """The rates of all arms, round by round."""

    title: str
    unit: str
    rates: dict[str, list[float]] = field(default_factory=dict)

    def rate(self, arm: str) -> Spread:
        """How fast an arm was."""
        return Spread.of(self.rates[arm])

    def ratio(self, arm: str, base: str) -> Spread:
        """How many times as fast as *base* an arm was, compared round by round."""
        return Spread.of(a / b for a, b in zip(self.rates[arm], self.rates[base], strict=True))

    def at_least(self, wanted: float, arm: str, base: str) -> Goal:
        """That *arm* is *wanted* times as fast as *base*."""
        found = self.ratio(arm, base)
        return Goal(f"{self.title}: {arm} at least {wanted:g} times {base}: {found}", found.median >= wanted)

    def table(self, base: str) -> Table:
        """A table with each arm's rate, and *base* as a multiple of it."""
        table = Table(title=self.title, title_justify="left")
        table.add_column("arm")
        table.add_column(self.unit, justify="right")
        table.add_column(f"{base} is so many times as fast", justify="right")
        for arm in self.rates:
            table.add_row(arm, str(self.rate(arm)), str(self.ratio(base, arm)))
        return table


def interleave(
    arms: Mapping[str, Measure], rounds: int, title: str, unit: str = "ops/s", warm_up: bool = True
) -> Interleaved:
    """Run every arm once a round, in rotated order; with *warm_up* a first round does not count."""
    names = list(arms)
    result = Interleaved(title, unit, {name: [] for name in names})
    for turn in range(-1 if warm_up else 0, rounds):
        for name in rotated(names, turn):
            rate = arms[name]()
            if turn >= 0:
                result.rates[name].append(rate)
    return result


def rotated(names: list[str], turn: int) -> list[str]:
    """The order of a round: in each another name is the first."""
    shift = turn % len(names)
    return names[shift:] + names[:shift]


def report(results: Iterable[Interleaved], base: str, output: Path | None = None) -> list[Interleaved]:
    """Print a table per result, each as it comes, and write all numbers to *output* as JSON; the results again."""
    console, done = Console(), []
    for result in results:
        console.print(result.table(base))
        done.append(result)
    if output is not None:
        output.write_text(json.dumps([asdict(result) for result in done], indent=1))
    return done


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2f}"
