"""The options of `redis:`, and how the parts of its URL become the settings of a connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis import connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from safekeeper.errors import BadUrl
from safekeeper.url import Url


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """`redis://HOST:PORT/DATABASE`, `rediss://` for TLS, `redis+unix:///path/of/the/socket`; `USER:PASSWORD@` before
    the host."""

    prefix: str = "safekeeper"
    """What the names of all keys start with. Stores with different prefixes do not meet. No braces: in a cluster they
    would decide where everything lies."""
    timeout: float = 5.0
    """Seconds to wait for a connection or an answer. A write that got no answer raises when it cannot happen any more,
    at most 1.25 times as long after it was sent."""
    replicas: int = 0
    """A write returns when this many replicas have it too (WAIT). Then it survives HOST."""
    aof: bool = False
    """`yes`: a write returns when the server, and as many replicas as `replicas` says, have confirmed that it is synced
    in their append-only files (WAITAOF; Redis 7.2 or Valkey)."""
    connections: int = 32
    """How many idle connections to a server are kept. More may be open while more threads are at work."""
    db: int = 0
    """The number of the database, where the URL's path cannot say it."""
    ca_file: str | None = None
    """TLS: the certificates to trust, instead of the system's."""
    cert_file: str | None = None
    """TLS: the client's own certificate."""
    key_file: str | None = None
    """TLS: the key of that certificate."""
    verify: bool = True
    """TLS: `no` trusts any certificate."""

    def __post_init__(self) -> None:
        if not self.prefix or {"{", "}"} & set(self.prefix):
            raise ValueError("prefix= takes a name without braces")
        if self.timeout <= 0:
            raise ValueError("timeout= takes more than 0 seconds")
        if min(self.replicas, self.connections, self.db) < 0:
            raise ValueError("replicas=, connections= and db= take no negative numbers")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    """A host, or the path of a socket."""
    port: int | None = None
    """None for a socket."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port is not None else self.host


class DriverConnection(Protocol):
    """What is used of a connection of the driver, which has no types of its own."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def send_packed_command(self, command: Sequence[bytes | memoryview]) -> None: ...
    def read_response(self) -> Any: ...
    def can_read(self, timeout: float) -> bool: ...


Connect = Callable[[Address], DriverConnection]
"""Makes a connection, not yet connected, to a server of the store."""


def parse(url: Url, options: RedisOptions) -> tuple[Address, Connect]:
    """The server that *url* names, and how to connect to it and to the others of its cluster."""
    settings: dict[str, Any] = {
        "username": url.user,
        "password": url.password,
        "socket_timeout": options.timeout,
        "socket_connect_timeout": options.timeout,
        "retry": Retry(NoBackoff(), 0),  # what may be repeated is decided above
        "protocol": 2,
    }
    if url.scheme == "redis+unix":
        cls: Any = connection.UnixDomainSocketConnection
        return Address(url.local_path()), lambda to: _quiet(cls(path=to.host, db=options.db, **settings))
    if not url.host:
        raise BadUrl(f"{url} names no host: write {url.scheme}://127.0.0.1:6379/0")
    settings["db"] = _database(url, options)
    files = {"ca-file": options.ca_file, "cert-file": options.cert_file, "key-file": options.key_file}
    if url.scheme == "rediss":
        for name, path in files.items():
            if path is not None and not os.path.isfile(path):
                raise BadUrl(f"{name}={path}: there is no such file")
        cls = connection.SSLConnection
        settings |= {
            "ssl_ca_certs": options.ca_file,
            "ssl_certfile": options.cert_file,
            "ssl_keyfile": options.key_file,
            "ssl_cert_reqs": "required" if options.verify else "none",
            "ssl_check_hostname": options.verify,
        }
    elif any(files.values()) or not options.verify:
        raise BadUrl(f"{url} has options for TLS: write rediss:// in front of them")
    else:
        cls = connection.Connection
    address = Address(url.host, 6379 if url.port is None else url.port)
    return address, lambda to: _quiet(cls(host=to.host, port=to.port, **settings))


def _quiet(made: Any) -> DriverConnection:
    """Keep the driver from introducing itself: it would swallow the answer of a server that lets nobody in."""
    made.driver_info = made.lib_name = made.lib_version = None
    return made  # type: ignore[no-any-return]


def _database(url: Url, options: RedisOptions) -> int:
    path = url.path.strip("/")
    if not path:
        return options.db
    if not path.isdecimal() or options.db not in (0, int(path)):
        raise BadUrl(f"{url}: the path is the number of the database, such as /0")
    return int(path)
