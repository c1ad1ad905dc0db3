"""`safekeeper dev`: start a real server, print the URL of a store in it, keep it running until Ctrl-C."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Protocol

import typer

from safekeeper.dev.process import DevError
from safekeeper.errors import BadUrl

app = typer.Typer(help="Start real servers to try backends on.", no_args_is_help=True)


@app.command()
def redis(
    appendfsync: Annotated[str, typer.Option(help="When the server syncs: always, everysec or no.")] = "always",
    valkey: Annotated[bool, typer.Option("--valkey", help="Start Valkey instead of Redis.")] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="Start a cluster of three masters.")] = False,
    port: Annotated[int | None, typer.Option(help="The port of a single server; a free one if none.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the data stays; gone at the end if none.")] = None,
) -> None:
    """Start a Redis server on 127.0.0.1, print the URL of a store in it, and keep it running until Ctrl-C."""
    try:
        from safekeeper.dev.redis import RedisCluster, RedisServer
    except ModuleNotFoundError as error:
        raise BadUrl("redis: needs the module redis: pip install 'safekeeper[redis]'") from error
    program = "valkey-server" if valkey else "redis-server"
    with _folder(folder) as data:
        server = (
            RedisCluster(data, program=program, appendonly="yes", appendfsync=appendfsync)
            if cluster
            else RedisServer(data, program=program, port=port, appendonly="yes", appendfsync=appendfsync)
        )
        _run(server)


@app.command()
def hbase(
    port: Annotated[int | None, typer.Option(help="The port of the Thrift server; a free one if none.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the data stays; gone at the end if none.")] = None,
) -> None:
    """Start HBase and its Thrift server on 127.0.0.1, print the URL of a store in it, and keep it running until Ctrl-C.

    The first time its jars are fetched with Maven, 78 MB.
    """
    try:
        from safekeeper.dev.hbase import HBaseServer
    except ModuleNotFoundError as error:
        raise BadUrl("hbase: needs the module happybase: pip install 'safekeeper[hbase]'") from error
    with _folder(folder) as data:
        _run(HBaseServer(data, port=port))


@app.command()
def hdfs(
    nodes: Annotated[int, typer.Option(help="How many DataNodes.")] = 3,
    port: Annotated[int | None, typer.Option(help="The port of the NameNode; a free one if none.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the data stays; gone at the end if none.")] = None,
) -> None:
    """Start HDFS on 127.0.0.1, print the URL of a store in it, and keep it running until Ctrl-C.

    The first time its jars are fetched with Maven, 43 MB.
    """
    from safekeeper.dev.hdfs import HdfsCluster, HdfsNode

    with _folder(folder) as data:
        _run(HdfsCluster(data, [HdfsNode()] * nodes, port=port))


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """The folder that was *given*, or one that is gone afterwards."""
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DevError(f"{given}: {error.strerror}: choose another --folder") from error
    with tempfile.TemporaryDirectory(prefix="safekeeper-") as scratch:
        yield (given or Path(scratch)).absolute()


class _Server(AbstractContextManager["_Server"], Protocol):
    """A server that runs while it is entered."""

    @property
    def url(self) -> str: ...


def _run(server: _Server) -> None:
    """Run *server* until Ctrl-C, or until somebody else asks us to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), server:
        print(server.url, flush=True)
        while True:
            signal.pause()
