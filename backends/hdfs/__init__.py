"""`hdfs:` keeps checkpoints in HDFS, through the client that PySpark ships.

    hdfs://namenode:8020/folder[?option=value]

The host may be a name service that the settings in `$HADOOP_CONF_DIR` define, or be left away (`hdfs:///folder`) for
the one that they name as the default. The options are the fields of `HdfsOptions`. What a write survives is in
`docs/durability.md`, the layout in `layout.py`; the code reads well in this order: `layout`, `index`, `store`
(reading), `chunks`, `open_segment`, `writer`, `compaction`, `backend`. Only `client.py` knows of Java.

Where files go is asked of a `placement`; Peace (`docs/peace.md`) is `network` and `peace` (where), `schedule` (when),
`coordinator` and `peace_client`. This module imports nothing: Peace needs no Java.
"""
