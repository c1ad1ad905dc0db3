"""A streaming query with many partitions, a process of its own: `python hdfs_query.py FOLDER URL PARTITIONS`.

It counts some numbers in two batches, says so, and stays until its standard input ends.
"""

import sys

from pyspark.sql import SparkSession

import safekeeper.spark

if __name__ == "__main__":
    folder, url, partitions = sys.argv[1:]
    builder = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    )
    builder.config("spark.sql.shuffle.partitions", partitions)
    builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    spark = safekeeper.spark.configure(builder, url).getOrCreate()
    for batch in range(2):
        spark.range(1000 * batch, 1000 * batch + 1000).coalesce(1).write.mode("append").parquet(f"{folder}/numbers")
    numbers = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/numbers")
    writer = numbers.groupBy("id").count().writeStream.outputMode("update").format("memory").queryName("counts")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    query.processAllAvailable()
    print(spark.table("counts").count(), flush=True)
    sys.stdin.read()
    query.stop()
    spark.stop()
