"""A client of Spark Connect that knows nothing of safekeeper: it counts words and prints the counts.

    python connect_client.py REMOTE INPUTS CHECKPOINT [NAME=VALUE ...]

What follows are settings of its session.
"""

import sys

from pyspark.sql import SparkSession

remote, inputs, checkpoint, *settings = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
for setting in settings:
    spark.conf.set(*setting.split("=", 1))
words = spark.readStream.text(inputs)
stream = words.groupBy("value").count().writeStream.outputMode("complete").format("memory").queryName("counts")
query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()
print(sorted(map(tuple, spark.table("counts").collect())))
