"""When the chunks of a checkpoint go: timesteps over `planner.py`. Pure: no clock, no socket.

    schedule = Schedule(network)
    number = schedule.ask(ChunkRequest("10.0.1.1:9866", replicas=3, chunks=8))
    for grant in schedule.start():     # these chunks may be written now, each where its pipeline says
        ...
    schedule.done(grant.number)        # and then look at start() again

A timestep is over when a fraction of its writes is done; what is not done keeps its capacity in the next one. What did
not fit is tried first in the next timestep; what comes meanwhile gets what is left of the current one. What a write
frees before its timestep is over is offered at once to those who are first in line: where writes take differently long,
the network would be half idle otherwise.

**Order.** First come, first served, but for checkpoints that have begun: one of which a chunk fitted where those before
it did not goes on before others begin, but not for ever before those who came earlier; and the wires of those who go on
are spared (`Residual.spared`). A writer's later request never overtakes an earlier one of its own, so that the chunks
of one checkpoint stay together. Among the writers, a request with the name of a checkpoint has the place of the first
one with that name, also when the last of them waited no longer ago than in the timestep before.

By the paper's rules, which are there to compare with, what is freed waits for the next timestep, and having begun
changes nothing.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from safekeeper.backends.hdfs.peace.network import Network
from safekeeper.backends.hdfs.peace.planner import ReplicaPipeline, Residual, Rules
from safekeeper.backends.hdfs.peace.template import NoPlan

DONE_FRACTION = 0.8
"""The part of a timestep's writes that must be done before the next one starts."""

_PATIENCE = 8  # timesteps after which one that waits is as good as begun: smaller ones could go before it for ever
_FIRST_IN_LINE = 32  # so many writers are asked when a write frees something; a new timestep asks all
_MOST_NUMBER = 0xFFFF_FFFF  # of grants, which begin anew then: on the wire a number has four bytes
_TRIES = 100  # on an idle network only an unlucky order of racks fails; it does not fail so often


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A writer wants to write chunks."""

    writer: str
    """A server of the network."""
    replicas: int
    chunks: int
    checkpoint: str = ""
    """Requests of one writer with the same name are kept together; "" is a checkpoint of its own."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One chunk may be written, now."""

    number: int
    request: int
    timestep: int
    pipeline: ReplicaPipeline


@dataclass(slots=True)
class _QueuePlace:
    """Where a checkpoint stands in the queue."""

    number: int
    since: int
    """The timestep in which something of it was first asked for."""
    last_used: int
    """The last timestep in which something of it was asked for or waited."""
    begun: bool = False
    """Whether a chunk of it was granted."""

    def rank(self, timestep: int) -> tuple[bool, int]:
        """The lowest goes first."""
        return not self.begun and timestep - self.since < _PATIENCE, self.number


@dataclass(slots=True)
class _Waiting:
    """A request of which chunks are left."""

    place: _QueuePlace
    number: int
    request: ChunkRequest
    chunks: int


