"""`RedisBackend`: the contract on top of the layout, the script and the router."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Self

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Survives
from safekeeper.backends.redis.layout import BUCKETS, RedisGroup, RedisLargeValue, decode, group_list, locate
from safekeeper.backends.redis.options import Address, Connect, RedisOptions, parse
from safekeeper.backends.redis.routing import BucketRequest, Router
from safekeeper.backends.redis.server import Command, RedisConnection
from safekeeper.backends.redis.writing import RedisWriter
from safekeeper.backends.shared.checksums import check, damaged
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import BadUrl
from safekeeper.url import Url

_READ_TOGETHER = 500
_REQUESTS_TOGETHER = 1000
_BUCKETS_TOGETHER = 32
_SCAN_TOGETHER = b"1000"


class RedisBackend(Backend):
    """Checkpoints in Redis or Valkey: a hash per group, changed by transactions that cannot come late."""

    scope = Scope.NETWORK

    def __init__(self, address: Address, connect: Connect, options: RedisOptions) -> None:
        super().__init__()
        self._options = options
        self._router = Router(address, connect, options)
        self._writer = RedisWriter(self._router, options)
        facts = self._router.facts()
        if options.aof and not all(server.waits_for_aof for server in facts):
            raise Misconfigured(f"{address}: aof=yes needs Redis 7.2 or Valkey, with appendonly yes")

    @property
    def survives(self) -> Survives:
        """By what the servers said when they were last asked: on every connection, and by writes, every few seconds."""
        return self._declared(self._router.survives())

    @survives.setter
    def survives(self, declared: Survives) -> None:
        self.asserted |= declared & ~self.survives

    def _declared(self, by_servers: Survives) -> Survives:
        return by_servers | self._writer.confirmed | self.asserted

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `redis://`, `rediss://` or `redis+unix://`; see the module."""
        options = url.options(RedisOptions)
        address, connect = parse(url, options)
        try:
            return cls(address, connect, options)
        except Misconfigured as error:
            raise BadUrl(str(error)) from error

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        by_servers = self._writer.write(batch)
        return Receipt(self._declared(reduce(and_, by_servers)) if by_servers else self.survives)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        values: dict[CheckpointId, bytes | None] = {}
        heads: dict[CheckpointId, RedisLargeValue] = {}
        missing = list(dict.fromkeys(ids))
        while missing:
            before, heads = heads, {}
            for where, id, stored in self._stored(missing):
                value = None if stored is None else decode(where, id.key, stored)
                if not isinstance(value, RedisLargeValue):
                    values[id] = value
                elif before.get(id) == value:
                    raise damaged(where, id.key, "parts of the value are gone")
                else:
                    heads[id] = value
            values |= self._large(heads)
            missing = [id for id in heads if id not in values]  # replaced between two reads
        return [values[id] for id in ids]

    def _stored(self, ids: Sequence[CheckpointId]) -> Iterator[tuple[RedisGroup, CheckpointId, bytes | None]]:
        """What the hashes have under *ids*."""
        by_group: dict[str, list[CheckpointId]] = {}
        for id in ids:
            by_group.setdefault(id.group, []).append(id)
        asked = [
            (locate(self._options.prefix, name), some[start : start + _READ_TOGETHER])
            for name, some in by_group.items()
            for start in range(0, len(some), _READ_TOGETHER)
        ]
        for start in range(0, len(asked), _REQUESTS_TOGETHER):
            window = asked[start : start + _REQUESTS_TOGETHER]
            requests = [
                BucketRequest.of(where.bucket, b"HMGET", where.ids, *[id.key for id in some]) for where, some in window
            ]
            for (where, some), answer in zip(window, self._router.ask(requests), strict=True):
                for id, stored in zip(some, answer, strict=True):
                    yield where, id, stored

    def _large(self, heads: Mapping[CheckpointId, RedisLargeValue]) -> dict[CheckpointId, bytes]:
        """The values that *heads* stand for, without those whose chunks are not all there any more."""
        values = {}
        for id, head in heads.items():
            where = locate(self._options.prefix, id.group)
            chunks = self._router.ask([BucketRequest.of(where.bucket, b"GET", name) for name in head.names(where)])
            if None not in chunks:
                values[id] = check(where, id.key, head.checksum, b"".join(chunks))
        return values

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        scan = _KeyScan(locate(self._options.prefix, group))
        while not scan.done:
            (answer,) = self._router.ask([BucketRequest(scan.group.bucket, scan.command)])
            for key in scan.step(answer):
                yield key
                self.check_open()

    def groups(self) -> Iterator[str]:
        self.check_open()
        for start in range(0, BUCKETS, _BUCKETS_TOGETHER):
            buckets = range(start, start + _BUCKETS_TOGETHER)
            lists = [
                BucketRequest.of(bucket, b"SMEMBERS", group_list(self._options.prefix, bucket)) for bucket in buckets
            ]
            for name in itertools.chain.from_iterable(self._router.ask(lists)):
                yield name.decode()
                self.check_open()

    @property
    def last_progress(self) -> float:
        """When a server last made some of the changes of a write."""
        return self._writer.got_on

    def close(self) -> None:
        if self._open and self._owner == os.getpid():
            self._router.close()
        super().close()


@dataclass(slots=True)
class _KeyScan:
    """The way through the keys of a group. A cursor means something to the server that gave it only, so the scan starts
    again when another one answers."""

    group: RedisGroup
    done: bool = False
    _cursor: bytes = b"0"
    _server: str = ""

    def command(self, connection: RedisConnection) -> Command:
        if not connection.facts.scans_keys:
            self._cursor = b""
            return b"HKEYS", self.group.ids
        if connection.facts.run_id != self._server or not self._cursor:
            self._cursor, self._server = b"0", connection.facts.run_id
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
