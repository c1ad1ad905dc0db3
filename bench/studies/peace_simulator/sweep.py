"""SGuard's Figure 10: how long a checkpoint takes, and all of them, by the number of writers and their size."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from safekeeper.backends.hdfs.peace.planner import Rules
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.studies.peace_simulator.simulation import (
    PAPER,
    PEACE,
    PLANNED,
    STOCK,
    SimulatedRun,
    Simulation,
)

WRITERS = (8, 10, 12, 14, 16)
SIZES = (2, 4, 6, 8)
"""Chunks of 64 MB: 128 to 512 MB."""
STRICT = "paper's rules"
ARMS: dict[str, tuple[str, Rules]] = {
    STOCK: (STOCK, "ours"),
    PLANNED: (PLANNED, "ours"),
    PEACE: (PEACE, "ours"),
    STRICT: (PEACE, "paper"),
}
OWN, COMP = 0.5, 1.2
"""What the paper tells of all its cases: a checkpoint's time, and that of all, as parts of stock's."""
ALIKE = 1.1
"""What differs by less is as told: the paper has one digit."""
_FIGURES = ("own_start", "submission", "everything")


@dataclass(frozen=True, slots=True)
class Case:
    """So many writers with so many chunks each."""

    writers: int
    chunks: int
    runs: Mapping[str, Sequence[SimulatedRun]]

    def seconds(self, figure: str, arm: str) -> float:
        """The median of a figure over the seeds."""
        return float(statistics.median(getattr(run, figure) for run in self.runs[arm]))

    def ratio(self, figure: str, arm: str) -> float:
        """A figure as a part of stock's."""
        return self.seconds(figure, arm) / self.seconds(figure, STOCK)


def cases(seeds: Sequence[int], writers: Sequence[int] = WRITERS, sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """Every number of writers with every size, all arms."""
    for count in writers:
        for chunks in sizes:
            site = replace(PAPER, writers=count, chunks=chunks)
            runs = {
                name: [Simulation(site, arm, seed, rules=rules).run() for seed in seeds]
                for name, (arm, rules) in ARMS.items()
            }
            yield Case(count, chunks, runs)


def table_of(found: Sequence[Case]) -> Table:
    """Stock's seconds, and what each arm takes of them: from own start, from submission, for all."""
    table = Table(title="Figure 10: own start / submission / all, of stock's", title_justify="left")
    for name in ("writers", "MB each", "stock: IO, COMP", *list(ARMS)[1:]):
        table.add_column(name, justify="right")
    for case in found:
        stock = f"{case.seconds('own_start', STOCK):.1f} s, {case.seconds('everything', STOCK):.1f} s"
        cells = [" / ".join(f"{case.ratio(figure, arm):.2f}" for figure in _FIGURES) for arm in list(ARMS)[1:]]
        table.add_row(str(case.writers), str(case.chunks * 64), stock, *cells)
    return table


def goals_of(found: Sequence[Case]) -> Iterator[Goal]:
    """What the paper says of all its cases: each twice as fast, all about 1.2 times as long."""
    for arm in (PEACE, STRICT):
        own = [case.ratio("own_start", arm) for case in found]
        everything = [case.ratio("everything", arm) for case in found]
        slow = [f"{case.writers} x {case.chunks * 64} MB" for case in found if case.ratio("own_start", arm) > 0.5]
        text = f"Figure 10, {arm}: each checkpoint in half the time: {min(own):.2f} to {max(own):.2f}"
        yield Goal(text + (f"; not for {', '.join(slow)}" if slow else ""), not slow)
        mean = statistics.mean(everything)
        text = f"Figure 10, {arm}: all in 1.2 of the time, on average: {mean:.2f}, at most {max(everything):.2f}"
        yield Goal(text, mean <= 1.2)


def beside_the_paper(found: Sequence[Case]) -> Iterator[str]:
    """Every case by the paper's rules beside what the paper says of all: each in half the time, all in 1.2 of it."""
    for case in found:
        own, everything = case.ratio("own_start", STRICT), case.ratio("everything", STRICT)
        yield (
            f"Figure 10, {case.writers} x {case.chunks * 64} MB by the paper's rules: each {own:.2f} of stock,"
            f" told {OWN}: {_verdict(own, OWN)}; all {everything:.2f}, told {COMP}: {_verdict(everything, COMP)}"
        )


def _verdict(value: float, told: float) -> str:
    if value > told * ALIKE:
        return "contradicts the paper, it takes longer"
    return "contradicts the paper, it takes less" if value < told / ALIKE else "as told"
