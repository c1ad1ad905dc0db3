"""The network that Peace plans for: read from the NameNode, or written down in a file.

    {"wire": 2, "link": 5, "nodes": {"10.0.1.1:9866": "/rack1", ...}, "senders": {"10.0.1.9": "/rack1"}}

`wire` and `link` are the chunks that a server's wire and a link between switches take in one timestep. `nodes` are the
DataNodes by transfer address, each with its rack; without them the NameNode is asked, now and then again. `senders` are
servers that write and are no DataNodes. Two racks have a link between them; more hang on one switch in the middle by a
link each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from safekeeper.backends.hdfs.peace.defaults import WIRE_CAPACITY
from safekeeper.backends.hdfs.peace.network import Link, Network, NetworkNode
from safekeeper.errors import SafekeeperError
from safekeeper.url import guess

_MIDDLE = "the switch in the middle"


class BadTopology(SafekeeperError):
    """The network is not known well enough to plan for it. The message says what to write or to measure."""


def link_capacity(link_rate: float, wire_rate: float, wire: int = WIRE_CAPACITY) -> int:
    """Chunks a timestep on a link, from the rates of links and wires in any unit.

    A timestep is the time that a wire takes for its chunks; so long, the link takes so many. At least one.
    """
    return max(1, int(link_rate / wire_rate * wire + 1e-9))


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

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file. Raise `BadTopology` when it is none."""
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise BadTopology(f"{path} cannot be read: {error}") from error
        return cls._checked(path, found)

    @classmethod
    def _checked(cls, path: Path, found: Any) -> Self:
        known = [f.name for f in fields(cls)]
        if not isinstance(found, dict):
            raise BadTopology(f"{path} is no object of JSON with {', '.join(known)}")
        for name, value in found.items():
            if name not in known:
                raise BadTopology(f"{path} has an unknown name {name!r}{guess(name, known)}; known: {', '.join(known)}")
            if name in ("wire", "link"):
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise BadTopology(f"{path}: {name} is {value!r}: it is a number of chunks, 1 or more")
            elif not isinstance(value, dict) or not all(isinstance(rack, str) for rack in value.values()):
                raise BadTopology(f"{path}: {name} is an object of addresses, each with its rack")
        return cls(**found)

    def save(self, path: Path) -> None:
        """Write a file that `load` reads."""
        found = {"wire": self.wire, "link": self.link, "nodes": dict(self.nodes), "senders": dict(self.senders)}
        path.write_text(json.dumps({name: value for name, value in found.items() if value}, indent=1) + "\n")

    def with_nodes(self, nodes: Mapping[str, str]) -> Topology:
        """The same with other DataNodes."""
        return replace(self, nodes=nodes)

    def network(self) -> Network:
        """The network to plan on. Raise `BadTopology` where there is no DataNode, or racks and no link."""
        racks = sorted(set(self.nodes.values()))
        if not racks:
            raise BadTopology("no DataNode is known")
        if len(racks) > 1 and self.link is None:
            raise BadTopology(
                f"how much goes between {len(racks)} racks is not known: give the rates of links and wires, "
                "or measure them with `safekeeper peace calibrate`"
            )
        network = Network(
            (NetworkNode(name, rack, self.wire, self.wire) for name, rack in self.nodes.items()), self._links(racks)
        )
        for name, rack in self.senders.items():
            if rack in racks:
                network.add(NetworkNode(name, rack, self.wire, 0))
        return network

    def _links(self, racks: list[str]) -> Iterator[Link]:
        pairs = [(racks[0], racks[1])] if len(racks) == 2 else [(rack, _MIDDLE) for rack in racks]
        for a, b in pairs if len(racks) > 1 else []:
            assert self.link is not None
            yield Link(a, b, self.link)
            yield Link(b, a, self.link)
