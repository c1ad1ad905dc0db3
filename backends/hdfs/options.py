"""The options of `hdfs:`, and how its URL names a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from safekeeper.backends.hdfs.peace.defaults import WIRE_CAPACITY
from safekeeper.errors import BadUrl
from safekeeper.url import Size, Url, check_words

_MIB: Final = 1 << 20
_8_MIB: Final = Size(8 * _MIB)
_16_MIB: Final = Size(16 * _MIB)
_128_MIB: Final = Size(128 * _MIB)


@dataclass(frozen=True, slots=True)
class HdfsOptions:
    """`hdfs://NAMENODE:PORT/folder`; `hdfs://SERVICE/folder`, as the settings of the cluster define it; `hdfs:///folder`
    for their default. `USER@` before the host, on a cluster that believes it."""

    sync: Literal["hsync", "hflush"] = "hsync"
    """When a write is acknowledged: when it is on the disks of all DataNodes of its pipeline, or in their memory."""
    replication: int | None = None
    """How many DataNodes each file is on; none: what the cluster has as its default."""
    segment: Size = _128_MIB
    """At about this size a segment is sealed and the next one begun. It is one HDFS block, so that the NameNode is not
    needed while it is written."""
    large: Size = _8_MIB
    """A value of this size or more is not put into a segment but into chunk files."""
    chunk: Size = _16_MIB
    """The size of a chunk file, which is one HDFS block."""
    workers: int = 8
    """How many threads write the chunks of large values, and how many read."""
    timeout: float = 30.0
    """Seconds to wait for a server: to listen, to answer, to come back after a restart."""
    compact_dead: float = 0.5
    """A sealed segment is compacted when more than this share of it is dead."""
    placement: Literal["hdfs", "peace"] = "hdfs"
    """Who says where files go, and when large values: HDFS, or a coordinator of Peace (`docs/peace.md`)."""
    peace: str | None = None
    """The coordinator, HOST:PORT. The secret that it shares with its writers is the URL's password, or in the
    environment."""
    peace_rack: str = ""
    """The rack of this host, where it is no DataNode and there are several racks."""
    peace_wait: float | None = None
    """Seconds that a chunk waits for its turn at most, before HDFS decides; none: for as long as the coordinator
    answers."""
    peace_wire: int = WIRE_CAPACITY
    """Chunks a timestep on a server's wire, for the coordinator that `safekeeper.spark.configure` starts."""
    peace_link: int | None = None
    """Chunks a timestep between racks, for that coordinator."""
    orphans_after: float = 86_400.0
    """Seconds after which chunks may be removed whose writer died before their value was whole. No write of a large
    value may take longer than half of this."""

    def __post_init__(self) -> None:
        check_words(self)
        if self.replication is not None and not 1 <= self.replication <= 512:
            raise ValueError("replication= takes 1 to 512")
        if self.segment < _MIB or self.chunk < _MIB or self.segment % 512 or self.chunk % 512:
            raise ValueError("segment= and chunk= take 1M or more, in multiples of 512 bytes")
        if self.workers < 1:
            raise ValueError("workers= takes 1 or more")
        if self.timeout <= 0 or self.orphans_after <= 0:
            raise ValueError("timeout= and orphans-after= take more than 0 seconds")
        if not 0.05 <= self.compact_dead <= 0.95:
            raise ValueError("compact-dead= takes a share from 0.05 to 0.95")
        if self.peace is not None and self.placement != "peace":
            raise ValueError("peace= is the coordinator of placement=peace: give both")
        given = [number for number in (self.peace_wait, self.peace_link) if number is not None]
        if min(given, default=1) <= 0 or self.peace_wire < 1:
            raise ValueError("peace-wait=, peace-wire= and peace-link= take more than 0")


@dataclass(frozen=True, slots=True)
class HdfsFolder:
    """The folder that a URL names, and the file system that it is in."""

    uri: str
    """`hdfs://host:port`, or `hdfs://service` as the cluster's settings define it, or `hdfs:///` for their default."""
    root: str
    user: str | None
    """Who to be, on a cluster that believes it."""
    secret: str | None = field(default=None, repr=False)
    """What a coordinator of Peace and its writers share."""

    def __str__(self) -> str:
        return f"{self.uri.rstrip('/')}{self.root}"


def parse(url: Url) -> HdfsFolder:
    """The folder that *url* names."""
    root = url.path.rstrip("/")
    if not root.startswith("/"):
        raise BadUrl(f"{url} names no folder: write hdfs://namenode:8020/checkpoints")
    if any(part in ("", ".", "..") or ":" in part for part in root[1:].split("/")):
        raise BadUrl(f"{url}: HDFS has no such path: leave out empty names, dots and colons")
    if url.password and url.query.get("placement") != "peace":
        raise BadUrl(f"{url} has a password: HDFS knows users by Kerberos, leave it away")
    return HdfsFolder(uri_of(url), root, url.user, url.password)


def uri_of(url: Url) -> str:
    """The file system that *url* is on, as Hadoop's client takes it; see `HdfsFolder.uri`."""
    if not url.host:
        return "hdfs:///"
    return f"hdfs://{url.host}" + (f":{url.port}" if url.port is not None else "")


def settings_of(options: HdfsOptions) -> dict[str, str]:
    """What the client of HDFS is told on top of the cluster's own settings."""
    milliseconds = str(int(options.timeout * 1000))
    return {
        # A NameNode that restarts is waited for; one that does not answer is given up.
        "ipc.client.connect.max.retries": str(max(1, int(options.timeout * 2))),
        "ipc.client.connect.retry.interval": "500",
        "ipc.client.connect.max.retries.on.timeouts": "0",
        "ipc.client.connect.timeout": milliseconds,
        "ipc.client.rpc-timeout.ms": milliseconds,
        "dfs.client.socket-timeout": milliseconds,
        # A file is complete when a DataNode has told the NameNode of its last block: ask soon, and for some seconds.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "25",
        "dfs.client.block.write.locateFollowingBlock.retries": "8",
        # A pipeline that lost a node and finds no other goes on; the next segment gets all its replicas again.
        "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
        # Whoever reads wants a moment's state, not the same file twice: no cached or half-dead input.
        "dfs.client.read.shortcircuit": "false",
    }
