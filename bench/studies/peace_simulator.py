"""Peace on networks that this machine cannot hold: the planner and the schedule that `hdfs:` uses, on simulated time.

Chunks are fluids (`fluid.py`): what is simulated is who shares what with whom, nothing else. Assumed besides, for
the paper's 17 servers: wires and the link between the racks carry 110 MB/s in each direction, a disk writes 45 MB/s
(the paper's DataNode: two clients at 22.5 MB/s each), stock writers write four chunks at a time, chunks have 64 MB. The
link's capacity is what it carries while a DataNode writes two chunks to its disk: that is a timestep.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from safekeeper.backends.hdfs.peace.network import Network
from safekeeper.backends.hdfs.peace.planner import Residual, Rules
from safekeeper.backends.hdfs.peace.schedule import ChunkRequest, Schedule
from safekeeper.backends.hdfs.peace.topology import Topology
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.plots import figure, figures, page
from safekeeper.bench.harness.svg import Axis, Band, band_plot
from safekeeper.bench.studies.fluid import Fluid

REPLICAS = 3
STOCK, PLANNED, PEACE = "stock", "planned", "Peace"
ARMS = (STOCK, PLANNED, PEACE)
UNEVEN = 0.5
FIGURES = ("own_start", "submission", "everything")
RULES: dict[Rules, str] = {"ours": "our", "paper": "the paper's"}


@dataclass(frozen=True, slots=True)
class Site:
    """A data centre."""

    name: str
    racks: tuple[int, ...]
    """How many servers each has."""
    writers: int
    chunks: int
    """Of each writer's checkpoint."""
    wire_rate: float = 110e6
    link_rate: float = 110e6
    disk_rate: float = 45e6
    chunk_bytes: float = 64e6
    threads: int = 4
    """How many chunks a writer writes at a time where nobody tells it when."""
    wire: int = 2
    uneven: float = 0.0
    """By which part of it a disk's rate differs from `disk_rate` at most, at random."""
    given_link: int | None = None
    """The capacity of a link in chunks a timestep, where it is not to be computed."""

    @property
    def link(self) -> int:
        """Chunks a timestep between racks."""
        if self.given_link is not None:
            return self.given_link
        timestep = self.wire * self.chunk_bytes / min(self.wire_rate, self.disk_rate)
        return max(1, int(self.link_rate * timestep / self.chunk_bytes))

    def topology(self) -> Topology:
        """Its servers, by rack and number."""
        nodes = {f"{rack}.{n}": f"/{rack}" for rack, size in enumerate(self.racks) for n in range(size)}
        return Topology(nodes, self.wire, self.link)

    def writer_names(self) -> list[str]:
        """Who writes: the first of every rack, then the second of every rack, and so on."""
        names = sorted(self.topology().nodes, key=lambda name: (int(name.split(".")[1]), int(name.split(".")[0])))
        return names[: self.writers]


PAPER = Site("17 servers on two racks, 16 write 512 MB", (8, 9), writers=16, chunks=8)
LARGE = Site("1,000 servers on 25 racks, all write 256 MB", (40,) * 25, writers=1000, chunks=4, link_rate=2200e6)


@dataclass(slots=True)
class Outcome:
    """What became of all checkpoints of a run."""

    started: dict[int, float] = field(default_factory=dict)
    done: dict[int, float] = field(default_factory=dict)
    fluid: Fluid = field(default_factory=lambda: Fluid([]))
    timesteps: int = 0

    @property
    def own_start(self) -> float:
        """The mean time of a checkpoint from its writer's own start: the paper's IO."""
        return statistics.mean(self.done[n] - self.started[n] for n in self.done)

    @property
    def submission(self) -> float:
        """The mean time of a checkpoint from its submission."""
        return statistics.mean(self.done.values())

    @property
    def everything(self) -> float:
        """The time until the last is done: the paper's COMP."""
        return max(self.done.values())


