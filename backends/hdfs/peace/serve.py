"""A coordinator that knows its HDFS: the DataNodes and racks come from the NameNode and are read again now and then."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from safekeeper.backends.hdfs.client import Client, locate
from safekeeper.backends.hdfs.options import HdfsOptions, settings_of, uri_of
from safekeeper.backends.hdfs.peace.connect import address_towards
from safekeeper.backends.hdfs.peace.coordinator import LEASE_SECONDS, Coordinator
from safekeeper.backends.hdfs.peace.measure import ProbeWriter, Rates, Write, measure_rates
from safekeeper.backends.hdfs.peace.planner import Rules
from safekeeper.backends.hdfs.peace.topology import BadTopology, Topology
from safekeeper.errors import Unavailable
from safekeeper.url import Url

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""How often the NameNode is asked for its DataNodes."""

_BLOCK_BYTES = 1 << 30
_PIECE = bytes(1 << 20)


def connect(url: Url) -> Client:
    """A client of the HDFS that *url* is on."""
    settings = settings_of(HdfsOptions())
    uri, _ = locate(uri_of(url), url.path or "/", settings, url.user)
    return Client(uri, settings, url.user)


def data_nodes(client: Client) -> dict[str, str]:
    """The DataNodes that are alive by transfer address, each with its rack."""
    return {node.address: node.rack for node in client.data_nodes()}


@contextmanager
def serve(
    url: Url,
    topology: Topology,
    secret: str,
    *,
    host: str | None = "127.0.0.1",
    port: int = 0,
    lease_seconds: float = LEASE_SECONDS,
    look_seconds: float = LOOK_SECONDS,
    rules: Rules = "ours",
) -> Iterator[Coordinator]:
    """A coordinator for the HDFS of *url*. Where *topology* has no DataNodes, the NameNode's are used and looked after.

    It listens on *host*; None is the address of this machine that the NameNode sees.
    Raise `BadTopology` where how much goes between racks is not known.
    """
    if topology.nodes:
        host = host or address_towards(url.host)
        with Coordinator(
            topology.network(), secret, host=host, port=port, lease_seconds=lease_seconds, rules=rules
        ) as coordinator:
            yield coordinator
        return
    with closing(connect(url)) as client:
        host = host or address_towards(*client.name_nodes())
        nodes = data_nodes(client)
        network = topology.with_nodes(nodes).network()
        with Coordinator(
            network, secret, host=host, port=port, lease_seconds=lease_seconds, rules=rules
        ) as coordinator:
            stop = threading.Event()
            watch = threading.Thread(
                target=_look_after, args=(coordinator, client, topology, nodes, look_seconds, stop), daemon=True
            )
            watch.start()
            try:
                yield coordinator
            finally:
                stop.set()
                watch.join()


def _look_after(
    coordinator: Coordinator,
    client: Client,
    topology: Topology,
    nodes: Mapping[str, str],
    seconds: float,
    stop: threading.Event,
) -> None:
    """Tell the coordinator when DataNodes come or go, until *stop*."""
    while not stop.wait(seconds):
        try:
            found = data_nodes(client)
            if found != nodes:
                coordinator.use(topology.with_nodes(found).network())
                log.info("%d DataNodes are alive, %d were", len(found), len(nodes))
                nodes = found
        except (Unavailable, BadTopology) as problem:
            log.warning("the DataNodes are not known at the moment, the plan stays: %s", problem)


def measure_topology(url: Url, topology: Topology, rack: str, seconds: float) -> tuple[Topology, Rates]:
    """Measure from this host, in *rack* unless it is a DataNode; the topology with what was found.

    It writes files below a folder of its own at the root of the HDFS and removes them.
    """
    with closing(connect(url)) as client:
        nodes = dict(topology.nodes) or data_nodes(client)
        host = address_towards(*client.name_nodes())
        here = {r for name, r in nodes.items() if name.rpartition(":")[0] == host}
        rack = next(iter(here)) if here else rack
        if not rack and len(set(nodes.values())) > 1:
            racks = ", ".join(sorted(set(nodes.values())))
            raise BadTopology(f"{host} is no DataNode: say with --rack which of {racks} it is in")
        folder = f"/safekeeper-calibrate-{secrets.token_hex(6)}"
        try:
            rates = measure_rates([ProbeWriter(host, rack, probe_of(client, folder))], nodes, seconds)
        finally:
            client.delete(folder)
        return rates.applied_to(topology.with_nodes(nodes)), rates


def probe_of(client: Client, folder: str) -> Write:
    """What loads the way to a DataNode: `measure.Write`."""

    def write(node: str, seconds: float) -> float:
        path = f"{folder}/{secrets.token_hex(8)}"
        stream = client.create(path, replication=1, block_size=_BLOCK_BYTES, favoured=[node])
        began, written = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            stream.write(_PIECE)
            stream.hflush()
            written += len(_PIECE)
        taken = time.monotonic() - began
        stream.close()
        return written / taken

    return write
