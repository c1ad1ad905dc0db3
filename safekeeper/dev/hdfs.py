"""A small HDFS: a NameNode and some DataNodes, each a Java process that can be killed and started again.

    with HdfsCluster(folder, [HdfsNode()] * 4) as cluster:
        safekeeper.open(cluster.url)
        cluster.data_nodes[0].kill()

All of them listen on 127.0.0.1, unless an `HdfsNode` has an address of its own: the NameNode knows a DataNode by the
address that it connects from, so nodes with different addresses, which racks need, live in network namespaces.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.sax.saxutils import escape

from safekeeper.dev.jars import fetch_jars
from safekeeper.dev.process import DevError, ServerProcess, find_command, free_port

POM = "hdfs-pom.xml"

_JAVA = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
_NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"

_SETTINGS = {
    "dfs.namenode.fs-limits.min-block-size": "4096",
    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
    "dfs.namenode.redundancy.considerLoad": "false",
    "dfs.namenode.safemode.extension": "0",
    # One host, for a short while: notice sooner that a node is dead, and do not sync each change of the name space.
    "dfs.heartbeat.interval": "1",
    "dfs.namenode.heartbeat.recheck-interval": "1000",
    "dfs.namenode.edits.noeditlogchannelflush": "true",
    "dfs.namenode.handler.count": "8",
    "dfs.datanode.handler.count": "4",
}

_LOGGING = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class HdfsNode:
    """Where a NameNode or a DataNode runs."""

    address: str = "127.0.0.1"
    rack: str | None = None
    """For a DataNode: `/rack1`; None is the cluster's default rack."""
    prefix: tuple[str, ...] = ()
    """What stands before its command: `("ip", "netns", "exec", "node1")`."""


