"""The Spark driver of the demo, a process of its own so that it can be killed.

    python -m safekeeper.spark.demo.query FOLDER URL

It counts words per minute until its standard input ends and everything that is there has been counted. What a batch
has counted goes to FOLDER/counts, one file for each batch, replaced whole if the batch runs again. On standard output
it prints a JSON line when Spark has started, and one for each batch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import date_format
from pyspark.sql.functions import window as window_of
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

import safekeeper.spark
from safekeeper.spark.demo.words import SCHEMA

_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # a short run is mostly warming up
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(folder: Path, url: str) -> None:
    """Run the query."""
    builder = SparkSession.builder.master("local[2]").appName("safekeeper demo")
    for name, value in _SETTINGS.items():
        builder.config(name, value)
    spark = safekeeper.spark.configure(builder, url).getOrCreate()
    _tell({"jvm": SparkContext._gateway.proc.pid})  # type: ignore[union-attr]
    spark.streams.addListener(_Reporter())
    query = _start(spark, folder)
    sys.stdin.read()
    query.processAllAvailable()
    query.stop()
    spark.stop()


def _start(spark: SparkSession, folder: Path) -> StreamingQuery:
    words = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "words"))
    minutes = window_of("time", "1 minute")
    counts = words.withWatermark("time", "1 minute").groupBy(minutes, "word").count()
    rows = counts.select(date_format("window.start", "HH:mm"), "word", "count")
    stream = rows.writeStream.outputMode("update").foreachBatch(_Keeper(folder / "counts"))
    return stream.option("checkpointLocation", str(folder / "checkpoint")).start()


class _Keeper:
    """Keeps what each batch has counted in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        hidden = self._folder / f".{batch:06}"
        hidden.write_text(json.dumps(rows.collect()))
        os.rename(hidden, self._folder / f"{batch:06}.json")


class _Reporter(StreamingQueryListener):
    """Tells of each batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        state = progress.stateOperators[0]
        _tell(
            {
                "batch": progress.batchId,
                "words": progress.numInputRows,
                "trigger_ms": progress.durationMs["triggerExecution"],
                "commits": state.numShufflePartitions,
                "commit_ms": state.commitTimeMs,
                "agent_ms": state.customMetrics["safekeeperAgentMicros"] // 1000,
                "bytes": state.customMetrics["safekeeperShippedBytes"],
            }
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        pass


def _tell(line: dict[str, int]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
