"""One connection between a producer and a reader, and the thread in which all of a process live."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from safekeeper.streams.tcp.protocol import MAX_BODY_BYTES, PRODUCER, READER, StreamKind, handshake
from safekeeper.wire import ANSWER_BYTES, HELLO_BYTES, PROOF_BYTES, SEALED_HEADER, TAG_BYTES, BadFrame, Seal

T = TypeVar("T")

_LAST_WORDS = 1.0  # seconds
_ENCRYPTED = 5.0  # seconds in which both sides have to agree how
_PART = 64 << 10  # bytes of a frame that are waited for together

_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


def stream_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process' connections, in a thread of its own that nobody waits for."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():  # a thread does not survive a fork
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="safekeeper-tcp", daemon=True).start()
            _running = os.getpid(), loop
        return _running[1]


def in_loop(work: Coroutine[Any, Any, T]) -> T:
    """What *work* returns, done in the loop; for other threads."""
    return asyncio.run_coroutine_threadsafe(work, stream_loop()).result()


class StreamLink:
    """A connection whose other side knows the secret. Everything here is called in the loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sending: Seal
        self._receiving: Seal
        connection: socket.socket = writer.get_extra_info("socket")
        with suppress(OSError):  # it may be broken already: whoever uses it learns that
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    @classmethod
    async def of_accepted(cls, connection: socket.socket, context: ssl.SSLContext | None) -> Self:
        """The link over a connection that was accepted, when it is encrypted, if it is to be."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        async with asyncio.timeout(_ENCRYPTED):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def accept(self, secret: bytes) -> None:
        """The producer's part of the handshake. Raise `BadFrame` if the other side does not know the secret."""
        shake = handshake(secret)
        self._writer.write(shake.hello())
        self._writer.write(shake.welcome(await self._reader.readexactly(ANSWER_BYTES)))
        self._sending, self._receiving = shake.seal(PRODUCER), shake.seal(READER)

    async def introduce(self, secret: bytes) -> None:
        """The reader's part of the handshake. Raise `BadFrame` if the other side does not know the secret."""
        shake = handshake(secret)
        self._writer.write(shake.answer(await self._reader.readexactly(HELLO_BYTES)))
        shake.check_welcome(await self._reader.readexactly(PROOF_BYTES))
        self._sending, self._receiving = shake.seal(READER), shake.seal(PRODUCER)

    def write(self, kind: StreamKind, body: bytes = b"", request: int = 0) -> None:
        """Send a frame, at some time."""
        self._writer.write(self._sending.encode(kind, request, body))

    async def drain(self) -> None:
        """Wait until there is room for more."""
        await self._writer.drain()

    async def receive(self, patience: float | None = None) -> tuple[int, int, bytes]:
        """Kind, request and body of the next frame. Raise `BadFrame` if it is not one, `TimeoutError` if nothing comes
        for *patience* seconds; a large frame may take longer."""
        head = await self._read(SEALED_HEADER.size, patience)
        kind, request, length = SEALED_HEADER.unpack(head)
        if length > MAX_BODY_BYTES:
            raise BadFrame(f"a body of {length} bytes: at most {MAX_BODY_BYTES} are sent")
        rest = await self._read(length + TAG_BYTES, patience)
        body = rest[:length]
        self._receiving.check(head, body, rest[length:])
        return kind, request, body

    async def _read(self, count: int, patience: float | None) -> bytes:
        parts = []
        for begin in range(0, count, _PART):
            async with asyncio.timeout(patience):
                parts.append(await self._reader.readexactly(min(_PART, count - begin)))
        return b"".join(parts)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def end(self) -> None:
        """Hang up, and wait a moment until what was written has left."""
        self._writer.close()
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()