class Schedule:
    """Requests in, grants out. Not for several threads at once."""

    def __init__(
        self,
        network: Network,
        generator: random.Random | None = None,
        *,
        done_fraction: float = DONE_FRACTION,
        unfinished: Literal["keep", "release"] = "keep",
        rules: Rules = "ours",
    ) -> None:
        self.timestep = 0
        self.running: dict[int, Grant] = {}
        """The grants that are not done, by number."""
        self._generator = generator or random.SystemRandom()
        self._done_fraction = done_fraction
        self._unfinished = unfinished
        self._rules: Rules = rules
        self._has_freed = False
        self._residual = Residual(network, self._generator, rules)
        self._standing = Residual(network, self._generator)
        self._queues: dict[str, deque[_Waiting]] = {}
        """Of each writer, in order."""
        self._full: set[str] = set()
        """The writers that nothing more fits for in this timestep."""
        self._places: dict[tuple[str, str], _QueuePlace] = {}
        self._granted = self._finished = 0  # in this timestep
        self._any_done = False  # of this timestep or an earlier one, since this one began
        self._requests = self._grants = 0  # the last numbers given

    @property
    def network(self) -> Network:
        """What the plan is made for."""
        return self._residual.network

    @property
    def waiting(self) -> int:
        """How many chunks are asked for and not granted yet."""
        return sum(one.chunks for queue in self._queues.values() for one in queue)

    def add_sender(self, name: str, rack: str) -> None:
        """Let a server that is no DataNode write; see `Residual.add_sender`."""
        self._residual.add_sender(name, rack)
        self._standing = Residual(self.network, self._generator)

    def use(self, network: Network) -> list[int]:
        """Plan on *network* from now on; known senders join it. The requests that it has no plan for: withdraw them.

        What runs does not take capacity of the new network.
        """
        senders = [node for node in self.network.nodes.values() if not node.receive]
        self._residual = Residual(network, self._generator, self._rules)
        for sender in senders:
            with suppress(NoPlan):
                self._residual.add_sender(sender.name, sender.rack)
        self._standing = Residual(network, self._generator)
        self.running = {
            n: replace(grant, pipeline=replace(grant.pipeline, edges=())) for n, grant in self.running.items()
        }
        self._full.clear()
        return [one.number for queue in self._queues.values() for one in queue if not self._can_plan(one.request)]

    def _can_plan(self, request: ChunkRequest) -> bool:
        try:
            self._residual.check(request.writer, request.replicas)
        except NoPlan:
            return False
        return True

    def ask(self, request: ChunkRequest) -> int:
        """Queue *request* and return its number. Raise `NoPlan` when it can never be served."""
        self._residual.check(request.writer, request.replicas)
        self._requests += 1
        waiting = _Waiting(self._place_of(request, self._requests), self._requests, request, request.chunks)
        self._queues.setdefault(request.writer, deque()).append(waiting)
        return waiting.number

    def start(self) -> list[Grant]:
        """The chunks that may start now and could not before; a new timestep begins if the last one is over."""
        if self._is_over():
            self._next_timestep()
        elif self._has_freed:
            self._ask_the_first()
        grants = self._fill()
        for _ in range(_TRIES):
            if grants or not self._queues or self.running:
                return grants
            self._next_timestep()
            grants = self._fill()
        raise NoPlan(f"{self.waiting} chunks wait, and none fits on an idle network: look at its links")

    def done(self, number: int) -> None:
        """A chunk is written, or will not be. That it was not granted or is done already is not an error."""
        grant = self.running.pop(number, None)
        if grant is None:
            return
        self._any_done = True
        if grant.timestep == self.timestep:
            self._finished += 1
        if self._rules == "ours" and (grant.timestep == self.timestep or self._unfinished == "keep"):
            self._residual.give_back(grant.pipeline.edges)
            self._has_freed = True

    def withdraw(self, request: int) -> None:
        """What is left of a request is not wanted any more. What was granted of it is not affected."""
        for writer, queue in list(self._queues.items()):
            kept = deque(one for one in queue if one.number != request)
            if kept:
                self._queues[writer] = kept
            else:
                del self._queues[writer]

    def stand(self, writer: str, replicas: int) -> ReplicaPipeline:
        """A pipeline for something that stays open and is written a little at a time: it takes no turn.

        Such pipelines are spread over the network as chunks are, but take nothing from them.
        """
        self._standing.check(writer, replicas)
        for _ in range(_TRIES):
            found = self._standing.place(writer, replicas)
            if found is not None:
                return found
            self._standing = Residual(self.network, self._generator)
        raise NoPlan(f"{replicas} replicas of {writer} do not fit on an idle network: look at its links")

    def _place_of(self, request: ChunkRequest, number: int) -> _QueuePlace:
        place = _QueuePlace(number, self.timestep, self.timestep)
        if request.checkpoint:
            place = self._places.setdefault((request.writer, request.checkpoint), place)
            place.last_used = self.timestep
        return place

    def _is_over(self) -> bool:
        """Whether enough of the timestep's writes are done; one that nothing fitted in waits for what was before it."""
        is_enough = self._finished >= math.ceil(self._granted * self._done_fraction)
        return is_enough and (self._granted > 0 or self._any_done)

    def _ask_the_first(self) -> None:
        """Let the writers that are first in line try again."""
        ranked = (self._ranked(writer) for writer in self._full if writer in self._queues)
        self._full.difference_update(writer for _, writer in heapq.nsmallest(_FIRST_IN_LINE, ranked))
        self._has_freed = False

    def _next_timestep(self) -> None:
        self.timestep += 1
        self._granted = self._finished = 0
        self._any_done = self._has_freed = False
        self._full.clear()
        self._residual = Residual(self.network, self._generator, self._rules)
        if self._unfinished == "keep":
            for grant in self.running.values():
                self._residual.take(grant.pipeline.edges)
        for queue in self._queues.values():
            for one in queue:
                one.place.last_used = self.timestep
        self._places = {name: place for name, place in self._places.items() if place.last_used >= self.timestep - 1}

    def _fill(self) -> list[Grant]:
        """Grant what fits, the earliest request first; a writer that something does not fit for is done with."""
        ranked = [self._ranked(writer) for writer in self._queues if writer not in self._full]
        heapq.heapify(ranked)
        if ranked and self._rules == "ours":
            self._residual.spared = self._next_to_send()
        grants: list[Grant] = []
        while ranked:
            _, writer = heapq.heappop(ranked)
            queue = self._queues[writer]
            if not self._grant_chunks(queue[0], grants):
                self._full.add(writer)
                continue
            queue.popleft()
            if queue:
                heapq.heappush(ranked, self._ranked(writer))
            else:
                del self._queues[writer]
        self._granted += len(grants)
        return grants

    def _next_to_send(self) -> frozenset[str]:
        """The writers that need their wires soon: those that have begun and wait, and one more for each rack."""
        count = sum(queue[0].place.begun for queue in self._queues.values()) + len(self.network.links)
        return frozenset(writer for _, writer in heapq.nsmallest(count, map(self._ranked, self._queues)))

    def _ranked(self, writer: str) -> tuple[tuple[bool, int], str]:
        """A writer whose requests wait, with the rank of the first of them: the lowest goes first."""
        return self._queues[writer][0].place.rank(self.timestep), writer

    def _grant_chunks(self, waiting: _Waiting, grants: list[Grant]) -> bool:
        """Grant as many chunks of one request as fit; whether that were all."""
        while waiting.chunks:
            pipeline = self._residual.place(waiting.request.writer, waiting.request.replicas)
            if pipeline is None:
                return False
            waiting.chunks -= 1
            waiting.place.begun = self._rules == "ours"
            self._grants = (self._grants + 1) & _MOST_NUMBER
            grant = Grant(self._grants, waiting.number, self.timestep, pipeline)
            self.running[grant.number] = grant
            grants.append(grant)
        return True
