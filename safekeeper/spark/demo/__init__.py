"""`python -m safekeeper.spark.demo [URL]`: a streaming query that is killed half-way and counts exactly all the same.

`__main__` makes the stream, starts, kills and restarts the driver, and compares; `query` is the driver; `words` is the
stream and the truth about it.
"""
