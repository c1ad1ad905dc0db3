"""The queries, and the files that stream into them.

A batch is one Parquet file. The first ones fill the state, some let the JVM warm up; the rest are measured, but for the
last, which is what a restarted query has to do first. All arms read the same files, which are the same in every run.

    aggregation     count and sum by key; every batch updates as many keys, drawn from all of them
    deduplication   every batch brings as many keys, half of them for the first time
    join            half of a batch are new keys, the other half their partners, from the middle of the time that keys
                    wait for them; what has waited long enough goes, so the state keeps its size
    wide            counts by a key that is some hundred bytes long, and incompressible enough with no codec
    partitions-200  an aggregation with many partitions, to count the files that a batch writes to
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

SCHEMA = "key bigint, number bigint, side int, time timestamp"

_READERS = 2  # row groups of a file, so that both cores read it
Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SizedQuery:
    """A query with a size."""

    name: str
    kind: str
    """Which query: a key of `QUERIES`."""
    keys: int
    """In the state, once it is filled."""
    rows: int
    """In each measured batch."""
    fills: int
    """How many batches fill the state."""
    heap: str = "4g"
    """Of the JVM."""
    objects_heap: str = "4g"
    """The same for HDFSBacked, whose state is objects on the heap."""
    warm_ups: int = 6
    """How many batches follow that are not measured either, while the JVM still compiles."""
    batches: int = 14
    partitions: int = 2
    pad: int = 0
    """How many bytes wider a key is, in `wide`."""
    slow_ms: int = 0
    """How long the store of ours takes for a write besides what it takes; if there is any, it is `file:`."""
    every: float = 0
    """How many seconds lie between two measured batches; 0 if the next comes when the last is done."""
    memory_mb: int = 0
    """Of the cgroup in which the turn runs; 0 for none."""
    settings: tuple[tuple[str, str], ...] = ()
    """More of Spark's."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> SizedQuery:
        """What `asdict` and JSON made of one."""
        return cls(**fields | {"settings": tuple((name, value) for name, value in fields.get("settings", ()))})

    @property
    def files(self) -> int:
        """How many batches there are in all."""
        return self.fills + self.warm_ups + self.batches + 1

    @property
    def has_sums(self) -> bool:
        """Whether what the state counts can be added up."""
        return self.kind in ("aggregation", "wide")


