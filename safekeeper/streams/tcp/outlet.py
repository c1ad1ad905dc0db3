"""The producing side: it listens, and retains in memory what its readers have not acknowledged.

One process listens once at an address, for all its streams there. Two outlets of one name in a process are two handles
of the same stream.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from safekeeper.backend import MAX_VALUE_BYTES
from safekeeper.errors import BadUrl, Closed, TooLarge, Unavailable
from safekeeper.streams.carrier import Fetch, StreamElement
from safekeeper.streams.retained import Retained, Retention, check_declared, check_numbers
from safekeeper.streams.tcp.address import StreamAddress
from safekeeper.streams.tcp.link import StreamLink, in_loop, stream_loop
from safekeeper.streams.tcp.serving import Conversation

_KEPT_FOR_NOBODY = 100_000  # elements of a stream without readers
_NOBODY = ""  # who reads such a stream; no reader has this name
_PATIENCE = 1.0  # seconds for which an address may be in use: by a process that is just being killed
_AGAIN = 0.01

_lock = threading.RLock()
_hubs: dict[tuple[str, int], Hub] = {}


class ServedStream:
    """A stream that this process produces, whatever number of handles and connections it has."""

    def __init__(self, name: str, readers: Sequence[str], floor: int, retention: Retention) -> None:
        self.name = name
        self.handles = 0
        self.epoch = 0
        self.lock = threading.Lock()
        self._retention = retention
        self._pending: dict[str, int] = {}  # acknowledgements of what this producer is yet to send again
        self._notices: list[Callable[[], object]] = []
        self._conversations: set[Conversation] = set()
        self._rung = False
        self._most = retention.max_elements or _KEPT_FOR_NOBODY
        self._fetch: Fetch | None = None
        self.retained = self._retain(readers, floor)

    def _retain(self, readers: Sequence[str], floor: int) -> Retained:
        return Retained(readers or [_NOBODY], floor=floor, retention=self._retention if readers else None)

    def declare(self, readers: Sequence[str], floor: int) -> None:
        """Another handle is opened."""
        with self.lock:
            if floor > self.retained.last:  # what came before was lost, and nobody needs it
                self.retained = self._retain(readers, floor)
            else:
                self.retained.declare(readers or [_NOBODY])
        self.ring()

    def send(self, elements: Sequence[StreamElement]) -> None:
        """As `Outlet.send`."""
        with self.lock:
            self.retained.append(elements, self.name)
            self._acknowledge_pending()
            if _NOBODY in self.retained.acknowledged:
                self.retained.acknowledge(_NOBODY, max(self.retained.last - self._most, self.retained.floor))
        self.ring()

    def spill(self, upto: int, fetch: Fetch) -> None:
        """As `SupportsSpill.spill`."""
        with self.lock:
            self._fetch = fetch
            self.retained.spill(upto)
            self._acknowledge_pending()
        self.ring()

    def _acknowledge_pending(self) -> None:
        for reader, upto in list(self._pending.items()):
            self._acknowledge(reader, upto)

    def acknowledged(self) -> dict[str, int]:
        """As `Outlet.acknowledged`."""
        with self.lock:
            return {reader: upto for reader, upto in self.retained.acknowledged.items() if reader != _NOBODY}

    def acknowledge(self, reader: str, upto: int) -> None:
        """A reader says so."""
        with self.lock:
            before = self.retained.acknowledged.get(reader)
            self._acknowledge(reader, upto)
            notices = list(self._notices) if self.retained.acknowledged.get(reader) != before else []
        for notice in notices:
            notice()

    def _acknowledge(self, reader: str, upto: int) -> None:
        """It may be of what the producer before this one has sent, and this one will send again."""
        self._pending.pop(reader, None)
        if reader not in self.retained.acknowledged:
            return
        if upto > self.retained.last:
            self._pending[reader] = upto
        self.retained.acknowledge(reader, min(upto, self.retained.last))

    def begin(self, reader: str | None, after: int | None) -> int:
        """Where a reader begins. Raise `Gone` if it may not."""
        with self.lock:
            known = self.retained.acknowledged
            if reader is not None:
                check_declared(self.name, reader, [name for name in known if name != _NOBODY])
            if after is None:
                after = self.retained.first - 1 if reader is None else known.get(reader, self.retained.first - 1)
            if after < self.retained.last and not self.retained.is_spilled(after + 1):
                self.retained.after(after, 1)
            return after

    def after(self, reader: str | None, number: int, most: int) -> tuple[list[StreamElement], int]:
        """Elements after *number*, and the last number there is. Raise `Gone` if the next one is not here any more."""
        with self.lock:
            if reader is not None:
                check_declared(self.name, reader, [name for name in self.retained.acknowledged if name != _NOBODY])
            retained = self.retained
            if number >= retained.last or retained.is_spilled(number + 1):
                return [], retained.last
            return retained.after(number, most), retained.last

    def spilled(self, number: int) -> Fetch | None:
        """What gives the elements after *number*, if they are retained and not here."""
        with self.lock:
            return self._fetch if self.retained.is_spilled(number + 1) else None

    def join(self, conversation: Conversation) -> None:
        """Let somebody know when there is more; in the loop."""
        self._conversations.add(conversation)

    def leave(self, conversation: Conversation) -> None:
        """The inverse of `join`."""
        self._conversations.discard(conversation)

    def hang_up(self) -> None:
        """No handle is open any more; in the loop."""
        for conversation in list(self._conversations):
            conversation.end()

    def notify(self, call: Callable[[], object]) -> None:
        """As `SupportsNotice.on_acknowledged`."""
        with self.lock:
            self._notices.append(call)

    def ring(self) -> None:
        """There is something new; in any thread."""
        if not self._rung:
            self._rung = True
            stream_loop().call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._rung = False
        for conversation in self._conversations:
            conversation.bell.set()


class Hub:
    """What listens at one address, for all streams that this process produces there."""

    def __init__(self, address: StreamAddress, place: tuple[str, int]) -> None:
        self.secret, self.is_tls = address.secret, address.options.is_tls
        self.streams: dict[str, ServedStream] = {}
        self._beat, self._context = address.options.beat, address.server_context()
        self._tasks: set[asyncio.Task[None]] = set()
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._listener = socket.create_server(place, family=family)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        stream_loop().call_soon_threadsafe(self._listen)

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def close(self) -> None:
        """End, and hang up; in the loop."""
        asyncio.get_running_loop().remove_reader(self._listener)
        await asyncio.sleep(0)  # who was accepted just now has to begin, in order to end
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # too many open files, or the peer is gone: do not ask again at once
            loop.remove_reader(self._listener)
            loop.call_later(_AGAIN, self._listen)
            return
        connection.setblocking(False)
        task = loop.create_task(self._serve(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError, TimeoutError):
                link = await StreamLink.of_accepted(connection, self._context)
                await Conversation(link, self.streams.get, self.secret, self._beat).run()
        finally:
            with suppress(OSError):
                connection.close()


class TcpOutlet:
    """One handle of a stream that this process produces."""

    def __init__(self, address: StreamAddress, readers: Sequence[str], floor: int) -> None:
        self._open = True
        with _lock:
            self._key, self._hub = self._listen(address)
            stream = self._hub.streams.get(address.name)
            if stream is None:
                stream = ServedStream(address.name, readers, floor, address.options.retention)
                self._hub.streams[address.name] = stream
            else:
                stream.declare(readers, floor)
            stream.handles += 1
            self._stream = stream
        self.port = self._hub.port
        """Where it listens: for an address with port 0."""

    def _listen(self, address: StreamAddress) -> tuple[tuple[str, int], Hub]:
        """The first of the addresses at which we can listen."""
        give_up = time.monotonic() + _PATIENCE
        while True:
            problems: list[OSError] = []
            for place in address.places:
                if (hub := _hubs.get(place)) is not None:
                    if hub.secret != address.secret or hub.is_tls != address.options.is_tls:
                        raise BadUrl(f"{address.shown}: other streams there have another secret, or TLS differs")
                    return place, hub
                try:
                    hub = Hub(address, place)
                except OSError as error:
                    problems.append(error)
                    continue
                place = place[0], hub.port
                _hubs[place] = hub
                return place, hub
            if time.monotonic() > give_up or not any(error.errno == errno.EADDRINUSE for error in problems):
                raise Unavailable(
                    f"{address.shown}: {problems[-1].strerror}: end who listens there, or give several addresses"
                    " with commas between"
                ) from problems[-1]
            time.sleep(_AGAIN)

    @property
    def retains(self) -> bool:
        """No: what is here is gone with this process."""
        return False

    @property
    def last(self) -> int:
        return self._stream.retained.last

    def send(self, elements: Sequence[StreamElement]) -> None:
        self._check_open()
        check_numbers(elements)
        for element in elements:
            if len(element.body) + len(element.key) > MAX_VALUE_BYTES:
                raise TooLarge(f"the element {element.number} of {self._stream.name} has too many bytes: split it")
        self._stream.send(elements)

    def acknowledged(self) -> Mapping[str, int]:
        self._check_open()
        return self._stream.acknowledged()

    def spill(self, upto: int, fetch: Fetch) -> None:
        """See `SupportsSpill`."""
        self._stream.spill(upto, fetch)

    def on_acknowledged(self, call: Callable[[], object]) -> None:
        """See `SupportsNotice`."""
        self._stream.notify(call)

    def begin_epoch(self, epoch: int) -> None:
        """See `SupportsEpoch`."""
        self._stream.epoch = epoch

    def close(self) -> None:
        with _lock:
            if not self._open:
                return
            self._open = False
            self._stream.handles -= 1
            if self._stream.handles:
                return
            with suppress(KeyError):
                del self._hub.streams[self._stream.name]
            if not self._hub.streams:
                del _hubs[self._key]
                in_loop(self._hub.close())
            else:
                stream_loop().call_soon_threadsafe(self._stream.hang_up)

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("this outlet was closed: open a new one")
