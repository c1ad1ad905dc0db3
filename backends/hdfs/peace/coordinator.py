"""The coordinator of Peace: a TCP server that answers writers by the schedule. It keeps nothing on disk.

    with Coordinator(network, secret, port=7070) as coordinator:
        print(coordinator.port)

A writer whose connection ends gives back everything; one that is silent gives its grants back when their lease is
over. When the coordinator dies, its writers notice by the connection or after `patience_seconds` and let HDFS decide;
the next coordinator starts with an idle network. `docs/peace.md` has the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import resource
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from safekeeper import wire
from safekeeper.backends.hdfs.peace import protocol
from safekeeper.backends.hdfs.peace.network import Network
from safekeeper.backends.hdfs.peace.planner import Rules
from safekeeper.backends.hdfs.peace.protocol import Ask, Granted, PeaceKind, Role
from safekeeper.backends.hdfs.peace.schedule import DONE_FRACTION, ChunkRequest, Grant, Schedule
from safekeeper.backends.hdfs.peace.template import NoPlan
from safekeeper.errors import Unavailable
from safekeeper.wire import BadFrame, Body, Seal

log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""How long a chunk may take before its capacity is given to others; it may well be written after that."""

PATIENCE_SECONDS = 4.0
"""A writer that waits hears something at least four times in so long, and takes the coordinator for dead after it."""

HANDSHAKE_SECONDS = 5.0
MOST_STRANGERS = 256
"""How many connections may be open whose peer has not shown yet that it knows the secret; a quarter of the files that
the process may open, if that is less. One more takes the place of one of them."""
MOST_REQUESTS = 1024
"""How many requests of one connection may be open."""
_MOST_UNSENT_BYTES = 1 << 20  # a peer that reads nothing while so much is to be sent is hung up on
_BACKLOG = 1024
_PAUSE = 0.01


@dataclass(slots=True, eq=False)
class _Writer:
    """One connection whose peer has shown that it knows the secret."""

    stream: asyncio.StreamWriter
    seal: Seal
    requests: dict[int, int] = field(default_factory=dict)
    """The schedule's number of each request, by the writer's own."""

    def send(self, kind: PeaceKind, request: int, body: bytes) -> None:
        """Send a frame, some time; a peer that does not read is given up."""
        self.stream.write(self.seal.encode(kind, request, body))
        if self.stream.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            self.stream.transport.abort()


@dataclass(slots=True)
class _Open:
    """A request that is not served in full."""

    writer: _Writer
    number: int
    """The writer's number of it."""
    left: int
    """Chunks that are not granted."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A grant that is not done."""

    writer: _Writer
    ends: float
    """When its lease is over."""


@dataclass(frozen=True, slots=True)
class Status:
    """What the coordinator does at the moment."""

    writers: int
    timestep: int
    waiting: int
    """Chunks that are asked for and not granted."""
    running: int
    """Chunks that are granted and not done."""
    expired: int
    """Chunks so far that were not reported as done within their lease."""


