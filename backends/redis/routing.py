"""Which server has which bucket, and questions that find their way there.

A server that stands alone has all of them. In a cluster the map comes from CLUSTER SLOTS; a node that no longer has a
bucket says so, and the question goes out again. A node that cannot be reached says nothing: then the map is read again
for the next question, in case a replica has taken its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from threading import Lock
from typing import Any

from redis import exceptions
from redis.crc import key_slot

from safekeeper.backend import Survives
from safekeeper.backends.redis.errors import code_of, explain
from safekeeper.backends.redis.layout import BUCKETS, group_list
from safekeeper.backends.redis.options import Address, Connect, RedisOptions
from safekeeper.backends.redis.server import Command, Facts, RedisConnection, RedisNode
from safekeeper.errors import Unavailable

ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"})
"""What a node answers to what it has not done because it does not have it, or not for now."""

_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class BucketRequest:
    """A question for the server that has *bucket*. It changes nothing, so it can be asked twice."""

    bucket: int
    command: Callable[[RedisConnection], Command]
    """Makes the command for the connection that it goes out on."""

    @classmethod
    def of(cls, bucket: int, *command: bytes) -> BucketRequest:
        """A request whose command is the same on every connection."""
        return cls(bucket, lambda _: command)


class Router:
    """The servers of a store, or of whatever else lies in few *slots*: then these are its buckets."""

    def __init__(
        self, address: Address, connect: Connect, options: RedisOptions, slots: Sequence[int] | None = None
    ) -> None:
        self._connect = connect
        self._options = options
        self._lock = Lock()
        self._nodes: dict[Address, RedisNode] = {}
        self._first = address
        first = self._node(address)
        self._slots = slots or [key_slot(group_list(options.prefix, bucket)) for bucket in range(BUCKETS)]
        self._node_of_bucket = [first] * len(self._slots)
        with first.connection() as connection:
            self.in_cluster = connection.facts.in_cluster
        if self.in_cluster:
            self._read_map()

    def facts(self) -> list[Facts]:
        """What each server that has a bucket says about itself. All of them must answer."""
        found = []
        for node in set(self._node_of_bucket):
            with node.connection() as connection:
                found.append(connection.facts)
        return found

    def survives(self) -> Survives:
        """What a write survives wherever it goes, by what the servers said last. Nobody is asked."""
        nodes = set(self._node_of_bucket)
        return reduce(and_, (node.facts.survives if node.facts else Survives.NOTHING for node in nodes))

    def node_of(self, bucket: int) -> RedisNode:
        """The server that has *bucket*, as far as is known."""
        return self._node_of_bucket[bucket]

    def ask(self, requests: Sequence[BucketRequest]) -> list[Any]:
        """The answers to *requests*. Those for one server go out together.

        What a server says it does not have is asked again where it is, until nothing was answered for too long; a
        connection that breaks is replaced once. Raise `Unavailable` when a server cannot be reached or refuses.
        """
        try:
            return self._ask(requests)
        except Unavailable:
            self.look_for_successors()
            raise

    def _ask(self, requests: Sequence[BucketRequest]) -> list[Any]:
        answers: list[Any] = [None] * len(requests)
        give_up = time.monotonic() + self._options.timeout
        waiting: dict[int, Address | None] = dict.fromkeys(range(len(requests)))
        breaks = 0
        while waiting:
            again: dict[int, Address | None] = {}
            moved = False
            for node, indexes in self._by_node(requests, waiting).items():
                try:
                    got = _exchange(node, [requests[i] for i in indexes], any(waiting[i] for i in indexes))
                except exceptions.RedisError as error:
                    breaks += 1
                    if breaks > 1 or isinstance(error, exceptions.TimeoutError):
                        raise explain(node.address, error) from error
                    again |= {i: waiting[i] for i in indexes}
                    continue
                for i, answer in zip(indexes, got, strict=True):
                    if not isinstance(answer, Exception):
                        answers[i] = answer
                        give_up = time.monotonic() + self._options.timeout
                    elif code_of(answer) not in ELSEWHERE or time.monotonic() > give_up:
                        raise explain(node.address, answer) from answer
                    else:
                        again[i] = _redirected(node.address, answer)
                        moved = True
            if moved:
                self.look_again()
            waiting = again
        return answers

    def _by_node(
        self, requests: Sequence[BucketRequest], waiting: dict[int, Address | None]
    ) -> dict[RedisNode, list[int]]:
        """Which of the *waiting* requests go where: to whom the map says, or to whom the last one named."""
        found: dict[RedisNode, list[int]] = {}
        for i, sent_to in waiting.items():
            node = self._node(sent_to) if sent_to else self._node_of_bucket[requests[i].bucket]
            found.setdefault(node, []).append(i)
        return found

    def look_again(self) -> None:
        """Find out anew, after a moment, who has what."""
        time.sleep(_PAUSE)
        self._read_map()

    def look_for_successors(self) -> None:
        """Find out anew who has what, after a node of a cluster could not be reached. Nobody has to answer."""
        if self.in_cluster:
            with suppress(Unavailable):
                self._read_map()

    def _read_map(self) -> None:
        """Find out anew which node has which bucket; from any node that answers."""
        problem: Exception | None = None
        with self._lock:
            nodes = sorted(self._nodes.values(), key=lambda node: not node.is_in_touch)
        for node in nodes:
            try:
                with node.connection() as connection:
                    (slots,) = connection.call([(b"CLUSTER", b"SLOTS")])
            except (exceptions.RedisError, Unavailable) as error:
                problem = error
                continue
            if isinstance(slots, Exception):
                problem = explain(node.address, slots)
                continue
            self._set_map(node.address, slots)
            return
        raise problem if isinstance(problem, Unavailable) else Unavailable(f"no node of the cluster answers: {problem}")

    def _set_map(self, asked: Address, slots: Sequence[Any]) -> None:
        ranges = []
        known: set[RedisNode] = set()
        for first, last, *servers in slots:
            nodes = [self._node(Address(host.decode() if host else asked.host, port)) for host, port, *_ in servers]
            ranges.append((first, last, nodes[0]))
            known.update(nodes)  # replicas too: they can tell who has taken the place of their master
        self._forget_all_but(known)
        for bucket, slot in enumerate(self._slots):
            for first, last, node in ranges:
                if first <= slot <= last:
                    self._node_of_bucket[bucket] = node

    def _forget_all_but(self, nodes: set[RedisNode]) -> None:
        with self._lock:
            for address, node in list(self._nodes.items()):
                if node not in nodes and address != self._first:
                    self._nodes.pop(address).close()

    def _node(self, address: Address) -> RedisNode:
        with self._lock:
            if address not in self._nodes:
                self._nodes[address] = RedisNode(address, self._connect, self._options.connections)
            return self._nodes[address]

    def close(self) -> None:
        """Close every connection that is not at work; those at work are closed when they have done it."""
        for node in list(self._nodes.values()):
            node.close()


def _exchange(node: RedisNode, requests: Sequence[BucketRequest], asking: bool) -> list[Any]:
    with node.connection() as connection:
        commands = [request.command(connection) for request in requests]
        if not asking:
            return connection.call(commands)
        return connection.call([each for command in commands for each in ((b"ASKING",), command)])[1::2]


def _redirected(asked: Address, answer: Exception) -> Address | None:
    """The node that is to be asked just this once, while a slot is moving there."""
    if code_of(answer) != "ASK":
        return None
    host, _, port = str(answer).split()[-1].rpartition(":")  # "ASK 3999 127.0.0.1:6381", with or without the code
    return Address(host or asked.host, int(port))
