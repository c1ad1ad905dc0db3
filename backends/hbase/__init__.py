"""`hbase:` keeps checkpoints in HBase 2, through its Thrift 1 server.

    hbase://host[:9090][/table][?option=value]

The table is `safekeeper` where none is named; `namespace:table` names one elsewhere. The first write creates it if it
is not there: family `data`, one version. The options are the fields of `HBaseOptions`. What a write survives is in
`docs/durability.md`, the layout in `layout.py`, and why a late write never undoes a newer one in
`shared/server_clock.py`.

How soon trouble shows: a server that does not answer for `timeout=` seconds is `Unavailable`. The Thrift server itself
waits longer for regions that are down, by default for minutes. What it does for a caller that has given up does no harm
but keeps a worker busy; `hbase.client.operation.timeout` and `hbase.client.retries.number` in its own settings bound
that.

The code reads well in this order: `options`, `layout`, `thrift` (what is used of the driver), `connections`, `table`,
`backend`, `sweeper` (chunks that dead writers left).
"""
