"""Every kind of stateful query gives what it gives on Spark's own state stores, restarted in the middle."""

from __future__ import annotations

import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from safekeeper.spark import PREFIX
from safekeeper.spark.build import spark_home, spark_version

from .sessions import sessions, sessions_in_pandas

MINOR = spark_version(spark_home())
STATE = "spark.sql.streaming.stateStore."
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
EVERYDAY = ("aggregation", "left_outer_join", "session_windows")
"""The queries that Spark's RocksDB does in the everyday run; `tox -e spark40` and the like let it do all."""


@dataclass(frozen=True)
class Scenario:
    query: Callable[..., Any]
    mode: str = "append"
    inputs: tuple[str, ...] = ("left",)
    settings: Mapping[str, str] = field(default_factory=dict)
    on_batch: Callable[..., Any] = lambda rows, batch: None
    minors: tuple[str, ...] = ("4.0", "4.1", "4.2", "4.3")
    like: str = "hdfs"  # "rocksdb" if of Spark's own stores only that can do it
    one_partition: bool = False

    @property
    def formats(self) -> tuple[str, ...]:
        """The checkpoint formats; Spark 4.0 fails in format 2 where an operator has fewer partitions than others."""
        return ("1",) if self.one_partition and MINOR == "4.0" else ("1", "2")


SCENARIOS: dict[str, Scenario] = {}


def scenario(**details):
    """Enters the query below it into the table, where Spark lets our provider do it."""

    def enter(query):
        if MINOR in (found := Scenario(query, **details)).minors:
            SCENARIOS[query.__name__] = found
        return query

    return enter


@scenario(mode="update")
def aggregation(left):
    return left.groupBy("key").agg(F.count("*"), F.sum("number"), F.max("time"))


@scenario()
def windowed_aggregation(left):
    windows = left.withWatermark("time", "2 minutes").groupBy(F.window("time", "5 minutes", "2 minutes"), "key")
    return windows.agg(F.count("*"), F.sum("number"))


@scenario(mode="complete", one_partition=True)
def aggregation_without_keys(left):
    return left.agg(F.count("*"), F.avg("number"))


@scenario()
def drop_duplicates(left):
    return left.dropDuplicates(["key", "number"])


@scenario()
def drop_duplicates_with_watermark(left):
    return left.withWatermark("time", "2 minutes").dropDuplicates(["number", "time"])


@scenario()
def drop_duplicates_within_watermark(left):
    return left.withWatermark("time", "2 minutes").dropDuplicatesWithinWatermark(["key"])


def join(left, right, kind):
    left = left.withWatermark("time", "2 minutes").alias("left")
    right = right.withWatermark("time", "3 minutes").alias("right")
    near = F.expr(
        "left.key = right.key and left.number % 10 = right.number % 10"
        " and right.time between left.time and left.time + interval 5 minutes"
    )
    return left.join(right, near, kind)


@scenario(inputs=("left", "right"))
def inner_join(left, right):
    return join(left, right, "inner")


@scenario(inputs=("left", "right"))
def left_outer_join(left, right):
    return join(left, right, "leftOuter")


@scenario(inputs=("left", "right"))
def semi_join(left, right):
    return join(left, right, "leftSemi")


@scenario()
def session_windows(left):
    sessions = left.withWatermark("time", "2 minutes").groupBy(F.session_window("time", "40 seconds"), "key")
    return sessions.agg(F.count("*"), F.sum("number"))


@scenario(mode="update")
def apply_in_pandas_with_state(left):
    def count(key, chunks, state):
        import pandas

        seen, total = state.get if state.exists else (0, 0)
        for chunk in chunks:
            seen, total = seen + len(chunk), total + int(chunk["number"].sum())
        state.update((seen, total))
        if seen > 20:
            state.remove()
        yield pandas.DataFrame({"key": [key[0]], "seen": [seen], "total": [total]})

    return left.groupBy("key").applyInPandasWithState(
        count, "key string, seen int, total int", "seen int, total int", "update", GroupStateTimeout.NoTimeout
    )


@scenario(one_partition=True)
def limit(left):
    return left.limit(200)


@scenario(mode="update", settings={STATE + "unloadOnCommit": "true"})
def aggregation_unloaded_on_commit(left):
    return aggregation(left)


@scenario(mode="update", on_batch=lambda rows, batch: rows.count())
def aggregation_in_a_batch_with_two_actions(left):
    return aggregation(left)


