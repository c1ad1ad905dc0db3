"""`RedisBackend`: the contract on top of the layout, the script and the router."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any, Self

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Survives
from safekeeper.backends.redis import script
from safekeeper.backends.redis.layout import (
    BUCKETS,
    LARGE_BYTES,
    Group,
    Head,
    check,
    damaged,
    decode,
    encode,
    group_list,
    locate,
    split,
)
from safekeeper.backends.redis.options import Address, Connect, RedisOptions, parse
from safekeeper.backends.redis.routing import Confirmation, Interrupted, Request, Router
from safekeeper.backends.redis.server import Command, Link
from safekeeper.backends.redis.trouble import Misconfigured
from safekeeper.errors import BadUrl
from safekeeper.registry import Url

_CHANGE_BYTES = 512 * 1024
"""How much one run of the script changes at most; the server does nothing else meanwhile."""

_WINDOW_BYTES = 8 * 1024 * 1024
"""How much is sent before the answers are read."""

_WINDOW_REQUESTS = 1000
_READ_TOGETHER = 500
_SCAN_TOGETHER = b"1000"
_BUCKETS_TOGETHER = 32
_SLOWEST_LINK = 1024 * 1024
_CLOCK_DRIFT = 0.02
_PART_EXPIRES = b"3600000"
"""Milliseconds after which a part goes whose head never came: its writer died in between."""


class RedisBackend(Backend):
    """Checkpoints in Redis or Valkey: a hash per group, changed by a script that the server refuses to run late."""

    scope = Scope.NETWORK

    def __init__(self, address: Address, connect: Connect, options: RedisOptions) -> None:
        super().__init__()
        self._options = options
        self._router = Router(address, connect, options)
        self._confirmation = _confirmation(options)
        facts = self._router.facts()
        if options.aof and not all(server.waits_for_aof for server in facts):
            raise Misconfigured(f"{address}: aof=yes needs Redis 7.2 or Valkey, with appendonly yes")
        self.survives = reduce(and_, (server.survives for server in facts)) | self._confirmed

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `redis://`, `rediss://` or `redis+unix://`; see the module."""
        options = url.options(RedisOptions)
        address, connect = parse(url, options)
        try:
            return cls(address, connect, options)
        except Misconfigured as error:
            raise BadUrl(str(error)) from error

    @property
    def _confirmed(self) -> Survives:
        """What a write survives because replicas have confirmed it.

        WAITAOF adds nothing of its own: with `everysec` a server confirms syncs that it has not made.
        """
        return Survives.HOST if self._options.replicas else Survives.NOTHING

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        survives = self.survives
        for window in _windows(_changes(self._options.prefix, batch)):
            survives &= self._send(window) | self._confirmed | self.asserted
        return Receipt(survives)

    def _send(self, window: Sequence[_Change]) -> Survives:
        """Make some changes. When this raises, what was not done is not going to be done any more."""
        allowed = self._options.timeout + sum(change.nbytes for change in window) / _SLOWEST_LINK
        deadline = time.monotonic() + allowed
        requests = [request for change in window for request in change.requests(deadline)]
        try:
            return self._router.run(requests, self._confirmation)[1]
        except Interrupted as error:
            time.sleep(max(0.0, deadline + _CLOCK_DRIFT - time.monotonic()))
            raise error.explained from error

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        values: dict[CheckpointId, bytes | None] = {}
        heads: dict[CheckpointId, Head] = {}
        missing = list(dict.fromkeys(ids))
        while missing:
            before, heads = heads, {}
            for id, stored in self._stored(missing):
                where = locate(self._options.prefix, id.group)
                value = None if stored is None else decode(where, id.key, stored)
                if not isinstance(value, Head):
                    values[id] = value
                elif before.get(id) == value:
                    raise damaged(where, id.key, "parts of the value are gone")
                else:
                    heads[id] = value
            values |= self._large(heads)
            missing = [id for id in heads if id not in values]  # replaced between two reads
        return [values[id] for id in ids]

    def _stored(self, ids: Sequence[CheckpointId]) -> Iterator[tuple[CheckpointId, bytes | None]]:
        """What the hashes have under *ids*."""
        by_group: dict[str, list[CheckpointId]] = {}
        for id in ids:
            by_group.setdefault(id.group, []).append(id)
        asked = [
            some[start : start + _READ_TOGETHER]
            for some in by_group.values()
            for start in range(0, len(some), _READ_TOGETHER)
        ]
        for start in range(0, len(asked), _WINDOW_REQUESTS):
            window = asked[start : start + _WINDOW_REQUESTS]
            requests = []
            for some in window:
                where = locate(self._options.prefix, some[0].group)
                requests.append(Request.of(where.bucket, b"HMGET", where.ids, *(id.key for id in some)))
            for some, answer in zip(window, self._ask(requests), strict=True):
                yield from zip(some, answer, strict=True)

    def _large(self, heads: Mapping[CheckpointId, Head]) -> dict[CheckpointId, bytes]:
        """The values that *heads* stand for, without those whose parts are not all there any more."""
        values = {}
        for id, head in heads.items():
            where = locate(self._options.prefix, id.group)
            parts = self._ask([Request.of(where.bucket, b"GET", name) for name in head.names(where)])
            if None not in parts:
                values[id] = check(where, id.key, head.checksum, b"".join(parts))
        return values

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        scan = _KeyScan(locate(self._options.prefix, group))
        while not scan.done:
            (answer,) = self._ask([Request(scan.group.bucket, scan.command)])
            for key in scan.step(answer):
                yield key
                self.check_open()

    def groups(self) -> Iterator[str]:
        self.check_open()
        for start in range(0, BUCKETS, _BUCKETS_TOGETHER):
            buckets = range(start, start + _BUCKETS_TOGETHER)
            lists = [Request.of(bucket, b"SMEMBERS", group_list(self._options.prefix, bucket)) for bucket in buckets]
            for name in itertools.chain.from_iterable(self._ask(lists)):
                yield name.decode()
                self.check_open()

    def _ask(self, requests: Sequence[Request]) -> list[Any]:
        """The answers to requests that change nothing; asked once more if the connection breaks."""
        try:
            return self._router.run(requests)[0]
        except Interrupted:
            self.check_open()
        try:
            return self._router.run(requests)[0]
        except Interrupted as error:
            raise error.explained from error

    def close(self) -> None:
        if self._open and self._owner == os.getpid():
            self._router.close()
        super().close()


