"""Which server has which bucket, and requests that find their way there.

A server that stands alone has all of them. In a cluster the map comes from CLUSTER SLOTS; a node that no longer has a
bucket says so without doing anything (MOVED, ASK, TRYAGAIN, CLUSTERDOWN), and the request goes out again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from redis import exceptions as driver
from redis.crc import key_slot

from safekeeper.backend import Survives
from safekeeper.backends.redis.layout import BUCKETS, group_list
from safekeeper.backends.redis.options import Address, Connect, RedisOptions
from safekeeper.backends.redis.script import LATE, LOAD
from safekeeper.backends.redis.server import Command, Facts, Link, Node
from safekeeper.backends.redis.trouble import code_of, explain
from safekeeper.errors import Unavailable

_ELSEWHERE = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}
_NOT_DONE = {*_ELSEWHERE, "NOSCRIPT", LATE}
_ANSWERED = (driver.BusyLoadingError, driver.AuthenticationError)  # to the driver they are broken connections
_PAUSE = 0.05


class Interrupted(Exception):
    """A connection broke before all answers came: what was sent on it may or may not be carried out."""

    def __init__(self, explained: Unavailable) -> None:
        super().__init__(str(explained))
        self.explained = explained


@dataclass(frozen=True, slots=True)
class Request:
    """A command for the server that has *bucket*."""

    bucket: int
    command: Callable[[Link], Command]
    """Makes the command for the connection that it goes out on."""

    @classmethod
    def of(cls, bucket: int, *command: bytes | memoryview) -> Request:
        """A request whose command is the same on every connection."""
        return cls(bucket, lambda _: command)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A command that follows changes on their connection, and what it must answer before they count as made."""

    command: Command
    """WAIT or WAITAOF."""
    wanted: tuple[int, ...]
    """The count, or counts, that its answer must reach."""

    def check(self, address: Address, answer: Any) -> None:
        """Raise unless *answer* confirms that as many as wanted have it."""
        if isinstance(answer, Exception):
            raise explain(address, answer) from answer
        counts = tuple(answer) if isinstance(answer, list) else (answer,)
        if any(count < wanted for count, wanted in zip(counts, self.wanted, strict=True)):
            raise Unavailable(
                f"{address}: made the write, but not enough replicas or append-only files have it "
                f"({counts} instead of {self.wanted}): look at them"
            )


class Router:
    """The servers of a store."""

    def __init__(self, address: Address, connect: Connect, options: RedisOptions) -> None:
        self._connect = connect
        self._options = options
        self._lock = Lock()
        self._nodes: dict[Address, Node] = {}
        self._first = address
        first = self._node(address)
        self._node_of_bucket = [first] * BUCKETS
        self._slots = [key_slot(group_list(options.prefix, bucket)) for bucket in range(BUCKETS)]
        with first.link() as link:
            self._in_cluster = link.facts.in_cluster
        if self._in_cluster:
            self._read_map()

    def facts(self) -> list[Facts]:
        """What each server that has a bucket says about itself."""
        found = []
        for node in set(self._node_of_bucket):
            with node.link() as link:
                found.append(link.facts)
        return found

    def run(self, requests: Sequence[Request], confirmation: Confirmation | None = None) -> tuple[list[Any], Survives]:
        """The answers to *requests*, and what those who gave them let a write survive.

        Requests for one server go out on one connection, in order. What a server says it has not done is sent again, to
        whom it concerns, until the time is up. Raise `Interrupted` when a connection breaks, `Unavailable` when a
        server cannot be reached or refuses.
        """
        answers: list[Any] = [None] * len(requests)
        survives = ~Survives.NOTHING
        give_up = time.monotonic() + self._options.timeout
        waiting: dict[int, Address | None] = dict.fromkeys(range(len(requests)))
        while waiting:
            again: dict[int, Address | None] = {}
            map_is_old = False
            for node, indexes in self._by_node(requests, waiting).items():
                with node.link() as link:
                    asking = any(waiting[i] for i in indexes)
                    got = self._exchange(link, [requests[i] for i in indexes], asking, confirmation)
                    survives &= link.facts.survives
                for i, answer in zip(indexes, got, strict=True):
                    if not isinstance(answer, Exception):
                        answers[i] = answer
                    elif code_of(answer) not in _NOT_DONE or time.monotonic() > give_up:
                        raise explain(node.address, answer) from answer
                    else:
                        again[i] = _redirected(node.address, answer)
                        map_is_old |= code_of(answer) in _ELSEWHERE
            if map_is_old:
                time.sleep(_PAUSE)
                self._read_map()
            waiting = again
        return answers, survives

    def _exchange(
        self, link: Link, requests: Sequence[Request], asking: bool, confirmation: Confirmation | None
    ) -> list[Any]:
        commands: list[Command] = []
        for request in requests:
            if asking:
                commands.append((b"ASKING",))
            commands.append(request.command(link))
        if confirmation:
            commands.append(confirmation.command)
        try:
            got = link.call(commands)
            confirmed = got.pop() if confirmation else None
            answers = got[1::2] if asking else got
            problems = {code_of(answer) for answer in answers if isinstance(answer, Exception)}
            if "NOSCRIPT" in problems:
                link.call([LOAD])
            if LATE in problems:
                link.read_clock()
        except _ANSWERED as error:
            raise explain(link.address, error) from error
        except driver.RedisError as error:
            raise Interrupted(explain(link.address, error)) from error
        if confirmation and not problems:
            confirmation.check(link.address, confirmed)
        return answers

    def _by_node(self, requests: Sequence[Request], waiting: dict[int, Address | None]) -> dict[Node, list[int]]:
        """Which of the *waiting* requests go where: to whom the map says, or to whom the last one named."""
        found: dict[Node, list[int]] = {}
        for i, sent_to in waiting.items():
            node = self._node(sent_to) if sent_to else self._node_of_bucket[requests[i].bucket]
            found.setdefault(node, []).append(i)
        return found

    def _read_map(self) -> None:
        """Find out anew which node has which bucket; from any node that answers."""
        problem: Exception | None = None
        for node in list(self._nodes.values()):
            try:
                with node.link() as link:
                    (slots,) = link.call([(b"CLUSTER", b"SLOTS")])
            except (driver.RedisError, Unavailable) as error:
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
        for first, last, (host, port, *_), *_replicas in slots:
            ranges.append((first, last, self._node(Address(host.decode() if host else asked.host, port))))
        self._forget_all_but({node for _, _, node in ranges})
        for bucket, slot in enumerate(self._slots):
            for first, last, node in ranges:
                if first <= slot <= last:
                    self._node_of_bucket[bucket] = node

    def _forget_all_but(self, nodes: set[Node]) -> None:
        with self._lock:
            for address, node in list(self._nodes.items()):
                if node not in nodes and address != self._first:
                    self._nodes.pop(address).close()

    def _node(self, address: Address) -> Node:
        with self._lock:
            if address not in self._nodes:
                self._nodes[address] = Node(address, self._connect, self._options.connections)
            return self._nodes[address]

    def close(self) -> None:
        """Close every connection that is not at work; those at work are closed when they have done it."""
        for node in list(self._nodes.values()):
            node.close()


def _redirected(asked: Address, answer: Exception) -> Address | None:
    """The node that is to be asked just this once, while a slot is moving there."""
    if type(answer) is driver.AskError:
        host, port = answer.node_addr
        return Address(host or asked.host, port)
    return None
