"""`placement=peace`: a writer's side of Peace. Files go where and when the coordinator says, and anyhow if it is away.

A writer never waits for a coordinator that is not there: one that hangs up is noticed at once, a silent one when the
time is over within which it promised to say something. HDFS decides from then on, and the coordinator is tried again
with a later request.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from safekeeper import wire
from safekeeper.backend import PlacementCounts
from safekeeper.backends.hdfs.peace import protocol
from safekeeper.backends.hdfs.peace.gathering import Gatherer, TurnsShare
from safekeeper.backends.hdfs.peace.protocol import Ask, Granted, PeaceKind, Role
from safekeeper.backends.hdfs.placement import Tally, Turn, Turns
from safekeeper.wire import BadFrame, Body

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long the coordinator may take to accept a connection, and to say the first thing about a request."""

HANDSHAKES = 3
"""How often a connection is made anew that ends before it is of use: a crowd of strangers may have pushed it out."""

RETRY_SECONDS = 5.0
"""How long after a failure the coordinator is not asked again."""

KEPT_SECONDS = 5.0
"""For how long turns that were asked for ahead are kept for their checkpoint, if it does not begin to write."""

_Kind = tuple[PeaceKind, int, int]
"""Of requests that share what is granted to any of them: what was asked, replicas, and a number if they are apart."""


class PeacePlacement:
    """Asks the coordinator at *address* for turns, as the writer on *host* in *rack*.

    *host* is the address that the NameNode sees; *rack* matters only where no DataNode has that address. A chunk waits
    for its turn for as long as the coordinator answers, or for *wait_seconds*, and then HDFS decides.
    """

    def __init__(
        self,
        address: tuple[str, int],
        secret: str,
        *,
        host: str,
        rack: str = "",
        wait_seconds: float | None = None,
    ) -> None:
        self._address = address
        self._secret = wire.check_secret(secret)
        self._host, self._rack = host, rack
        self._wait_seconds = wait_seconds
        self._tally = Tally()
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._not_before = 0.0
        self._reserved: list[Reservation] = []
        self._gatherer = Gatherer(self._ask_for_chunks)

    def chunks(self, count: int, replicas: int, checkpoint: str) -> AbstractContextManager[Turns]:
        borrowed = self._borrow(count, replicas, checkpoint)
        if len(borrowed) == count:
            return nullcontext(BorrowedTurns(borrowed))
        asked = self._gatherer.join(count - len(borrowed), replicas, checkpoint)
        return BorrowedTurns(borrowed, asked) if borrowed else asked

    @contextmanager
    def ahead(self, count: int, replicas: int, checkpoint: str, *, wait: bool = True) -> Iterator[None]:
        if not wait and (count := count - self._has_reserved(replicas, checkpoint)) <= 0:
            yield
            return
        with self._ask_for_chunks(count, replicas, checkpoint, is_apart=wait) as turns:
            if wait:
                turns.wait()
            reservation = Reservation(turns, replicas, checkpoint, count, waited=wait)
            with self._lock:
                self._reserved.append(reservation)
            letting_go = threading.Timer(KEPT_SECONDS, turns.share)
            letting_go.daemon = True
            try:
                letting_go.start()
                yield
            finally:
                letting_go.cancel()
                with self._lock:
                    self._reserved.remove(reservation)

    def _has_reserved(self, replicas: int, checkpoint: str) -> int:
        """How many turns a checkpoint has waited for and not used."""
        with self._lock:
            return sum(one.left for one in self._reserved if one.waited and one.is_for(replicas, checkpoint))

    def _borrow(self, count: int, replicas: int, checkpoint: str) -> list[PeaceTurns]:
        """Whose turns may be used for *count* chunks, one for each; perhaps for fewer."""
        found: list[PeaceTurns] = []
        with self._lock:
            for one in self._reserved:
                if one.is_for(replicas, checkpoint):
                    some = min(one.left, count - len(found))
                    one.left -= some
                    found += [one.turns] * some
        for turns in set(found):
            turns.share()
        return found

    def segment(self, replicas: int) -> Turn:
        with self._ask(PeaceKind.STAND, Ask(self._host, self._rack, replicas)) as turns:
            return Turn(self._tally, turns.take().favoured)

    def counts(self) -> PlacementCounts:
        return self._tally.counts()

    def last_heard(self) -> float:
        connection = self._connection
        return 0.0 if connection is None else connection.heard

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.hang_up("the store was closed", logging.DEBUG)
            self._not_before = float("inf")

    def _ask_for_chunks(self, count: int, replicas: int, checkpoint: str, *, is_apart: bool = False) -> PeaceTurns:
        return self._ask(PeaceKind.ASK, Ask(self._host, self._rack, replicas, count, checkpoint), is_apart=is_apart)

    def _ask(self, kind: PeaceKind, ask: Ask, *, is_apart: bool = False) -> PeaceTurns:
        return PeaceTurns(self._connected(), kind, ask, self._tally, self._wait_seconds, is_apart=is_apart)

    def _connected(self) -> _Connection | None:
        """The connection, made now if there is none; None while the coordinator is away."""
        with self._lock:
            if self._connection is not None and self._connection.gone is None:
                return self._connection
            if time.monotonic() < self._not_before:
                return None
            try:
                self._connection = self._connect()
            except (OSError, EOFError, BadFrame) as error:
                host, port = self._address
                reason = str(error) or "it hung up: it may have another secret"
                log.warning("no coordinator of Peace at %s:%d, HDFS decides: %s", host, port, reason)
                self._connection = None
                self._not_before = time.monotonic() + RETRY_SECONDS
            return self._connection

    def _connect(self) -> _Connection:
        for _ in range(HANDSHAKES - 1):
            with suppress(EOFError, ConnectionResetError, BrokenPipeError):
                return _Connection(self._address, self._secret)
        return _Connection(self._address, self._secret)


