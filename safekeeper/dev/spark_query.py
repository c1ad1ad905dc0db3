"""Two stateful queries over what is new in a folder, for whoever goes from one Spark to another with their checkpoints.

    python -m safekeeper.dev.spark_query FOLDER FORMAT

The words are in FOLDER/words, checkpoints and state beside them; FORMAT is Spark's checkpoint format. It prints, as
JSON, how often each word was there so far, and which words were there for the first time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from safekeeper.spark import configure


def main(folder: Path, format: str) -> None:
    """Run both queries until nothing is new, and print what they found."""
    builder = SparkSession.Builder().master("local[2]").config("spark.ui.enabled", "false")
    builder.config("spark.sql.shuffle.partitions", "2")
    builder.config("spark.sql.streaming.stateStore.checkpointFormatVersion", format)
    spark = configure(builder, f"log://{folder}/store").getOrCreate()
    words = spark.readStream.text(str(folder / "words"))
    counts = _rows(words.groupBy("value").count(), "complete", folder / "counts")
    new = _rows(words.dropDuplicates(["value"]), "append", folder / "new")
    first = sorted(str(word) for batch in new for (word,) in batch)
    print(json.dumps({"counts": {str(word): count for word, count in counts[-1]}, "new": first}))
    spark.stop()


def _rows(query: DataFrame, mode: str, checkpoint: Path) -> list[list[tuple[object, ...]]]:
    """The rows of each batch of a query that runs until nothing is left."""
    found: list[list[tuple[object, ...]]] = []

    def collect(rows: DataFrame, batch: int) -> None:
        found.append([tuple(row) for row in rows.collect()])

    writer = query.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).foreachBatch(collect).start().awaitTermination()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
