"""A standalone HBase with its Thrift server: two Java processes, each of which can be killed and started again."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.sax.saxutils import escape

import happybase
from thriftpy2.thrift import TException

from safekeeper.dev.jars import fetch_jars
from safekeeper.dev.process import ServerProcess, find_command, free_port

POM = "hbase-pom.xml"

_JAVA = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]
_OPENED = ["java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent"]
_OPENED += ["jdk.internal.ref", "sun.nio.ch"]
_EXPORTED = ["jdk.internal.misc", "sun.net.dns", "sun.net.util"]

_SETTINGS = {
    "hbase.cluster.distributed": "false",
    "hbase.unsafe.stream.capability.enforce": "false",
    "hbase.zookeeper.quorum": "127.0.0.1",
    "hbase.master.ipc.address": "127.0.0.1",
    "hbase.regionserver.ipc.address": "127.0.0.1",
    "hbase.master.hostname": "localhost",
    "hbase.unsafe.regionserver.hostname": "localhost",
    "hbase.master.info.port": "-1",
    "hbase.regionserver.info.port": "-1",
    "hbase.thrift.info.port": "-1",
    # One host, one user: start and assign regions without the waits of a large cluster.
    "hbase.master.wait.on.regionservers.mintostart": "1",
    "hbase.master.wait.on.regionservers.maxtostart": "1",
    "hbase.master.wait.on.regionservers.interval": "100",
    "hbase.regionserver.msginterval": "100",
    "hbase.procedure.remote.dispatcher.delay.msec": "5",
    "hbase.assignment.dispatch.wait.msec": "5",
    "hbase.regionserver.handler.count": "5",
    "hbase.regionserver.metahandler.count": "3",
    "hbase.master.handler.count": "5",
    "hbase.client.pause": "20",
    "hbase.client.retries.number": "10",
}

_LOGGING = """\
log4j.rootLogger=WARN,console
log4j.logger.org.apache.hadoop.hbase.master.HMaster=INFO
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


class ThriftServer(ServerProcess):
    """A Thrift 1 server on a free port of 127.0.0.1 (or on *port*), for the HBase whose settings are in *conf*.

    *flags* are those of its command line: `-f` for the framed transport, `-threadpool -w 2` for two workers. *user* is
    who HBase takes it for, which without Kerberos believes what it is told; whoever runs it if None.
    """

    def __init__(self, folder: Path, conf: Path, *flags: str, port: int | None = None, user: str | None = None) -> None:
        self.port = free_port() if port is None else port
        self._framed = "-f" in flags
        main = "org.apache.hadoop.hbase.thrift.ThriftServer"
        words = ["-p", str(self.port), "--infoport", "-1", "-b", "127.0.0.1", *flags, "start"]
        as_user = [f"-DHADOOP_USER_NAME={user}"] if user else []
        super().__init__([*_java("256m", conf), *as_user, main, *words], folder, "")

    @property
    def url(self) -> str:
        """The URL of a store behind this server."""
        return f"hbase://127.0.0.1:{self.port}/safekeeper{'?transport=framed' if self._framed else ''}"

    def is_ready(self) -> bool:
        """Whether it answers: it listens long before it can."""
        try:
            with closing(self.client(timeout=20_000)) as client:
                client.tables()
        except (TException, OSError):
            time.sleep(0.1)
            return False
        return True

    def client(self, timeout: int | None = None) -> Any:
        """The driver's own connection, to look at the server past safekeeper. Close it."""
        transport = "framed" if self._framed else "buffered"
        return happybase.Connection("127.0.0.1", self.port, timeout=timeout, transport=transport)


class HBaseServer:
    """HBase with nothing in it: a `master`, which serves the regions too, and a `thrift` server in front of it.

    *settings* are those of `hbase-site.xml`, with `_` for `.`, on top of the ones that make it small and quick.
    """

    def __init__(self, folder: Path, *, port: int | None = None, **settings: str) -> None:
        self._running = ExitStack()
        self.conf = folder / "conf"
        given = _SETTINGS | {
            "hbase.rootdir": f"file://{folder}/root",
            "hbase.tmp.dir": f"{folder}/tmp",
            "hbase.zookeeper.property.dataDir": f"{folder}/zookeeper",
            "hbase.zookeeper.property.clientPort": str(free_port()),
            "hbase.master.port": str(free_port()),
            "hbase.regionserver.port": str(free_port()),
        }
        given |= {name.replace("_", "."): value for name, value in settings.items()}
        self._write_settings(given)
        command = [*_java("512m", self.conf), "org.apache.hadoop.hbase.master.HMaster", "start"]
        self.master = ServerProcess(command, folder / "master", "Master has completed initialization")
        self.thrift = ThriftServer(folder / "thrift", self.conf, port=port)

    def _write_settings(self, settings: dict[str, str]) -> None:
        self.conf.mkdir(parents=True, exist_ok=True)
        rows = (f"<property><name>{name}</name><value>{escape(v)}</value></property>" for name, v in settings.items())
        (self.conf / "hbase-site.xml").write_text("\n".join(["<configuration>", *rows, "</configuration>\n"]))
        (self.conf / "log4j.properties").write_text(_LOGGING)

    @property
    def port(self) -> int:
        """The port of its Thrift server."""
        return self.thrift.port

    @property
    def url(self) -> str:
        """The URL of a store in this server."""
        return self.thrift.url

    def client(self) -> Any:
        """The driver's own connection, to look at the server past safekeeper. Close it."""
        return self.thrift.client()

    def __enter__(self) -> Self:
        with ExitStack() as running:
            running.enter_context(self.master)
            running.enter_context(self.thrift)
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()


def _java(heap: str, conf: Path) -> list[str]:
    """How a Java server of HBase starts; its class and its arguments follow."""
    opens = (word for name in _OPENED for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED"))
    exports = (word for name in _EXPORTED for word in ("--add-exports", f"java.base/{name}=ALL-UNNAMED"))
    return [find_command("java"), f"-Xmx{heap}", *_JAVA, *opens, *exports, "-cp", f"{conf}:{fetch_jars(POM)}/*"]
