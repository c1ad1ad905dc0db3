"""Peace against stock HDFS on a shaped network: when many servers write checkpoints, how long does one take?

DataNodes run in network namespaces behind a switch per rack, all links have a chosen rate, and every server writes a
checkpoint of several chunks with three replicas. Three arms, one after the other in each round, in rotated order:

    stock     HDFS places the chunks (not on the writer's own disk, as in SGuard's experiment), all write at once
    planned   the planner places the chunks, all write at once
    Peace     the planner places the chunks, and the coordinator says when each may be written

All of them write through `hdfs:` with `sync=hsync`, a checkpoint as one batch of values of one chunk each; with
`--through keeper` they save these through a keeper, with `--through client` a few lines write the chunks by hand.

With `--through spark` an executor runs on every server and its commits are the checkpoints (`bench/lab/spark_site.py`):
stock and Peace only, the first replica on the own disk, all at once. It has an end: what waits too long is given up,
and what was measured until then is shown.

With `--strict` there is a fourth, "strict": Peace by the rules of the paper (`backends/hdfs/schedule.py`).

A checkpoint's time is counted from its writer's own start, when its first chunk may be written (the paper's figure),
and from its submission. Needs root (`bench/lab/shaped_network.py`) and about three gigabytes of memory.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Spread
from safekeeper.bench.harness.laboratory import needs_laboratory
from safekeeper.bench.harness.plots import figure, figures, legend, page
from safekeeper.bench.harness.svg import Axis, Series, line_plot

with needs_laboratory():
    from safekeeper.bench.lab.peace_site import (
        PEACE,
        PLANNED,
        STOCK,
        STRICT,
        Checkpoint,
        PeaceSite,
        Run,
        Setting,
        SparkSiteStuck,
    )
    from safekeeper.bench.lab.store_site import StoreSite
    from safekeeper.errors import SafekeeperError


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who writes when and how much."""

    name: str
    arrivals: str
    sizes: str

    def checkpoints(self, setting: Setting, seed: int) -> list[Checkpoint]:
        """One for each server; the same for all arms of a round."""
        generator = random.Random(seed)  # noqa: S311 - a measurement that can be repeated
        count = 2 * setting.per_rack
        alone = setting.chunks * setting.chunk_bytes * 8 / (setting.wire_mbit * 1e6)
        delays = [generator.uniform(0, 4 * alone) if self.arrivals == "random" else 0.0 for _ in range(count)]
        half = setting.chunks // 2
        sizes = [setting.chunks + half * (-1) ** n if self.sizes == "unequal" else setting.chunks for n in range(count)]
        generator.shuffle(sizes)
        return [Checkpoint(n, delays[n], sizes[n]) for n in range(count)]


SCENARIOS = [
    Scenario("all at once, equal sizes", "at once", "equal"),
    Scenario("all at once, unequal sizes", "at once", "unequal"),
    Scenario("at random moments, equal sizes", "random", "equal"),
    Scenario("at random moments, unequal sizes", "random", "unequal"),
]


FIGURES: dict[str, Callable[[Run], float]] = {
    "own start": lambda run: run.own_start,
    "submission": lambda run: run.submission,
    "all": lambda run: run.everything,
}


@dataclass(slots=True)
class Rounds:
    """All runs of a scenario, round by round."""

    scenario: Scenario
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def ratio(self, figure: str, arm: str, base: str) -> Spread:
        """A figure of *arm* as a multiple of *base*'s, compared round by round."""
        value = FIGURES[figure]
        return Spread.of(value(a) / value(b) for a, b in zip(self.runs[arm], self.runs[base], strict=True))

    def hit_rate(self) -> float:
        """The part of Peace's chunks that went where they were planned."""
        counts = [run.counts for run in self.runs[PEACE]]
        return sum(c.hits for c in counts) / sum(c.planned + c.unplanned for c in counts)


# --- the report -------------------------------------------------------------------------------------------------------


