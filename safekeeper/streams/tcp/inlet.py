"""The reading side: it connects, goes on after its position when it has to connect again, and reads a little ahead."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from safekeeper.errors import Closed, Gone, SafekeeperError, Unavailable
from safekeeper.keeper.backoff import Backoff
from safekeeper.streams.carrier import Position, StreamElement
from safekeeper.streams.retained import number_of
from safekeeper.streams.tcp.address import StreamAddress
from safekeeper.streams.tcp.link import StreamLink, stream_loop
from safekeeper.streams.tcp.protocol import OpenStream, StreamKind, Welcome, decode_data, one_number
from safekeeper.wire import BadFrame, Body, u64

_BACKOFF = Backoff(first=0.005, factor=1.2, most=0.02)  # somebody is about to take over
_LATER = Backoff(first=0.02, factor=1.2, most=0.25)
_SOON_THERE = 100  # attempts
_BEATS = 3  # so many beats of silence: the producer is gone, or stopped, or the way to it is cut
_SOON = 2.0  # seconds, within which a producer that is there answers
_HUNG_UP = 3  # times in a row, before it was known who we are: one may have been killed, not so many
_LOOK = 0.002  # seconds
_IMPATIENT = 0.1  # seconds, at first
_GRACE = 0.02  # seconds, within which the second of two producers may say that it has the higher claim


class _Hung(Exception):
    """The other side answered, and hung up before it was known."""


class TcpInlet:
    """The reading side of one stream. A coroutine in the loop keeps the connection; any thread reads."""

    def __init__(self, address: StreamAddress, reader: str | None, after: int | None) -> None:
        self._address = address
        self._context = address.client_context()
        self._reader = reader
        self._changed = threading.Condition()
        self._buffer: deque[list[StreamElement]] = deque()
        self._after = after
        """The last element that came; None: the producer knows what was acknowledged."""
        self._last = 0
        self._epoch = 0
        self._acknowledged = 0
        self._taken = self._credited = 0  # bytes since the connection was made
        self._failure: SafekeeperError | None = None
        self._attempts = 0  # that have ended
        self._answered = self._asked = 0
        self._link: StreamLink | None = None
        self._closed = False
        self._loop = stream_loop()
        self._hurry = asyncio.Event()  # somebody waits for a connection
        self._task = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    # For those who read

    def read(self, timeout: float | None = None) -> Sequence[StreamElement]:
        if timeout == 0:
            self._settle()
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                self._check_open()
                if self._buffer:
                    return self._take()
                self._raise_failure()
                left = None if give_up is None else give_up - time.monotonic()
                if left is not None and left <= 0:
                    return []
                self._changed.wait(left)

    def _take(self) -> list[StreamElement]:
        found = self._buffer.popleft()
        while self._buffer:
            found += self._buffer.popleft()
        self._take_bytes(found)
        return found

    def _take_bytes(self, elements: Sequence[StreamElement]) -> None:
        """There is room for as many bytes again."""
        self._taken += _size(elements)
        if self._taken - self._credited > self._address.options.window // 4:
            self._credited = self._taken
            self._loop.call_soon_threadsafe(self._say_credit, self._link, max(self._taken, 0))

    def acknowledge(self, upto: Position) -> None:
        if self._reader is None:
            raise ValueError("who only looks cannot acknowledge: open the inlet with reader=")
        if not isinstance(upto, int):
            raise ValueError(f"a position in {self._address.shown} is a number, not {upto}")
        with self._changed:
            self._check_open()
            if upto <= self._acknowledged:
                return
            self._acknowledged = upto
        self._loop.call_soon_threadsafe(self._say_acknowledged)

    def last(self) -> int | None:
        self._settle()
        with self._changed:
            self._check_open()
            return self._last or None

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    def _settle(self) -> None:
        """Wait until everything has come that the producer has now, if it is there."""
        with self._changed:
            self._check_open()
            self._asked += 1
            asked, attempts = self._asked, self._attempts
            self._loop.call_soon_threadsafe(self._ask)
            self._changed.wait_for(
                lambda: (
                    self._answered >= asked
                    or self._attempts > attempts
                    or bool(self._buffer)
                    or self._failure is not None
                    or self._closed
                ),
                _SOON,
            )

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            self._loop.call_soon_threadsafe(self._ask)
            raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this inlet was closed: open a new one")

    # In the loop

    def _ask(self) -> None:
        self._hurry.set()
        if self._link is not None:
            self._link.write(StreamKind.ASK, request=self._asked % (1 << 32))

    def _say_acknowledged(self) -> None:
        if self._link is not None:
            self._link.write(StreamKind.ACK, u64(self._acknowledged))
        else:
            self._hurry.set()

    def _say_credit(self, link: StreamLink | None, taken: int) -> None:
        if link is not None and link is self._link:
            link.write(StreamKind.CREDIT, u64(taken))

    async def _end(self) -> None:
        """Hang up when everything that was said has arrived."""
        if self._acknowledged:
            with suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_SOON):
                    await self._say_bye()
        self._task.cancel()

    async def _say_bye(self) -> None:
        attempts = self._attempts
        while self._link is None:  # then what was acknowledged was not yet said
            if self._attempts > attempts:
                return
            self._hurry.set()
            await asyncio.sleep(_LOOK)
        link = self._link
        link.write(StreamKind.BYE)
        while self._link is link:  # the producer hangs up when it has heard everything
            await asyncio.sleep(_LOOK)

    async def _run(self) -> None:
        failures = hung = 0
        while True:
            self._hurry.clear()
            try:
                link, welcome = await self._connect(min(_IMPATIENT * 1.5 ** min(failures, 20), _SOON))
            except (OSError, BadFrame, asyncio.IncompleteReadError, TimeoutError, SafekeeperError, _Hung) as error:
                failures += 1
                hung = hung + 1 if isinstance(error, _Hung) else 0
                self._attempt_failed(error, told=hung >= _HUNG_UP)
                pause = None if isinstance(error, SafekeeperError) else _delay(failures)  # None: it has to be heard
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._hurry.wait()
                continue
            failures = hung = 0
            try:
                with suppress(OSError, BadFrame, asyncio.IncompleteReadError, TimeoutError):
                    await self._converse(link, welcome)
            except Gone as error:
                self._attempt_failed(error)
                self._hurry.clear()
                await self._hurry.wait()
            finally:
                self._link = None
                link.close()

    def _attempt_failed(self, error: Exception, told: bool = False) -> None:
        with self._changed:
            self._attempts += 1
            if isinstance(error, Gone):
                self._failure = error
            elif told:
                self._failure = Unavailable(f"{self._address.shown}: {error}")
            self._changed.notify_all()

    async def _connect(self, patience: float) -> tuple[StreamLink, Welcome]:
        """A connection to the producer: at whichever address it is, to the one with the highest claim if there are
        two. When it is not at one of them, the others have *patience* seconds: one that is stopped takes connections
        and never answers, and somebody may come to the first one meanwhile."""
        attempts = [asyncio.create_task(self._open(*place)) for place in self._address.places]
        chosen: tuple[StreamLink, Welcome] | None = None
        try:
            waiting, found = set(attempts), list[tuple[StreamLink, Welcome]]()
            while waiting:
                left = _GRACE if found else patience if len(waiting) < len(attempts) else None
                done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                found += [task.result() for task in done if task.exception() is None]
            if not found:
                errors = [error for task in attempts if task.done() and (error := task.exception()) is not None]
                raise next((error for error in errors if isinstance(error, Gone)), errors[0])
            best = max(found, key=lambda pair: (pair[1].epoch, pair[1].last))
            if best[1].epoch < self._epoch:
                raise OSError("the producer has a lower claim than the one before it")
            chosen = best
            return best
        finally:
            for task in attempts:
                if not task.cancel() and task.exception() is None and task.result() is not chosen:
                    task.result()[0].close()

    async def _open(self, host: str, port: int) -> tuple[StreamLink, Welcome]:
        options = self._address.options
        name = host if self._context is not None else None
        async with asyncio.timeout(options.beat * _BEATS):
            link = StreamLink(*await asyncio.open_connection(host, port, ssl=self._context, server_hostname=name))
            try:
                await self._introduce(link)
                wanted = OpenStream(self._address.name, self._reader, self._after, options.window)
                link.write(StreamKind.OPEN, wanted.encode())
                kind, _, data = await link.receive()
                if kind == StreamKind.REFUSE:
                    raise _refused(data)
                if kind != StreamKind.WELCOME:
                    raise BadFrame(f"a producer begins with WELCOME, not {kind}")
                return link, Welcome.decode(Body(data))
            except BaseException:
                link.close()
                raise

    async def _introduce(self, link: StreamLink) -> None:
        try:
            await link.introduce(self._address.secret)
        except (asyncio.IncompleteReadError, BadFrame) as error:
            reason = str(error) if isinstance(error, BadFrame) else "it hung up: it may have another secret"
            raise _Hung(reason) from error

    async def _converse(self, link: StreamLink, welcome: Welcome) -> None:
        with self._changed:
            self._epoch = max(self._epoch, welcome.epoch)
            if self._after is None:
                self._after = welcome.after
            self._last = max(self._last, welcome.last)
            self._taken = self._credited = -sum(map(_size, self._buffer))  # they came by another connection
            self._link = link
        if self._acknowledged:
            self._say_acknowledged()
        link.write(StreamKind.ASK, request=self._asked % (1 << 32))
        while True:
            kind, request, data = await link.receive(self._address.options.beat * _BEATS)
            if kind == StreamKind.DATA:
                self._arrive(decode_data(data))
            elif kind in (StreamKind.ANSWER, StreamKind.BEAT):
                with self._changed:
                    self._last = max(self._last, one_number(Body(data)))
                    if kind == StreamKind.ANSWER:
                        self._answered = max(self._answered, request)
                        self._changed.notify_all()
            elif kind == StreamKind.REFUSE:
                raise _refused(data)
            else:
                raise BadFrame(f"a producer does not send frames of kind {kind}")

    def _arrive(self, elements: list[StreamElement]) -> None:
        with self._changed:
            assert self._after is not None
            first, last = number_of(elements[0]), number_of(elements[-1])
            if first > self._after + 1:
                raise BadFrame(f"element {first} came after {self._after}")
            new = elements[self._after + 1 - first :]  # a new producer sends again what it is not sure of
            self._take_bytes(elements[: len(elements) - len(new)])
            if new:
                self._after = last
                self._last = max(self._last, last)
                self._buffer.append(new)
                self._changed.notify_all()


def _delay(failures: int) -> float:
    return _BACKOFF.delay(failures) if failures <= _SOON_THERE else _LATER.delay(failures - _SOON_THERE)


def _size(elements: Sequence[StreamElement]) -> int:
    """What *elements* take of the window: the producer counts in the same way."""
    return sum(len(element.body) + len(element.key) + 1 for element in elements)


def _refused(data: bytes) -> Exception:
    body = Body(data)
    kind, text = body.text(), body.text()
    return Gone(text) if kind == "Gone" else OSError(text)
