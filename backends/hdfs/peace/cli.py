"""`safekeeper peace`: run the coordinator, and measure what it plans with."""

from __future__ import annotations

import enum
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from safekeeper.backends.hdfs.peace.connect import SECRET_VARIABLE, host_and_port, read_secret
from safekeeper.backends.hdfs.peace.defaults import WIRE_CAPACITY
from safekeeper.backends.hdfs.peace.planner import Rules
from safekeeper.backends.hdfs.peace.topology import BadTopology, Topology, link_capacity
from safekeeper.errors import BadUrl
from safekeeper.url import Url

app = typer.Typer(help="Say when and where checkpoints are written in HDFS.", no_args_is_help=True)


class RuleSet(enum.StrEnum):
    """By which rules the coordinator plans and gives turns."""

    OURS = "ours"
    PAPER = "paper"


_RULES: dict[RuleSet, Rules] = {RuleSet.OURS: "ours", RuleSet.PAPER: "paper"}

HdfsUrl = Annotated[str, typer.Argument(metavar="URL", help="The HDFS, such as hdfs://namenode:8020.")]
TopologyFile = Annotated[Path | None, typer.Option(help="A file with capacities and perhaps DataNodes; JSON.")]


@app.command()
def serve(
    url: HdfsUrl,
    listen: Annotated[str, typer.Option(help="Where to listen, HOST:PORT.")] = "127.0.0.1:7337",
    topology: TopologyFile = None,
    wire: Annotated[int, typer.Option(help="Chunks a timestep on a server's wire.", min=1)] = WIRE_CAPACITY,
    link: Annotated[int | None, typer.Option(help="Chunks a timestep between racks.", min=1)] = None,
    wire_rate: Annotated[float | None, typer.Option(help="The rate of a server's wire, to compute --link.")] = None,
    link_rate: Annotated[float | None, typer.Option(help="The rate between racks, in the same unit.")] = None,
    secret_file: Annotated[Path | None, typer.Option(help=f"A file with the secret; else ${SECRET_VARIABLE}.")] = None,
    rules: Annotated[RuleSet, typer.Option(help="Ours, or those of SGuard's paper, to compare with.")] = RuleSet.OURS,
) -> None:
    """Run a coordinator until Ctrl-C.

    With several racks it must know what goes between them: --link, both rates, or a topology file from `calibrate`.
    """
    from safekeeper.backends.hdfs.peace.serve import serve as serve_hdfs

    if wire_rate is not None or link_rate is not None:
        if not (wire_rate and link_rate and wire_rate > 0 and link_rate > 0) or link is not None:
            raise BadTopology("give --wire-rate and --link-rate together, both above 0, or else --link")
        link = link_capacity(link_rate, wire_rate, wire)
    if topology is not None and (link is not None or wire != WIRE_CAPACITY):
        raise BadTopology(f"capacities are in {topology} or on the command line, not in both")
    known = Topology(wire=wire, link=link) if topology is None else Topology.load(topology)
    host, port = host_and_port(listen)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    where, secret = _hdfs_url(url), read_secret(None, secret_file)
    with serve_hdfs(where, known, secret, host=host, port=port, rules=_RULES[rules]) as coordinator:
        racks = Counter(node.rack for node in coordinator.network.nodes.values() if node.receive)
        found = ", ".join(f"{rack} {count}" for rack, count in sorted(racks.items()))
        between = f"{len(known.cables)} links" if known.cables else f"link {known.link}"
        print(f"peace={host}:{coordinator.port} (DataNodes: {found}; wire {known.wire}, {between})", flush=True)
        stop.wait()


@app.command()
def calibrate(
    url: HdfsUrl,
    output: Annotated[Path, typer.Argument(help="The topology file to write.")],
    rack: Annotated[str, typer.Option(help="The rack of this host, if it is no DataNode.")] = "",
    wire: Annotated[int, typer.Option(help="Chunks a timestep on a server's wire.", min=1)] = WIRE_CAPACITY,
    seconds: Annotated[float, typer.Option(help="How long each of the two measurements takes.")] = 5.0,
) -> None:
    """Measure this host's wire and the link to another rack, and write the capacities to a topology file.

    The file has no DataNodes: the coordinator reads these from the NameNode. Run it while the network is idle.
    """
    from safekeeper.backends.hdfs.peace.serve import measure_topology

    found, rates = measure_topology(_hdfs_url(url), Topology(wire=wire), rack, seconds)
    found.with_nodes({}).save(output)
    print(f"wire {rates.wire / 1e6:.1f} MB/s, {found.wire} chunks a timestep")
    if rates.link is not None:
        least = " at least: no faster than the wire of this host can show" if rates.link_is_least else ""
        print(f"link {rates.link / 1e6:.1f} MB/s, {found.link} chunks a timestep{least}")


def _hdfs_url(text: str) -> Url:
    url = Url.parse(text)
    if url.scheme != "hdfs" or not url.host:
        raise BadUrl(f"{url} is no HDFS: write hdfs://namenode:8020")
    return url
