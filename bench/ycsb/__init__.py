"""YCSB for checkpoint stores: its property files, its distributions, its lines of output.

To read in this order:

    properties      YCSB's names and defaults; `workloads/` has the bundled files
    generators      YCSB's random distributions
    workload        which operations come in which order, on which records
    session         one thread's operations on a store; `keeper_session` does them through a SafeKeeper
    runner          threads, target rate, warm-up, time limit
    measurements    latencies and return codes; `kinds` has YCSB's other kinds of measurement
    status          intervals, for people and for files; `exporters` print the result
    clients         a workload from one client or from several processes; `on_spark` from Spark's executors
    stores          opens every store: a backend, or one of the embedded stores in `peers`
    recover         how long it takes to open a store and read everything back
    compare         one workload on several stores, turn by turn; `report` shows what it found
"""
