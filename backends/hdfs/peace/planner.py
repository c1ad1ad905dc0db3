"""Where the chunks of a checkpoint go: SGuard's planner, for an HDFS that nobody had to patch. No clock, no socket.

    network = Network(nodes, [Link("/rack1", "/rack2", 5), Link("/rack2", "/rack1", 5)])
    pipeline = Residual(network, random.Random()).place("10.0.1.1:9866", replicas=3)

A chunk is placed replica by replica: a shortest path with room, edges tried in random order, from the server that has
the chunk to one that may be next (`Template`); that one is the next source. So the servers found are the pipeline, in
its order. Forward capacities only: what was placed is never routed anew. A chunk is placed whole or not at all. Unlike
by the paper's rules, a server that would have to pass the chunk on counts only while its wire out has room, which makes
a plan a tenth to a fifth shorter; and of a few that can, it is one that will not soon need the wire itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from safekeeper.backends.hdfs.peace.network import Network, NetworkNode
from safekeeper.backends.hdfs.peace.template import NoPlan, Template

Rules = Literal["ours", "paper"]
"""Those by which `hdfs:` goes, or SGuard's, to compare with."""

_LOOKS = 8  # so many servers are drawn at most to find one that is not to be spared


@dataclass(frozen=True, slots=True)
class ReplicaPipeline:
    """Where one chunk goes."""

    nodes: tuple[str, ...]
    """The servers that keep it, in the order in which they pass it on."""
    edges: tuple[int, ...]
    """What it takes one unit of: indices of `Network.capacities`."""


class Residual:
    """What is left of a network in one timestep. *generator* decides between equals."""

    def __init__(self, network: Network, generator: random.Random, rules: Rules = "ours") -> None:
        self.network = network
        self._random = generator.random
        self._left = list(network.capacities)
        self._receivers = {rack: _Bag() for rack in network.links}
        self._passers = {rack: _Bag() for rack in network.links}
        """Those of the receivers that have room on the wire out, too."""
        self._may_pass_on = self._passers if rules == "ours" else self._receivers
        for name in network.receive_edge:
            self._receivers[network.nodes[name].rack].add(name)
            self._passers[network.nodes[name].rack].add(name)
        self._onward = {switch: list(links) for switch, links in network.links.items()}
        """The switches behind the links that have room."""
        self._templates: dict[tuple[str, int], Template] = {}
        self.spared: frozenset[str] = frozenset()
        """The servers that pass no chunk on for others as long as there are others for it."""

    def add_sender(self, name: str, rack: str) -> None:
        """Let the server *name*, which is no DataNode, send from now on. Raise `NoPlan` when its *rack* is unknown."""
        if rack not in self.network.links:
            raise NoPlan(
                f"{name} is on no known rack ({rack or 'none was given'}): give one of {', '.join(self.network.links)}"
            )
        self.network.add(NetworkNode(name, rack, send=self.network.wire, receive=0))
        self._left.extend(self.network.capacities[len(self._left) :])

    def check(self, writer: str, replicas: int) -> None:
        """Raise `NoPlan` when a chunk of *writer* could never be placed."""
        if writer not in self.network.nodes:
            raise NoPlan(f"{writer} is not on the network")
        self._template(writer, replicas)

    def left(self, edge: int) -> int:
        """How many more chunks an edge takes."""
        return self._left[edge]

    def place(self, writer: str, replicas: int) -> ReplicaPipeline | None:
        """Place one chunk and take its capacity; None, and nothing taken, when there is no room for all of it.

        Raise `NoPlan` when there never can be.
        """
        template = self._template(writer, replicas)
        source, pipeline, racks, edges = writer, [], list[str](), list[int]()
        if template.own_disk:
            pipeline, racks, edges = [writer], [template.home], self._disk(writer)
            if any(self._left[edge] <= 0 for edge in edges):
                return None
            self.take(edges)
        while len(pipeline) < replicas:
            is_last = len(pipeline) + 1 == replicas
            bags, spared = (self._receivers, frozenset()) if is_last else (self._may_pass_on, self.spared)
            path = self._path(source, bags, [writer, *pipeline], spared, racks, template)
            if path is None:
                self.give_back(edges)
                return None
            source, found = path
            self.take(found)
            edges += found
            pipeline.append(source)
            racks.append(self.network.nodes[source].rack)
        return ReplicaPipeline(tuple(pipeline), tuple(edges))

    def take(self, edges: Iterable[int]) -> None:
        """Take one unit off each of *edges*; below nothing, too, for a write that goes on from an earlier timestep."""
        for edge in edges:
            self._left[edge] -= 1
            if self._left[edge] == 0:
                self._close(edge)

    def give_back(self, edges: Iterable[int]) -> None:
        """The inverse of `take`."""
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
        self,
        source: str,
        bags: dict[str, _Bag],
        taken: list[str],
        spared: frozenset[str],
        racks: list[str],
        template: Template,
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
                    found := bags[switch].pick(self._random, taken, spared)
                ):
                    ways_in = [network.receive_edge[found], *self._disk(found)]
                    return found, [wire, *self._links(came_from, switch), *ways_in]
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

    def _disk(self, name: str) -> list[int]:
        edge = self.network.disk_edge.get(name)
        return [] if edge is None else [edge]

    def _close(self, edge: int) -> None:
        """Take a full edge out of the lists, so that no search walks over it."""
        source, target = self.network.edge_names[edge]
        if edge in self.network.disks:
            rack = self.network.nodes[source].rack
            self._receivers[rack].discard(source)
            self._passers[rack].discard(source)
        elif source in self.network.nodes:
            self._passers[target].discard(source)
        elif target in self.network.nodes:
            self._receivers[source].discard(target)
            self._passers[source].discard(target)
        else:
            self._onward[source].remove(target)

    def _reopen(self, edge: int) -> None:
        source, target = self.network.edge_names[edge]
        if source in self.network.nodes:  # its wire out, or its disk
            self._offer(source)
        elif target in self.network.nodes:
            self._offer(target)
        else:
            self._onward[source].append(target)

    def _offer(self, name: str) -> None:
        """Put a server among those that can take a chunk, and among those that can pass one on, if it can."""
        network = self.network
        receive = network.receive_edge.get(name)
        if receive is None or any(self._left[edge] <= 0 for edge in (receive, *self._disk(name))):
            return
        rack = network.nodes[name].rack
        self._receivers[rack].add(name)
        if self._left[network.send_edge[name]] > 0:
            self._passers[rack].add(name)


class _Bag:
    """Names to pick from at random: adding, discarding and picking take the same time whatever its size."""

    __slots__ = ("_names", "_positions")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._positions: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Put *name* in; that it is there is not an error."""
        if name not in self._positions:
            self._positions[name] = len(self._names)
            self._names.append(name)

    def discard(self, name: str) -> None:
        """Take *name* out; that it is not there is not an error."""
        position = self._positions.pop(name, None)
        if position is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[position] = last
            self._positions[last] = position

    def pick(self, draw: Callable[[], float], taken: list[str], spared: frozenset[str]) -> str | None:
        """Any of them but those in *taken*, None if there is no other; one in *spared* if no other is met soon."""
        names, found = self._names, None
        for index in range(min(len(names), len(taken) + (_LOOKS if spared else 1))):
            self._swap(index, index + int(draw() * (len(names) - index)))
            if names[index] not in taken:
                if names[index] not in spared:
                    return names[index]
                found = found or names[index]
        return found

    def _swap(self, a: int, b: int) -> None:
        names = self._names
        names[a], names[b] = names[b], names[a]
        self._positions[names[a]], self._positions[names[b]] = a, b
