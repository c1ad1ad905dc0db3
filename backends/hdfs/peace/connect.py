"""What `placement=` in the URL of a store means."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from safekeeper.backends.hdfs.options import HdfsFolder, HdfsOptions
from safekeeper.backends.hdfs.peace.client import PeacePlacement
from safekeeper.backends.hdfs.placement import Placement, StockPlacement
from safekeeper.errors import BadUrl
from safekeeper.wire import check_secret

SECRET_VARIABLE = "SAFEKEEPER_PEACE_SECRET"
"""The environment variable with the secret that writers and the coordinator share."""


def open_placement(folder: HdfsFolder, options: HdfsOptions) -> Placement:
    """Who says where the files of a store go. Nobody is asked yet. Raise `BadUrl` where Peace lacks something."""
    if options.placement == "hdfs":
        return StockPlacement()
    if options.peace is None:
        raise BadUrl("placement=peace needs its coordinator: peace=HOST:PORT, as `safekeeper peace serve` prints it")
    coordinator = host_and_port(options.peace)
    return PeacePlacement(
        coordinator,
        read_secret(folder.secret),
        host=address_towards(urlsplit(folder.uri).hostname, coordinator[0]),
        rack=options.peace_rack,
        wait_seconds=options.peace_wait,
    )


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of HOST:PORT. Raise `BadUrl` if it is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise BadUrl(f"{text!r} is no HOST:PORT")
    return host, int(port)


def read_secret(given: str | None, file: Path | None = None) -> str:
    """The shared secret: *given*, else in *file*, else of the environment. Raise `BadUrl` where there is none."""
    try:
        secret = given or (file.read_text().strip() if file is not None else os.environ.get(SECRET_VARIABLE, ""))
        if not secret:
            raise BadUrl(f"Peace needs the secret that it shares with its writers: set {SECRET_VARIABLE}")
        check_secret(secret)
    except (OSError, ValueError) as error:
        raise BadUrl(f"the secret of Peace: {error}") from error
    return secret


def address_towards(*hosts: str | None) -> str:
    """The address of this machine that the first of *hosts* sees which has one; no packet is sent. Else loopback.

    What has none is the name of a service of several NameNodes, which no resolver knows.
    """
    for host in filter(None, hosts):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    return "127.0.0.1"