def table_of(rounds: Rounds) -> Table:
    """Seconds of each arm, and what they are of stock's and of planned placement's."""
    count = len(rounds.runs[STOCK])
    table = Table(title=f"{rounds.scenario.name}; {count} rounds, median (lowest-highest)", title_justify="left")
    table.add_column("arm")
    for name in FIGURES:
        table.add_column(f"{name}, s", justify="right")
        table.add_column("of stock", justify="right")
        table.add_column("of planned", justify="right")
    for arm, runs in rounds.runs.items():
        cells = []
        for name, value in FIGURES.items():
            cells.append(f"{Spread.of(map(value, runs)).median:.2f}")
            cells += [
                "" if base == arm or base not in rounds.runs else str(rounds.ratio(name, arm, base))
                for base in (STOCK, PLANNED)
            ]
        table.add_row(arm, *cells)
    return table


def limits_of(scenario: Scenario, through: str) -> Iterator[tuple[str, str, float]]:
    """What Peace may take of what another arm does, at the most: where all write alike at once, and elsewhere."""
    if through == "spark":
        yield from (("own start", STOCK, 0.6), ("all", STOCK, 1.1))
        return
    of_stock = (0.45, 0.85, 1.05) if scenario is SCENARIOS[0] else (0.55, 0.9, 1.1)
    yield from ((figure, STOCK, most) for figure, most in zip(FIGURES, of_stock, strict=True))
    yield "own start", PLANNED, 0.6
    yield "all", PLANNED, 1.2


def goals_of(rounds: Rounds, through: str) -> Iterator[Goal]:
    """What was to be reached, and whether it was."""
    for name, base, most in limits_of(rounds.scenario, through):
        ratio = rounds.ratio(name, PEACE, base)
        text = f"{rounds.scenario.name}: Peace, {name}, at most {most} of {base}: {ratio}"
        yield Goal(text, ratio.median <= most)
    rate = rounds.hit_rate()
    yield Goal(f"{rounds.scenario.name}: at least 95 % of the chunks where they were planned: {rate:.1%}", rate >= 0.95)


def left_out(scenario: Scenario, through: str) -> Iterator[Goal]:
    """The goals for a scenario that was not measured."""
    limits = limits_of(scenario, through)
    return (Goal(f"{scenario.name}: Peace, {name}, at most {most} of {base}", None) for name, base, most in limits)


def plot_of(rounds: Rounds) -> str:
    """How many checkpoints were done at each moment, in the first round."""
    lines = []
    for arm, runs in rounds.runs.items():
        ends = sorted(one.done for one in runs[0].written)
        lines.append(Series(arm, [(0.0, 0.0), *((end, n + 1.0) for n, end in enumerate(ends))]))
    return line_plot(rounds.scenario.name, Axis("seconds"), Axis("checkpoints done"), lines)


def tell(console: Console, rounds: Rounds, through: str) -> Iterator[str]:
    """Print what was found in a scenario; the plot for the page."""
    if not rounds.runs[STOCK]:
        for goal in left_out(rounds.scenario, through):
            print(goal)
        return
    console.print(table_of(rounds))
    for goal in goals_of(rounds, through):
        print(goal)
    yield figure(rounds.scenario.name, plot_of(rounds), "In the first round.")


def measure(
    site: PeaceSite, setting: Setting, scenario: Scenario, arms: Sequence[str], rounds: int, seconds: float
) -> Rounds:
    """Run all *arms* so many times, in rotated order; no new round begins after *seconds*.

    A round in which something does not happen in time is the last one, and does not count.
    """
    give_up = time.monotonic() + seconds
    result = Rounds(scenario, {arm: [] for arm in arms})
    for turn in range(rounds):
        if turn and time.monotonic() > give_up:
            break
        shift = turn % len(arms)
        runs: dict[str, Run] = {}
        try:
            for arm in (*arms[shift:], *arms[:shift]):
                runs[arm] = run = site.run(arm, scenario.checkpoints(setting, turn))
                seconds_of = ", ".join(f"{name} {value(run):.2f} s" for name, value in FIGURES.items())
                print(f"{scenario.name}, round {turn + 1}, {arm}: {seconds_of}", flush=True)
        except SafekeeperError as problem:
            print(f"{scenario.name}, round {turn + 1}: given up: {problem}", flush=True)
            break
        for arm, run in runs.items():
            result.runs[arm].append(run)
    return result


