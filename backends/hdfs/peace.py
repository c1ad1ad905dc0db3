"""Where the chunks of a checkpoint go: SGuard's planner, for an HDFS that nobody had to patch. No clock, no socket.

    network = Network(nodes, [Link("/rack1", "/rack2", 5), Link("/rack2", "/rack1", 5)])
    pipeline = Residual(network, random.Random()).place("10.0.1.1:9866", replicas=3)

The network is a directed graph. A server hangs on the switch of its rack by two wires, one out and one in, and
switches are joined by links. The capacity of an edge is the number of chunks that go over it in one timestep. (The
paper's edges inside a switch have the capacity of their server's wire and cost nothing: they are left out here, since
they can never be full when the wire is not.)

A chunk is placed replica by replica: a shortest path with room, edges tried in random order, from the server that has
the chunk to one that may be next; that one is the next source. So the servers found are the pipeline, in its order.
Forward capacities only: what was placed is never routed anew. A chunk is placed whole or not at all. Unlike in the
paper, a server that would have to pass the chunk on counts only while its wire out has room, which makes a plan a tenth
to a fifth shorter.

**Who may be next.** Replica 1 in the writer's rack, replica 2 in another one, the rest in the rack of replica 2 as long
as HDFS allows, then in one more rack; all on different servers and none on the writer's own disk. Where a small cluster
cannot do this, more replicas stay in the writer's rack, and at last the own disk is used. Servers of one rack are
always neighbours in the pipeline, the writer's rack first, because HDFS orders a pipeline by distance: any other order
would not be the one that it uses.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from safekeeper.errors import SafekeeperError

WIRE_CAPACITY = 2
"""Chunks that a wire takes in one timestep: two writers fill a client's wire, and a DataNode serves two well."""


class NoPlan(SafekeeperError):
    """The network cannot hold so many replicas, however idle it is. HDFS decides by itself what to do then."""


