"""A data centre whose servers all write at once, and what becomes of their checkpoints."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from safekeeper.backends.hdfs.peace.network import Network
from safekeeper.backends.hdfs.peace.planner import Residual, Rules
from safekeeper.backends.hdfs.peace.schedule import ChunkRequest, Schedule
from safekeeper.backends.hdfs.peace.topology import Topology
from safekeeper.bench.studies.peace_simulator.fluid import Fluid

REPLICAS = 3
STOCK, PLANNED, PEACE = "stock", "planned", "Peace"
ARMS = (STOCK, PLANNED, PEACE)


@dataclass(frozen=True, slots=True)
class SimulatedSite:
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


PAPER = SimulatedSite("17 servers on two racks, 16 write 512 MB", (8, 9), writers=16, chunks=8)
LARGE = SimulatedSite(
    "1,000 servers on 25 racks, all write 256 MB", (40,) * 25, writers=1000, chunks=4, link_rate=2200e6
)


@dataclass(slots=True)
class SimulatedRun:
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
        site: SimulatedSite,
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
        self._outcome = SimulatedRun(fluid=Fluid(rates))
        self._schedule = Schedule(self._network, self._generator, unfinished=unfinished, rules=rules)
        # Without limits the planner chooses as HDFS does: any server that the rule for the racks allows.
        self._anywhere = Residual(_unlimited(site), self._generator)
        self._left = [site.chunks] * site.writers
        self._open = [site.chunks] * site.writers
        self._requests: dict[int, int] = {}
        self._grants: dict[int, int] = {}

    def run(self) -> SimulatedRun:
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


def _unlimited(site: SimulatedSite) -> Network:
    topology = site.topology()
    return replace(topology, wire=1 << 40, link=1 << 40).network()
