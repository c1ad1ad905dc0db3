"""Peace on simulated networks. `python -m safekeeper.bench.studies.peace_simulator` runs it and prints (`__main__`).

`fluid` says how fast chunks go that share wires, links and disks; `simulation` lets the servers of a data centre write,
with the planner and the schedule that `hdfs:` uses; `report` shows what came of it.
"""