def site_of(through: str, setting: Setting) -> PeaceSite:
    """The data centre with what writes on its servers."""
    if through == "client":
        return PeaceSite(setting)
    if through != "spark":
        return StoreSite(setting, "keeper" if through == "keeper" else "hdfs")
    with needs_laboratory():
        from safekeeper.bench.lab.spark_site import SparkSite
    return SparkSite(setting)


def main() -> None:
    """Run the experiment as the command line says."""
    default = Setting()
    parser = argparse.ArgumentParser(description="Peace against stock HDFS on a shaped network.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no new round of a scenario begins after so long")
    parser.add_argument("--quick", action="store_true", help="one round of the first scenario, with small checkpoints")
    parser.add_argument("--scenario", type=int, action="append", choices=range(1, 5), help="which of the four; all")
    parser.add_argument("--per-rack", type=int, default=default.per_rack)
    parser.add_argument("--wire-mbit", type=float, default=default.wire_mbit)
    parser.add_argument("--link-mbit", type=float, default=default.link_mbit)
    parser.add_argument("--wire", type=int, default=default.wire, help="chunks a timestep on a server's wire")
    parser.add_argument("--chunk-bytes", type=int, default=default.chunk_bytes)
    parser.add_argument("--chunks", type=int, default=default.chunks)
    parser.add_argument("--threads", type=int, default=default.threads)
    parser.add_argument(
        "--own-disk", action="store_true", help="the first replica on the writer's own disk, in all arms"
    )
    parser.add_argument(
        "--through", choices=("client", "hdfs", "keeper", "spark"), default="hdfs", help="what writes; hdfs"
    )
    parser.add_argument("--strict", action="store_true", help="also measure Peace by the rules of the paper")
    parser.add_argument("--output", type=Path, help="write a page with the plots there")
    given = parser.parse_args()
    through_spark = given.through == "spark"
    setting = Setting(
        2 if given.quick and through_spark else given.per_rack,
        given.wire_mbit,
        given.link_mbit,
        given.wire,
        given.chunk_bytes,
        2 if given.quick else given.chunks,
        given.threads,
        given.own_disk or through_spark,
    )
    chosen = [SCENARIOS[n - 1] for n in given.scenario or ([1] if given.quick else range(1, 5))]
    arms = [STOCK, PLANNED, PEACE, *([STRICT] if given.strict else [])]
    if through_spark:  # a batch comes to all partitions at once
        arms, chosen = [STOCK, PEACE], [one for one in chosen if one.arrivals == "at once"]
    console = Console(width=150)
    console.print(
        f"{2 * setting.per_rack} servers on 2 racks, wires of {setting.wire_mbit:g} and a link of {setting.link_mbit:g}"
        f" Mbit/s, {setting.chunks} chunks of {setting.chunk_bytes:,} bytes each, {setting.threads} threads a writer;"
        f" capacities: wire {setting.wire}, link {setting.link} chunks a timestep; through {given.through}"
    )
    plots: list[str] = []
    try:
        with site_of(given.through, setting) as site:
            for scenario in chosen:
                rounds = measure(site, setting, scenario, arms, 1 if given.quick else given.rounds, given.seconds)
                plots += tell(console, rounds, given.through)
    except SparkSiteStuck as problem:
        print(f"given up: {problem}")
        for scenario in chosen[len(plots) :]:
            for goal in left_out(scenario, given.through):
                print(goal)
    for scenario in SCENARIOS:
        if scenario not in chosen and not given.scenario:
            for goal in left_out(scenario, given.through):
                print(goal)
    if given.output is not None:
        given.output.write_text(page("Peace on a shaped network", [legend(arms), figures(plots)]))


if __name__ == "__main__":
    main()