class PeaceTurns:
    """The turns of one request: `Turns`.

    A turn may be used for any chunk with as many replicas, so all requests of a connection share what is granted: a
    thread that waits for one request's turn could otherwise keep the threads away that another's turns wait for.
    """

    def __init__(
        self,
        connection: _Connection | None,
        kind: PeaceKind,
        ask: Ask,
        tally: Tally,
        wait_seconds: float | None,
        *,
        is_apart: bool = False,
    ) -> None:
        """Where it *is apart*, others get nothing of what is granted to it, until `share`."""
        self.kind: _Kind = kind, ask.replicas, id(self) if is_apart else 0
        self.refused = connection is None
        """Whether no more turns will come."""
        self.ended = False
        self.untaken = ask.chunks
        """How many turns are still to be taken."""
        self.unwanted = 0
        """How many of these nobody wants any more."""
        self.ungranted = ask.chunks
        """How many the coordinator has still to grant, to whomever they go."""
        self.placed: tuple[str, ...] = ()
        """The answer to a STAND."""
        self._connection = connection
        self._tally = tally
        self._wait_seconds = wait_seconds
        self._number = connection.begin(self, kind, ask.encode()) if connection is not None else 0

    def take(self, share: TurnsShare | None = None) -> Turn:
        """Wait for the next turn. HDFS decides where the coordinator refuses, is gone, silent or does not get to it."""
        return self._await(take=True, share=share)

    def wait(self) -> None:
        """Wait until a turn may be taken, or none will come any more; it is not taken."""
        self._await(take=False)

    def share(self) -> None:
        """Let others have what is granted to this request, and it what is granted to others."""
        if self._connection is not None:
            self._connection.share(self)

    def leave(self, share: TurnsShare) -> None:
        """One of those who asked together wants nothing more."""
        connection = self._connection
        if connection is None:
            return
        with connection.changed:
            share.over = True
            self.unwanted += share.left
            share.left = 0
            is_over = self.untaken <= self.unwanted and not self.ended
            self.ended |= is_over
            connection.changed.notify_all()  # whoever still waits for one of its turns was interrupted
        if is_over:
            connection.end(self._number)

    def _await(self, *, take: bool, share: TurnsShare | None = None) -> Turn:
        connection = self._connection
        if connection is None:
            return Turn(self._tally)
        give_up = math.inf if self._wait_seconds is None else time.monotonic() + self._wait_seconds
        was_silent = False
        with connection.changed:
            while not self.refused and not self.placed and not self.ended and (share is None or not share.over):
                granted = connection.granted[self.kind]
                if granted and not take:
                    return Turn(self._tally)
                if granted:
                    self.untaken -= 1
                    if share is not None:
                        share.left -= 1
                    return PeaceTurn(self._tally, granted.popleft(), connection)
                left = min(give_up, connection.silent_until) - time.monotonic()
                if left > 0:
                    connection.changed.wait(left)
                else:
                    self.refused = True
                    was_silent = connection.silent_until <= time.monotonic()
        if was_silent:
            connection.hang_up("it was silent for longer than it promised")
        return Turn(self._tally, self.placed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.end(self._number)


@dataclass(slots=True, eq=False)
class Reservation:
    """Turns that were asked for ahead."""

    turns: PeaceTurns
    replicas: int
    checkpoint: str
    left: int
    """How many are still to be used."""
    waited: bool
    """Whether somebody has waited for the first of them."""

    def is_for(self, replicas: int, checkpoint: str) -> bool:
        """Whether chunks of *checkpoint* with as many replicas may use it."""
        return (self.replicas, self.checkpoint) == (replicas, checkpoint)


class BorrowedTurns:
    """Turns that were asked for ahead, and then those of a request for the rest: `Turns`."""

    def __init__(self, ahead: list[PeaceTurns], rest: TurnsShare | None = None) -> None:
        self._ahead, self._rest = ahead, rest
        self._lock = threading.Lock()

    def take(self) -> Turn:
        """Wait for the next turn."""
        with self._lock:
            turns = self._ahead.pop() if self._ahead else self._rest
        assert turns is not None, "no more turns are taken than were asked for"
        return turns.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._rest is not None:
            self._rest.__exit__(kind, error, traceback)


class PeaceTurn(Turn):
    """A turn that the coordinator wants to hear the end of."""

    def __init__(self, tally: Tally, granted: Granted, connection: _Connection) -> None:
        super().__init__(tally, granted.nodes)
        self._granted: Granted | None = granted
        self._connection = connection

    def done(self) -> None:
        granted, self._granted = self._granted, None
        if granted is not None:
            self._connection.give_back(granted)


class _Connection:
    """A connection to the coordinator that has shown that it knows the secret. One thread reads, any may send."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        self.gone: str | None = None
        """Why the connection is of no use any more."""
        self._socket = socket.create_connection(address, ANSWER_SECONDS)
        try:
            handshake = protocol.handshake(secret)
            self._socket.sendall(handshake.answer(self._receive(wire.HELLO_BYTES)))
            handshake.check_welcome(self._receive(wire.PROOF_BYTES))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self._socket.close()
            raise
        self._sending, self._receiving = handshake.seal(Role.WRITER), handshake.seal(Role.COORDINATOR)
        self.changed = threading.Condition()
        """Held to look at what follows and at the turns, notified when they change."""
        self.granted: defaultdict[_Kind, deque[Granted]] = defaultdict(deque)
        """What may be written and nobody has taken yet, by the kind of request."""
        self.heard = 0.0
        """When the coordinator last said anything."""
        self.silent_until = 0.0
        """Until when the coordinator may say nothing while something is asked of it."""
        self._patience = ANSWER_SECONDS
        self._sender = threading.Lock()
        self._requests: dict[int, PeaceTurns] = {}
        self._numbers = 0
        self._socket.settimeout(None)
        threading.Thread(target=self._read, name="peace", daemon=True).start()

    def begin(self, turns: PeaceTurns, kind: PeaceKind, body: bytes) -> int:
        """Send a request; *turns* hears what is said about it. Its number."""
        with self.changed:
            self._numbers += 1
            number = self._numbers
            self._requests[number] = turns
            turns.refused = self.gone is not None
            self.silent_until = time.monotonic() + max(self._patience, ANSWER_SECONDS)
        self.send(kind, number, body)
        return number

    def end(self, number: int) -> None:
        """Nothing more is wanted for a request, nor of it, unless it has used turns that others wait for instead."""
        with self.changed:
            turns = self._requests.get(number)
            if turns is None:  # another one that ended meanwhile has ended all that were left
                return
            turns.ended = True
            self.changed.notify_all()  # whoever still waits for one of its turns was interrupted
            alike = {n: other for n, other in self._requests.items() if other.kind == turns.kind}
            if all(other.ended for other in alike.values()):
                over, unused = list(alike), list(self.granted.pop(turns.kind, ()))
            else:
                over, unused = [] if turns.ungranted > turns.untaken else [number], []
            for one in over:
                del self._requests[one]
        for one in over:
            self.send(PeaceKind.WITHDRAW, one)
        for granted in unused:
            self.give_back(granted)

    def share(self, turns: PeaceTurns) -> None:
        """Put what is granted to *turns* alone to what all requests share; that it is there is not an error."""
        with self.changed:
            what, replicas, apart = turns.kind
            if apart and not turns.ended:
                turns.kind = what, replicas, 0
                self.granted[turns.kind].extend(self.granted.pop((what, replicas, apart), ()))
                self.changed.notify_all()

    def give_back(self, granted: Granted) -> None:
        """What was granted is written, or will not be."""
        self.send(PeaceKind.DONE, 0, protocol.number(granted.number))

    def send(self, kind: PeaceKind, request: int, body: bytes = b"") -> None:
        """Send a frame. That the coordinator is gone is not an error."""
        try:
            with self._sender:
                if self.gone is None:
                    self._socket.sendall(self._sending.encode(kind, request, body))
        except OSError as error:
            self.hang_up(str(error))

    def hang_up(self, reason: str, level: int = logging.WARNING) -> None:
        """Use this connection no more; whoever waits for it waits no more."""
        with self.changed:
            if self.gone is None:
                self.gone = reason
                log.log(level, "the coordinator of Peace is gone, HDFS decides: %s", reason)
            for turns in self._requests.values():
                turns.refused = True
            self.changed.notify_all()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

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
        head = self._receive(wire.SEALED_HEADER.size)
        kind, request, length = protocol.decode_head(head)
        body, tag = self._receive(length), self._receive(wire.TAG_BYTES)
        self._receiving.check(head, body, tag)
        with self.changed:
            unused = self._told(kind, self._requests.get(request), Body(body))
            self.changed.notify_all()
        if unused is not None:
            self.give_back(unused)

    def _told(self, kind: PeaceKind, turns: PeaceTurns | None, body: Body) -> Granted | None:
        """Take in what the coordinator says of a request; what is granted to one that is over, to be given back."""
        if kind is PeaceKind.WAIT:
            self._patience = body.u32() / 1000
        self.heard = time.monotonic()
        self.silent_until = self.heard + self._patience
        match kind:
            case PeaceKind.GRANT:
                granted = Granted.decode(body)
                if turns is None:
                    return granted
                turns.ungranted -= 1
                self.granted[turns.kind].append(granted)
            case PeaceKind.PLACE if turns is not None:
                turns.placed = Granted.decode(body).nodes
            case PeaceKind.REFUSE if turns is not None:
                log.info("the coordinator of Peace has no plan, HDFS decides: %s", body.text())
                turns.refused = True
            case PeaceKind.PLACE | PeaceKind.REFUSE | PeaceKind.WAIT:
                pass
            case _:
                raise BadFrame(f"a coordinator does not send {kind.name}")
        return None

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data
