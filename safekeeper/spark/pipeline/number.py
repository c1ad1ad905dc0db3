"""The part in the middle: a query in Spark that numbers the words, each word for itself, with state in our provider.

    python -m safekeeper.spark.pipeline.number MASTER STATE WORDS COUNTS CHECKPOINT [WORDS COUNTS CHECKPOINT ...]

It runs a query for each three of them until it is killed. On standard output there is a JSON line when Spark has
started, and one for each batch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import safekeeper.spark

BATCH = 100
"""How many elements a batch has at most."""
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a short run is mostly warming up
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.memory": "512m",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.stage.maxConsecutiveAttempts": "100",  # executors are killed more often than Spark thinks reasonable
    "spark.task.maxFailures": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def number(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The elements of one word in one batch: each gets the next number of this word."""
    elements = pd.concat(frames).sort_values("number")
    before = state.get[0] if state.exists else 0
    state.update((before + len(elements),))
    bodies = [f"{before + index} {place}" for index, place in enumerate(elements["number"], 1)]
    yield pd.DataFrame({"key": key[0], "body": bodies})


def start(spark: SparkSession, words: str, counts: str, checkpoint: str) -> StreamingQuery:
    """Start the query from one stream to another."""
    source = spark.readStream.format("safekeeper-stream").schema("number bigint, key string")
    elements = source.options(url=words, maxElementsPerBatch=BATCH).load()
    numbered = elements.groupBy("key").applyInPandasWithState(
        number, "key string, body string", "n int", "append", GroupStateTimeout.NoTimeout
    )
    sink = numbered.writeStream.format("safekeeper-stream").options(url=counts, readers="total")
    query = sink.outputMode("append").option("checkpointLocation", checkpoint).start()
    while query.isActive and "nitializing" in query.status["message"]:
        time.sleep(0.05)  # each starts Python processes, which have ten seconds: not all at once
    return query


def main(master: str, state: str, *streams: str) -> None:
    """Run the queries; if one ends, all end, and somebody starts us again."""
    builder = SparkSession.builder.master(master).appName("safekeeper pipeline")
    for name, value in _SETTINGS.items():
        builder.config(name, value)
    spark = safekeeper.spark.configure(builder, state).getOrCreate()
    _tell({"jvm": SparkContext._gateway.proc.pid, "application": spark.sparkContext.applicationId})  # type: ignore[union-attr]
    safekeeper.spark.register(spark)
    queries = [start(spark, *streams[index : index + 3]) for index in range(0, len(streams), 3)]
    told: dict[str, int] = {}
    while True:
        for query in queries:
            if error := query.exception():
                raise error
            if (progress := query.lastProgress) and told.get(query.id) != progress.batchId:
                told[query.id] = progress.batchId
                _tell({"batch": progress.batchId})
        time.sleep(0.05)


def _tell(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
