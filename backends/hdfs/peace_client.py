"""`placement=peace`: a writer's side of Peace. Files go where and when the coordinator says, and anyhow if it is away.

A writer never waits for a coordinator that is not there: one that hangs up is noticed at once, a silent one when the
time is over within which it promised to say something. HDFS decides from then on, and the coordinator is tried again
with a later request.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from contextlib import closing, suppress
from types import TracebackType
from typing import Self

from safekeeper.agent.frames import BadFrame, Body
from safekeeper.backends.hdfs import peace_wire as wire
from safekeeper.backends.hdfs.peace_wire import Ask, Granted, Kind, Role
from safekeeper.backends.hdfs.placement import Counts, Tally, Turn

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long the coordinator may take to accept a connection, and to say the first thing about a request."""

WAIT_SECONDS = 60.0
"""How long a request waits for its first and each further turn at most, however alive the coordinator is."""

RETRY_SECONDS = 5.0
"""How long after a failure the coordinator is not asked again."""


class PeacePlacement:
    """Asks the coordinator at *address* for turns, as the writer on *host* in *rack*.

    *host* is the address that the NameNode sees; *rack* matters only where no DataNode has that address.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        *,
        host: str,
        rack: str = "",
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._address = address
        self._secret = wire.check_secret(secret)
        self._host, self._rack = host, rack
        self._wait_seconds = wait_seconds
        self._tally = Tally()
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._not_before = 0.0

    def chunks(self, count: int, replicas: int, checkpoint: str) -> PeaceTurns:
        return self._ask(Kind.ASK, Ask(self._host, self._rack, replicas, count, checkpoint))

    def segment(self, replicas: int) -> Turn:
        with self._ask(Kind.STAND, Ask(self._host, self._rack, replicas)) as turns:
            return Turn(self._tally, turns.take().favoured)

    def counts(self) -> Counts:
        return self._tally.counts()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.hang_up("the store was closed", logging.DEBUG)
            self._not_before = float("inf")

    def _ask(self, kind: Kind, ask: Ask) -> PeaceTurns:
        return PeaceTurns(self._connected(), kind, ask, self._tally, self._wait_seconds)

    def _connected(self) -> _Connection | None:
        """The connection, made now if there is none; None while the coordinator is away."""
        with self._lock:
            if self._connection is not None and self._connection.gone is None:
                return self._connection
            if time.monotonic() < self._not_before:
                return None
            try:
                self._connection = _Connection(self._address, self._secret)
            except (OSError, EOFError, BadFrame) as error:
                host, port = self._address
                reason = str(error) or "it hung up: it may have another secret"
                log.warning("no coordinator of Peace at %s:%d, HDFS decides: %s", host, port, reason)
                self._connection = None
                self._not_before = time.monotonic() + RETRY_SECONDS
            return self._connection


class PeaceTurns:
    """The turns of one request: `Turns`, and what the connection tells about it."""

    def __init__(self, connection: _Connection | None, kind: Kind, ask: Ask, tally: Tally, wait_seconds: float) -> None:
        self._connection = connection
        self._tally = tally
        self._wait_seconds = wait_seconds
        self._changed = threading.Condition()
        self._granted: deque[Granted] = deque()
        self._refused = connection is None
        self._patience = ANSWER_SECONDS
        self._silent_until = time.monotonic() + self._patience
        self._number = connection.begin(self, kind, ask.encode()) if connection is not None else 0

    def take(self) -> Turn:
        """Wait for the next turn. HDFS decides where the coordinator refuses, is gone, silent or does not get to it."""
        give_up = time.monotonic() + self._wait_seconds
        with self._changed:
            while not self._granted and not self._refused:
                left = min(give_up, self._silent_until) - time.monotonic()
                if left <= 0:
                    self._lose_patience(give_up)
                    break
                self._changed.wait(left)
            if self._granted and self._connection is not None:
                return PeaceTurn(self._tally, self._granted.popleft(), self._connection, self._number)
        return Turn(self._tally)

    def _lose_patience(self, give_up: float) -> None:
        self._refused = True
        self._changed.notify_all()
        if self._connection is not None and time.monotonic() < give_up:
            self._connection.hang_up("it was silent for longer than it promised")

    # What the connection's thread tells.

    def grant(self, granted: Granted) -> None:
        """A chunk may be written."""
        with self._changed:
            self._granted.append(granted)
            self._silent_until = time.monotonic() + self._patience
            self._changed.notify_all()

    def wait_on(self, seconds: float) -> None:
        """The coordinator is alive and will say something within *seconds*."""
        with self._changed:
            self._patience = seconds
            self._silent_until = time.monotonic() + seconds
            self._changed.notify_all()

    def refuse(self) -> None:
        """No more turns will come."""
        with self._changed:
            self._refused = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.end(self._number)


class PeaceTurn(Turn):
    """A turn that the coordinator wants to hear the end of."""

    def __init__(self, tally: Tally, granted: Granted, connection: _Connection, request: int) -> None:
        super().__init__(tally, granted.nodes)
        self._granted, self._connection, self._request = granted, connection, request

    def done(self) -> None:
        if self._granted.number:
            self._connection.send(Kind.DONE, self._request, wire.number(self._granted.number))


class _Connection:
    """A connection to the coordinator that has shown that it knows the secret. One thread reads, any may send."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        self.gone: str | None = None
        """Why the connection is of no use any more."""
        self._socket = socket.create_connection(address, ANSWER_SECONDS)
        try:
            handshake = wire.Handshake(secret)
            self._socket.sendall(handshake.answer(self._receive(wire.HELLO_BYTES)))
            handshake.check_welcome(self._receive(wire.PROOF_BYTES))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self._socket.close()
            raise
        self._sending, self._receiving = handshake.seal(Role.WRITER), handshake.seal(Role.COORDINATOR)
        self._lock = threading.Lock()
        self._requests: dict[int, PeaceTurns] = {}
        self._numbers = 0
        self._socket.settimeout(None)
        threading.Thread(target=self._read, name="peace", daemon=True).start()

    def begin(self, turns: PeaceTurns, kind: Kind, body: bytes) -> int:
        """Send a request; *turns* hears what is said about it. Its number."""
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._requests[number] = turns
        self.send(kind, number, body)
        if self.gone is not None:
            turns.refuse()
        return number

    def end(self, number: int) -> None:
        """Give back what is left of a request."""
        with self._lock:
            self._requests.pop(number, None)
        self.send(Kind.WITHDRAW, number)

    def send(self, kind: Kind, request: int, body: bytes = b"") -> None:
        """Send a frame. That the coordinator is gone is not an error."""
        with self._lock:
            if self.gone is not None:
                return
            try:
                self._socket.sendall(self._sending.encode(kind, request, body))
                return
            except OSError as error:
                reason = str(error)
        self.hang_up(reason)

    def hang_up(self, reason: str, level: int = logging.WARNING) -> None:
        """Use this connection no more; whoever waits for it waits no more."""
        with self._lock:
            if self.gone is None:
                self.gone = reason
                log.log(level, "the coordinator of Peace is gone, HDFS decides: %s", reason)
            waiting = list(self._requests.values())
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for turns in waiting:
            turns.refuse()

    def _read(self) -> None:
        reason = "it hung up"
        with closing(self._socket):
            try:
                while True:
                    self._hear()
            except (OSError, BadFrame) as error:
                reason = str(error)
            except EOFError:
                pass
            self.hang_up(reason)

    def _hear(self) -> None:
        head = self._receive(wire.HEAD.size)
        kind, request, length = wire.decode_head(head)
        body, tag = self._receive(length), self._receive(wire.TAG_BYTES)
        self._receiving.check(head, body, tag)
        with self._lock:
            turns = self._requests.get(request)
        if turns is None:
            return  # it has ended meanwhile, and what was granted is given back with it
        match kind:
            case Kind.GRANT | Kind.PLACE:
                turns.grant(Granted.decode(Body(body)))
            case Kind.WAIT:
                turns.wait_on(Body(body).u32() / 1000)
            case Kind.REFUSE:
                log.info("the coordinator of Peace has no plan, HDFS decides: %s", Body(body).text())
                turns.refuse()
            case _:
                raise BadFrame(f"a coordinator does not send {kind.name}")

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