@dataclass(frozen=True, slots=True)
class Node:
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


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Where one chunk goes."""

    nodes: tuple[str, ...]
    """The servers that keep it, in the order in which they pass it on."""
    edges: tuple[int, ...]
    """What it takes one unit of: indices of `Network.capacities`."""


def replicas_per_rack(replicas: int, racks: int) -> int:
    """How many replicas of a block HDFS puts on one rack at most; more favoured nodes would be replaced in silence."""
    if racks < 2 or replicas < 2:
        return replicas
    limit = (replicas - 1) // racks + 2
    return limit - 1 if limit == replicas else limit


class Network:
    """Servers, switches and what goes over each edge in a timestep. Edges keep their index while senders are added."""

    def __init__(self, nodes: Iterable[Node], links: Iterable[Link] = ()) -> None:
        self.nodes: dict[str, Node] = {}
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

    def add(self, node: Node) -> None:
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
    def of(cls, network: Network, writer: Node, replicas: int) -> Template:
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


class Residual:
    """What is left of a network in one timestep. *generator* decides between equals."""

    def __init__(self, network: Network, generator: random.Random) -> None:
        self.network = network
        self._random = generator.random
        self._left = list(network.capacities)
        self._receivers = {rack: _Bag() for rack in network.links}
        self._passers = {rack: _Bag() for rack in network.links}
        """Those of the receivers that have room on the wire out, too."""
        for name in network.receive_edge:
            self._receivers[network.nodes[name].rack].add(name)
            self._passers[network.nodes[name].rack].add(name)
        self._onward = {switch: list(links) for switch, links in network.links.items()}
        """The switches behind the links that have room."""
        self._templates: dict[tuple[str, int], Template] = {}

    def add_sender(self, name: str, rack: str) -> None:
        """Let the server *name*, which is no DataNode, send from now on. Raise `NoPlan` when its *rack* is unknown."""
        if rack not in self.network.links:
            raise NoPlan(
                f"{name} is on no known rack ({rack or 'none was given'}): give one of {', '.join(self.network.links)}"
            )
        self.network.add(Node(name, rack, receive=0))
        self._left.extend(self.network.capacities[len(self._left) :])

    def check(self, writer: str, replicas: int) -> None:
        """Raise `NoPlan` when a chunk of *writer* could never be placed."""
        if writer not in self.network.nodes:
            raise NoPlan(f"{writer} is not on the network")
        self._template(writer, replicas)

    def left(self, edge: int) -> int:
        """How many more chunks an edge takes."""
        return self._left[edge]

    def place(self, writer: str, replicas: int) -> Pipeline | None:
        """Place one chunk and take its capacity; None, and nothing taken, when there is no room for all of it.

        Raise `NoPlan` when there never can be.
        """
        template = self._template(writer, replicas)
        source, pipeline, racks, edges = writer, [], list[str](), list[int]()
        if template.own_disk:
            pipeline, racks = [writer], [template.home]
        while len(pipeline) < replicas:
            bags = self._passers if len(pipeline) + 1 < replicas else self._receivers
            path = self._path(source, bags, [writer, *pipeline], racks, template)
            if path is None:
                self.give_back(edges)
                return None
            source, found = path
            self.take(found)
            edges += found
            pipeline.append(source)
            racks.append(self.network.nodes[source].rack)
        return Pipeline(tuple(pipeline), tuple(edges))

    def take(self, edges: Iterable[int]) -> None:
        """Take one unit off each of *edges*; below nothing, too, for a write that goes on from an earlier timestep."""
        for edge in edges:
            self._left[edge] -= 1
            if self._left[edge] == 0:
                self._close(edge)

    def give_back(self, edges: Iterable[int]) -> None:
        """The contrary of `take`."""
        for edge in edges:
            self._left[edge] += 1
            if self._left[edge] == 1:
                self._reopen(edge)

    def _template(self, writer: str, replicas: int) -> Template:
        found = self._templates.get((writer, replicas))
        if found is None:
            found = Template.of(self.network, self.network.nodes[writer], replicas)
            self._templates[writer, replicas] = found
        return found

    def _path(
        self, source: str, bags: dict[str, _Bag], taken: list[str], racks: list[str], template: Template
    ) -> tuple[str, list[int]] | None:
        """The next server and the edges to it: a shortest way with room from *source* to a server that may be next."""
        network = self.network
        wire = network.send_edge[source]
        if self._left[wire] <= 0:
            return None
        start = network.nodes[source].rack
        came_from: dict[str, str] = {start: start}
        waiting = deque([start])
        ways = iter([start])  # the switches to look at, the nearest first
        while True:
            for switch in ways:
                if template.allows(switch, racks, network.data_nodes) and (
                    found := bags[switch].pick(self._random, taken)
                ):
                    return found, [wire, *self._links(came_from, switch), network.receive_edge[found]]
            if not waiting:
                return None
            ways = self._discover(waiting.popleft(), came_from, waiting)

    def _discover(self, switch: str, came_from: dict[str, str], waiting: deque[str]) -> Iterator[str]:
        """The switches one link behind *switch* that nobody has been to, in random order, no further than is asked."""
        onward = self._onward[switch]
        for index in range(len(onward)):
            other = index + int(self._random() * (len(onward) - index))
            onward[index], onward[other] = onward[other], onward[index]
            found = onward[index]
            if found not in came_from:
                came_from[found] = switch
                waiting.append(found)
                yield found

    def _links(self, came_from: dict[str, str], switch: str) -> list[int]:
        links = []
        while (before := came_from[switch]) != switch:
            links.append(self.network.links[before][switch])
            switch = before
        return links[::-1]

    def _close(self, edge: int) -> None:
        """Take a full edge out of the lists, so that no search walks over it."""
        source, target = self.network.edge_names[edge]
        if source in self.network.nodes:
            self._passers[target].discard(source)
        elif target in self.network.nodes:
            self._receivers[source].discard(target)
            self._passers[source].discard(target)
        else:
            self._onward[source].remove(target)

    def _reopen(self, edge: int) -> None:
        source, target = self.network.edge_names[edge]
        if source in self.network.nodes:
            self._offer(source)
        elif target in self.network.nodes:
            self._receivers[source].add(target)
            self._offer(target)
        else:
            self._onward[source].append(target)

    def _offer(self, name: str) -> None:
        """Put a server among those that can pass a chunk on, if it can."""
        receive = self.network.receive_edge.get(name)
        if receive is not None and self._left[receive] > 0 and self._left[self.network.send_edge[name]] > 0:
            self._passers[self.network.nodes[name].rack].add(name)


class _Bag:
    """Names to pick from at random: adding, discarding and picking take the same time whatever its size."""

    __slots__ = ("_names", "_places")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._places: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Put *name* in; it must not be there."""
        self._places[name] = len(self._names)
        self._names.append(name)

    def discard(self, name: str) -> None:
        """Take *name* out; that it is not there is not an error."""
        place = self._places.pop(name, None)
        if place is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[place] = last
            self._places[last] = place

    def pick(self, draw: Callable[[], float], taken: list[str]) -> str | None:
        """Any of them but those in *taken*, None if there is no other."""
        names = self._names
        for index in range(min(len(names), len(taken) + 1)):
            self._swap(index, index + int(draw() * (len(names) - index)))
            if names[index] not in taken:
                return names[index]
        return None

    def _swap(self, a: int, b: int) -> None:
        names = self._names
        names[a], names[b] = names[b], names[a]
        self._places[names[a]], self._places[names[b]] = a, b
