"""Peace: a coordinator that says where and when the large files of many writers go, so that they do not collide.

`docs/peace.md` has the plan, the protocol and the attacks on it. The code reads well in this order: `network` (who has
which capacity), `planner` (where), `schedule` (when), `protocol` (the bytes), `coordinator` (the server), `client` (the
writer's side, a `Placement`), `connect` (from a URL to a client). Around it: `defaults` (the numbers that options
have, too), `topology` (the file of capacities), `measure` (capacities from rates), `serve` (a coordinator that knows
its HDFS), `in_process` (one beside a Spark driver), `cli` (`safekeeper peace`). Nothing but `serve` needs Java.
"""
