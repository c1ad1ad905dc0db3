"""Spark's reader of state sees in our store what it sees in Spark's own: the latest batch, older ones, every change."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from safekeeper.spark.build import spark_home, spark_version

MINOR = spark_version(spark_home())
STATE = "spark.sql.streaming.stateStore."


def sums(left):
    return left.withWatermark("time", "2 minutes").groupBy(F.window("time", "5 minutes"), "key").agg(F.sum("number"))


def pairs(left, right):
    left, right = (side.withWatermark("time", "2 minutes").alias(name) for side, name in ((left, "l"), (right, "r")))
    return left.join(right, F.expr("l.key = r.key and r.time between l.time and l.time + interval 2 minutes"))


@pytest.fixture(params=("1", "2"), ids=("format 1", "format 2"))
def both(request, hdfs, rocksdb, ours):
    """The settings of Spark's own store, and those of ours, for a checkpoint format.

    Its default store knows only format 1, and so does the reader of Spark 4.0 where the store is its own.
    """
    format = {STATE + "checkpointFormatVersion": request.param}
    own = hdfs if request.param == "1" or MINOR == "4.0" else {**rocksdb, **format}
    return [own, {**ours(), **format}]


def test_the_latest_state_an_older_one_and_the_change_feed_are_the_same(both, runner, events):
    seen = []
    for settings in both:
        run = runner(sums, {"left": events(1)}, settings)
        run.run(0, 1)
        run.run(2)
        seen.append(
            {
                "latest": run.state(),
                "first": run.state(batchId=0),
                "second": run.state(batchId=1),
                "changes": run.state(readChangeFeed="true", changeStartBatchId=0),
                "later changes": run.state(readChangeFeed="true", changeStartBatchId=1, changeEndBatchId=2),
            }
        )
    expected, found = seen
    assert all(expected.values())
    assert found == expected


def test_both_sides_of_a_join_are_the_same(both, runner, events):
    seen = []
    for settings in both:
        run = runner(pairs, {"left": events(1), "right": events(2)}, settings)
        run.run(0, 1)
        seen.append([run.state(joinSide=side, batchId=batch) for side in ("left", "right") for batch in (0, 1)])
    expected, found = seen
    assert all(expected)
    assert found == expected
