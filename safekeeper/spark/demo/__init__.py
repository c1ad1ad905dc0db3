"""`python -m safekeeper.spark.demo [URL]`: a streaming query that is killed half-way and counts exactly all the same.

`__main__` makes the stream, starts, kills and restarts the Spark driver, and compares; `query` is that driver; `words`
is the stream and the truth about it.
"""
