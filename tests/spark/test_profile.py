"""What crosses into Python: one frame for each commit, whatever the number of rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from safekeeper.spark import PREFIX

PARTITIONS = 2
STATE = "spark.sql.streaming.stateStore."


def sums(left):
    return left.groupBy("key").agg(F.sum("number"))


def pairs(left, right):
    left, right = (side.withWatermark("time", "2 minutes").alias(name) for side, name in ((left, "l"), (right, "r")))
    return left.join(right, F.expr("l.key = r.key and r.time between l.time and l.time + interval 1 seconds"))


@pytest.mark.parametrize("format", ("1", "2"))
@pytest.mark.parametrize(
    ("query", "inputs", "mode", "stores"),
    ((sums, ("left",), "update", 1), (pairs, ("left", "right"), "append", 4)),
    ids=("aggregation", "join"),
)
def test_a_batch_is_one_frame_for_each_store_and_partition(
    query, inputs, mode, stores, format, ours, runner, events, tmp_path
):
    """Checkpoint format 1 does not say which commit of a version counts, so each store also lists its commits."""
    log = Path(f"{tmp_path}/store.log")
    seen = {}
    settings = {**ours(), PREFIX + "url": f"watched://{tmp_path}/store", STATE + "checkpointFormatVersion": format}
    contents = {name: events(seed, keys=500, rows=2000, batches=4) for seed, name in enumerate(inputs)}
    look = lambda rows, batch: seen.update({batch: log.read_text().splitlines() if log.exists() else []})  # noqa: E731
    runner(query, contents, settings, mode, look).run(0, 1, 2, 3)

    frames = Counter()
    for line in seen[3][len(seen[2]) :]:
        call, ids = line.split()
        frames[call] += int(ids)
    commits = stores * PARTITIONS
    assert frames == ({"write": commits, "keys": commits} if format == "1" else {"write": commits})
