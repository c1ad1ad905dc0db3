"""Providers in a JVM of their own, driven over Py4J: the state store interface without a query around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from safekeeper.spark import PREFIX, jar
from safekeeper.spark.build import STRICT, find_tool, spark_home

SOURCES = Path(__file__).parent / "java"
STATE_STORE = "spark.sql.streaming.stateStore."
MODULES = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "java.lang", "sun.nio.ch")]


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The bridge as it is shipped, the tests' classes, and Spark."""
    classes = tmp_path_factory.mktemp("classes")
    path = f"{jar()}:{spark_home()}/jars/*"
    files = [str(file) for file in SOURCES.rglob("*.java")]
    command = [find_tool("javac"), "--release", "17", "-proc:none", *STRICT, "-cp", path, "-d", str(classes), *files]
    subprocess.run(command, check=True, timeout=300)
    return f"{classes}:{path}"


@pytest.fixture(scope="session")
def jvm(class_path: str) -> Iterator[Any]:
    py4j = next(spark_home().glob("jars/py4j-*.jar"))
    heap = "3g" if os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long" else "1g"
    options = [f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-Dsafekeeper.poison=true", *MODULES]
    port, process = launch_gateway(
        jarpath=str(py4j), classpath=class_path, javaopts=options, die_on_exit=True, return_proc=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    yield gateway.jvm.io.safekeeper.spark
    gateway.shutdown()
    process.stdin.close()  # which ends the JVM
    process.stdout.close()
    process.wait(60)


@dataclass
class World:
    """A checkpoint, a store, and providers that keep the state of the one in the other."""

    jvm: Any
    folder: Path
    store: Path
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checkpoint = self.folder / "checkpoint"
        self.checkpoint.mkdir()
        self.new_query()
        self.settings = {
            PREFIX + "url": f"file://{self.store}",
            PREFIX + "python": sys.executable,
            STATE_STORE + "minDeltasForSnapshot": "10",
            **self.settings,
        }

    def new_query(self) -> None:
        """Begin a new checkpoint: what Spark does in an empty folder."""
        self.query = str(uuid.uuid4())
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.query}))

    def provider(
        self,
        encoding: str = "plain",
        families: bool = False,
        lists: bool = False,
        checkpoint: Path | None = None,
        partition: int = 0,
        **settings: object,
    ) -> Any:
        """A provider as an executor has one. Two of them are like two executors, but for the agent that they share."""
        chosen = self.settings | {PREFIX + name: str(value) for name, value in settings.items()}
        return self.jvm.TestProvider(str(checkpoint or self.checkpoint), chosen, encoding, families, lists, partition)

    def keys(self, kind: str = "commit") -> list[Path]:
        """The files of the commits in the store, oldest version first."""
        return sorted(self.store.glob(f"spark*{self.query}*/{kind}_*"), key=lambda path: path.name)

    def versions(self) -> list[int]:
        return [int(path.name.split("_")[1]) for path in self.keys()]


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all tests, since queries do not meet in it, and so one agent."""
    return tmp_path_factory.mktemp("shared") / "store"


@pytest.fixture
def world(jvm: Any, tmp_path: Path, shared_store: Path) -> World:
    return World(jvm, tmp_path, shared_store)


@pytest.fixture
def world_with_ids(jvm: Any, tmp_path: Path, shared_store: Path) -> World:
    """Checkpoint format 2, where Spark remembers the ids of commits."""
    return World(jvm, tmp_path, shared_store, {STATE_STORE + "checkpointFormatVersion": "2"})


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)

    return wait


def items(listed: Any) -> dict[str, str]:
    """What a store lists, as a dict from "prefix:key" to the value."""
    return dict(str(item).split("=", 1) for item in listed)


@pytest.fixture(name="items")
def items_fixture() -> Callable[[Any], dict[str, str]]:
    return items