class NameNode(ServerProcess):
    """The server that knows all names and blocks."""

    def __init__(self, folder: Path, node: HdfsNode, port: int | None, settings: dict[str, str]) -> None:
        self.address = f"{node.address}:{free_port() if port is None else port}"
        """Where clients reach it."""
        self._web = f"{node.address}:{free_port()}"
        self._names = folder / "names"
        settings = settings | {
            "fs.defaultFS": f"hdfs://{self.address}",
            "dfs.namenode.rpc-address": self.address,
            "dfs.namenode.http-address": self._web,
            "dfs.namenode.name.dir": f"file://{self._names}",
            "hadoop.tmp.dir": f"{folder}/tmp",
        }
        self._java = [*node.prefix, *_java("256m", folder, settings), _NAME_NODE]
        super().__init__(self._java, folder, "")

    def launch(self) -> None:
        """Start it, with a file system that has nothing in it if there is none yet."""
        if not self._names.exists():
            words = ["-format", "-force", "-nonInteractive"]
            done = subprocess.run(
                [*self._java, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise DevError(f"the NameNode could not be formatted: {done.stderr[-500:]}")
        super().launch()

    def is_ready(self) -> bool:
        """Whether it answers; it may still be in safe mode."""
        return bool(self.facts("FSNamesystemState"))

    def live_nodes(self) -> dict[str, dict[str, Any]]:
        """The DataNodes that it takes for alive and knows the disks of, by transfer address."""
        live = json.loads(self.facts("NameNodeInfo").get("LiveNodes", "{}"))
        return {node["xferaddr"]: node for node in live.values() if node["capacity"]}

    def has(self, transfer_addresses: Sequence[str]) -> bool:
        """Whether it can be written to, with these DataNodes alive."""
        state = self.facts("FSNamesystemState")
        usable = state.get("FSState") == "Operational" and state.get("NumStaleStorages") == 0
        return usable and set(transfer_addresses) <= set(self.live_nodes())

    def facts(self, name: str) -> dict[str, Any]:
        """What it says of itself in the JMX bean *name* of its NameNode service; nothing if it does not answer."""
        return _facts(self._web, "NameNode", name)


class DataNode(ServerProcess):
    """A server that keeps blocks."""

    def __init__(self, folder: Path, node: HdfsNode, name_node: NameNode, settings: dict[str, str]) -> None:
        self.address = f"{node.address}:{free_port()}"
        """Its transfer address, by which HDFS knows it."""
        self.blocks = folder / "blocks"
        self._name_node = name_node
        self._web = f"{node.address}:{free_port()}"
        settings = settings | {
            "fs.defaultFS": f"hdfs://{name_node.address}",
            "dfs.datanode.hostname": node.address,
            "dfs.datanode.address": self.address,
            "dfs.datanode.http.address": self._web,
            "dfs.datanode.ipc.address": f"{node.address}:{free_port()}",
            "dfs.datanode.http.internal-proxy.port": str(free_port()),
            "dfs.datanode.data.dir": f"file://{self.blocks}",
            "hadoop.tmp.dir": f"{folder}/tmp",
        }
        super().__init__([*node.prefix, *_java("96m", folder, settings), _DATA_NODE], folder, "")

    def syncs(self) -> int:
        """How many times it has synced something to its disk; it counts with some delay."""
        return int(_facts(self._web, "DataNode", "DataNodeActivity*").get("FsyncCount", 0))

    def is_ready(self) -> bool:
        """Whether blocks can be written to it: it has joined, and the NameNode knows of it. Each alone is not enough:
        the NameNode takes one that was killed for alive for a while."""
        actors = _facts(self._web, "DataNode", "DataNodeInfo").get("BPServiceActorInfo", "[]")
        joined = any(actor["ActorState"] == "RUNNING" for actor in json.loads(actors))
        if not joined or not self._name_node.has([self.address]):
            time.sleep(0.1)
            return False
        return True


class HdfsCluster:
    """HDFS with nothing in it, or with what an earlier one left in *folder*.

    *settings* are those of `hdfs-site.xml` and `core-site.xml`, with `_` for `.`, on top of the ones that make it small
    and quick; a name that has a `_` or `-` in it goes into *more*.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[HdfsNode] = (HdfsNode(),),
        *,
        name_node: HdfsNode | None = None,
        port: int | None = None,
        more: dict[str, str] | None = None,
        **settings: str,
    ) -> None:
        self._running = ExitStack()
        self._racks = folder / "racks"
        given = _SETTINGS | {"dfs.replication": str(max(1, min(3, len(nodes))))} | (more or {})
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        if any(node.rack for node in nodes):
            self._racks.parent.mkdir(parents=True, exist_ok=True)
            self._racks.write_text("".join(f"{node.address} {node.rack}\n" for node in nodes if node.rack))
            given["net.topology.node.switch.mapping.impl"] = "org.apache.hadoop.net.TableMapping"
            given["net.topology.table.file.name"] = str(self._racks)
        self.name_node = NameNode(folder / "namenode", name_node or HdfsNode(), port, given)
        self.data_nodes = [
            DataNode(folder / f"datanode{n}", node, self.name_node, given) for n, node in enumerate(nodes)
        ]

    @property
    def url(self) -> str:
        """The URL of a store in this cluster."""
        return f"hdfs://{self.name_node.address}/safekeeper"

    def wait_until_ready(self) -> None:
        """Return when the cluster can be written to, on every DataNode that runs."""
        for node in self.data_nodes:
            node.wait_until_ready()

    def __enter__(self) -> Self:
        with ExitStack() as running:
            running.callback(self.name_node.kill)
            self.name_node.launch()
            for node in self.data_nodes:  # all at once: each takes some seconds
                running.callback(node.kill)
                node.launch()
            self.name_node.wait_until_ready()
            self.wait_until_ready()
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()


def _facts(address: str, service: str, name: str) -> dict[str, Any]:
    """A JMX bean of a server; nothing if it does not answer."""
    try:
        url = f"http://{address}/jmx?qry=Hadoop:service={service},name={name}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            beans = json.load(answer)["beans"]
    except OSError:
        time.sleep(0.1)
        return {}
    return beans[0] if beans else {}


def _java(heap: str, folder: Path, settings: dict[str, str]) -> list[str]:
    """How a server of HDFS starts with *settings*; its class follows."""
    conf = folder / "conf"
    for kind in ("hdfs", "datanode"):
        (conf / "webapps" / kind).mkdir(
            parents=True, exist_ok=True
        )  # the jars have none, and without it does not start
    rows = (f"<property><name>{name}</name><value>{escape(v)}</value></property>" for name, v in settings.items())
    (conf / "hdfs-site.xml").write_text("\n".join(["<configuration>", *rows, "</configuration>\n"]))
    (conf / "core-site.xml").write_text((conf / "hdfs-site.xml").read_text())
    (conf / "log4j.properties").write_text(_LOGGING)
    (conf / "hadoop-metrics2.properties").write_text("*.period=1\n")  # what it counts shows after seconds
    path = f"{conf}:{fetch_jars(POM)}/*"
    return [find_command("java"), f"-Xmx{heap}", *_JAVA, f"-Dhadoop.log.dir={folder}", "-cp", path]
