"""The write path of `log` against raw files and other embedded stores, every save durable.

`python -m safekeeper.bench.studies.log_write_path` measures and prints (`__main__`). `arms` are the stores and what is
done with them; `ids` is a process that opens a log and tells what its index needs.
"""
