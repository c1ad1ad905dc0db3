"""A job that knows nothing of safekeeper: `spark-submit ... job.py INPUTS CHECKPOINT [wait]` prints its counts."""

import os
import sys
import time

from pyspark.sql import SparkSession

driver = os.getppid()
inputs, checkpoint, *wait = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
words = spark.readStream.text(inputs)
query = (
    words.groupBy("value")
    .count()
    .writeStream.outputMode("complete")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .foreachBatch(lambda rows, batch: print("counts", sorted(map(tuple, rows.collect())), flush=True))
    .start()
)
query.awaitTermination()
print("done", flush=True)
while wait and os.getppid() == driver:  # the JVM, which is going to be killed
    time.sleep(0.1)