@dataclass(slots=True)
class _Change:
    """What one run of the script does to a group."""

    group: Group
    puts: list[bytes] = field(default_factory=list)
    """Keys and encoded values in turn."""
    deletes: list[bytes] = field(default_factory=list)
    head: tuple[bytes, Head] | None = None
    parts: Sequence[memoryview] = ()
    nbytes: int = 0

    def requests(self, deadline: float) -> Iterator[Request]:
        if self.head:
            for name, part in zip(self.head[1].names(self.group), self.parts, strict=True):
                yield Request.of(self.group.bucket, b"SET", name, part, b"PX", _PART_EXPIRES)
        yield Request(self.group.bucket, lambda link: self._command(link.server_time(deadline)))

    def _command(self, deadline: int) -> Command:
        return script.change(self.group, deadline, self.puts, [self.head] if self.head else [], self.deletes)


def _changes(prefix: str, batch: Batch) -> Iterator[_Change]:
    """*batch* in pieces that the server can work on one at a time."""
    open_changes: dict[str, _Change] = {}
    for id, value in batch.items():
        where = locate(prefix, id.group)
        if value is not None and len(value) > LARGE_BYTES:
            head, parts = split(where, id.key, value)
            yield _Change(where, head=(id.key, head), parts=parts, nbytes=len(value))
            continue
        change = open_changes.get(id.group)
        if change is None:
            change = open_changes[id.group] = _Change(where)
        if value is None:
            change.deletes.append(id.key)
        else:
            change.puts += (id.key, encode(where, id.key, value))
            change.nbytes += len(value)
        change.nbytes += len(id.key)
        if change.nbytes > _CHANGE_BYTES:
            yield open_changes.pop(id.group)
    yield from open_changes.values()


def _windows(changes: Iterator[_Change]) -> Iterator[list[_Change]]:
    """*changes* in lists that are sent before their answers are read."""
    window: list[_Change] = []
    nbytes = 0
    for change in changes:
        window.append(change)
        nbytes += change.nbytes
        if nbytes > _WINDOW_BYTES or len(window) == _WINDOW_REQUESTS:
            yield window
            window, nbytes = [], 0
    if window:
        yield window


@dataclass(slots=True)
class _KeyScan:
    """The way through the keys of a group. A cursor means something to the server that gave it only, so the scan starts
    again when another one answers."""

    group: Group
    done: bool = False
    _cursor: bytes = b"0"
    _server: str = ""

    def command(self, link: Link) -> Command:
        if not link.facts.scans_keys:
            self._cursor = b""
            return b"HKEYS", self.group.ids
        if link.facts.run_id != self._server or not self._cursor:
            self._cursor, self._server = b"0", link.facts.run_id
        return b"HSCAN", self.group.ids, self._cursor, b"COUNT", _SCAN_TOGETHER, b"NOVALUES"

    def step(self, answer: Any) -> list[bytes]:
        """The keys in *answer*."""
        keys: list[bytes]
        if self._cursor:
            self._cursor, keys = answer
        else:
            self._cursor, keys = b"0", answer
        self.done = self._cursor == b"0"
        return keys


def _confirmation(options: RedisOptions) -> Confirmation | None:
    """What a write waits for, besides the answers of the server."""
    wait_for = b"%d" % (options.timeout * 800)  # milliseconds; the answer must come before we stop listening
    if options.aof:
        wanted = (1, options.replicas)
        return Confirmation((b"WAITAOF", b"1", b"%d" % options.replicas, wait_for), wanted)
    if options.replicas:
        return Confirmation((b"WAIT", b"%d" % options.replicas, wait_for), (options.replicas,))
    return None
