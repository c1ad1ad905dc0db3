"""A query that meets the limits of its memory and its disk, as a process of its own.

    python limited.py FOLDER DISK

DISK is a small file system, with Spark's local folder. In the first batch the budget for indexes is too small, in the
second the disk is full; each time the query fails, the reason goes, and the query is started again. On standard output
there is a JSON line with what was said, or with the state as Spark's reader sees it and what the progress tells of it.
"""

import json
import shutil
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from safekeeper.spark import PREFIX, configure

ROWS, PAD = 80_000, 100
LEAST_BUDGET = 1 << 20
FOR_SHUFFLES = 4 << 20  # they compress what a batch has, its state does not
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dsafekeeper.poison=true",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.memory.unmanagedMemoryPollingInterval": "100ms",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1h",  # which would unload what is to be accounted for
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(folder, disk):
    builder = SparkSession.builder.master("local[1]").appName("safekeeper limits")
    for name, value in {**SETTINGS, "spark.local.dir": str(disk)}.items():
        builder.config(name, value)
    spark = configure(builder, f"file://{folder}/store").getOrCreate()
    add(folder, 0)
    spark.conf.set(PREFIX + "memoryBytes", LEAST_BUDGET)
    tell(refused=run(spark, folder))
    spark.conf.unset(PREFIX + "memoryBytes")
    tell(**run(spark, folder))
    add(folder, 1)
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - FOR_SHUFFLES))
    tell(refused=run(spark, folder))
    filler.unlink()
    tell(**run(spark, folder))
    add(folder, 2)
    tell(**run(spark, folder))
    spark.stop()


def add(folder, batch):
    """Half of the keys of a batch are those of the one before."""
    keys = range(batch * ROWS // 2, batch * ROWS // 2 + ROWS)
    (folder / "input").mkdir(exist_ok=True)
    (folder / "input" / f"{batch}.json").write_text("\n".join(json.dumps({"key": key}) for key in keys))


def run(spark, folder):
    """Run until nothing is left: what is in the state then, or what the query said when it failed."""
    rows = spark.readStream.schema("key bigint").json(str(folder / "input"))
    wide = rows.withColumn("pad", F.expr(f"repeat(cast(key % 10 as string), {PAD})"))
    counts = wide.groupBy("key", "pad").count()
    stream = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    (operator,) = query.recentProgress[-1].stateOperators
    manager = spark._jvm.org.apache.spark.memory.UnifiedMemoryManager
    accounted = manager.getMemoryByComponentType("StateStore") if spark.version >= "4.1" else None
    state = spark.read.format("statestore").load(str(folder / "checkpoint"))
    (found,) = state.agg(F.count("*"), F.sum("value.count"), F.sum(F.length("key.pad"))).collect()
    return {
        "state": list(found),
        "memory": operator.customMetrics["safekeeperMemoryBytes"],
        "disk": operator.customMetrics["safekeeperDiskBytes"],
        "accounted": accounted,
    }


def tell(**line):
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
