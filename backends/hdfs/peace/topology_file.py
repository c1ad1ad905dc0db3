"""The file in which an administrator writes down a network: its names, and what is wrong with one.

JSON. A name that is not known, or a value that makes no sense, is an error of one line that says where it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from safekeeper.backends.hdfs.peace.template import Place
from safekeeper.errors import SafekeeperError
from safekeeper.url import guess

UNITS = ("chunks", "Mbit/s")


class BadTopology(SafekeeperError):
    """The network is not known well enough to plan for it. The message says what to write or to measure."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """What is written of one server."""

    send: float | None = None
    receive: float | None = None
    disk: float | None = None


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """What is written of the link between two switches."""

    between: tuple[str, str]
    capacity: float
    back: float | None = None
    """In the other direction, where that differs."""


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """Everything that may be in the file."""

    version: int = 1
    unit: Literal["chunks", "Mbit/s"] = "chunks"
    """Of all capacities: chunks a timestep, or a rate, where `wire` says what two chunks a timestep are."""
    wire: float | None = None
    link: float | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)
    senders: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, ServerEntry] = field(default_factory=dict)
    links: Sequence[LinkEntry] = ()
    replicas: Sequence[str] = ()


def read_topology(path: Path) -> TopologyFile:
    """Read and check a file. Raise `BadTopology` when it is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadTopology(f"{path} cannot be read: {error}") from error
    try:
        return _checked(found)
    except _Wrong as wrong:
        raise BadTopology(f"{path}{wrong}") from None


class _Wrong(Exception):
    """What is wrong, to be said after the name of the file."""


def _checked(found: Any) -> TopologyFile:
    known = _names(TopologyFile)
    if not isinstance(found, dict):
        raise _Wrong(f" is no object of JSON with {', '.join(known)}")
    _check_names(found, known, "")
    unit = found.get("unit", "chunks")
    if found.get("version", 1) != 1:
        raise _Wrong(f": version is {found['version']!r}: this release reads 1")
    if unit not in UNITS:
        raise _Wrong(f": unit is {unit!r}: it is {' or '.join(UNITS)}")
    if unit != "chunks" and "wire" not in found:
        raise _Wrong(f": with the unit {unit}, wire is needed: the rate of a usual server's wire")
    if "link" in found and "links" in found:
        raise _Wrong(": give link, which is between all racks, or links, not both")
    number = _chunks if unit == "chunks" else _rate
    given: dict[str, Any] = {name: found[name] for name in ("version", "unit") if name in found}
    given |= {name: number(found[name], name) for name in ("wire", "link") if name in found}
    given |= {name: _racks(found[name], name) for name in ("nodes", "senders") if name in found}
    if "servers" in found:
        given["servers"] = _servers(found["servers"], number)
    if "links" in found:
        given["links"] = _links(found["links"], number)
    if "replicas" in found:
        given["replicas"] = _places(found["replicas"])
    return TopologyFile(**given)


def _names(cls: type) -> list[str]:
    return [f.name for f in fields(cls)]


def _check_names(found: Mapping[str, Any], known: list[str], where: str) -> None:
    for name in found:
        if name not in known:
            raise _Wrong(f"{where} has an unknown name {name!r}{guess(name, known)}; known: {', '.join(known)}")


def _chunks(value: Any, where: str) -> float:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _Wrong(f": {where} is {value!r}: it is a number of chunks, 1 or more")
    return value


def _rate(value: Any, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise _Wrong(f": {where} is {value!r}: it is a rate in Mbit/s, above 0")
    return value


def _racks(value: Any, name: str) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(rack, str) for rack in value.values()):
        raise _Wrong(f": {name} is an object of addresses, each with its rack")
    return value


def _servers(value: Any, number: Callable[[Any, str], float]) -> Mapping[str, ServerEntry]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise _Wrong(
            ': servers is an object of hosts, each with an object such as {"send": 4, "receive": 4, "disk": 2}'
        )
    for host, one in value.items():
        _check_names(one, _names(ServerEntry), f": server {host}")
    return {
        host: ServerEntry(**{name: number(given, f"{name} of server {host}") for name, given in one.items()})
        for host, one in value.items()
    }


def _links(value: Any, number: Callable[[Any, str], float]) -> Sequence[LinkEntry]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _Wrong(': links is a list of objects such as {"between": ["/rack1", "core"], "capacity": 5}')
    links = [_link(one, number) for one in value]
    tops: dict[str, str] = {}  # of each switch another one that it is joined with, at last one that stands for all
    for link in links:
        a, b = (_top(tops, switch) for switch in link.between)
        if a == b:
            raise _Wrong(f": the link between {' and '.join(link.between)} closes a ring: switches are a tree")
        tops[a] = b
    return links


def _top(tops: Mapping[str, str], switch: str) -> str:
    while switch in tops:
        switch = tops[switch]
    return switch


def _link(found: dict[str, Any], number: Callable[[Any, str], float]) -> LinkEntry:
    _check_names(found, _names(LinkEntry), ": a link")
    between = found.get("between")
    if not isinstance(between, list) or len(between) != 2 or not all(isinstance(one, str) for one in between):
        raise _Wrong(f": between is {between!r}: it is a list of two switches; a rack's has the name of the rack")
    where = f"the link between {' and '.join(between)}"
    if "capacity" not in found:
        raise _Wrong(f": {where} has no capacity")
    back = number(found["back"], f"back of {where}") if "back" in found else None
    return LinkEntry((between[0], between[1]), number(found["capacity"], f"capacity of {where}"), back)


def _places(value: Any) -> Sequence[str]:
    known = [str(place) for place in Place]
    if not isinstance(value, list) or not value:
        raise _Wrong(f": replicas is a list with a word for each: {', '.join(known)}")
    for number, one in enumerate(value, start=1):
        if one not in known:
            hint = guess(one, known) if isinstance(one, str) else ""
            raise _Wrong(f": replica {number} is {one!r}{hint}; known: {', '.join(known)}")
    return value
