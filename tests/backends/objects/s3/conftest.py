"""A real S3 server on loopback (moto's), and a proxy before it that breaks requests in the ways a network does."""

import contextlib
import queue
import re
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field

import pytest

from safekeeper.dev.s3 import SETTINGS, S3Server


class Server(S3Server):
    def url(self, place, *options, port=None):
        endpoint = f"endpoint-url=http://127.0.0.1:{port or self.port}"
        return f"objects+s3://{place}?{'&'.join((endpoint, *options))}"

    def objects(self, place):
        return self.client().find(place, prefix="")


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    with pytest.MonkeyPatch.context() as environment:
        for name, value in SETTINGS.items():
            environment.setenv(name, value)
        with Server(tmp_path_factory.mktemp("s3")) as server:
            yield server


@pytest.fixture(scope="session")
def bucket(s3):
    return s3.make_bucket()


@pytest.fixture
def place(bucket):
    return f"{bucket}/{secrets.token_hex(6)}"


@pytest.fixture
def proxy(s3):
    with FaultyProxy(s3.port) as proxy:
        yield proxy


@dataclass
class Fault:
    """What happens to the next requests that start with *method*."""

    method: bytes
    kind: str
    """`503`, `silence` (never an answer), `cut` (the connection ends after *after* bytes) or `late` (the client is left
    without an answer and the request kept, until `FaultyProxy.deliver`)."""
    after: int = 0
    times: int = 10**9


@dataclass
class FaultyProxy:
    """Passes bytes on to a server on this host, until there is a `fault`. One thread a connection and direction."""

    target: int
    fault: Fault | None = None
    seconds_a_block: float = 0.0
    """How long it takes to pass on 64 KiB, in either direction."""
    requests: list[bytes] = field(default_factory=list)
    """The first line of every request."""
    kept: queue.SimpleQueue[bytes] = field(default_factory=queue.SimpleQueue)
    """The requests whose client has given up, of the kind `late`."""

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        # For the connections that it accepts: where much were buffered, a client would think that all is sent.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.port = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        for each in self._sockets:
            _hang_up(each)

    def deliver(self, request):
        """Send a request that was kept to the server, which has carried it out when this returns."""
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            server.sendall(request)
            answer = b""
            while not (found := re.search(rb"HTTP/1\.\d ([2-5]\d\d) .*\r\n\r\n", answer, re.DOTALL)):
                more = server.recv(65536)
                assert more, answer
                answer += more
            assert found[1] == b"200", answer

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self._sockets += [client, server]
            threading.Thread(target=self._upstream, args=(client, server), daemon=True).start()
            threading.Thread(target=self._downstream, args=(server, client), daemon=True).start()

    def _upstream(self, client, server):
        try:
            while data := client.recv(65536):
                if re.match(rb"[A-Z]+ /", data):
                    self.requests.append(data.partition(b"\r\n")[0])
                    fault = self.fault
                    if fault and data.startswith(fault.method) and fault.times > 0:
                        fault.times -= 1
                        self._strike(fault, data, client, server)
                        break
                time.sleep(self.seconds_a_block * len(data) / 65536)
                server.sendall(data)
        except OSError:
            pass
        _hang_up(client)
        _hang_up(server)

    def _downstream(self, server, client):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                time.sleep(self.seconds_a_block * len(data) / 65536)
                client.sendall(data)
        _hang_up(client)

    def _strike(self, fault, data, client, server):
        if fault.kind == "503":
            body = b"<Error><Code>ServiceUnavailable</Code><Message>come back later</Message></Error>"
            head = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            client.sendall(head + body)
            client.shutdown(socket.SHUT_WR)
        elif fault.kind != "silence" and b"100-continue" in data:
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        seen = data
        while fault.kind != "cut" or len(seen) < fault.after:
            if not (more := client.recv(65536)):
                break
            seen += more
        if fault.kind == "cut":
            server.sendall(seen[: fault.after])
        elif fault.kind == "late":
            self.kept.put(seen)


def _hang_up(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
