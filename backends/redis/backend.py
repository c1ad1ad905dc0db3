"""`RedisBackend`: the contract on top of the layout, the script and the router."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Self

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Survives, check_creation
from safekeeper.backends.redis.layout import BUCKETS, RedisGroup, RedisLargeValue, decode, group_list, locate
from safekeeper.backends.redis.options import Address, Connect, RedisOptions, parse
from safekeeper.backends.redis.routing import BucketRequest, Router
from safekeeper.backends.redis.server import Command, RedisConnection
from safekeeper.backends.redis.transaction import CHANGE_BYTES
from safekeeper.backends.redis.writing import RedisWriter
from safekeeper.backends.shared.checksums import check, damaged
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import BadUrl
from safekeeper.url import Url

_READ_TOGETHER = 500
_REQUESTS_TOGETHER = 1000
_BUCKETS_TOGETHER = 32
_SCAN_TOGETHER = 1000
_PAGE_BYTES = 4 * 1024 * 1024
_FIRST_PAGE = 100
_CHUNKS_TOGETHER = 32


class RedisBackend(Backend):
    """Checkpoints in Redis or Valkey: a hash per group, changed by transactions that cannot come late."""

    scope = Scope.NETWORK
    url_options = (RedisOptions,)

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

    def why_not_atomic(self, batch: Batch) -> str | None:
        """The small values of one group are one change of one hash, and read by one command."""
        if len({id.group for id, _ in batch.items()}) > 1:
            return "redis: keeps the ids of one group together: put them into one group"
        if len(batch) > _READ_TOGETHER or batch.nbytes > CHANGE_BYTES:
            return f"redis: keeps at most {_READ_TOGETHER} ids with {CHANGE_BYTES} bytes together: save fewer"
        return None

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """A script looks and stores in one step, under the lease that a write would have."""
        self.check_open()
        check_creation(id, value, token)
        return self._writer.create(id, value, token)

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
            found = self._large(heads)
            values |= found
            heads = {id: head for id, head in heads.items() if id not in found}  # replaced between two reads
            groups = {id.group for id in heads}
            missing = [id for id in dict.fromkeys(ids) if id.group in groups]  # what was replaced with it, too
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
        return {id: value for some in _some(heads) for id, value in self._join(some)}

    def _join(self, heads: Mapping[CheckpointId, RedisLargeValue]) -> Iterator[tuple[CheckpointId, bytes]]:
        """The same for few, whose chunks are asked for together."""
        groups = {id: locate(self._options.prefix, id.group) for id in heads}
        chunks = iter(
            self._router.ask(
                [
                    BucketRequest.of(groups[id].bucket, b"GET", name)
                    for id, head in heads.items()
                    for name in head.names(groups[id])
                ]
            )
        )
        for id, head in heads.items():
            mine = list(itertools.islice(chunks, head.chunks))
            if None not in mine:
                yield id, check(groups[id], id.key, head.checksum, b"".join(mine), head.token)

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        scan = _KeyScan(locate(self._options.prefix, group))
        while not scan.done:
            (answer,) = self._router.ask([BucketRequest(scan.group.bucket, scan.command)])
            for key in scan.step(answer):
                yield key
                self.check_open()

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """The hash as the server goes through it; large values follow the page that has their heads."""
        self.check_open()
        scan = _ValueScan(locate(self._options.prefix, group))
        while not scan.done:
            (answer,) = self._router.ask([BucketRequest(scan.group.bucket, scan.command)])
            page: list[tuple[bytes, bytes]] = []
            heads: dict[CheckpointId, RedisLargeValue] = {}
            for key, value in scan.step(answer):
                if isinstance(value, RedisLargeValue):
                    heads[CheckpointId(group, key)] = value
                else:
                    page.append((key, value))
            if page:
                yield page
                self.check_open()
            for some in _some(heads):
                yield self._large_page(some)
                self.check_open()

    def _large_page(self, heads: Mapping[CheckpointId, RedisLargeValue]) -> list[tuple[bytes, bytes]]:
        found = dict(self._join(heads))
        replaced = [id for id in heads if id not in found]
        for id in replaced:  # or deleted; one at a time, since nobody knows how large they are now
            (value,) = self.read([id])
            if value is not None:
                found[id] = value
        return [(id.key, value) for id, value in found.items()]

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


def _some(heads: Mapping[CheckpointId, RedisLargeValue]) -> Iterator[dict[CheckpointId, RedisLargeValue]]:
    """*heads*, as many at a time as can be asked for together: a few, or one with many chunks."""
    some: dict[CheckpointId, RedisLargeValue] = {}
    chunks = 0
    for id, head in heads.items():
        if some and chunks + head.chunks > _CHUNKS_TOGETHER:
            yield some
            some, chunks = {}, 0
        some[id] = head
        chunks += head.chunks
    if some:
        yield some


@dataclass(slots=True)
class _Cursor:
    """The way through the hash of a group. A cursor means something to the server that gave it only, so the scan starts
    again when another one answers."""

    group: RedisGroup
    done: bool = False
    _cursor: bytes = b"0"
    _server: str = ""

    def at(self, connection: RedisConnection) -> bytes:
        """Where to go on, on the server of *connection*."""
        if connection.facts.run_id != self._server:
            self._cursor, self._server = b"0", connection.facts.run_id
        return self._cursor

    def move_to(self, cursor: bytes) -> None:
        """What the server said where to go on; it says 0 at the end."""
        self._cursor = cursor
        self.done = cursor == b"0"


class _KeyScan(_Cursor):
    """The way through the keys alone."""

    def command(self, connection: RedisConnection) -> Command:
        if not connection.facts.scans_keys:
            return b"HKEYS", self.group.ids
        return b"HSCAN", self.group.ids, self.at(connection), b"COUNT", b"%d" % _SCAN_TOGETHER, b"NOVALUES"

    def step(self, answer: Any) -> list[bytes]:
        """The keys in *answer*."""
        keys: list[bytes]
        if len(answer) == 2 and isinstance(answer[1], list):
            cursor, keys = answer
        else:
            cursor, keys = b"0", answer  # all of them at once
        self.move_to(cursor)
        return keys


class _ValueScan(_Cursor):
    """The way through keys and values.

    How many are asked for goes by how large they were so far. A hash has no order, so those to come are like those.
    """

    _seen = _bytes = 0

    def command(self, connection: RedisConnection) -> Command:
        count = _FIRST_PAGE if not self._seen else min(_SCAN_TOGETHER, _PAGE_BYTES * self._seen // self._bytes + 1)
        return b"HSCAN", self.group.ids, self.at(connection), b"COUNT", b"%d" % count

    def step(self, answer: Any) -> Iterator[tuple[bytes, bytes | RedisLargeValue]]:
        """The keys in *answer* with their values, or their heads."""
        cursor, found = answer
        self.move_to(cursor)
        self._seen += len(found) // 2
        self._bytes += sum(map(len, found)) + 1
        pairs = iter(found)
        return ((key, decode(self.group, key, stored)) for key, stored in zip(pairs, pairs, strict=True))
