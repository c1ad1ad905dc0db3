"""One Redis server: connections to it, what it says about itself, and the leases that connections hold there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis import exceptions

from safekeeper.backend import Survives
from safekeeper.backends.redis.errors import code_of, explain_connecting
from safekeeper.backends.redis.options import Address, Connect, DriverConnection
from safekeeper.backends.shared.connection_pool import Idle
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import Unavailable

Command = Sequence[bytes | memoryview]

_ASKED = (b"appendfsync", b"no-appendfsync-on-rewrite")
_TURNED_OFF = ("run_id", "role", "master_replid", "cmdstat_config|set", "cmdstat_config|resetstat")
"""What of INFO changes whenever somebody may have turned the append-only file off: a restart, a setting, a copy from
another master."""
ASK_AGAIN_AFTER = 2.0
"""Seconds after which a write asks a server about itself again: its settings may have changed."""
_GRANT = b"#!lua flags=allow-oom\nreturn redis.call('SET', KEYS[1], '', 'PX', ARGV[1])"
_TRUSTED_FOR = 0.5
_UNTOUCHED_FOR = 30.0
_CLOCK_DRIFT = 0.05
_SENT_TOGETHER = 16 * 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about itself. What it does not say counts as what promises least."""

    asked: float
    """When; of our own monotonic clock."""
    run_id: str
    """Changes with every start of the server."""
    in_cluster: bool
    file_is_whole: bool
    """It has an append-only file from which a restart gets everything back. While the first one is being written, after
    it was turned on, what is answered goes to another file, which a restart does not look at."""
    turned: tuple[str, ...]
    """Stays as it is for as long as the append-only file cannot have been turned off."""
    survives: Survives
    """What a write survives once the server has answered it."""
    scans_keys: bool
    """It can go through the keys of a hash without sending the values (HSCAN NOVALUES)."""
    waits_for_aof: bool
    """It knows WAITAOF, and keeps an append-only file that one can wait for."""

    @classmethod
    def of(cls, asked: float, info: Mapping[str, str], config: Mapping[str, str], before: Facts | None) -> Facts:
        """What follows from the server's answers, and from what was known *before*."""
        redis, valkey = _version(info, "redis_version"), _version(info, "valkey_version")
        appends = info.get("aof_enabled") == "1" and info.get("aof_last_write_status") == "ok"
        turned = tuple(info.get(name, "") for name in _TURNED_OFF)
        # The server does not say whether a rewrite is the first one. It is not if the file was whole before it.
        was_whole = before is not None and before.file_is_whole and before.turned == turned
        file_is_whole = appends and (was_whole or not _may_be_rewriting(info))
        return cls(
            asked=asked,
            run_id=info.get("run_id", ""),
            in_cluster=info.get("cluster_enabled") == "1",
            file_is_whole=file_is_whole,
            turned=turned,
            survives=_survives(config) if file_is_whole else Survives.NOTHING,
            scans_keys=valkey >= (8, 0) or redis >= (7, 4),
            waits_for_aof=appends and redis >= (7, 2),  # what Valkey gives as redis_version is 7.2
        )


def _may_be_rewriting(info: Mapping[str, str]) -> bool:
    """Whether the append-only file is being rewritten, or is to be, or was to be and that failed."""
    busy = info.get("aof_rewrite_in_progress") != "0" or info.get("aof_rewrite_scheduled") != "0"
    return busy or info.get("aof_last_bgrewrite_status") != "ok"


def _survives(config: Mapping[str, str]) -> Survives:
    """What the append-only file makes of a write that was answered.

    The file is written before the answer is sent, but with `everysec` not while an earlier sync is going on: then a
    killed server loses what it has answered.
    """
    appendfsync = config.get("appendfsync")
    if appendfsync == "always" and config.get("no-appendfsync-on-rewrite") == "no":
        return Survives.PROCESS | Survives.OS | Survives.POWER
    return Survives.PROCESS if appendfsync in ("always", "no") else Survives.NOTHING


@dataclass(frozen=True, slots=True)
class WriteLease:
    """The right of a connection to change something. Both moments are of our own monotonic clock."""

    name: bytes
    bucket: int
    lasts_until: float
    """It is there until this moment at least."""
    gone_at: float
    """It is gone at this moment."""

    @staticmethod
    def commands(name: bytes, seconds: float) -> list[Command]:
        """The commands that get a lease for so long, and watch it. They work with full memory too."""
        return [(b"EVAL", _GRANT, b"1", name, b"%d" % (seconds * 1000)), (b"WATCH", name)]

    @classmethod
    def granted(cls, name: bytes, bucket: int, seconds: float, asked_at: float) -> WriteLease:
        """The lease that was asked for at a moment, now that the answer is here."""
        return cls(name, bucket, asked_at + seconds, time.monotonic() + seconds + _CLOCK_DRIFT)

    def renewed(self, seconds: float, asked_at: float) -> WriteLease:
        """The same one, granted again."""
        return WriteLease.granted(self.name, self.bucket, seconds, asked_at)


