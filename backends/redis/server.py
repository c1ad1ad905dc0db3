"""One Redis server: connections to it, what it says about itself, and its clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from redis import exceptions as driver

from safekeeper.backend import Survives
from safekeeper.backends.redis.options import Address, Connect, Wire
from safekeeper.backends.redis.trouble import Misconfigured, explain_connecting
from safekeeper.errors import Unavailable

Command = Sequence[bytes | memoryview]

_ASKED = (b"appendfsync", b"no-appendfsync-on-rewrite")
_CLOCK_IS_GOOD_FOR = 30.0
_SENT_TOGETHER = 16 * 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about itself. What it does not say counts as what promises least."""

    run_id: str
    """Changes with every start of the server."""
    in_cluster: bool
    appends: bool
    """It keeps an append-only file."""
    appendfsync: str
    """When it syncs that file: always, everysec, no; empty if it did not say."""
    syncs_during_rewrite: bool
    """It does so also while it rewrites the file."""
    scans_keys: bool
    """It can go through the keys of a hash without sending the values (HSCAN NOVALUES)."""
    waits_for_aof: bool
    """It knows WAITAOF, and keeps an append-only file that one can wait for."""

    @classmethod
    def of(cls, info: Mapping[str, str], config: Mapping[str, str]) -> Facts:
        redis, valkey = _version(info, "redis_version"), _version(info, "valkey_version")
        appends = info.get("aof_enabled") == "1"
        return cls(
            run_id=info.get("run_id", ""),
            in_cluster=info.get("cluster_enabled") == "1",
            appends=appends,
            appendfsync=config.get("appendfsync", ""),
            syncs_during_rewrite=config.get("no-appendfsync-on-rewrite") == "no",
            scans_keys=valkey >= (8, 0) or redis >= (7, 4),
            waits_for_aof=appends and redis >= (7, 2),  # what Valkey gives as redis_version is 7.2
        )

    @property
    def survives(self) -> Survives:
        """What a write survives once the server has answered it.

        The file is written before the answer is sent, but with `everysec` not while an earlier sync is going on: then
        a killed server loses what it has answered.
        """
        if not self.appends or self.appendfsync not in ("always", "no"):
            return Survives.NOTHING
        if self.appendfsync == "always" and self.syncs_during_rewrite:
            return Survives.PROCESS | Survives.OS | Survives.POWER
        return Survives.PROCESS


class Link:
    """A connection that has been made, with what is known about the server at its other end."""

    def __init__(self, address: Address, connection: Wire) -> None:
        self.address = address
        self._connection = connection
        self._unanswered = 0
        self._clock_ahead = 0
        self._clock_read = 0.0
        try:
            connection.connect()
            self.facts = self._ask()
        except driver.RedisError as error:
            connection.disconnect()
            raise explain_connecting(address, error) from error
        except Unavailable:
            connection.disconnect()
            raise

    def _ask(self) -> Facts:
        self.read_clock()
        info, config = self.call([(b"INFO",), (b"CONFIG", b"GET", *_ASKED)])
        facts = _parse_info(info) if isinstance(info, bytes) else {}
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            raise Misconfigured(
                f"{self.address}: throws data away when its memory is full (maxmemory-policy {policy}): "
                "set it to noeviction"
            )
        return Facts.of(facts, _pairs(config) if isinstance(config, list) else {})

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to *commands*, sent together; an error that the server answered stands in its place.

        A driver's error means that the connection is gone and that any of the commands may still be carried out.
        """
        self._unanswered = len(commands)
        self._connection.send_packed_command(pack(commands))
        answers = []
        for _ in commands:
            try:
                answers.append(self._connection.read_response())
            except driver.ResponseError as error:
                answers.append(error)
            self._unanswered -= 1
        return answers

    def read_clock(self) -> None:
        """Ask the server what time it is."""
        (answer,) = self.call([(b"TIME",)])
        if isinstance(answer, Exception):
            raise answer
        self._clock_read = time.monotonic()
        self._clock_ahead = int(answer[0]) * 1_000_000 + int(answer[1]) - int(self._clock_read * 1_000_000)

    def server_time(self, moment: float) -> int:
        """What the server's clock shows, in microseconds, at the *moment* of our monotonic clock, or a little later.

        It was read on the server and came here afterwards, so the server is never behind what this says.
        """
        return int(moment * 1_000_000) + self._clock_ahead

    def is_good(self) -> bool:
        """Whether nothing is outstanding, and the server has not hung up meanwhile. Reads the clock if that is old."""
        try:
            if self._unanswered or self._connection.can_read(timeout=0):
                return False
            if time.monotonic() - self._clock_read > _CLOCK_IS_GOOD_FOR:
                self.read_clock()
        except driver.RedisError:
            return False
        return True

    @property
    def is_clean(self) -> bool:
        """Whether every command was answered."""
        return not self._unanswered

    def close(self) -> None:
        self._connection.disconnect()


class Node:
    """A server, and the idle connections to it."""

    def __init__(self, address: Address, connect: Connect, keep: int) -> None:
        self.address = address
        self._connect = connect
        self._keep = keep
        self._idle: deque[Link] = deque()
        self._open = True

    @contextmanager
    def link(self) -> Iterator[Link]:
        """A connection for this block alone. It is kept for the next one, unless something is left unanswered."""
        link = self._take()
        try:
            yield link
        finally:
            if link.is_clean and self._open and len(self._idle) < self._keep:
                self._idle.append(link)
            else:
                link.close()

    def _take(self) -> Link:
        with suppress(IndexError):
            while True:
                link = self._idle.pop()
                if link.is_good():
                    return link
                link.close()
        return Link(self.address, self._connect(self.address))

    def close(self) -> None:
        """Close the idle connections; those at work are closed when they have done it."""
        self._open = False
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


def pack(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """*commands* as they go over the wire, in pieces to send one after the other. Large arguments are not copied."""
    pieces: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            if len(argument) <= _SENT_TOGETHER:
                small.append(b"$%d\r\n%b\r\n" % (len(argument), bytes(argument)))
            else:
                small.append(b"$%d\r\n" % len(argument))
                pieces += [b"".join(small), argument]
                small = [b"\r\n"]
    pieces.append(b"".join(small))
    return pieces


def _parse_info(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def _version(info: Mapping[str, str], name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in info.get(name, "").split(".")[:2] if number.isdecimal())


def _pairs(flat: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in flat]
    return dict(zip(words[::2], words[1::2], strict=False))
