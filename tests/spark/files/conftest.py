"""Hadoop's file system API in JVMs of their own, driven over Py4J."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from safekeeper.fsspec import SafekeeperFileSystem
from safekeeper.spark import CHECKPOINTS, FILES, jar
from safekeeper.spark.build import spark_home

MODULES = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "java.lang", "sun.nio.ch")]


@dataclass
class Jvm:
    """A JVM that knows `safekeeper://`."""

    java: Any

    def conf(self, url: str, python: str = sys.executable, **settings: object) -> Any:
        conf = self.java.org.apache.hadoop.conf.Configuration()
        found = {"impl": FILES, "url": url, "python": python, **settings}
        for name, value in found.items():
            conf.set(f"fs.safekeeper.{name}", str(value))
        return conf

    def path(self, location: str) -> Any:
        return self.java.org.apache.hadoop.fs.Path(location)

    def files(self, location: str, conf: Any) -> Any:
        """A file system of its own, not that of the cache."""
        return self.java.org.apache.hadoop.fs.FileSystem.newInstance(self.path(location).toUri(), conf)

    def manager(self, location: str, conf: Any) -> Any:
        """What Spark writes the checkpoint at *location* with."""
        return getattr(self.java.io.safekeeper.spark.files, CHECKPOINTS.rpartition(".")[2])(self.path(location), conf)


@pytest.fixture(scope="session")
def start_jvm(environment: None) -> Iterator[Callable[[], Jvm]]:
    """Starts JVMs, each like a host of its own: with its own agents."""
    running = []

    def start() -> Jvm:
        port, process = launch_gateway(
            jarpath=str(next(spark_home().glob("jars/py4j-*.jar"))),
            classpath=f"{jar()}:{spark_home()}/jars/*",
            javaopts=["-Xmx512m", "-XX:TieredStopAtLevel=1", *MODULES],
            die_on_exit=True,
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        running.append((gateway, process))
        return Jvm(gateway.jvm)

    yield start
    for gateway, process in running:
        gateway.shutdown()
        process.stdin.close()  # which ends the JVM
        process.stdout.close()
        process.wait(60)


@pytest.fixture(scope="session")
def jvm(start_jvm: Callable[[], Jvm]) -> Jvm:
    return start_jvm()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store for all these tests, which have volumes of their own."""
    return f"log://{tmp_path_factory.mktemp('files')}/store"


@pytest.fixture
def fs(url: str) -> Iterator[SafekeeperFileSystem]:
    """The same files, for Python."""
    fs = SafekeeperFileSystem(url, skip_instance_cache=True)
    yield fs
    fs.close()
