"""A driver of a query with a join and an aggregation, as a process of its own.

    python driver.py FOLDER MASTER URL [NAME=VALUE ...]

It reads FOLDER/left and FOLDER/right, one file of each in a batch, until nothing is left; its checkpoint is
FOLDER/checkpoint. With `shared=PLACE` all three are in PLACE instead, a folder of any file system that Spark knows.

What a batch puts out goes to FOLDER/out, one file for each batch, replaced whole if the batch runs again. On standard
output there is a JSON line when Spark has started, and one at the beginning of each batch. While there is a file
FOLDER/hold-N, batch N waits.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from safekeeper.spark import settings

SCHEMA = "key string, time timestamp"

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dsafekeeper.poison=true"
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.log.level": "ERROR",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "3",
    "spark.stage.maxConsecutiveAttempts": "100",  # executors are killed more often than Spark thinks reasonable
    "spark.task.maxFailures": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def counts(left, right):
    """How many pairs of each key began in each minute."""
    left, right = (side.withWatermark("time", "5 minutes").alias(name) for side, name in ((left, "l"), (right, "r")))
    near = F.expr("l.key = r.key and r.time between l.time and l.time + interval 1 minute")
    pairs = left.join(right, near).select("l.key", "l.time")
    return pairs.groupBy(F.window("time", "1 minute"), "key").count().select("window.start", "key", "count")


def main(folder, master, url, *more):
    builder = SparkSession.builder.master(master).appName("safekeeper cluster test")
    given = dict(word.split("=", 1) for word in more)
    shared = given.pop("shared", str(folder))
    mine = {} if "spark.pyspark.python" in given else {"python": sys.executable}
    ours = settings(url, **mine)  # not `configure`: what the executors find out is tested here
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": f"{folder}/warehouse", **ours, **given}.items():
        builder.config(name, value)
    spark = builder.getOrCreate()
    tell(jvm=SparkContext._gateway.proc.pid, application=spark.sparkContext.applicationId)

    def keep(rows, batch):
        tell(batch=batch)
        while (folder / f"hold-{batch}").exists():
            time.sleep(0.1)
        hidden = folder / "out" / f".{batch:06}"
        hidden.write_text(json.dumps([(row.start.isoformat(), row.key, row["count"]) for row in rows.collect()]))
        os.rename(hidden, folder / "out" / f"{batch:06}.json")

    sides = (
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{shared}/{side}")
        for side in ("left", "right")
    )
    stream = counts(*sides).writeStream.outputMode("append").foreachBatch(keep).trigger(availableNow=True)
    stream.option("checkpointLocation", f"{shared}/checkpoint").start().awaitTermination()
    spark.stop()


def tell(**line):
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
