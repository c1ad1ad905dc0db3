"""A standalone Spark cluster from the jars that PySpark ships: a master and workers, processes that can be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from safekeeper.dev.process import ServerProcess, find_command, free_port
from safekeeper.spark.build import spark_home

_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dspark.decommission.enabled=true")


class SparkWorker(ServerProcess):
    """A worker; its executors are its child processes and end with it."""

    def decommission(self) -> None:
        """Let it finish what it does and take no more, as when its machine is about to be taken away."""
        os.kill(self.pid, signal.SIGPWR)


class SparkCluster:
    """A master on *host*, and the workers that are added, while it is entered. `url` is what `master` takes."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._folder = folder
        self._port = free_port()
        self._master = ServerProcess(_command("master.Master", host, self._port), folder / "master", "New state: ALIVE")
        self._running = ExitStack()
        self.url = f"spark://{host}:{self._port}"
        self.workers: list[SparkWorker] = []
        """Also those that have been ended meanwhile."""

    def add_worker(
        self, host: str = "127.0.0.1", cores: int = 1, memory: str = "1g", prefix: Sequence[str] = ()
    ) -> SparkWorker:
        """Start a worker that is on *host* and wait until the master has it.

        *host* is an address of loopback, or of where *prefix*, which stands before the command, lets the worker run:
        `("ip", "netns", "exec", "host1")`.
        """
        folder = self._folder / f"worker-{len(self.workers)}"
        command = _command("worker.Worker", host, free_port(), "--cores", str(cores), "--memory", memory)
        command = [*prefix, *command, "--work-dir", str(folder / "work"), self.url]
        worker = SparkWorker(command, folder, "registered with master")
        self.workers.append(worker)
        return self._running.enter_context(worker)

    def __enter__(self) -> Self:
        self._running.enter_context(self._master)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()


def _command(name: str, host: str, port: int, *arguments: str) -> list[str]:
    """What starts a daemon of Spark. The script becomes the JVM, so that the process id is the daemon's."""
    java = f"SPARK_DAEMON_JAVA_OPTS={' '.join(_JAVA_OPTIONS)}"
    environment = [find_command("env"), java, "SPARK_DAEMON_MEMORY=256m", f"SPARK_LOCAL_IP={host}"]
    script = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    return [*environment, *script, "--host", host, "--port", str(port), "--webui-port", str(free_port()), *arguments]
