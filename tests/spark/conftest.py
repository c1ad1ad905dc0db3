"""One Spark for all tests of this folder, and a way to run the same query on several state stores."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from safekeeper.dev.hbase import HBaseServer
from safekeeper.dev.hdfs import HdfsCluster
from safekeeper.dev.redis import RedisServer
from safekeeper.registry import BUNDLED
from safekeeper.spark import CHECKPOINTS, FILES, PREFIX, PROVIDER, configure
from safekeeper.testing.entry_point import write_entry_points
from safekeeper.testing.processes import AGENT, descendants

STATE = "spark.sql.streaming.stateStore."
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.state."
HERE = Path(__file__).parent
EMBEDDED = "log" if "log" in BUNDLED else "file"
SCHEMA = "key string, number int, time timestamp"

QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dsafekeeper.poison=true",
    "spark.sql.codegen.wholeStage": "false",
}
"""Settings for queries that are short, and many."""

Batches = dict[int, list[Row]]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What JVMs and agents inherit: this interpreter, and backends of third parties, ours and the manual's."""
    folder = tmp_path_factory.mktemp("backends")
    shutil.copy(HERE / "watched.py", folder)
    manual = (HERE.parents[1] / "docs" / "writing-a-backend.md").read_text()
    (sample,) = re.findall(r"^```python file=sqlite_backend.py\n(.*?)^```$", manual, re.MULTILINE | re.DOTALL)
    (folder / "sqlite_backend.py").write_text(sample)
    ours = {"watched": "watched:WatchedBackend", "plain": "watched:PlainBackend"}
    write_entry_points(folder, {**ours, "sqlite": "sqlite_backend:SqliteBackend"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def quick() -> dict[str, str]:
    """Settings for queries that are short."""
    return QUICK


@pytest.fixture(scope="session")
def spark(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark with two cores that knows our provider; the tests make sessions of their own from it."""
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < 1000, "Py4J waits with select(), which knows 1,024 files: close some"
    builder = SparkSession.builder.master("local[2]").appName("safekeeper tests")
    for name, value in {**QUICK, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}.items():
        builder.config(name, value)
    session = configure(builder, "memory:").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Runner:
    """Runs a query on one state store, in a folder and a session of its own.

    The query is a function of its inputs, which are streams of `SCHEMA`; each has a list of rows per batch. *on_batch*
    is called with every batch before its rows are collected.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        query: Callable[..., DataFrame],
        inputs: Mapping[str, Sequence[Sequence[tuple[Any, ...]]]],
        settings: Mapping[str, str],
        mode: str = "append",
        on_batch: Callable[[DataFrame, int], object] = lambda rows, batch: None,
    ) -> None:
        self.session = spark.newSession()
        for name, value in settings.items():
            self.session.conf.set(name, value)
        self.checkpoint = str(folder / "checkpoint")
        self.unused = Path()  # a checkpoint folder that is not used, where the checkpoint is in a store
        self.results: Batches = {}
        self.progress: list[Any] = []  # what Spark told of the batches of the last run
        self._query, self._contents, self._mode, self._on_batch = query, inputs, mode, on_batch
        self._inputs = folder / "inputs"
        self._clock = itertools.count(1_700_000_000)

    def run(self, *batches: int) -> Batches:
        """Let the given batches of the inputs stream in and the query run until nothing is left; all results so far."""
        for name, content in self._contents.items():
            for batch in batches:
                self._add(name, batch, content[batch])
        query = (
            self._query(**{name: self._stream(name) for name in self._contents})
            .writeStream.outputMode(self._mode)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .foreachBatch(self._collect)
            .start()
        )
        query.awaitTermination()
        self.progress = query.recentProgress
        return self.results

    def state(self, **options: object) -> list[Row]:
        """What Spark's reader of state sees in the checkpoint."""
        reader = self.session.read.format("statestore")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return sorted(reader.load(self.checkpoint).collect(), key=repr)

    def _collect(self, rows: DataFrame, batch: int) -> None:
        self._on_batch(rows, batch)
        self.results[batch] = sorted(rows.collect(), key=repr)

    def _add(self, name: str, batch: int, rows: Sequence[tuple[Any, ...]]) -> None:
        folder = self._inputs / name
        folder.mkdir(parents=True, exist_ok=True)
        names = ("key", "number", "time")
        lines = [json.dumps(dict(zip(names, row, strict=True)), default=str) for row in rows]
        (folder / f".{batch}").write_text("\n".join(lines))
        now = next(self._clock)
        os.utime(folder / f".{batch}", (now, now))  # the order in which Spark takes them
        os.rename(folder / f".{batch}", folder / f"{batch}.json")

    def _stream(self, name: str) -> DataFrame:
        reader = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self._inputs / name))


@pytest.fixture(scope="session")
def runner(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Runner]:
    """Makes runners; see there for what it takes."""
    return lambda *args, **details: Runner(spark, tmp_path_factory.mktemp("query"), *args, **details)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the store that has all whole checkpoints of a module's tests."""
    return f"log://{tmp_path_factory.mktemp('checkpoints')}/store"


