"""The data centre of `peace_site.py` with an executor of Spark on every server: commits of queries are its checkpoints.

Two queries run, one whose store has stock placement and one with Peace. A run gives one of them a batch: every
partition makes a state of random bytes anew, after the shuffle, so that nothing large goes over the network but
commits. There are as many partitions as servers, each on an executor of its own.

When a writer began and ended is read from HDFS: the times at which its chunk files were created and completed, by the
NameNode's clock. All commits of a batch count as submitted when the first chunk of any was created. First replicas are
on the writers' own disks, in both arms: that is how HDFS places what executors write.

Every wait has an end: what takes longer raises `SparkSiteStuck`, and everything is taken down.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from safekeeper.backend import PlacementCounts
from safekeeper.backends.hdfs.peace.coordinator import Coordinator
from safekeeper.bench.lab.peace_site import (
    PEACE,
    REPLICAS,
    STOCK,
    Checkpoint,
    PeaceSite,
    Run,
    Setting,
    SparkSiteStuck,
    Written,
)
from safekeeper.bench.lab.store_site import write_packet_size
from safekeeper.dev.spark import SparkCluster
from safekeeper.spark import settings

SPARK_ARMS = (STOCK, PEACE)
START_SECONDS = 600.0
"""How long executors may take to come, and the first batch, in which the agents start."""
_QUICK_MBIT = 1000.0
_WARM_SECONDS = 3.0  # a task of the first batch takes so long: every executor gets one
_OVERHEAD = 8192  # a commit has a little more than the state
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkSite(PeaceSite):
    """The shaped network with HDFS on it, and an executor on every server."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(replace(setting, own_disk=True))
        self._queries: dict[str, StreamingQuery] = {}
        self._inputs: dict[str, Path] = {}
        self._keys: list[int] = []
        self._files = 0

    def prepare(self, folder: Path) -> None:
        """Before any JVM starts: what clients find where Hadoop's settings are."""
        self._folder = folder
        os.environ["PYSPARK_PYTHON"] = sys.executable  # for whatever runs state_function
        write_packet_size(folder, self._setting.chunk_bytes)

    def __enter__(self) -> Self:
        super().__enter__()
        with ExitStack() as stack:
            stack.callback(super().__exit__, None, None, None)
            self.network.shape(_QUICK_MBIT, _QUICK_MBIT)
            secret = secrets.token_hex()
            coordinator = stack.enter_context(Coordinator(self.topology().network(), secret, host=self.network.host))
            cluster = stack.enter_context(SparkCluster(self._folder / "spark", self.network.host))
            for server in self.servers:
                cluster.add_worker(server.address, prefix=server.prefix)
            self._spark = self._session(cluster.url)
            stack.callback(_stop, self._spark)
            self._keys = self._keys_of_partitions()
            places = {STOCK: "", PEACE: f"&placement=peace&peace={self.network.host}:{coordinator.port}"}
            for arm in SPARK_ARMS:
                self._start(arm, f"hdfs://:{secret}@" if arm == PEACE else "hdfs://", places[arm])
                stack.callback(_stop, self._queries[arm])
            for arm in SPARK_ARMS:
                self._batch(arm, [0] * len(self.servers), START_SECONDS)
            self._own = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()

    def _session(self, master: str) -> SparkSession:
        builder = SparkSession.builder.master(master).appName("peace")
        found = {
            "spark.driver.bindAddress": self.network.host,
            "spark.driver.host": self.network.host,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": _JAVA,
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": _JAVA,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.pyspark.python": sys.executable,
            "spark.sql.shuffle.partitions": str(len(self.servers)),
            "spark.sql.adaptive.enabled": "false",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # Spark begins when it has all executors
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_SECONDS:.0f}s",
            "spark.locality.wait": "300s",  # a partition stays with the executor that has its state
            "spark.shuffle.reduceLocality.enabled": "false",  # nor does it go where the rows come from
            "spark.network.timeout": "600s",
            "spark.executor.heartbeatInterval": "30s",
            "spark.cores.max": str(len(self.servers)),
            # Nobody cleans up, loads or unloads while it is measured.
            "spark.sql.streaming.stateStore.maintenanceInterval": "3600s",
            "spark.sql.streaming.minBatchesToRetain": "100",
            **settings("memory:", codec="none", agent_start_ms=300_000, agent_silent_ms=300_000, retry_ms=300_000),
        }
        for name, value in found.items():
            builder.config(name, value)
        return builder.getOrCreate()

    def _keys_of_partitions(self) -> list[int]:
        """A key for each partition."""
        count = len(self.servers)
        rows = self._spark.range(100 * count).selectExpr("id", f"pmod(hash(id), {count}) AS part").collect()
        by_part = {row["part"]: int(row["id"]) for row in rows}
        return [by_part[part] for part in range(count)]

    def _start(self, arm: str, scheme: str, place: str) -> None:
        size, name = self._setting.chunk_bytes, arm.lower()
        options = f"replication={REPLICAS}&large={size}&chunk={size}&workers={self._setting.threads}{place}"
        url = f"{scheme}{self.name_node}/{name}?{options}"
        for setting, value in settings(url, codec="none").items():
            if setting.startswith("spark.sql."):
                self._spark.conf.set(setting, value)
        self._inputs[arm] = inputs = self._folder / f"{name}-inputs"
        inputs.mkdir()
        rows = self._spark.readStream.schema("key long, size long").json(str(inputs))
        grouped = rows.groupBy("key").applyInPandasWithState(
            state_function(), "key long", "body binary", "update", "NoTimeout"
        )
        self._queries[arm] = (
            grouped.writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(self._folder / f"{name}-checkpoint"))
            .start()
        )

    def _batch(self, arm: str, sizes: Sequence[int], seconds: float) -> dict[str, Any]:
        """Let a query have one batch, in which partition *n* makes a state of so many bytes; its progress."""
        query = self._queries[arm]
        before = _last_batch(query)
        rows = "".join(
            json.dumps({"key": key, "size": size}) + "\n" for key, size in zip(self._keys, sizes, strict=True)
        )
        self._files += 1
        hidden = self._folder / f"{self._files}.json"
        hidden.write_text(rows)
        hidden.rename(self._inputs[arm] / hidden.name)
        give_up = time.monotonic() + seconds
        while True:
            for progress in query.recentProgress:
                found = json.loads(progress.json)
                if found["batchId"] > before and found["numInputRows"]:
                    return dict(found)
            if not query.isActive:
                raise SparkSiteStuck(f"the query of {arm} has ended: {' '.join(str(query.exception()).split())[:500]}")
            if time.monotonic() > give_up:
                raise SparkSiteStuck(f"a batch of {arm} was not done within {seconds:.0f} s: the machine is too busy")
            time.sleep(0.05)

    def run(self, arm: str, checkpoints: Sequence[Checkpoint]) -> Run:
        """Let every executor commit once."""
        size, sizes = self._setting.chunk_bytes, [0] * len(self.servers)
        for one in checkpoints:
            sizes[one.server] = one.chunks * size - _OVERHEAD
        wire = sum(sizes) * REPLICAS * 8 / (self._setting.link_mbit * 1e6)  # were all of it on one link
        folder = f"/{arm.lower()}/chunks"
        known = {name for name, _, _ in self._chunks(folder)}
        self.network.shape(self._setting.wire_mbit, self._setting.link_mbit)
        try:
            progress = self._batch(arm, sizes, 120 + 4 * wire)
        finally:
            self.network.shape(_QUICK_MBIT, _QUICK_MBIT)
        written = times_of_writers([one for one in self._chunks(folder) if one[0] not in known])
        if len(written) != len(self.servers):
            raise SparkSiteStuck(f"{len(written)} of {len(self.servers)} executors have written: an executor was lost")
        metrics = progress["stateOperators"][0]["customMetrics"]
        planned, hits = (int(metrics[f"safekeeper{name}"]) for name in ("PlannedFiles", "FilesAsPlanned"))
        return Run(written, PlacementCounts(planned=planned, hits=hits))

    def _chunks(self, folder: str) -> Iterator[tuple[str, float, float]]:
        """The chunk files: name, and the seconds at which it was created and completed."""
        client = self._clients[0]
        if client.status(folder) is None:
            return
        for found in client._fs.listStatus(client._path(folder)):
            created, done = int(found.getAccessTime()) / 1000, int(found.getModificationTime()) / 1000
            yield str(found.getPath().getName()), created, done