class RedisConnection:
    """A connection that has been made, with what is known about the server at its other end."""

    def __init__(self, address: Address, driver: DriverConnection, known: Facts | None) -> None:
        """*known* is what a server there said about itself before, on another connection."""
        self.address = address
        self.lease: WriteLease | None = None
        """Watched by the server, and good for one transaction."""
        self.demoted = False
        """The server has become a replica; under the same name there may be another one that has not."""
        self._driver = driver
        self._unanswered = 0
        self._touched = time.monotonic()
        try:
            driver.connect()
            self.facts = self._ask(known)
        except exceptions.RedisError as error:
            driver.disconnect()
            raise explain_connecting(address, error) from error
        except Unavailable:
            driver.disconnect()
            raise

    def ask_again(self, known: Facts | None) -> None:
        """Know what the server is like by now: from another connection to the same one, or by asking it."""
        if known is not None and known.run_id == self.facts.run_id and known.asked > self.facts.asked:
            self.facts = known
        if time.monotonic() - self.facts.asked > ASK_AGAIN_AFTER:
            self.facts = self._ask(known)

    def _ask(self, known: Facts | None) -> Facts:
        asked = time.monotonic()
        (info,) = self.call([(b"INFO", b"default", b"commandstats")])
        if isinstance(info, Exception) and code_of(info) != "NOPERM":
            raise info
        (config,) = self.call([(b"CONFIG", b"GET", *_ASKED)])
        facts = _parse_info(info) if isinstance(info, bytes) else {}
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            raise Misconfigured(
                f"{self.address}: throws data away when its memory is full (maxmemory-policy {policy}): "
                "set it to noeviction"
            )
        return Facts.of(asked, facts, _pairs(config) if isinstance(config, list) else {}, known)

    def call(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to *commands*, sent together; an error that the server answered stands in its place.

        A driver's error means that the connection is gone and that any of the commands may still be carried out.
        """
        self.send(commands)
        return self.receive()

    def send(self, commands: Sequence[Command]) -> None:
        """The first half of `call`."""
        self._unanswered = len(commands)
        self._touched = time.monotonic()
        self._driver.send_packed_command(pack(commands))

    def receive(self) -> list[Any]:
        """The second half of `call`."""
        answers: list[Any] = []
        while self._unanswered:
            try:
                answers.append(self._driver.read_response())
            except exceptions.ResponseError as error:
                answers.append(error)
                self.demoted |= isinstance(error, exceptions.ReadOnlyError)
            self._unanswered -= 1
        return answers

    @property
    def is_clean(self) -> bool:
        """Whether every command was answered."""
        return not self._unanswered

    def is_good(self) -> bool:
        """Whether the server has not hung up meanwhile. After a moment that is looked at, after long it is asked."""
        idle = time.monotonic() - self._touched
        if idle < _TRUSTED_FOR:
            return True
        try:
            if self._driver.can_read(timeout=0):
                return False
            if idle > _UNTOUCHED_FOR:
                self.call([(b"PING",)])
        except exceptions.RedisError:
            return False
        return True

    def close(self) -> None:
        self._driver.disconnect()


class RedisNode:
    """A server, and the idle connections to it."""

    def __init__(self, address: Address, connect: Connect, keep: int) -> None:
        self.address = address
        self.facts: Facts | None = None
        """What it said about itself when it was last asked, on any connection."""
        self._connect = connect
        self._idle: Idle[RedisConnection] = Idle(keep)

    @property
    def is_in_touch(self) -> bool:
        """Whether there are connections that worked when they were last used."""
        return bool(len(self._idle))

    @contextmanager
    def connection(self) -> Iterator[RedisConnection]:
        """A connection for this block alone."""
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def take(self) -> RedisConnection:
        """A connection for the caller alone, until it is given back."""
        connection = self._idle.take()
        if connection is None:
            connection = RedisConnection(self.address, self._connect(self.address), self.facts)
            self._learn(connection.facts)
        return connection

    def ask_again(self, connection: RedisConnection) -> None:
        """Let *connection*, which was taken here, know what the server is like by now."""
        connection.ask_again(self.facts)
        self._learn(connection.facts)

    def _learn(self, facts: Facts) -> None:
        if self.facts is None or facts.asked > self.facts.asked:
            self.facts = facts

    def give_back(self, connection: RedisConnection) -> None:
        """Keep *connection* for the next one, unless there are enough.

        If something is left unanswered, or the server has become a replica, none of the idle ones is kept either: what
        broke this one may have broken those, and a name or a proxy may lead elsewhere next time.
        """
        if connection.is_clean and not connection.demoted:
            self._idle.keep(connection)
        else:
            connection.close()
            self._idle.clear()

    def close(self) -> None:
        """Close the idle connections; those at work are closed when they have done it."""
        self._idle.close()


def pack(commands: Sequence[Command]) -> list[bytes | memoryview]:
    """*commands* as they are sent, in pieces that go one after the other. Large arguments are not copied."""
    pieces: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            if len(argument) <= _SENT_TOGETHER:
                small.append(b"$%d\r\n%b\r\n" % (len(argument), argument))  # type: ignore[str-format]  # views too
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
