"""A query that is set back to an older batch, with as little kept and as much moved as can be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from safekeeper.spark import PREFIX
from safekeeper.spark.build import spark_home, spark_version

MINOR = spark_version(spark_home())
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
STATE = "spark.sql.streaming.stateStore."
LEAST_KEPT = {"spark.sql.streaming.minBatchesToRetain": "2", STATE + "maintenanceInterval": "50ms"}
MOST_MOVED = {PREFIX + "cleanAt": "1.01", PREFIX + "leastCommitBytes": "1000000"}


def sums(left):
    return left.withWatermark("time", "2 minutes").groupBy(F.window("time", "5 minutes"), "key").agg(F.sum("number"))


def set_back(checkpoint):
    """Forget the last two batches: what the state has beyond them is of no batch that ever was."""
    newest = max(int(path.name) for path in Path(checkpoint, "commits").glob("[0-9]*"))
    for name in (f"commits/{newest}", f"commits/{newest - 1}", f"offsets/{newest}"):
        path = Path(checkpoint, name)
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return newest - 1


@pytest.mark.crash
@pytest.mark.parametrize(
    ("format", "way"),
    [("1", "by a load"), ("2", "by undo"), *((("1", "by undo"), ("2", "by a load")) if LONG else ())],
)
def test_results_and_change_feed_are_those_of_sparks_own(hdfs, rocksdb, ours, runner, events, unload, format, way):
    seen = []
    with_format = {STATE + "checkpointFormatVersion": format}
    own = hdfs if format == "1" or MINOR == "4.0" else {**rocksdb, **with_format}  # 4.0 reads only format 1 of its own
    for settings in (own, {**ours(), **MOST_MOVED, **with_format}):
        unload()
        settings = {**settings, **LEAST_KEPT}
        run = runner(sums, {"left": events(3, batches=8)}, settings)
        run.run(0, 1, 2, 3, 4)
        time.sleep(0.5)  # so that there was maintenance
        again = set_back(run.checkpoint)
        if way == "by a load":
            unload()
        results = dict(run.run(5, 6))
        seen.append(
            {
                "results": results,
                "latest": run.state(),
                "one before": run.state(batchId=max(results) - 1),
                "changes": run.state(readChangeFeed="true", changeStartBatchId=max(results) - 2),
                "set back to": again,
            }
        )
    unload()
    expected, found = seen
    assert all(expected.values())
    assert found == expected
