"""The options of `hbase:`, and how its URL names a table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from safekeeper.errors import BadUrl
from safekeeper.url import Url, check_words

_TABLE = re.compile(r"([A-Za-z0-9_]+:)?[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class HBaseOptions:
    """`hbase://HOST:PORT/TABLE`: HBase's Thrift 1 server, at port 9090 if none is given, and a table, `safekeeper`
    if none is given."""

    timeout: float = 10.0
    """Seconds to wait for a connection, for an answer, or for a connection that other threads use while none of them
    gets an answer either."""
    connections: int = 16
    """How many connections are open at most. The Thrift server needs a worker for each of all its clients: with fewer
    workers (`-w`), the last ones hang until their time is up."""
    transport: Literal["buffered", "framed"] = "buffered"
    """The transport that the Thrift server was started with; `framed` is its `-f`."""
    protocol: Literal["binary", "compact"] = "binary"
    """The protocol that the Thrift server was started with; `compact` is its `-c`."""
    create: bool = True
    """`no`: a missing table is an error of the first write, which otherwise creates it."""
    orphans_after: float = 86_400.0
    """Seconds after which the chunks of a large value may be removed if its writer died before the value was whole. No
    write of a large value may take longer than half of this."""

    def __post_init__(self) -> None:
        check_words(self)
        if self.timeout <= 0 or self.orphans_after <= 0:
            raise ValueError("timeout= and orphans-after= take more than 0 seconds")
        if self.connections < 1:
            raise ValueError("connections= takes 1 or more")


@dataclass(frozen=True, slots=True)
class TableAddress:
    """The server and the table that a URL names."""

    host: str
    port: int
    table: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse(url: Url) -> TableAddress:
    """The table that *url* names, and its server."""
    if not url.host:
        raise BadUrl(f"{url} names no host: write hbase://127.0.0.1:9090/safekeeper")
    if url.user or url.password:
        raise BadUrl(f"{url} has a login: HBase's Thrift 1 server knows none, leave it out")
    table = url.path.strip("/") or "safekeeper"
    if not _TABLE.fullmatch(table):
        raise BadUrl(f"{url}: the path is the name of a table, such as /safekeeper or /namespace:table")
    return TableAddress(url.host, 9090 if url.port is None else url.port, table)
