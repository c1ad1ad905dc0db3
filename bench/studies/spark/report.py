"""What the turns found, as tables, goals and a page with plots.

A turn gives a number for each measure; the median over the rounds is shown. Ours is compared with another arm within
each round, since a noisy machine is noisy for both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from rich.table import Table

from safekeeper.bench.harness import svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Spread
from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.harness.plots import figure, legend, page
from safekeeper.bench.studies.spark.arms import BEFORE, FLOOR, OURS, SETTINGS
from safekeeper.bench.studies.spark.run import BatchCost, Measured
from safekeeper.bench.studies.spark.workloads import SizedQuery
from safekeeper.bench.ycsb.report import html_table

MEASURES: dict[str, Callable[[Measured], float]] = {
    "trigger": lambda turn: statistics.median(batch.trigger_ms for batch in turn.batches),
    "update": lambda turn: statistics.median(batch.update_ms for batch in turn.batches),
    "commit": lambda turn: statistics.median(batch.commit_ms for batch in turn.batches),
    "commit max": lambda turn: max(batch.commit_ms for batch in turn.batches),
    "restart": lambda turn: turn.restart_ms,
    "RSS": lambda turn: (turn.jvm_bytes + turn.agent_bytes) / 1e6,
    "anon": lambda turn: turn.anonymous_bytes / 1e6,
    "agent": lambda turn: turn.agent_bytes / 1e6,
    "files": lambda turn: turn.files,
    "a batch": lambda turn: statistics.median(batch.files for batch in turn.batches),
    "MB": lambda turn: turn.bytes / 1e6,
    "disk MB": lambda turn: turn.disk_bytes / 1e6,
    "space": lambda turn: turn.space_bytes / 1e6,
}
"""What is shown of a turn: times in ms, sizes in MB. `__main__` says what the names mean."""

_COMPARED = ("trigger", "update", "commit", "commit max", "restart", "RSS", "anon", "MB")


@dataclass(frozen=True, slots=True)
class Results:
    """The turns of a workload, by arm and round."""

    workload: SizedQuery
    turns: dict[str, dict[int, Measured]] = field(default_factory=dict)

    @property
    def arms(self) -> list[str]:
        """The arms that have run, in the order of the tables."""
        return [arm for arm in (*SETTINGS, BEFORE) if self.turns.get(arm)]

    def spread(self, arm: str, measure: str) -> Spread:
        """An arm's number over the rounds."""
        return Spread.of(map(MEASURES[measure], self.turns[arm].values()))

    def share(self, measure: str, peers: Sequence[str], theirs: str = "") -> Spread | None:
        """Ours as a share of the best of *peers*, round by round; None if no round has all of them or theirs is 0.

        With *theirs* another measure of theirs is what ours is compared with.
        """
        found = []
        for number, ours in self.turns.get(OURS, {}).items():
            others = [self.turns[peer][number] for peer in peers if number in self.turns.get(peer, {})]
            if len(others) == len(peers) and (best := min(map(MEASURES[theirs or measure], others))):
                found.append(MEASURES[measure](ours) / best)
        return Spread.of(found) if found else None


def tables(results: Results) -> Iterator[Table]:
    """The numbers of all arms, and ours as a share of theirs."""
    workload = results.workload
    rounds = max(map(len, results.turns.values()))
    table = Table(
        title=f"{workload.name}: {workload.keys:,} keys, {workload.batches} batches of {workload.rows:,} rows,"
        f" {workload.partitions} partitions, {rounds} rounds; ms and MB",
        title_justify="left",
        box=None,
    )
    table.add_column("state store", no_wrap=True)
    for name in MEASURES:
        table.add_column(name, justify="right")
    for arm in results.arms:
        medians = (results.spread(arm, name).median for name in MEASURES)
        table.add_row(arm, *(f"{median:,.0f}" if median >= 10 else f"{median:.2g}" for median in medians))
    yield table
    if OURS in results.arms:
        yield _shares(results)


def own_logs(results: Results) -> str:
    """What Spark writes into a checkpoint by itself, whatever the state store."""
    turns = [turn for arm in results.arms for turn in results.turns[arm].values()]
    files = statistics.median(turn.own_files for turn in turns)
    size = statistics.median(turn.own_bytes for turn in turns)
    return f"Spark's own logs of offsets and commits, in all arms alike: {files:,.0f} files, {size / 1e3:,.0f} kB"


def _shares(results: Results) -> Table:
    table = Table(title=f"{OURS} as a share of", title_justify="left", box=None)
    table.add_column("")
    for name in _COMPARED:
        table.add_column(name, justify="right")
    for arm in results.arms:
        if arm != OURS:
            table.add_row(arm, *(str(results.share(name, [arm]) or "-") for name in _COMPARED))
    return table


# --- goals ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """A goal: ours is at most so much of the best of some arms, or so much at all."""

    workload: str
    measure: str
    at_most: float
    peers: tuple[str, ...] = ()
    theirs: str = ""
    """Which measure of theirs, if not the same."""

    def judge(self, results: Results) -> Goal | None:
        """Whether it is met, if enough was measured to tell."""
        if OURS not in results.arms:
            return None
        found = (
            results.share(self.measure, self.peers, self.theirs) if self.peers else results.spread(OURS, self.measure)
        )
        if found is None:
            return None
        text = f"{self.workload}, {self.measure}: {found}{self._of_peers}, wanted {self.at_most:g} at most"
        return Goal(text, found.median <= self.at_most)

    def left_out(self) -> Goal:
        """That it was not measured."""
        return Goal(f"{self.workload}, {self.measure}: wanted {self.at_most:g} at most{self._of_peers}", None)

    @property
    def _of_peers(self) -> str:
        peers = f" of {' or '.join(self.peers)}" if self.peers else ""
        return f"{peers}'s {self.theirs}" if self.theirs else peers


