"""One reader's connection, as the producer sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from safekeeper.errors import Gone, SafekeeperError
from safekeeper.streams.carrier import Fetch, StreamElement
from safekeeper.streams.retained import number_of
from safekeeper.streams.tcp.link import StreamLink
from safekeeper.streams.tcp.protocol import OpenStream, StreamKind, Welcome, encode_data, one_number
from safekeeper.wire import BadFrame, Body, texts, u64

_TOGETHER = 512  # elements in a frame, at most
_FRAME_BYTES = 256 << 10  # after which a frame ends
_FETCH_AGAIN = 0.01  # seconds
_HANDSHAKE = 5.0  # seconds in which a reader has to say who it is


class StreamSource(Protocol):
    """A stream, seen from here."""

    epoch: int

    def begin(self, reader: str | None, after: int | None) -> int: ...
    def after(self, reader: str | None, number: int, most: int) -> tuple[list[StreamElement], int]: ...
    def spilled(self, number: int) -> Fetch | None: ...
    def acknowledge(self, reader: str, upto: int) -> None: ...
    def join(self, conversation: Conversation) -> None: ...
    def leave(self, conversation: Conversation) -> None: ...


class Conversation:
    """Sends what there is, within the reader's credit, and takes its acknowledgements."""

    def __init__(
        self, link: StreamLink, find: Callable[[str], StreamSource | None], secret: bytes, beat: float
    ) -> None:
        self.bell = asyncio.Event()
        self._link, self._find, self._secret, self._beat = link, find, secret, beat
        self._asked: deque[int] = deque()
        self._sent = self._taken = 0  # bytes
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    def end(self) -> None:
        """Hang up; in the loop."""
        self._task.cancel()

    async def run(self) -> None:
        """Until somebody hangs up."""
        try:
            with suppress(BadFrame, OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._run()
        finally:
            await self._link.end()

    async def _run(self) -> None:
        async with asyncio.timeout(_HANDSHAKE):
            await self._link.accept(self._secret)
            kind, _, body = await self._link.receive()
        if kind != StreamKind.OPEN:
            raise BadFrame("a reader says first what it wants to read")
        wanted = OpenStream.decode(Body(body))
        stream = self._find(wanted.stream)
        if stream is None:
            self._refuse("Unavailable", f"nobody produces {wanted.stream} here")
            return
        stream.join(self)
        try:
            await self._serve(stream, wanted)
        except Gone as error:
            self._refuse("Gone", str(error))
        finally:
            stream.leave(self)

    async def _serve(self, stream: StreamSource, wanted: OpenStream) -> None:
        after = stream.begin(wanted.reader, wanted.after)
        last = stream.after(wanted.reader, after, 0)[1]
        self._link.write(StreamKind.WELCOME, Welcome(stream.epoch, after, last).encode())
        tasks = [
            asyncio.create_task(self._listen(stream, wanted.reader)),
            asyncio.create_task(self._send(stream, wanted, after)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, stream: StreamSource, wanted: OpenStream, position: int) -> None:
        while True:
            self.bell.clear()
            elements, last = stream.after(wanted.reader, position, _TOGETHER)
            if not elements and (fetch := stream.spilled(position)) is not None:
                elements = await self._fetched(fetch, position)
                if not elements:
                    continue  # it has acknowledged them meanwhile, or was dropped
            elements = self._within(elements, wanted.window)
            if elements:
                self._link.write(StreamKind.DATA, encode_data(elements))
                position = number_of(elements[-1])
                await self._link.drain()
                await asyncio.sleep(0)  # `drain` does not let others run while there is room
                continue
            while self._asked:
                self._link.write(StreamKind.ANSWER, u64(last), self._asked.popleft())
            try:
                async with asyncio.timeout(self._beat):
                    await self.bell.wait()
            except TimeoutError:
                self._link.write(StreamKind.BEAT, u64(last))
                await self._link.drain()

    async def _fetched(self, fetch: Fetch, position: int) -> list[StreamElement]:
        """The elements after *position*, which are not in memory. Raise `OSError` if they cannot be had now."""
        try:
            found = await asyncio.to_thread(fetch, position, _TOGETHER)
        except SafekeeperError as error:
            raise OSError(str(error)) from error
        await asyncio.sleep(0 if found else _FETCH_AGAIN)
        return list(found)

    def _within(self, elements: list[StreamElement], window: int) -> list[StreamElement]:
        """As many of *elements* as the reader has room for, and a frame; one, if it has taken all the others."""
        room = min(window - (self._sent - self._taken), _FRAME_BYTES)
        for count, element in enumerate(elements):
            if room <= 0 and (count or self._sent > self._taken):
                return elements[:count]
            nbytes = len(element.body) + len(element.key) + 1  # 1: elements without bytes take room, too
            room -= nbytes
            self._sent += nbytes
        return elements

    async def _listen(self, stream: StreamSource, reader: str | None) -> None:
        while True:
            kind, request, data = await self._link.receive()
            if kind == StreamKind.ACK and reader is not None:
                stream.acknowledge(reader, one_number(Body(data)))
            elif kind == StreamKind.CREDIT:
                self._taken = one_number(Body(data))
                self.bell.set()
            elif kind == StreamKind.ASK:
                self._asked.append(request)
                self.bell.set()
            elif kind == StreamKind.BYE:
                return
            else:
                raise BadFrame(f"a reader does not send frames of kind {kind}")

    def _refuse(self, error: str, text: str) -> None:
        self._link.write(StreamKind.REFUSE, texts([error, " ".join(text.split())]))
