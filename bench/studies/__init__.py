"""Studies: each file or package here answers one question, and can be run by itself.

    python -m safekeeper.bench.studies.redis_overhead --quick

A study measures its arms turn by turn (`harness.interleave`), prints tables, and says in one line for each of its goals
whether it is met (`harness.goals`). `safekeeper bench all` runs all of them and makes a page of what they print.

    log_write_path, log_sharing     the log against raw files and embedded stores; what other writers cost it
    keeper_overhead                 what a save through a SafeKeeper costs beyond the backend's write
    no_pause, event_latency         how long a process stands still while large states are saved; how long events wait
    *_overhead                      what a backend costs on top of its driver; `ycsb_overhead`: YCSB itself on `memory:`
    thesis                          the measurements of the S4 thesis again
    peace, peace_simulator          Peace against stock HDFS, on a shaped network and on simulated time
    spark, spark_cleaner            Spark's state stores against ours; what `cleanAt` buys and costs
    spark_streams                   streams as source and sink of Spark, beside its own files and redis-py
"""
