"""An agent as a process, and a peer that speaks its protocol by `docs/agent.md`, not by the agent's code."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import xxhash

PUT, DELETE, KEYS, READ, DONE, KEY_LIST, VALUE, ALIVE, ERROR = 1, 2, 3, 4, 65, 66, 67, 68, 127


def field(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def key_list(keys: list[bytes]) -> bytes:
    return struct.pack("<I", len(keys)) + b"".join(map(field, keys))


def _frame(kind: int, request: int, body: bytes) -> bytes:
    checked = struct.pack("<BII", kind, request, len(body))
    return b"SKA3" + checked + struct.pack("<Q", xxhash.xxh64_intdigest(checked + body)) + body


@dataclass(frozen=True)
class Reply:
    kind: int
    request: int
    body: bytes

    @property
    def code(self) -> int:
        assert self.kind == ERROR, self
        return self.body[0]

    @property
    def message(self) -> str:
        return self.body[5:].decode()


class Peer:
    """One connection to an agent."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    frame = staticmethod(_frame)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> Reply:
        """The next frame that answers something."""
        while (reply := self.heard()).kind == ALIVE:
            assert reply.body == b""
        return reply

    def heard(self) -> Reply:
        """The next frame."""
        kind, request, length, checksum = struct.unpack("<4xBIIQ", self._exactly(21))
        body = self._exactly(length)
        assert checksum == xxhash.xxh64_intdigest(struct.pack("<BII", kind, request, length) + body)
        return Reply(kind, request, body)

    def is_hung_up_on(self) -> bool:
        return self.socket.recv(1) == b""

    def ask(self, kind: int, body: bytes, request: int = 7) -> list[Reply]:
        """The replies to a request, a DONE or an ERROR at the end."""
        self.send(self.frame(kind, request, body))
        replies = [self.reply()]
        while replies[-1].kind not in (DONE, ERROR):
            replies.append(self.reply())
        assert {reply.request for reply in replies} == {request}
        return replies

    def put(self, key: bytes, value: bytes, group: bytes = b"g") -> Reply:
        (reply,) = self.ask(PUT, field(group) + field(key) + field(value))
        return reply

    def delete(self, keys: list[bytes]) -> Reply:
        (reply,) = self.ask(DELETE, field(b"g") + key_list(keys))
        return reply

    def keys(self) -> list[bytes]:
        *lists, done = self.ask(KEYS, field(b"g"))
        assert done.kind == DONE
        return [key for reply in lists for key in _fields(reply.body[4:])]

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        *values, done = self.ask(READ, field(b"g") + key_list(keys))
        assert done.kind == DONE, done
        assert [struct.unpack_from("<I", reply.body)[0] for reply in values] == list(range(len(keys)))
        return [reply.body[9:] if reply.body[4] else None for reply in values]

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            received = self.socket.recv_into(rest)
            if not received:
                raise EOFError
            rest = rest[received:]
        return bytes(data)


def _fields(data: bytes) -> Iterator[bytes]:
    while data:
        (size,) = struct.unpack_from("<I", data)
        yield data[4 : 4 + size]
        data = data[4 + size :]


class Agent:
    """A running agent."""

    def __init__(self, path: Path, first_line: str, environment: dict[str, str]) -> None:
        self.path = str(path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "safekeeper.agent", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(first_line.encode() + b"\n")
            self.process.stdin.flush()
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    def peer(self) -> Peer:
        return Peer(self.path)

    def forget_all(self) -> None:
        """Delete what a test has put."""
        with self.peer() as peer:
            peer.delete(peer.keys())

    def hang_up(self) -> None:
        """End its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts agents: `start(url, queue_bytes=..., first_line=..., socket=..., environment=...)`."""
    agents: list[Agent] = []

    def start(
        url: str = f"file://{tmp_path}/store",
        queue_bytes: int = 1 << 27,
        first_line: str | None = None,
        socket: str = "agent.sock",
        environment: dict[str, str] | None = None,
    ) -> Agent:
        line = first_line if first_line is not None else json.dumps({"url": url, "queue_bytes": queue_bytes})
        agents.append(Agent(tmp_path / socket, line, environment or {}))
        return agents[-1]

    yield start
    for agent in agents:
        agent.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent for the tests of a module that leave it as it was."""
    folder = tmp_path_factory.mktemp("shared")
    agent = Agent(folder / "agent.sock", json.dumps({"url": f"file://{folder}/store"}), {})
    yield agent
    agent.kill()


@pytest.fixture(scope="module")
def shared_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Agent, str]]]:
    """An agent for all tests of a module on a store of that scheme, and the store's URL."""
    agents: dict[str, tuple[Agent, str]] = {}

    def shared_on(scheme: str) -> tuple[Agent, str]:
        if scheme not in agents:
            folder = tmp_path_factory.mktemp(scheme)
            url = f"{scheme}://{folder}/store"
            agents[scheme] = Agent(folder / "agent.sock", json.dumps({"url": url}), {}), url
        return agents[scheme]

    yield shared_on
    for agent, _ in agents.values():
        agent.kill()


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[], Peer]:
    """Connects to what listens on this test's socket."""
    return lambda: Peer(str(tmp_path / "agent.sock"))


@pytest.fixture
def agent(start: Callable[..., Agent]) -> Agent:
    return start()


@pytest.fixture
def peer(agent: Agent) -> Iterator[Peer]:
    with agent.peer() as peer:
        yield peer
        agent.forget_all()
