"""Spark's state stores against each other and against one that stores nothing.

`python -m safekeeper.bench.studies.spark` plans and prints (`__main__`, `report`); every turn of an arm is a process
with a JVM of its own (`run`). `arms` are the state stores, `workloads` the queries and their input, `footprint` counts
files, bytes and memory from outside.
"""