@pytest.fixture(scope="module")
def whole(store: str, runner: Callable[..., Runner]) -> Callable[..., Runner]:
    """Makes runners whose whole checkpoint is in the store, each in a volume of its own."""

    def whole(query: Any, inputs: Any, settings: Mapping[str, str], *args: Any, **details: Any) -> Runner:
        files = {
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
            "fs.safekeeper.impl": FILES,
            "fs.safekeeper.url": store,
        }
        made = runner(query, inputs, {**files, **settings}, *args, **details)
        made.unused, made.checkpoint = Path(made.checkpoint), f"safekeeper://{uuid.uuid4().hex}/query"
        return made

    return whole


@pytest.fixture(scope="session")
def cutting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter whose agents often hang up instead of saying that a file was written."""
    folder = tmp_path_factory.mktemp("cutting")
    script = HERE / "files" / "cutting.py"
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$3"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.fixture(scope="session")
def unload(spark: SparkSession) -> Callable[[], None]:
    """Unloads all state from memory, and lets the next query say how often there is maintenance.

    Spark's `stop` keeps a lock while it waits for maintenance that may need it, five minutes long: so that ends first.
    """
    jvm: Any = spark._jvm
    stores = jvm.org.apache.spark.sql.execution.streaming.state.StateStore
    task = jvm.java.lang.Class.forName(SPARKS_OWN + "StateStore$").getDeclaredField("maintenanceTask")
    task.setAccessible(True)

    def is_at_work(thread: Any) -> bool:
        called = [frame.getMethodName() for frame in thread.getStackTrace()]
        return thread.getName().startswith("state-store-maintenance") and bool(called) and "getTask" not in called

    def unload() -> None:
        if (running := task.get(None)) is not None:
            running.stop()
        while any(map(is_at_work, jvm.java.lang.Thread.getAllStackTraces().keySet())):
            time.sleep(0.05)
        stores.stop()

    return unload


@pytest.fixture(scope="session")
def events() -> Callable[..., Sequence[Sequence[tuple[Any, ...]]]]:
    """Makes the batches of an input: time goes on, with some disorder, so that windows close and state is dropped."""

    def events(seed: int, keys: int = 20, rows: int = 120, batches: int = 3) -> list[list[tuple[Any, ...]]]:
        chance = random.Random(seed)
        start = datetime(2024, 1, 1)

        def event(batch: int) -> tuple[Any, ...]:
            time = start + timedelta(minutes=10 * batch, seconds=chance.randrange(900))
            return f"key {chance.randrange(keys)}", chance.randrange(100), time

        return [[event(batch) for _ in range(rows)] for batch in range(batches)]

    return events


@pytest.fixture(scope="session")
def hdfs() -> dict[str, str]:
    """The settings of the store that Spark uses by default."""
    return {STATE + "providerClass": SPARKS_OWN + "HDFSBackedStateStoreProvider"}


@pytest.fixture(scope="session")
def rocksdb() -> dict[str, str]:
    """The settings of Spark's other store."""
    changelog = {STATE + "rocksdb.changelogCheckpointing.enabled": "true"}
    return {STATE + "providerClass": SPARKS_OWN + "RocksDBStateStoreProvider", **changelog}


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], dict[str, str]]:
    """The settings of our store on the embedded default: one store for all queries of the tests."""
    url = f"{EMBEDDED}://{tmp_path_factory.mktemp('stores')}/{EMBEDDED}"
    return lambda: {STATE + "providerClass": PROVIDER, PREFIX + "url": url}


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "redis": lambda folder: RedisServer(folder, appendonly="yes", appendfsync="always"),
    "hbase": HBaseServer,
    "hdfs": HdfsCluster,
}


@pytest.fixture(scope="module")
def url_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The URL of a store by its scheme, one for all tests of a module; its server, if it needs one, ends with them."""
    folder = tmp_path_factory.mktemp("stores")
    with ExitStack() as running:

        @functools.cache
        def url_on(scheme: str) -> str:
            if scheme in SERVERS:
                url: str = running.enter_context(SERVERS[scheme](folder / scheme)).url
                return url
            return "memory:" if scheme == "memory" else f"{scheme}://{folder}/{scheme}"

        yield url_on


@pytest.fixture(scope="session")
def agents_of() -> Callable[[int], list[int]]:
    """Finds the processes of the agents that a JVM has started, by its process id."""
    return lambda jvm: descendants([jvm], AGENT)


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[str], tuple[list[str], Path]]:
    """A small file system, which only a mount namespace can have: what goes before a command, and its place."""

    def small_disk(size: str) -> tuple[list[str], Path]:
        folder = tmp_path / "disk"
        folder.mkdir()
        inside = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
        inside += [f'mount -t tmpfs -o size={size} none {folder} && exec "$0" "$@"']
        if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
            pytest.skip("there are no mount namespaces here")
        return inside, folder

    return small_disk
