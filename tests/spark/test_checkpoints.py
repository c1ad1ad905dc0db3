"""Whole checkpoints in one store: offsets, commits, schemas and state, with our provider and with Spark's RocksDB.

On `safekeeper://` RocksDB brings what Spark lets no other provider do; `docs/spark.md` has the table of ways by minor
version, and each of its rows is a test here or in `test_queries.py`.
"""

from __future__ import annotations

import json
import uuid

import pytest
from pyspark.sql import functions as F

import safekeeper
from safekeeper.integrations.filesystem.layout import VolumePath
from safekeeper.integrations.filesystem.volume import FileVolumes, VolumeReader
from safekeeper.spark.build import spark_home, spark_version

from .sessions import sessions_in_pandas

MINOR = spark_version(spark_home())
STATE = "spark.sql.streaming.stateStore."
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
V4 = {JOIN_FORMAT: "4", "spark.sql.streaming.join.stateFormatV4.enabled": "true"}


@pytest.fixture
def files(store):
    with safekeeper.open(store) as backend:
        yield FileVolumes(backend)


def at(query, *names):
    path = VolumePath.parse(query.checkpoint.removeprefix("safekeeper://"))
    return VolumePath(path.volume, (*path.names, *names))


def names(files, path):
    return {below.names[-1] for below, _ in files.entries_in(path)}


def aggregation(left):
    return left.groupBy("key").agg(F.count("*"), F.sum("number"), F.max("time"))


def join(left, right):
    left = left.withWatermark("time", "2 minutes").alias("left")
    right = right.withWatermark("time", "3 minutes").alias("right")
    near = F.expr("left.key = right.key and right.time between left.time and left.time + interval 5 minutes")
    return left.join(right, near, "leftOuter")


def run(query):
    query.run(0, 1)
    return query.run(2)


@pytest.mark.parametrize("format", ["1", "2"])
@pytest.mark.parametrize("provider", ["ours", "rocksdb"])
def test_offsets_commits_and_state_are_in_the_store_and_nowhere_else(
    whole, runner, events, hdfs, rocksdb, ours, store, files, provider, format
):
    inputs = {"left": events(1)}
    chosen = rocksdb if provider == "rocksdb" else {**ours(), STATE + "safekeeper.url": store}
    expected = run(runner(aggregation, inputs, hdfs, "update"))
    query = whole(aggregation, inputs, {**chosen, STATE + "checkpointFormatVersion": format}, "update")
    assert run(query) == expected
    assert {"metadata", "offsets", "commits"} <= names(files, at(query))
    assert {"0", "1", "2"} <= names(files, at(query, "offsets")) & names(files, at(query, "commits"))
    metadata = at(query, "metadata")
    id = json.loads(VolumeReader(files, metadata, files.get(metadata)).read())["id"]
    assert uuid.UUID(id)
    assert not query.unused.exists()
    if provider == "ours" or format == "1" or MINOR > "4.0":  # 4.0 reads only format 1 of its own
        assert len(query.state()) == 20
    if provider == "rocksdb":
        assert any(name.endswith((".zip", ".changelog")) for name in names(files, at(query, "state", "0", "0")))


OPERATORS = {
    "transform_with_state": (sessions_in_pandas, ("left",), {}, ("4.0", "4.1", "4.2", "4.3")),
    "join_of_format_2": (join, ("left", "right"), {JOIN_FORMAT: "2"}, ("4.0", "4.1", "4.2", "4.3")),
    "join_of_format_3": (join, ("left", "right"), {JOIN_FORMAT: "3"}, ("4.1", "4.2", "4.3")),
    "join_of_format_4": (join, ("left", "right"), V4, ("4.2", "4.3")),
}


@pytest.mark.parametrize("name", [name for name, (*_, minors) in OPERATORS.items() if MINOR in minors])
def test_rocksdb_in_the_store_gives_what_it_gives_in_a_local_folder(whole, runner, events, rocksdb, files, name):
    query, inputs, settings, _ = OPERATORS[name]
    given = {input: events(seed) for seed, input in enumerate(inputs)}
    expected = run(runner(query, given, {**settings, **rocksdb}))
    assert any(expected.values())
    made = whole(query, given, {**settings, **rocksdb})
    assert run(made) == expected
    if JOIN_FORMAT in settings:
        first = at(made, "offsets", "0")
        plan = VolumeReader(files, first, files.get(first)).read().decode()
        assert f'"{JOIN_FORMAT}":"{settings[JOIN_FORMAT]}"' in plan
