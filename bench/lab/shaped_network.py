"""A small data centre on one machine: network namespaces as servers, bridges as switches, links of a chosen rate.

    with ShapedNetwork({"/rack1": 4, "/rack2": 4}) as network:
        network.shape(wire_mbit=40, link_mbit=40)
        subprocess.run([*network.servers[0].prefix, "ip", "address"])

Everything has a name that begins with `sk` and the process id, and is removed on leaving, also by Ctrl-C or SIGTERM;
what a killed process left behind is removed by the next one. Needs root and the commands `ip` and `tc`.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Self

from safekeeper.errors import SafekeeperError

_CLONE_NEWNET = 0x40000000
_NAME = re.compile(r"\bsk(\d+)(?:n\d+|[brua]\d+)\b")


class NoNetwork(SafekeeperError):
    """The network could not be made. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class ShapedServer:
    """A network namespace that hangs on a switch."""

    namespace: str
    address: str
    rack: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What stands before a command to run it there."""
        return ("ip", "netns", "exec", self.namespace)

    def enter(self) -> None:
        """Move the calling thread there, and the threads that it starts; sockets that exist stay where they are."""
        with open(f"/var/run/netns/{self.namespace}", "rb") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise NoNetwork(f"cannot enter {self.namespace}: {os.strerror(ctypes.get_errno())}")


class ShapedNetwork:
    """Racks with so many servers each, joined in a row by links; the first switch has the host itself on it."""

    def __init__(self, racks: Mapping[str, int]) -> None:
        self._racks = racks
        self._stack = ExitStack()
        self._tag = f"sk{os.getpid()}"
        self._wires: list[tuple[str | None, str]] = []  # namespace and device: both ends of every server's wire
        self._links: list[str] = []
        self._prefix = ""  # the first two numbers of all addresses
        self.servers: list[ShapedServer] = []

    @property
    def host(self) -> str:
        """The address of the machine itself, for the NameNode and the coordinator: it is not shaped."""
        return f"{self._prefix}.0.1"

    def shape(self, wire_mbit: float, link_mbit: float) -> None:
        """Let servers' wires and the links between switches have these rates, in each direction.

        Start servers first: they are slow to start over slow links.
        """
        for namespace, device in self._wires:
            _shape(namespace, device, wire_mbit)
        for device in self._links:
            _shape(None, device, link_mbit)

    def cut(self, server: ShapedServer) -> None:
        """Pull a server's wire: nothing gets through any more, and nobody is told."""
        _ip("link", "set", self._switch_end(server), "down")

    def mend(self, server: ShapedServer) -> None:
        """Put its wire back."""
        _ip("link", "set", self._switch_end(server), "up")

    def _switch_end(self, server: ShapedServer) -> str:
        return self._wires[2 * self.servers.index(server)][1]

    def __enter__(self) -> Self:
        _remove_leftovers()
        self._prefix = _free_prefix()
        with ExitStack() as stack:
            stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _stop))
            for number, (rack, servers) in enumerate(self._racks.items(), start=1):
                self._add_switch(stack, number)
                for server in range(1, servers + 1):
                    self._add_server(stack, number, rack, server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _add_switch(self, stack: ExitStack, number: int) -> None:
        bridge = f"{self._tag}b{number}"
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip_if_there, "link", "del", bridge)
        if number == 1:
            _ip("address", "add", f"{self.host}/16", "dev", bridge)
        else:
            up, down = f"{self._tag}u{number}", f"{self._tag}r{number}"
            _ip("link", "add", up, "type", "veth", "peer", "name", down)
            stack.callback(_ip_if_there, "link", "del", up)
            for device, switch in ((up, f"{self._tag}b{number - 1}"), (down, bridge)):
                _ip("link", "set", device, "master", switch, "up")
            self._links += [up, down]
        _ip("link", "set", bridge, "up")

    def _add_server(self, stack: ExitStack, number: int, rack: str, server: int) -> None:
        count = len(self.servers) + 1
        namespace, device = f"{self._tag}n{count}", f"{self._tag}a{count}"
        address = f"{self._prefix}.{number}.{server}"
        _ip("netns", "add", namespace)
        stack.callback(_ip_if_there, "netns", "del", namespace)
        _ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        stack.callback(_ip_if_there, "link", "del", device)  # at once; with the namespace it would go some time later
        _ip("link", "set", device, "master", f"{self._tag}b{number}", "up")
        for words in (("link", "set", "lo", "up"), ("link", "set", "eth0", "up")):
            _ip("-n", namespace, *words)
        _ip("-n", namespace, "address", "add", f"{address}/16", "dev", "eth0")
        self._wires += [(None, device), (namespace, "eth0")]
        self.servers.append(ShapedServer(namespace, address, rack))


def _shape(namespace: str | None, device: str, mbit: float) -> None:
    inside = ["-n", namespace] if namespace else []
    words = ["qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{mbit:g}mbit"]
    _run(["tc", *inside, *words, "burst", "16kb", "latency", "50ms"])


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _ip_if_there(*words: str) -> None:
    with suppress(NoNetwork):
        _ip(*words)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NoNetwork(f"{command[0]} is not installed: apt-get install iproute2") from None
    if done.returncode:
        raise NoNetwork(f"{' '.join(command)}: {' '.join(done.stderr.split())} (this needs root)")
    return done.stdout


def _free_prefix() -> str:
    """A network of private addresses that this machine does not use, another one for each that is there at a time."""
    used = _run(["ip", "-4", "route", "show"])
    free = (f"10.{(os.getpid() + n) % 256}" for n in range(256))
    return next(prefix for prefix in free if f"{prefix}." not in used)


def _remove_leftovers() -> None:
    """Remove what processes that are no more have made; the servers in it died with them."""
    for kind, remove in (("netns", ("netns", "del")), ("link", ("link", "del"))):
        for name, process in _made(_run(["ip", kind, "list" if kind == "netns" else "show"])):
            if not os.path.exists(f"/proc/{process}"):
                _ip_if_there(*remove, name)


def _made(listing: str) -> set[tuple[str, str]]:
    return {(match[0], match[1]) for match in _NAME.finditer(listing)}


def _stop(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