class Simulation:
    """One arm on one site; everybody writes at once."""

    def __init__(
        self,
        site: Site,
        arm: str,
        seed: int,
        unfinished: Literal["keep", "release"] = "keep",
        rules: Rules = "ours",
    ) -> None:
        self._site, self._arm = site, arm
        self._generator = random.Random(seed)  # noqa: S311 - a simulation that can be repeated
        self._names = site.writer_names()
        self._network = site.topology().network()
        edges = len(self._network.capacities)
        self._disks = {name: edges + n for n, name in enumerate(self._network.nodes)}
        rates = [self._rate(*names) for names in self._network.edge_names] + [
            site.disk_rate * self._generator.uniform(1 - site.uneven, 1 + site.uneven) for _ in self._disks
        ]
        self._outcome = Outcome(fluid=Fluid(rates))
        self._schedule = Schedule(self._network, self._generator, unfinished=unfinished, rules=rules)
        # Without limits the planner chooses as HDFS does: any server that the rule for the racks allows.
        self._anywhere = Residual(_unlimited(site), self._generator)
        self._left = [site.chunks] * site.writers
        self._open = [site.chunks] * site.writers
        self._requests: dict[int, int] = {}
        self._grants: dict[int, int] = {}

    def run(self) -> Outcome:
        """Let it happen."""
        fluid, together = self._outcome.fluid, 0.01 * self._site.chunk_bytes / self._site.disk_rate
        self._begin()
        while len(fluid):
            for owner in fluid.advance(together=together):
                self._end(owner)
            if self._arm == PEACE:
                self._start_granted()
        self._outcome.timesteps = self._schedule.timestep + 1
        return self._outcome

    def _begin(self) -> None:
        for writer, name in enumerate(self._names):
            if self._arm == PEACE:
                self._requests[self._schedule.ask(ChunkRequest(name, REPLICAS, self._site.chunks))] = writer
            else:
                for _ in range(min(self._site.threads, self._site.chunks)):
                    self._write_next(writer)
        if self._arm == PEACE:
            self._start_granted()

    def _start_granted(self) -> None:
        for grant in self._schedule.start():
            writer = self._requests[grant.request]
            self._grants[grant.number] = writer
            self._flow(grant.number, writer, grant.pipeline.nodes, grant.pipeline.edges)

    def _write_next(self, writer: int) -> None:
        if not self._left[writer]:
            return
        self._left[writer] -= 1
        name = self._names[writer]
        place = self._anywhere.place(name, REPLICAS) if self._arm == STOCK else self._schedule.stand(name, REPLICAS)
        assert place is not None
        self._flow(writer, writer, place.nodes, place.edges)

    def _flow(self, owner: int, writer: int, nodes: Sequence[str], edges: Sequence[int]) -> None:
        self._outcome.started.setdefault(writer, self._outcome.fluid.now)
        self._outcome.fluid.add(owner, [*edges, *(self._disks[name] for name in nodes)], self._site.chunk_bytes)

    def _rate(self, source: str, target: str) -> float:
        is_wire = source in self._network.nodes or target in self._network.nodes
        return self._site.wire_rate if is_wire else self._site.link_rate

    def _end(self, owner: int) -> None:
        writer = self._grants.pop(owner) if self._arm == PEACE else owner
        self._open[writer] -= 1
        if not self._open[writer]:
            self._outcome.done[writer] = self._outcome.fluid.now
        if self._arm == PEACE:
            self._schedule.done(owner)
        else:
            self._write_next(writer)


def _unlimited(site: Site) -> Network:
    topology = site.topology()
    return replace(topology, wire=1 << 40, link=1 << 40).network()


# --- the report -------------------------------------------------------------------------------------------------------


def runs_of(site: Site, seeds: Sequence[int]) -> dict[str, list[Outcome]]:
    """Every arm with every seed."""
    return {arm: [Simulation(site, arm, seed).run() for seed in seeds] for arm in ARMS}


