"""What the tests of all backends have: a folder for real servers, and a proxy to stand in front of one.

Servers are started once a run on loopback. A server that cannot be had fails the tests that need it.
"""

import queue
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _modules_of_these_tests_for_peers(monkeypatch, tmp_path_factory):
    """Processes that a test starts find what runs inside of them: this package, and nothing else of the clone."""
    folder = tmp_path_factory.getbasetemp() / "modules-for-peers"
    folder.mkdir(exist_ok=True)
    if not (folder / "tests").exists():
        (folder / "tests").symlink_to(TESTS)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Where the servers keep their data."""
    return tmp_path_factory.mktemp("servers")


class Proxy:
    """Passes bytes on to a server, until it is told to hold back what clients send."""

    def __init__(self, port):
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flowing = threading.Event()
        self._flowing.set()
        self._stopped = []
        self._sockets = []
        self._answers = True
        self._lose = False
        self.answered = 0
        self.held = b""
        self.port = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self):
        """From now on nothing that clients send arrives; it is in `held`."""
        self.held = b""
        self._flowing.clear()
        self._stopped.append(self._flowing)

    def wait_for_held(self, what=b""):
        """Return when clients have sent something that was held back, with *what* in it."""
        give_up = time.monotonic() + 60
        while not self.held or what not in self.held:
            assert time.monotonic() < give_up, "the client did not send it"
            time.sleep(0.005)

    def release(self):
        """Let everything that was held back arrive, whether or not its sender still wants it."""
        for flowing in self._stopped:
            flowing.set()

    def let_others_through(self):
        """What was held back stays so; connections that are made from now on are not affected."""
        self._flowing = threading.Event()
        self._flowing.set()

    def cut(self):
        """Break the connections to the clients; what they have sent still arrives when it is released."""
        for client, _ in list(self._sockets):  # not those that take their place meanwhile
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def release_and_wait(self):
        """Let what was held back arrive, and return when the server has answered it, whether or not anybody hears."""
        before = self.answered
        self.release()
        give_up = time.monotonic() + 60
        while self.answered == before:
            assert time.monotonic() < give_up, "the server did not answer what was held back"
            time.sleep(0.005)

    def cut_at_the_next_answer(self):
        """Break the connections as soon as the server answers anything, and let nobody connect again."""
        self._answers = False

    def lose_the_next_answer(self):
        """Break the one connection on which the server answers next, before the answer; others are not affected."""
        self._lose = True

    def lead_to(self, port):
        """Connections that are made from now on go to another server."""
        self._target = port

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append((client, server))
                threading.Thread(target=self._pass_on, args=(client, server, self._flowing), daemon=True).start()
                threading.Thread(target=self._pass_back, args=(server, client), daemon=True).start()

    def _pass_on(self, client, server, flowing):
        backlog = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(client, flowing, backlog), daemon=True).start()
        with suppress(OSError):
            while data := backlog.get():
                flowing.wait()
                server.sendall(data)

    def _read(self, client, flowing, backlog):
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if not flowing.is_set():
                    self.held += data
                backlog.put(data)
        backlog.put(b"")

    def _pass_back(self, server, client):
        with suppress(OSError):
            while data := server.recv(1 << 16):
                self.answered += len(data)
                if not self._answers:
                    self.close()
                if self._lose:
                    self._lose = False
                    client.shutdown(socket.SHUT_RDWR)
                client.sendall(data)

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would let one more client in
        self._listener.close()
        for pair in self._sockets:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@pytest.fixture
def proxy_to():
    """Starts a `Proxy` in front of a server."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(closing(Proxy(server.port)))