class Coordinator:
    """Serves on *host* and *port* while it is entered, in a thread of its own; 0 is any free port.

    *network* must not be changed by others meanwhile; `use` gives a new one.
    """

    def __init__(
        self,
        network: Network,
        secret: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        lease_seconds: float = LEASE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        done_fraction: float = DONE_FRACTION,
        rules: Rules = "ours",
        generator: random.Random | None = None,
    ) -> None:
        self.host, self.port = host, port
        self._secret = wire.check_secret(secret)
        self._lease, self._patience = lease_seconds, patience_seconds
        self._schedule = Schedule(network, generator, done_fraction=done_fraction, rules=rules)
        self._open: dict[int, _Open] = {}
        """The requests of which chunks are not granted, by the schedule's number."""
        self._running: dict[int, _Running] = {}
        """The grants that are not done, by number; in the order of granting, which is that of their leases' ends."""
        self._expired = 0
        self._writers: set[_Writer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], str] = {}
        """Connections whose peer has not shown that it knows the secret, each with its address, the oldest first."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="peace", daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._failure: OSError | None = None

    @property
    def network(self) -> Network:
        """What is planned on; do not change it."""
        return self._schedule.network

    def status(self) -> Status:
        """The numbers now; from any thread, while the coordinator is entered."""
        return asyncio.run_coroutine_threadsafe(self._status(), self._loop).result()

    async def _status(self) -> Status:
        s = self._schedule
        return Status(len(self._writers), s.timestep, s.waiting, len(s.running), self._expired)

    def use(self, network: Network) -> None:
        """Plan for *network* from now on, from any thread: DataNodes have come or gone.

        What waits is planned on it; what runs gives up its capacity, so that for a moment more may run than fits.
        """
        self._loop.call_soon_threadsafe(self._use, network)

    def close(self) -> None:
        """Hang up on everybody. Writers that wait go on without us at once. Closing twice is not an error."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: somebody else was quicker
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            self._thread.join()
            raise Unavailable(f"cannot listen on {self.host}:{self.port}: {self._failure.strerror}") from self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the loop's thread; everything below runs in it -----------------------------------------------------------

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        try:  # it only binds: with asyncio's own accepting, crowds would come in before anybody is heard
            server = await self._loop.create_server(asyncio.Protocol, self.host, self.port, start_serving=False)
            listeners = [bound.dup() for bound in server.sockets]
            for listener in listeners:
                listener.setblocking(False)
                listener.listen(_BACKLOG)
        except OSError as error:
            self._failure = error
            self._ready.set()
            return
        self.port = listeners[0].getsockname()[1]
        self._ready.set()
        ours = [asyncio.create_task(self._beat()), *(asyncio.create_task(self._accept(one)) for one in listeners)]
        await self._stop.wait()
        server.close()
        for task in [*ours, *self._tasks]:
            task.cancel()
        await asyncio.gather(*ours, *self._tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        """Let everybody in, for a while: strangers make room for others, writers do not."""
        most = min(MOST_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        with listener:
            while True:
                try:
                    connection, (address, *_) = await self._loop.sock_accept(listener)
                except OSError:  # the process may open no more files
                    self._hang_up_on_a_stranger()
                    await asyncio.sleep(_PAUSE)
                    continue
                if len(self._strangers) >= most:
                    self._hang_up_on_a_stranger()
                task = asyncio.create_task(self._connected(connection))
                self._tasks.add(task)
                self._strangers[task] = address
                await asyncio.sleep(0)  # whoever has said something is heard before the next one comes in

    def _hang_up_on_a_stranger(self) -> None:
        """The oldest one from where most of them are: one that knows the secret shows it within a round trip."""
        if self._strangers:
            ((crowd, _),) = Counter(self._strangers.values()).most_common(1)
            oldest = next(task for task, address in self._strangers.items() if address == crowd)
            del self._strangers[oldest]
            oldest.cancel()

    async def _connected(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            reader, stream = await asyncio.open_connection(sock=connection)
        except (OSError, asyncio.CancelledError):
            connection.close()
            self._gone(task)
            return
        try:
            await self._converse(task, reader, stream)
        except (BadFrame, UnicodeEncodeError) as problem:
            log.warning("a connection from %s is closed: %s", stream.get_extra_info("peername"), problem)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except asyncio.CancelledError:
            pass  # the coordinator closes, or has no more room for strangers; nobody waits for this task's outcome
        finally:
            self._gone(task)
            stream.transport.abort()

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)

    async def _converse(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, stream: asyncio.StreamWriter
    ) -> None:
        handshake = protocol.handshake(self._secret)
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            stream.write(handshake.hello())
            stream.write(handshake.welcome(await reader.readexactly(wire.ANSWER_BYTES)))
        writer = _Writer(stream, handshake.seal(Role.COORDINATOR))
        seal = handshake.seal(Role.WRITER)
        self._strangers.pop(task, None)
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readexactly(wire.SEALED_HEADER.size)
                kind, request, length = protocol.decode_head(head)
                body, tag = await reader.readexactly(length), await reader.readexactly(wire.TAG_BYTES)
                seal.check(head, body, tag)
                self._answer(writer, kind, request, Body(body))
        finally:
            self._writers.discard(writer)
            self._forget(writer)

    async def _beat(self) -> None:
        """Tell those who wait that we are alive, and end the leases that are over."""
        while True:
            await asyncio.sleep(self._patience / 4)
            for request in list(self._open.values()):
                self._say_wait(request)
            self._expire(time.monotonic())

    # --- what writers say -----------------------------------------------------------------------------------------

    def _answer(self, writer: _Writer, kind: PeaceKind, request: int, body: Body) -> None:
        match kind:
            case PeaceKind.ASK:
                self._ask(writer, request, Ask.decode(body))
            case PeaceKind.STAND:
                self._stand(writer, request, Ask.decode(body))
            case PeaceKind.DONE:
                number = body.u32()
                body.end()
                running = self._running.get(number)
                if running is not None and running.writer is writer:
                    self._done(number)
                    self._start()
            case PeaceKind.WITHDRAW:
                body.end()
                if request in writer.requests:
                    self._withdraw(writer.requests.pop(request))
                    self._start()
            case _:
                raise BadFrame(f"a writer does not send {kind.name}")

    def _ask(self, writer: _Writer, request: int, ask: Ask) -> None:
        if request in writer.requests or len(writer.requests) >= MOST_REQUESTS or not ask.chunks:
            raise BadFrame(f"request {request} is one too many, is open already or asks for nothing")
        try:
            name = self._name(ask)
            number = self._schedule.ask(ChunkRequest(name, ask.replicas, ask.chunks, ask.checkpoint))
        except NoPlan as problem:
            writer.send(PeaceKind.REFUSE, request, protocol.text(str(problem)))
            return
        writer.requests[request] = number
        self._open[number] = _Open(writer, request, ask.chunks)
        self._start()
        if number in self._open:
            self._say_wait(self._open[number])

    def _stand(self, writer: _Writer, request: int, ask: Ask) -> None:
        try:
            nodes = self._schedule.stand(self._name(ask), ask.replicas).nodes
        except NoPlan as problem:
            writer.send(PeaceKind.REFUSE, request, protocol.text(str(problem)))
            return
        writer.send(PeaceKind.PLACE, request, Granted(0, 0, 0, nodes).encode())

    def _name(self, ask: Ask) -> str:
        """The server of the network that a writer is; one that is no DataNode joins as a sender in its rack."""
        nodes = self._schedule.network.nodes
        here = sorted(name for name in nodes if name.rpartition(":")[0] == ask.host)
        if here:
            return here[0]
        if ask.host not in nodes:
            racks = self._schedule.network.data_nodes
            self._schedule.add_sender(ask.host, ask.rack or (next(iter(racks)) if len(racks) == 1 else ""))
        return ask.host

    # --- the schedule ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Tell the writers what may start now."""
        try:
            grants = self._schedule.start()
        except NoPlan as problem:  # a network on which nothing fits: let HDFS decide for all of them
            for number in list(self._open):
                self._refuse(number, str(problem))
            return
        for grant in grants:
            self._grant(grant)

    def _grant(self, grant: Grant) -> None:
        request = self._open[grant.request]
        self._running[grant.number] = _Running(request.writer, time.monotonic() + self._lease)
        told = Granted(grant.number, grant.timestep & 0xFFFF_FFFF, round(self._lease * 1000), grant.pipeline.nodes)
        request.writer.send(PeaceKind.GRANT, request.number, told.encode())
        request.left -= 1
        if not request.left:
            del self._open[grant.request]

    def _done(self, number: int) -> None:
        self._schedule.done(number)
        del self._running[number]

    def _withdraw(self, number: int) -> None:
        self._schedule.withdraw(number)
        self._open.pop(number, None)

    def _forget(self, writer: _Writer) -> None:
        for number in writer.requests.values():
            self._withdraw(number)
        for number in [number for number, running in self._running.items() if running.writer is writer]:
            self._done(number)
        self._start()

    def _expire(self, now: float) -> None:
        over = list(itertools.takewhile(lambda number: self._running[number].ends <= now, self._running))
        for number in over:
            self._done(number)
        self._expired += len(over)
        if over:
            log.warning("%d chunks were not reported as done within %g s", len(over), self._lease)
            self._start()

    def _say_wait(self, request: _Open) -> None:
        request.writer.send(PeaceKind.WAIT, request.number, protocol.number(round(self._patience * 1000)))

    def _use(self, network: Network) -> None:
        for number in self._schedule.use(network):
            self._refuse(number, "the network has changed, and it does not fit any more")
        self._start()

    def _refuse(self, number: int, reason: str) -> None:
        request = self._open[number]
        request.writer.send(PeaceKind.REFUSE, request.number, protocol.text(reason))
        request.writer.requests.pop(request.number, None)
        self._withdraw(number)
