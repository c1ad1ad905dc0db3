"""Redis and Valkey servers: alone, as a cluster, as replicas, with TLS, with a password."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from redis import Redis

from safekeeper.dev.binaries import find_server
from safekeeper.dev.process import DevError, ServerProcess, find_command, free_port

SLOTS = 16384


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for 127.0.0.1 that vouches for itself."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """A fresh certificate in *folder*, good for two days."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem")
    command = [find_command("openssl"), "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevError(f"openssl could not make a certificate: {done.stderr.strip()[-500:]}")
    return made


class RedisServer(ServerProcess):
    """One server on a free port of 127.0.0.1 (or on *port*), with nothing in it and no snapshots.

    *settings* are those of `redis.conf`, with `_` for `-`: `RedisServer(folder, appendonly="yes")`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        program: str = "redis-server",
        port: int | None = None,
        password: str | None = None,
        tls: Certificate | None = None,
        **settings: str,
    ) -> None:
        self.port = free_port() if port is None else port
        self.password = password
        self.tls = tls
        given = {"bind": "127.0.0.1", "dir": str(folder), "save": "", "port": str(self.port)}
        if password is not None:
            given["requirepass"] = password
        if tls is not None:
            given |= {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no"}
            given |= {"tls-cert-file": str(tls.certificate), "tls-key-file": str(tls.key)}
            given |= {"tls-ca-cert-file": str(tls.certificate)}
        given |= {name.replace("_", "-"): value for name, value in settings.items()}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        super().__init__([find_server(program), *words], folder, "Ready to accept connections")

    @property
    def url(self) -> str:
        """The URL of a store in this server."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        if self.tls is None:
            return f"redis://{login}127.0.0.1:{self.port}/0"
        return f"rediss://{login}127.0.0.1:{self.port}/0?ca-file={quote(str(self.tls.certificate))}"

    def client(self) -> Redis:
        """The driver's own client, to look at the server past safekeeper. Close it, or use it in a `with` block."""
        tls = {"ssl": True, "ssl_ca_certs": str(self.tls.certificate)} if self.tls else {}
        return Redis("127.0.0.1", self.port, password=self.password, protocol=2, **tls)  # type: ignore[arg-type]


class RedisCluster:
    """Masters that share the slots evenly; no replicas."""

    def __init__(self, folder: Path, masters: int = 3, program: str = "redis-server", **settings: str) -> None:
        self._running = ExitStack()
        given: dict[str, Any] = {"program": program, "cluster_enabled": "yes", **settings}
        self.nodes = [
            RedisServer(folder / f"node{number}", cluster_port=str(free_port()), **given) for number in range(masters)
        ]

    @property
    def url(self) -> str:
        """The URL of a store in this cluster: one node leads to the others."""
        return self.nodes[0].url

    def __enter__(self) -> Self:
        with ExitStack() as running:
            for node in self.nodes:
                running.enter_context(node)
            self._join()
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()

    def _join(self) -> None:
        """Share out the slots, introduce the nodes to each other, and wait until all of them see a whole cluster.

        Nodes that were in this folder before know their slots, but not where the others listen now.
        """
        count = len(self.nodes)
        with ExitStack() as stack:
            clients = [stack.enter_context(node.client()) for node in self.nodes]
            for number, client in enumerate(clients):
                if _knows_slots(client):
                    continue
                first, last = SLOTS * number // count, SLOTS * (number + 1) // count - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            for node, client in zip(self.nodes, clients, strict=True):
                bus_port = client.config_get("cluster-port")["cluster-port"]
                for other in clients:
                    if other is not client:
                        other.execute_command("CLUSTER", "MEET", "127.0.0.1", str(node.port), bus_port)
            give_up = time.monotonic() + 60
            while not all(_is_whole(client, count) for client in clients):
                if time.monotonic() > give_up:
                    raise DevError(f"the cluster did not come together: see {self.nodes[0].log}")
                time.sleep(0.05)


def _knows_slots(client: Redis) -> bool:
    ask: Any = client.execute_command
    return b"cluster_slots_assigned:0\r" not in ask("CLUSTER", "INFO")


def _is_whole(client: Redis, count: int) -> bool:
    ask: Any = client.execute_command
    return b"cluster_state:ok" in ask("CLUSTER", "INFO") and len(ask("CLUSTER", "SLOTS")) == count
