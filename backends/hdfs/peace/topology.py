"""The network that Peace plans for: read from the NameNode, or written down in a file by an administrator.

`TopologyFile` below has the names of the file; `docs/peace.md` explains them, `docs/examples/topology.json` is one.
`Topology` is what is known, always in chunks a timestep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from safekeeper.backends.hdfs.peace.defaults import WIRE_CAPACITY
from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
from safekeeper.backends.hdfs.peace.template import Place, check_places
from safekeeper.backends.hdfs.peace.topology_file import BadTopology, TopologyFile, read_topology

__all__ = ["BadTopology", "Cable", "ServerCapacity", "Topology", "link_capacity"]

_MIDDLE = "the switch in the middle"


def link_capacity(link_rate: float, wire_rate: float, wire: int = WIRE_CAPACITY) -> int:
    """Chunks a timestep on a link, from the rates of links and wires in any unit.

    A timestep is the time that a wire takes for its chunks; so long, the link takes so many. At least one.
    """
    return max(1, int(link_rate / wire_rate * wire + 1e-9))


@dataclass(frozen=True, slots=True)
class ServerCapacity:
    """What one server takes in a timestep, where it is not as all others."""

    send: int | None = None
    receive: int | None = None
    disk: int | None = None


@dataclass(frozen=True, slots=True)
class Cable:
    """What joins two switches; a rack's switch has the name of the rack."""

    a: str
    b: str
    there: int
    """Chunks a timestep from *a* to *b*."""
    back: int


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of a network."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """The DataNodes by transfer address, each with its rack."""
    wire: int = WIRE_CAPACITY
    """Chunks a timestep on the wires of a server."""
    link: int | None = None
    """Chunks a timestep on a link between switches; None is not known, which is enough for one rack only."""
    senders: Mapping[str, str] = field(default_factory=dict)
    """Servers that write and are no DataNodes, by host, each with its rack."""
    servers: Mapping[str, ServerCapacity] = field(default_factory=dict)
    """Those that differ, by host or transfer address."""
    cables: Sequence[Cable] = ()
    """The tree of switches; where there are none, `link` is between all racks."""
    places: Sequence[Place] = ()
    """Where the replicas have to be; none is the usual rule."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file. Raise `BadTopology` when it is none."""
        return cls._of(read_topology(path))

    @classmethod
    def _of(cls, file: TopologyFile) -> Self:
        if file.unit == "chunks":
            wire = int(file.wire or WIRE_CAPACITY)
            rate = float(wire)
        else:
            wire, rate = WIRE_CAPACITY, float(file.wire or 0)

        def chunks(given: float | None) -> int | None:
            return None if given is None else link_capacity(given, rate, wire)

        def surely(given: float) -> int:
            return link_capacity(given, rate, wire)

        return cls(
            file.nodes,
            wire,
            chunks(file.link),
            file.senders,
            {
                name: ServerCapacity(chunks(one.send), chunks(one.receive), chunks(one.disk))
                for name, one in file.servers.items()
            },
            tuple(
                Cable(one.between[0], one.between[1], surely(one.capacity), surely(one.back or one.capacity))
                for one in file.links
            ),
            tuple(Place(one) for one in file.replicas),
        )

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        servers = {
            name: {kind: value for kind in ("send", "receive", "disk") if (value := getattr(one, kind)) is not None}
            for name, one in self.servers.items()
        }
        links = [{"between": [one.a, one.b], "capacity": one.there, "back": one.back} for one in self.cables]
        found = {
            "wire": self.wire,
            "link": self.link,
            "nodes": dict(self.nodes),
            "senders": dict(self.senders),
            "servers": servers,
            "links": links,
            "replicas": [str(place) for place in self.places],
        }
        path.write_text(json.dumps({name: value for name, value in found.items() if value}, indent=1) + "\n")

    def with_nodes(self, nodes: Mapping[str, str]) -> Topology:
        """The same with other DataNodes."""
        return replace(self, nodes=nodes)

    def network(self) -> Network:
        """The network to plan on. Raise `BadTopology` where there is no DataNode, or racks and no way between them."""
        racks = sorted(set(self.nodes.values()))
        if not racks:
            raise BadTopology("no DataNode is known")
        if len(racks) > 1 and self.link is None and not self.cables:
            raise BadTopology(
                f"how much goes between {len(racks)} racks is not known: give the rates of links and wires, "
                "or measure them with `safekeeper peace calibrate`"
            )
        try:
            if self.places:
                check_places(self.places, len(racks))
            network = Network(
                (self._node(name, rack, self.wire) for name, rack in self.nodes.items()),
                self._links(racks),
                places=self.places,
                wire=self.wire,
            )
        except ValueError as error:
            raise BadTopology(str(error)) from error
        for name, rack in self.senders.items():
            if rack in racks:
                network.add(self._node(name, rack, 0))
        return network

    def _node(self, name: str, rack: str, receive: int) -> NetworkNode:
        """A server; one that receives nothing is no DataNode, whatever is said of its disk."""
        own = self.servers.get(name) or self.servers.get(name.rpartition(":")[0]) or ServerCapacity()
        if not receive:
            return NetworkNode(name, rack, own.send or self.wire, 0)
        return NetworkNode(name, rack, own.send or self.wire, own.receive or receive, own.disk)

    def _links(self, racks: list[str]) -> Iterator[Link]:
        for cable in self.cables:
            yield Link(cable.a, cable.b, cable.there)
            yield Link(cable.b, cable.a, cable.back)
        if self.cables or self.link is None or len(racks) < 2:
            return
        for a, b in [(racks[0], racks[1])] if len(racks) == 2 else [(rack, _MIDDLE) for rack in racks]:
            yield Link(a, b, self.link)
            yield Link(b, a, self.link)