_SIZES = ("aggregation-1M", "aggregation-5M")
WANTED = (
    Wanted("aggregation-1M", "trigger", 1.15, (FLOOR,)),
    Wanted("aggregation-1M", "trigger", 0.5, ("tuned",)),
    Wanted("aggregation-5M", "trigger", 1.2, (FLOOR,)),
    Wanted("aggregation-5M", "trigger", 0.45, ("tuned",)),
    *(Wanted(size, "commit", 0.35, ("changelog",)) for size in _SIZES),
    *(Wanted(size, "commit max", 0.08, ("changelog",)) for size in _SIZES),
    *(Wanted(size, "restart", 0.5, ("hdfs", "rocksdb", "changelog")) for size in _SIZES),
    Wanted("aggregation-5M", "RSS", 1.0, ("rocksdb",)),
    *(Wanted(size, "MB", 1.0, ("changelog",)) for size in _SIZES),
    Wanted("partitions-200", "a batch", 1),
)


WANTED_BY_NAME = (
    Wanted("aggregation-20M", "trigger", 0.6, ("tuned",)),
    *(Wanted(size, "trigger", 1.1, (BEFORE,)) for size in _SIZES),
    *(Wanted(size, "anon", 1.0, ("rocksdb",), theirs="RSS") for size in _SIZES),
    *(Wanted(size, "commit max", 0.1, ("changelog",)) for size in _SIZES),
    Wanted("slow-store", "commit", 0.4, (BEFORE,)),
)
"""Of the state outside the heap: for workloads and arms that run only where they are asked for."""


def goals(results: Results) -> Iterator[Goal]:
    """The goals for this workload that can be judged."""
    judged = (
        wanted.judge(results) for wanted in (*WANTED, *WANTED_BY_NAME) if wanted.workload == results.workload.name
    )
    return (goal for goal in judged if goal is not None)


def left_out(workloads: Collection[str]) -> Iterator[Goal]:
    """The goals for other workloads than these."""
    return (wanted.left_out() for wanted in WANTED if wanted.workload not in workloads)


# --- the page ---------------------------------------------------------------------------------------------------------


def to_html(all_results: Sequence[Results], machine: Machine) -> str:
    """A page with the tables, and how long batches and their commits took, one after the other."""
    return page("Spark's state stores", _sections(all_results, machine))


def _restarts(all_results: Sequence[Results]) -> Iterator[str]:
    """How long a restart takes by the size of the state, if there are several sizes."""
    sizes = sorted(
        (found for found in all_results if found.workload.kind == "aggregation"), key=lambda r: r.workload.keys
    )
    if len({found.workload.keys for found in sizes}) > 1:
        arms = [arm for arm in (*SETTINGS, BEFORE) if any(arm in found.arms for found in sizes)]
        series = [
            svg.Series(arm, [(f.workload.keys / 1e6, f.spread(arm, "restart").median) for f in sizes if arm in f.arms])
            for arm in arms
        ]
        plot = svg.line_plot("Restart by the number of keys", svg.Axis("million keys"), svg.Axis("ms"), series)
        yield f"<h1>Restart</h1>{legend(arms)}"
        yield figure("Restart", plot, "To the end of the first batch; medians.")


def _latency(results: Results, arms: Sequence[str]) -> str:
    series = []
    for arm in arms:
        turns = results.turns[arm]
        batches = turns[max(turns)].batches
        series.append(svg.Series(arm, [(batch.due, batch.latency_ms) for batch in batches]))
    return svg.line_plot("Latency over time", svg.Axis("s"), svg.Axis("ms"), series)


def _sections(all_results: Sequence[Results], machine: Machine) -> Iterator[str]:
    if warning := machine.warning():
        yield f'<p class="warning">{escape(warning)}</p>'
    yield f"<p>{escape(machine.sentence())}</p>"
    yield from _restarts(all_results)
    for results in all_results:
        arms = results.arms
        yield f"<h1>{escape(results.workload.name)}</h1>{legend(arms)}"
        yield '<div class="plots">'
        yield figure(
            "How long each batch took", _over_time(results, arms, lambda batch: batch.trigger_ms), "In the last round."
        )
        yield figure(
            "Of this, commits of all tasks",
            _over_time(results, arms, lambda batch: batch.commit_ms),
            "A stop for a snapshot shows as a peak.",
        )
        if results.workload.every:
            yield figure(
                "Latency", _latency(results, arms), "From when rows came to the end of their batch, in the last round."
            )
        yield "</div>"
        rows = [[arm, *(str(results.spread(arm, name)) for name in MEASURES)] for arm in arms]
        yield html_table(["state store", *MEASURES], rows)


def _over_time(results: Results, arms: Sequence[str], of: Callable[[BatchCost], int]) -> str:
    series = []
    for arm in arms:
        turns = results.turns[arm]
        batches = turns[max(turns)].batches
        series.append(svg.Series(arm, [(float(n), float(of(batch))) for n, batch in enumerate(batches, 1)]))
    return svg.line_plot("Milliseconds of each batch", svg.Axis("batch"), svg.Axis("ms"), series)