@scenario()
def two_stateful_steps(left):
    once = left.withWatermark("time", "2 minutes").dropDuplicates(["key", "number", "time"])
    return once.groupBy(F.window("time", "5 minutes")).count()


@scenario(inputs=("left", "right"), settings={JOIN_FORMAT: "3"}, minors=("4.1", "4.2"), like="rocksdb")
def left_outer_join_of_format_3(left, right):
    return join(left, right, "leftOuter")


@scenario(
    inputs=("left", "right"),
    settings={JOIN_FORMAT: "4", "spark.sql.streaming.join.stateFormatV4.enabled": "true"},
    minors=("4.2",),
    like="rocksdb",
)
def left_outer_join_of_format_4(left, right):
    return join(left, right, "leftOuter")


@scenario(minors=("4.0", "4.1"), like="rocksdb")
def transform_with_state_in_pandas(left):
    return sessions_in_pandas(left)


@scenario(minors=("4.1",), like="rocksdb")
def transform_with_state(left):
    """PySpark 4.0 has it in pandas only."""
    processor = sessions(
        lambda rows: [row.number for row in rows],
        lambda key, told: Row(key=key, told=told),
    )
    return left.withWatermark("time", "2 minutes").groupBy("key").transformWithState(*processor)


@pytest.fixture(scope="module")
def expected(runner, events, hdfs, rocksdb):
    """What a query gives on Spark's own store, asked once."""
    own = {"hdfs": hdfs, "rocksdb": rocksdb}
    return functools.cache(lambda name: run(name, runner, events, own[SCENARIOS[name].like]))


def run(name, runner, events, settings):
    """The rows of every batch of a query that was restarted after the second one."""
    found = SCENARIOS[name]
    inputs = {input: events(seed) for seed, input in enumerate(found.inputs)}
    query = runner(found.query, inputs, {**found.settings, **settings}, found.mode, found.on_batch)
    query.run(0, 1)
    return query.run(2)


@pytest.mark.parametrize(
    ("name", "format"), [(name, format) for name, found in SCENARIOS.items() for format in found.formats]
)
def test_a_query_gives_the_same_rows_in_every_batch(name, format, runner, events, expected, ours):
    results = run(name, runner, events, {**ours(), STATE + "checkpointFormatVersion": format})
    assert any(expected(name).values())
    assert results == expected(name)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, found in SCENARIOS.items()
        if found.like == "hdfs" and (MINOR != "4.3" or LONG or name in EVERYDAY)
    ],
)
def test_sparks_other_store_gives_the_same_rows_too(name, runner, events, expected, rocksdb):
    assert run(name, runner, events, rocksdb) == expected(name)


@pytest.mark.skipif(MINOR != "4.3", reason="older ones take the format as it is: they are in the table")
@pytest.mark.parametrize("format", ("3", "4"))
def test_a_join_of_a_newer_state_format_gives_the_same_rows(format, runner, events, expected, ours):
    """Spark 4.3 lowers the format of a new query; one whose first batch is planned already it takes as it is."""
    found = SCENARIOS["left_outer_join"]
    inputs = {input: events(seed) for seed, input in enumerate(found.inputs)}
    query = runner(found.query, inputs, ours(), found.mode)
    query.run(0)
    checkpoint = Path(query.checkpoint)
    planned, lowered = checkpoint / "offsets" / "0", f'"{JOIN_FORMAT}":"2"'
    plan = planned.read_text()
    assert lowered in plan
    shutil.rmtree(checkpoint / "state")
    shutil.rmtree(checkpoint / "commits")
    for later in planned.parent.iterdir():
        later.unlink()
    (checkpoint / ".metadata.crc").unlink()
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))  # a query that has no state yet
    planned.write_text(plan.replace(lowered, f'"{JOIN_FORMAT}":"{format}"'))
    query.results.clear()
    query.run(1)
    assert query.run(2) == expected("left_outer_join")
    assert all(f'"{JOIN_FORMAT}":"{format}"' in file.read_text() for file in planned.parent.glob("[0-9]*"))


@pytest.mark.timeout(900)  # servers start
@pytest.mark.parametrize("name", ("aggregation", "inner_join", "session_windows"))
@pytest.mark.parametrize("scheme", ("memory", "file", "lmdb", "objects+file", "redis", "hbase", "hdfs", "sqlite"))
def test_it_does_so_on_every_backend(name, scheme, runner, events, expected, ours, url_on):
    """`sqlite:` is the sample of `docs/writing-a-backend.md`."""
    assert run(name, runner, events, {**ours(), PREFIX + "url": url_on(scheme)}) == expected(name)
