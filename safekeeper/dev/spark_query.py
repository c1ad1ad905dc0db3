"""Four stateful queries over what is new in two folders, to go from one Spark to another with their checkpoints.

    python -m safekeeper.dev.spark_query FOLDER FORMAT

The words are in FOLDER/left and FOLDER/right, each in a line with its time in seconds; checkpoints and state are beside
them; FORMAT is Spark's checkpoint format. It prints, as JSON, what each query has found (`spark_walk.py` says what that
is to be).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions

from safekeeper.dev.spark_walk import DELAY, GAP, REACH
from safekeeper.spark import configure


def main(folder: Path, format: str) -> None:
    """Run the queries until nothing is new, and print what they found."""
    builder = SparkSession.Builder().master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.sql.shuffle.partitions", "2")
    builder.config("spark.sql.streaming.stateStore.checkpointFormatVersion", format)
    spark = configure(builder, f"log://{folder}/store").getOrCreate()
    print(json.dumps(run(spark, folder)))
    spark.stop()


def run(spark: SparkSession, folder: Path) -> dict[str, list[list[object]]]:
    """The rows of all batches of each query, until nothing is left; of `counts` those of the last one."""
    left, right = (_words(spark, folder / name).alias(name) for name in ("left", "right"))
    sessions = left.groupBy(functions.session_window("time", f"{GAP} seconds"), "word").count()
    near = functions.expr(
        f"left.word = right.word and right.time between left.time and left.time + interval {REACH} seconds"
    )
    queries = {
        "counts": (left.groupBy("word").count(), "complete"),
        "new": (left.dropDuplicates(["word"]).select("word"), "append"),
        "sessions": (sessions.select("word", functions.unix_timestamp("session_window.end"), "count"), "append"),
        "joined": (
            left.join(right, near, "leftOuter").select(
                "left.word", functions.unix_timestamp("left.time"), functions.unix_timestamp("right.time")
            ),
            "append",
        ),
    }
    return {name: _rows(*query, folder / name) for name, query in queries.items()}


def _words(spark: SparkSession, folder: Path) -> DataFrame:
    parts = functions.split("value", ",")
    timed = spark.readStream.text(str(folder)).select(
        parts[0].alias("word"), functions.timestamp_seconds(parts[1].cast("long"))
    )
    return timed.toDF("word", "time").withWatermark("time", f"{DELAY} seconds")


def _rows(query: DataFrame, mode: str, checkpoint: Path) -> list[list[object]]:
    """The rows of a query that runs until nothing is left, in order; with `complete`, those of its last batch."""
    found: list[list[object]] = []

    def collect(rows: DataFrame, batch: int) -> None:
        if mode == "complete":
            found.clear()
        found.extend(list(row) for row in rows.collect())

    writer = query.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).foreachBatch(collect).start().awaitTermination()
    return sorted(found, key=repr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