def _aggregation(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*"), F.sum("number"))


def _wide(rows: DataFrame, pad: int) -> DataFrame:
    words = F.expr(f"rpad(sha2(cast(key as string), 512), {pad}, sha2(cast(key + 1 as string), 512))")
    return rows.groupBy("key", words.alias("pad")).count()


def _deduplication(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["key"])


def _join(rows: DataFrame, seconds: int) -> DataFrame:
    timed = rows.withWatermark("time", "0 seconds")
    left, right = (timed.where(f"side = {side}").alias(name) for side, name in enumerate("lr"))
    condition = f"l.key = r.key and r.time between l.time and l.time + interval {seconds} seconds"
    return left.join(right, F.expr(condition))


QUERIES: dict[str, tuple[Callable[[DataFrame, SizedQuery], DataFrame], str]] = {
    "aggregation": (lambda rows, workload: _aggregation(rows), "update"),
    "deduplication": (lambda rows, workload: _deduplication(rows), "append"),
    "wide": (lambda rows, workload: _wide(rows, workload.pad), "update"),
    "join": (lambda rows, workload: _join(rows, _wait(workload)), "append"),
}
"""The queries with their output modes."""


def _by_name(*workloads: SizedQuery) -> dict[str, SizedQuery]:
    return {workload.name: workload for workload in workloads}


WORKLOADS = _by_name(
    SizedQuery("aggregation-1M", "aggregation", 1_000_000, 100_000, 5),
    SizedQuery("aggregation-5M", "aggregation", 5_000_000, 100_000, 5, objects_heap="14g"),
    SizedQuery("join", "join", 500_000, 100_000, 12),
    SizedQuery("deduplication", "deduplication", 1_000_000, 100_000, 5),
    SizedQuery("partitions-200", "aggregation", 100_000, 100_000, 1, warm_ups=1, batches=5, partitions=200),
)

LARGE = _by_name(
    SizedQuery("aggregation-20M", "aggregation", 20_000_000, 100_000, 20, heap="1g"),
    SizedQuery("aggregation-100M", "aggregation", 100_000_000, 100_000, 100, heap="2g", batches=5),
)
"""State beyond the heap, only where it is asked for by name: not every arm can do it."""

_PARTS = (("spark.sql.streaming.stateStore.safekeeper.codec", "none"),)  # of 16 MiB, as the default is

SPECIAL = _by_name(
    SizedQuery("beyond-memory", "wide", 12_000_000, 50_000, 40, "512m", batches=10, pad=280, memory_mb=2048),
    SizedQuery("slow-store", "wide", 400_000, 110_000, 4, batches=10, pad=1100, slow_ms=50, every=2, settings=_PARTS),
    SizedQuery("latency", "aggregation", 1_000_000, 50_000, 5, batches=60, every=2),
)
"""State beyond the memory of a cgroup, a slow store, batches by the clock; only by name, too."""

LARGE_QUICK = _by_name(
    SizedQuery("aggregation-20M", "aggregation", 40_000, 4_000, 2, "1g", warm_ups=0, batches=3),
    SizedQuery("aggregation-100M", "aggregation", 40_000, 4_000, 2, "1g", warm_ups=0, batches=3),
    SizedQuery("beyond-memory", "wide", 40_000, 4_000, 2, "512m", warm_ups=0, batches=3, pad=280, memory_mb=1536),
    SizedQuery(
        "slow-store",
        "wide",
        20_000,
        10_000,
        2,
        "1g",
        warm_ups=0,
        batches=3,
        pad=1100,
        slow_ms=50,
        every=2,
        settings=(*_PARTS, ("spark.sql.streaming.stateStore.safekeeper.valueBytes", "1048576")),
    ),
    SizedQuery("latency", "aggregation", 20_000, 4_000, 2, "1g", warm_ups=0, batches=4, every=1),
)
"""Those of `LARGE` and `SPECIAL`, small, by the same names."""

QUICK = _by_name(
    SizedQuery("aggregation", "aggregation", 20_000, 4_000, 2, "1g", "1g", warm_ups=0, batches=4),
    SizedQuery("join", "join", 10_000, 4_000, 7, "1g", "1g", warm_ups=0, batches=4),
    SizedQuery("deduplication", "deduplication", 20_000, 4_000, 2, "1g", "1g", warm_ups=0, batches=4),
    SizedQuery("partitions-200", "aggregation", 2_000, 1_000, 1, "1g", "1g", warm_ups=0, batches=3, partitions=200),
)
"""The same at a size for everyday use."""


def _wait(workload: SizedQuery) -> int:
    """How many batches, which are a second each, a key waits for its partner."""
    return max(1, 2 * workload.keys // workload.rows)


def write_inputs(workload: SizedQuery, folder: Path) -> list[Path]:
    """The files of a workload, in their order, written into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for batch in range(workload.files):
        keys, sides = _KEYS[workload.kind](workload, batch, np.random.default_rng(batch))
        table = pa.table(
            {
                "key": keys,
                "number": keys % 1000,
                "side": sides.astype(np.int32),
                "time": pa.array(np.full(len(keys), (1_700_000_000 + batch) * 1_000_000), pa.timestamp("us", "UTC")),
            }
        )
        paths.append(folder / f"{batch:04}.parquet")
        pq.write_table(table, paths[-1], row_group_size=-(-len(keys) // _READERS))
    return paths


def _drawn(workload: SizedQuery, batch: int, random: np.random.Generator, of: int) -> tuple[Numbers, Numbers]:
    """Every key once while the state is filled, then so many of them, no two alike within a batch."""
    if batch < workload.fills:
        keys = np.arange(batch, workload.keys, workload.fills, dtype=np.int64)
        random.shuffle(keys)
    else:
        keys = random.choice(of, workload.rows, replace=False).astype(np.int64)
    return keys, np.zeros_like(keys)


def _pairs(workload: SizedQuery, batch: int, random: np.random.Generator) -> tuple[Numbers, Numbers]:
    half = workload.rows // 2
    partners = max(0, batch - _wait(workload) // 2)
    keys = np.concatenate([np.arange(half) + start * half for start in (batch, partners)])
    sides = np.repeat([0, 1], half)
    order = random.permutation(len(keys))
    return keys[order], sides[order]


_KEYS: dict[str, Callable[[SizedQuery, int, np.random.Generator], tuple[Numbers, Numbers]]] = {
    "aggregation": lambda workload, batch, random: _drawn(workload, batch, random, workload.keys),
    "deduplication": lambda workload, batch, random: _drawn(workload, batch, random, 2 * workload.keys),
    "wide": lambda workload, batch, random: _drawn(workload, batch, random, workload.keys),
    "join": _pairs,
}
