"""A TCP proxy to stand in front of a server: it holds back, delays, cuts, and leads elsewhere.

    with closing(Proxy(server.port)) as proxy:        clients connect to 127.0.0.1, proxy.port
        proxy.hold()                                  what they send does not arrive, until proxy.release()
        proxy.cut()                                   their connections break
        proxy.delay(0.2)                              everything takes so much longer, in both directions
        proxy.partition()                             nothing arrives any more, and nobody is told; proxy.heal()

It works where the kernel cannot delay packets (netem), and without being root.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress

_PATIENCE = 60.0


class Proxy:
    """Passes bytes on to a server on this host. A thread or two for each connection and direction."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flowing = _raised_flag()
        self._stopped: list[threading.Event] = []
        self._connected = _raised_flag()
        self._sockets: list[tuple[socket.socket, socket.socket]] = []
        self._answers = True
        self._lose = False
        self._seconds = 0.0
        self.answered = 0
        """How many bytes the server has answered."""
        self.held = b""
        """What clients have sent since `hold`."""
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        """The URL of a Redis server behind it."""
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """From now on nothing that clients send arrives; it is in `held`."""
        self.held = b""
        self._flowing.clear()
        self._stopped.append(self._flowing)

    def wait_for_held(self, what: bytes = b"") -> None:
        """Return when clients have sent something that was held back, with *what* in it."""
        give_up = time.monotonic() + _PATIENCE
        while not self.held or what not in self.held:
            assert time.monotonic() < give_up, "the client did not send it"
            time.sleep(0.005)

    def release(self) -> None:
        """Let everything that was held back arrive, whether or not its sender still wants it."""
        for flowing in self._stopped:
            flowing.set()

    def let_others_through(self) -> None:
        """What was held back stays so; connections that are made from now on are not affected."""
        self._flowing = _raised_flag()

    def cut(self) -> None:
        """Break the connections to the clients; what they have sent still arrives when it is released."""
        for client, _ in list(self._sockets):  # not those that take their place meanwhile
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def delay(self, seconds: float) -> None:
        """From now on everything takes so much longer, there and back; 0 for no longer."""
        self._seconds = seconds

    def partition(self) -> None:
        """From now on nothing arrives, in either direction, and nobody is told. New connections are taken all the same,
        as by a host whose cable was pulled after the handshake."""
        self._connected.clear()

    def heal(self) -> None:
        """Take back `partition`, `delay` and `hold`; what was held back arrives now."""
        self._seconds = 0.0
        self._connected.set()
        self.release()

    def release_and_wait(self) -> None:
        """Let what was held back arrive, and return when the server has answered it, whether or not anybody hears."""
        before = self.answered
        self.release()
        give_up = time.monotonic() + _PATIENCE
        while self.answered == before:
            assert time.monotonic() < give_up, "the server did not answer what was held back"
            time.sleep(0.005)

    def cut_at_the_next_answer(self) -> None:
        """Break the connections as soon as the server answers anything, and let nobody connect again."""
        self._answers = False

    def lose_the_next_answer(self) -> None:
        """Break the one connection on which the server answers next, before the answer; others are not affected."""
        self._lose = True

    def lead_to(self, port: int) -> None:
        """Connections that are made from now on go to another server."""
        self._target = port

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # nobody is there just now; somebody may come
                    client.close()
                    continue
                self._sockets.append((client, server))
                for there in (True, False):
                    pair = (client, server) if there else (server, client)
                    threading.Thread(target=self._pass_on, args=(*pair, self._flowing, there), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, flowing: threading.Event, there: bool) -> None:
        """Bytes in one direction. They are read at once, so that a client does not notice what becomes of them."""
        backlog: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(source, flowing, there, backlog), daemon=True).start()
        with suppress(OSError):
            while (piece := backlog.get())[1]:
                came, data = piece
                time.sleep(max(0.0, came + self._seconds - time.monotonic()))
                self._connected.wait()
                if there:
                    flowing.wait()
                else:
                    self._hear(target, data)
                target.sendall(data)
        if not there:
            with suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)

    def _read(
        self,
        source: socket.socket,
        flowing: threading.Event,
        there: bool,
        backlog: queue.SimpleQueue[tuple[float, bytes]],
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if there and not flowing.is_set():
                    self.held += data
                backlog.put((time.monotonic(), data))
        backlog.put((0.0, b""))

    def _hear(self, client: socket.socket, answer: bytes) -> None:
        """What to do about an answer of the server, before it goes on."""
        self.answered += len(answer)
        if not self._answers:
            self.close()
        if self._lose:
            self._lose = False
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Break everything and listen no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would let one more client in
        self._listener.close()
        for pair in self._sockets:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def _raised_flag() -> threading.Event:
    flag = threading.Event()
    flag.set()
    return flag
