"""How much goes over the wires of a server and the links between racks: measured by writing to HDFS.

A file with one replica on a chosen DataNode loads the way to it and nothing else. Several at once to the writer's own
rack show its wire; several writers of one rack at once to another rack show the link. Writers on one host cannot load a
link with more than their wire: where the link shows no narrower than that, what is found is the least it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, islice

from safekeeper.backends.hdfs.peace.topology import BadTopology, Topology, link_capacity

STREAMS = 2
"""How many files a writer writes at a time: as many as fill its wire."""

Write = Callable[[str, float], float]
"""Writes a file with its only replica on a DataNode for some seconds; gives the bytes a second that arrived there."""


@dataclass(frozen=True, slots=True)
class ProbeWriter:
    """Somebody who can load the network."""

    host: str
    rack: str
    write: Write


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured, in bytes a second."""

    wire: float
    link: float | None
    """Between two racks; None where there is one only."""
    link_is_least: bool = False
    """Whether the link may well be faster: the writers could not load it more."""

    def applied_to(self, topology: Topology) -> Topology:
        """The topology with the capacity of its links by these rates."""
        link = None if self.link is None else link_capacity(self.link, self.wire, topology.wire)
        return replace(topology, link=link)


def measure_rates(writers: Sequence[ProbeWriter], nodes: Mapping[str, str], seconds: float) -> Rates:
    """The rates of the network of *nodes*, addresses with their racks. It takes twice *seconds*.

    All *writers* must be of one rack. Raise `BadTopology` where there is no DataNode to write to.
    """
    rack, hosts = writers[0].rack, {writer.host for writer in writers}
    away = {name: r for name, r in nodes.items() if name.rpartition(":")[0] not in hosts}
    near = [name for name, r in away.items() if r == rack] or list(away)
    far = [name for name, r in away.items() if r != rack]
    if not near:
        raise BadTopology("there is no DataNode on another host: nothing can be measured")
    wire = _rate(writers[:1], near, seconds)
    if not far or not rack:
        return Rates(wire, None)
    link = _rate(writers, far, seconds)
    return Rates(wire, link, link_is_least=link > 0.8 * wire * len(writers))


def _rate(writers: Sequence[ProbeWriter], nodes: Sequence[str], seconds: float) -> float:
    """Bytes a second of all writers together, each writing to several of *nodes*."""
    streams = [writer for writer in writers for _ in range(STREAMS)]
    targets = islice(cycle(nodes), len(streams))
    with ThreadPoolExecutor(len(streams)) as pool:
        jobs = [pool.submit(writer.write, node, seconds) for writer, node in zip(streams, targets, strict=True)]
        return sum(job.result() for job in jobs)
