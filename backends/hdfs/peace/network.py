"""The network that Peace plans on: servers, switches, what goes over each edge, and which servers HDFS would take.

A directed graph. A server hangs on the switch of its rack by two wires, one out and one in, and switches are joined by
links. The capacity of an edge is the number of chunks that go over it in one timestep. (The paper's edges inside a
switch have the capacity of their server's wire and cost nothing: they are left out here, since they can never be full
when the wire is not.)

**Which servers.** Replica 1 in the writer's rack, replica 2 in another one, the rest in the rack of replica 2 as long
as HDFS allows, then in one more rack; all on different servers and none on the writer's own disk. Where a small
cluster cannot do this, more replicas stay in the writer's rack, and at last the own disk is used. Servers of one rack
are always neighbours in the pipeline, the writer's rack first, because HDFS orders a pipeline by distance: any other
order would not be the one that it uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from safekeeper.backends.hdfs.peace.defaults import WIRE_CAPACITY
from safekeeper.errors import SafekeeperError


class NoPlan(SafekeeperError):
    """The network cannot hold so many replicas, however idle it is. HDFS decides by itself what to do then."""


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

    def __post_init__(self) -> None:
        if self.send < 1 or self.receive < 0:
            raise ValueError(f"the wires of {self.name}: one chunk a timestep is the least")


@dataclass(frozen=True, slots=True)
class Link:
    """A link from a switch to another; a cable is two of them."""

    source: str
    target: str
    capacity: int

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise ValueError(f"the link from {self.source} to {self.target}: one chunk a timestep is the least")


def replicas_per_rack(replicas: int, racks: int) -> int:
    """How many replicas of a block HDFS puts on one rack at most; more favoured nodes would be replaced in silence."""
    if racks < 2 or replicas < 2:
        return replicas
    limit = (replicas - 1) // racks + 2
    return limit - 1 if limit == replicas else limit


class Network:
    """Servers, switches and what goes over each edge in a timestep. Edges keep their index while senders are added."""

    def __init__(self, nodes: Iterable[NetworkNode], links: Iterable[Link] = ()) -> None:
        self.nodes: dict[str, NetworkNode] = {}
        self.capacities: list[int] = []
        """Of every edge, by its index."""
        self.edge_names: list[tuple[str, str]] = []
        """From where to where each edge goes, for people."""
        self.send_edge: dict[str, int] = {}
        self.receive_edge: dict[str, int] = {}
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


@dataclass(frozen=True, slots=True)
class Template:
    """Which racks the replicas of one writer's chunks may go to."""

    home: str
    """The writer's rack."""
    at_home: int
    """How many replicas stay there, the first ones."""
    own_disk: bool
    """Whether the first of these is the writer's own DataNode, because there are too few others."""
    most: int
    """How many replicas a rack takes at most."""

    @classmethod
    def of(cls, network: Network, writer: NetworkNode, replicas: int) -> Template:
        """The template for chunks of *writer*. Raise `NoPlan` when *network* is too small."""
        most = replicas_per_rack(replicas, len(network.data_nodes))
        elsewhere = sum(min(most, count) for rack, count in network.data_nodes.items() if rack != writer.rack)
        is_data_node = writer.receive > 0
        for own_disk in (False, True) if is_data_node else (False,):
            others = network.data_nodes[writer.rack] - (is_data_node and not own_disk)
            room = min(most, others)
            at_home = min(room, max(1, replicas - elsewhere))
            if at_home + elsewhere >= replicas:
                return cls(writer.rack, at_home, own_disk, most)
        raise NoPlan(f"{replicas} replicas of a chunk of {writer.name} have no room on {len(network.nodes)} servers")

    def allows(self, rack: str, so_far: list[str], racks: dict[str, int]) -> bool:
        """Whether the replica after those on the racks *so_far* may go to *rack*; *racks* has the size of each."""
        if len(so_far) < self.at_home:
            return rack == self.home
        last = so_far[-1] if so_far else self.home
        if last != self.home and so_far.count(last) < min(self.most, racks[last]):
            return rack == last
        return rack != self.home and rack not in so_far
