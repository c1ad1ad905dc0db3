"""What Spark lets only RocksDB do, and what an older one has not: the other cells of the table in `docs/spark.md`."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

from safekeeper.spark import PROVIDER
from safekeeper.spark.build import spark_home, spark_version

MINOR = spark_version(spark_home())
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"


def sums(left):
    return left.groupBy("key").agg(F.sum("number"))


def near(left, right):
    left, right = (side.withWatermark("time", "2 minutes").alias(name) for side, name in ((left, "l"), (right, "r")))
    return left.join(right, F.expr("l.key = r.key and r.time between l.time and l.time + interval 2 minutes"))


@pytest.mark.skipif(MINOR < "4.2", reason="older ones do it: it is in test_queries.py")
def test_transform_with_state_is_refused(ours, runner, events):
    from pyspark.sql.streaming import StatefulProcessor

    class Nothing(StatefulProcessor):
        def init(self, handle):
            pass

        def handleInputRows(self, key, rows, timerValues):
            yield from rows

        def close(self):
            pass

    def transformed(left):
        return left.groupBy("key").transformWithStateInPandas(
            Nothing(), "key string, number int, time timestamp", "append", "none"
        )

    with pytest.raises(StreamingQueryException, match="STORE_BACKEND_NOT_SUPPORTED_FOR_TWS"):
        runner(transformed, {"left": events(1)}, ours()).run(0)


@pytest.mark.parametrize("format", ("3", "4"))
def test_older_ones_do_not_know_the_newer_formats_of_joins(format, spark):
    session = spark.newSession()
    oldest = {"3": "4.1", "4": "4.2"}[format]
    if oldest <= MINOR:
        session.conf.set(JOIN_FORMAT, format)
    else:
        with pytest.raises(IllegalArgumentException, match=JOIN_FORMAT):
            session.conf.set(JOIN_FORMAT, format)


@pytest.mark.skipif(MINOR != "4.3", reason="older ones take the format as it is: they are in test_queries.py")
@pytest.mark.parametrize("format", ("3", "4"))
def test_a_newer_format_of_joins_is_lowered(format, ours, runner, events):
    query = runner(near, {"left": events(1), "right": events(2)}, {**ours(), JOIN_FORMAT: format})
    query.run(0)
    assert f'"{JOIN_FORMAT}":"2"' in Path(query.checkpoint, "offsets", "0").read_text()


def test_real_time_mode_with_state_is_refused_or_unknown(spark, ours, tmp_path):
    if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
        assert MINOR < "4.3"
        return
    session = spark.newSession()
    for name, value in ours().items():
        session.conf.set(name, value)
    writer = session.readStream.format("rate").load().groupBy("value").count().writeStream.format("console")
    writer.outputMode("update").option("checkpointLocation", str(tmp_path)).trigger(realTime="5 minutes")
    with pytest.raises((IllegalArgumentException, StreamingQueryException), match=r"STREAMING_REAL_TIME_MODE\."):
        writer.start().awaitTermination()


def test_offline_repartitioning_is_refused_or_unknown(spark, ours, runner, events):
    query = runner(sums, {"left": events(1)}, ours(), "update")
    query.run(0)
    manager = getattr(query.session, "_streamingCheckpointManager", None)
    if manager is None:
        assert MINOR in ("4.0", "4.1")
        return
    with pytest.raises(Py4JJavaError, match=rf"UNSUPPORTED_PROVIDER.* {PROVIDER} is not supported"):
        manager.repartition(query.checkpoint, 3)