def times_of_writers(chunks: Sequence[tuple[str, float, float]]) -> list[Written]:
    """When each writer began and ended, from names and times of chunk files; the first of all begins at 0."""
    began = min((created for _, created, _ in chunks), default=0.0)
    writers: dict[str, list[tuple[float, float]]] = {}
    for name, created, done in chunks:
        writers.setdefault(name.partition("-")[0], []).append((created - began, done - began))
    return [Written(0.0, min(c for c, _ in times), max(d for _, d in times)) for times in writers.values()]


def _stop(what: SparkSession | StreamingQuery) -> None:
    """End it. Where Spark has ended before, as by a signal that both of us got, that is not an error."""
    with suppress(Exception):
        what.stop()


def _last_batch(query: StreamingQuery) -> int:
    return max((int(json.loads(progress.json)["batchId"]) for progress in query.recentProgress), default=-1)


def state_function() -> Callable[..., Any]:
    """What makes a key's state anew. It is sent to executors by value."""
    warm = _WARM_SECONDS

    def remake(key: Any, rows: Any, state: Any) -> Any:
        import os
        import time

        import pandas

        size = sum(int(some["size"].sum()) for some in rows)
        if not size:
            time.sleep(warm)
        state.update((os.urandom(max(size, 1)),))
        yield pandas.DataFrame({"key": [key[0]]})

    return remake
