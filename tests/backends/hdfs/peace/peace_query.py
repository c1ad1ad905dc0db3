"""A query with large commits on the store that the command line names; prints the sums of two of its metrics."""

import json
import sys

from pyspark.sql import SparkSession, functions

import safekeeper.spark

url, inputs, checkpoint = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "2")
spark = safekeeper.spark.configure(builder, url, codec="none").getOrCreate()
keys = spark.readStream.schema("first long").json(inputs).selectExpr("explode(sequence(first, first + 19999)) as key")
query = (
    keys.groupBy(functions.sha2(functions.col("key").cast("string"), 512).alias("key"))
    .count()
    .writeStream.outputMode("update")
    .format("noop")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
names = ("safekeeperPlannedFiles", "safekeeperFilesAsPlanned")
progress = [json.loads(one.json) for one in query.recentProgress]
metrics = [one["stateOperators"][0]["customMetrics"] for one in progress]
print(json.dumps({name: sum(one[name] for one in metrics) for name in names}))
