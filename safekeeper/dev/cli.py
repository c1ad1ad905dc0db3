"""`safekeeper dev`: start a real server, print the URL of a store in it, keep it running until Ctrl-C."""

from __future__ import annotations

import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from safekeeper.errors import BadUrl

app = typer.Typer(help="Start real servers to try backends on.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `dev` a group of commands while there is only one."""


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
    with tempfile.TemporaryDirectory(prefix="safekeeper-") as scratch:
        data = (folder or Path(scratch)).absolute()
        server = (
            RedisCluster(data, program=program, appendonly="yes", appendfsync=appendfsync)
            if cluster
            else RedisServer(data, program=program, port=port, appendonly="yes", appendfsync=appendfsync)
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt), server:
            print(server.url, flush=True)
            while True:
                signal.pause()
