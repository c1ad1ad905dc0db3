"""The network that Peace plans on: servers, switches, and what goes over each edge in a timestep.

A directed graph. A server hangs on the switch of its rack by two wires, one out and one in, and switches are joined by
links. The capacity of an edge is the number of chunks that go over it in one timestep. (The paper's edges inside a
switch have the capacity of their server's wire and cost nothing: they are left out here, since they can never be full
when the wire is not.) Where a server's disk is slower than its wire, the disk is an edge of its own behind it. Which
servers a chunk may go to is in `template.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from safekeeper.backends.hdfs.peace.defaults import WIRE_CAPACITY
from safekeeper.backends.hdfs.peace.template import Place


@dataclass(frozen=True, slots=True)
class NetworkNode:
    """A server."""

    name: str
    """A DataNode's transfer address as the NameNode knows it, `ip:port`; of another server its host."""
    rack: str
    """The switch that it hangs on, by the name of the rack."""
    send: int = WIRE_CAPACITY
    """Chunks a timestep on the wire to the switch."""
    receive: int = WIRE_CAPACITY
    """Chunks a timestep on the wire from the switch; 0 for a server that is no DataNode and only sends."""
    disk: int | None = None
    """Chunks a timestep that its disk takes; None: as many as come."""

    def __post_init__(self) -> None:
        if self.send < 1 or self.receive < 0 or (self.disk is not None and self.disk < 1):
            raise ValueError(f"the wires and the disk of {self.name}: one chunk a timestep is the least")


@dataclass(frozen=True, slots=True)
class Link:
    """A link from a switch to another; a cable is two of them."""

    source: str
    target: str
    capacity: int

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"the link from {self.source} to {self.target}: one chunk a timestep is the least")


class Network:
    """Servers, switches and what goes over each edge in a timestep. Edges keep their index while senders are added."""

    def __init__(
        self,
        nodes: Iterable[NetworkNode],
        links: Iterable[Link] = (),
        *,
        places: Sequence[Place] = (),
        wire: int = WIRE_CAPACITY,
    ) -> None:
        self.places = tuple(places)
        """Where the replicas have to be, where that was written down."""
        self.wire = wire
        """What a server that nothing is known of sends in a timestep."""
        self.nodes: dict[str, NetworkNode] = {}
        self.capacities: list[int] = []
        """Of every edge, by its index."""
        self.edge_names: list[tuple[str, str]] = []
        """From where to where each edge goes, for people."""
        self.send_edge: dict[str, int] = {}
        self.receive_edge: dict[str, int] = {}
        self.disk_edge: dict[str, int] = {}
        """Of the servers whose disk is one of its own."""
        self.disks: dict[int, str] = {}
        """The server of each such edge."""
        self.links: dict[str, dict[str, int]] = {}
        """For each switch the switches that it has a link to, each with the edge."""
        self.data_nodes: Counter[str] = Counter()
        """How many DataNodes each rack has."""
        for link in links:
            edge = self._edge(link.capacity, link.source, link.target)
            self.links.setdefault(link.source, {})[link.target] = edge
            self.links.setdefault(link.target, {})
        for node in nodes:
            self.add(node)
        self._check_connected()

    def add(self, node: NetworkNode) -> None:
        """Let *node* take part from now on; one that is there already stays as it is."""
        if node.name in self.nodes:
            return
        self.nodes[node.name] = node
        self.links.setdefault(node.rack, {})
        self.send_edge[node.name] = self._edge(node.send, node.name, node.rack)
        if node.receive:
            self.receive_edge[node.name] = self._edge(node.receive, node.rack, node.name)
            self.data_nodes[node.rack] += 1
            if node.disk is not None:
                self.disk_edge[node.name] = edge = self._edge(node.disk, node.name, f"the disk of {node.name}")
                self.disks[edge] = node.name

    def _check_connected(self) -> None:
        """A rack that cannot be reached would let requests wait for ever."""
        for rack in self.data_nodes:
            reached, waiting = {rack}, [rack]
            while waiting:
                found = self.links[waiting.pop()].keys() - reached
                reached |= found
                waiting += found
            if missing := self.data_nodes.keys() - reached:
                raise ValueError(f"there is no way from {rack} to {min(missing)}: give the links between the switches")

    def _edge(self, capacity: int, source: str, target: str) -> int:
        self.capacities.append(capacity)
        self.edge_names.append((source, target))
        return len(self.capacities) - 1