def table_of(site: Site, runs: Mapping[str, Sequence[Outcome]]) -> Table:
    """The figures of each arm, and what they are of stock's."""
    table = Table(title=f"{site.name}; capacities: wire {site.wire}, link {site.link}", title_justify="left")
    for name in ("arm", "own start (IO), s", "of stock", "submission, s", "of stock", "all (COMP), s", "of stock"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for arm, outcomes in runs.items():
        cells = []
        for figure_name in FIGURES:
            ours, stock = (
                statistics.median(getattr(o, figure_name) for o in found) for found in (outcomes, runs[STOCK])
            )
            cells += [f"{ours:.1f}", f"{ours / stock:.2f}"]
        table.add_row(arm, *cells)
    return table


def _median(figure_name: str, outcomes: Sequence[Outcome]) -> float:
    return float(statistics.median(getattr(one, figure_name) for one in outcomes))


def business(site: Site, outcome: Outcome) -> Iterator[Band]:
    """How busy every link was, and every wire; where there are many servers, the wires of a rack together."""
    network = site.topology().network()
    rows: dict[str, list[int]] = {}
    for edge, (source, target) in enumerate(network.edge_names):
        label = f"{source} to {target}"
        if len(network.nodes) > 40 and source in network.nodes:
            label = f"wires to {target}"
        elif len(network.nodes) > 40 and target in network.nodes:
            label = f"wires of {source}"
        rows.setdefault(label, []).append(edge)
    for label, edges in sorted(rows.items()):
        yield Band(label, [(b.start, b.end, float(b.used[edges].mean())) for b in outcome.fluid.busy])


def writing(site: Site, outcome: Outcome) -> Iterator[Band]:
    """When each of the first forty writers had started and was not done."""
    for writer, name in list(enumerate(site.writer_names()))[:40]:
        yield Band(name, [(outcome.started[writer], outcome.done[writer], 1.0)])


def plots_of(site: Site, runs: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """For stock and Peace: who writes when, and what is busy when."""
    latest = max(runs[arm][0].everything for arm in (STOCK, PEACE))
    for arm in (STOCK, PEACE):
        outcome, axis = runs[arm][0], Axis("seconds")
        who, what = list(writing(site, outcome)), list(business(site, outcome))
        yield figure(f"{arm}: checkpoints", band_plot(f"{arm}: checkpoints", axis, latest, who), site.name)
        caption = f"{site.name}; darker is busier, wires of a rack together where there are many."
        yield figure(f"{arm}: wires and links", band_plot(f"{arm}: links", axis, latest, what), caption)


def planning(chunks: int) -> float:
    """Processor seconds to plan *chunks* chunks of 1,000 servers, timestep after timestep."""
    site = replace(LARGE, chunks=chunks // LARGE.writers)
    schedule = Schedule(site.topology().network(), random.Random(1))  # noqa: S311 - the same for everybody
    began = time.process_time()
    for name in site.writer_names():
        schedule.ask(ChunkRequest(name, REPLICAS, site.chunks))
    while grants := schedule.start():
        for grant in grants:
            schedule.done(grant.number)
    return time.process_time() - began


def main() -> None:
    """Run the simulations as the command line says."""
    parser = argparse.ArgumentParser(description="Peace on simulated networks.")
    parser.add_argument("--quick", action="store_true", help="the paper's site only, with one seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write a page with plots there")
    given = parser.parse_args()
    console, plots = Console(width=130), list[str]()
    seeds = range(1 if given.quick else given.seeds)
    for site in [PAPER] if given.quick else [PAPER, LARGE]:
        runs = runs_of(site, seeds if site is PAPER else seeds[:1])
        console.print(table_of(site, runs))
        if site is PAPER:
            console.print("The paper: IO 45 s with stock, under 20 s with Peace; COMP 55 s and 75 s (1.36).")
            _print_choices(console, seeds)
        plots += plots_of(site, runs)
    times = {chunks: planning(chunks) for chunks in (5_000, 10_000, 20_000)}
    console.print("planning on 1,000 servers: " + ", ".join(f"{n:,} chunks {t:.2f} s" for n, t in times.items()))
    print(Goal(f"10,000 chunks on 1,000 servers planned in less than 2 s: {times[10_000]:.2f} s", times[10_000] < 2))
    per_chunk = (times[20_000] / 20_000) / (times[5_000] / 5_000)
    print(Goal(f"planning is linear: a chunk of 20,000 takes {per_chunk:.2f} of one of 5,000", per_chunk < 1.3))
    if given.output is not None:
        given.output.write_text(page("Peace, simulated", [figures(plots)]))


def _print_choices(console: Console, seeds: Sequence[int]) -> None:
    """What the choices that the paper leaves open come to."""
    for uneven in (0.0, UNEVEN):
        site = replace(PAPER, uneven=uneven)
        stock = [Simulation(site, STOCK, seed).run() for seed in seeds]
        console.print(f"Disks that differ by up to {uneven:.0%}: stock {_figures(stock)}")
        for rules, whose in RULES.items():
            for link in (2, 3, 4, 5):
                found = [Simulation(replace(site, given_link=link), PEACE, s, rules=rules).run() for s in seeds]
                console.print(f"Peace by {whose} rules, link capacity {link}: {_figures(found, stock)}")
            found = [Simulation(site, PEACE, seed, "release", rules).run() for seed in seeds]
            console.print(f"the same, link capacity 4, unfinished writes release theirs: {_figures(found, stock)}")


def _figures(found: Sequence[Outcome], stock: Sequence[Outcome] = ()) -> str:
    """From own start, from submission, for all; with what they are of stock's."""
    figures = [
        (_median(name, found), f" ({_median(name, found) / _median(name, stock):.2f})" if stock else "")
        for name in FIGURES
    ]
    return ", ".join(f"{seconds:.1f} s{of_stock}" for seconds, of_stock in figures)


if __name__ == "__main__":
    main()
