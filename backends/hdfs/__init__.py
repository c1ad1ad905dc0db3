"""`hdfs:` keeps checkpoints in HDFS, through the client that PySpark ships.

    hdfs://namenode:8020/folder[?option=value]

The host may be a name service that the settings in `$HADOOP_CONF_DIR` define, or be left out (`hdfs:///folder`) for
the one that they name as the default. Observer NameNodes and mount tables (ViewFS) are followed as these settings say;
so is Kerberos, with the ticket of whoever has run `kinit`, which no test shows yet. The options are the fields of
`HdfsOptions`. What a write survives is in `docs/durability.md`, the layout in `layout.py`; the code reads well in this
order: `layout`, `index`, `segments`, `store` (reading), `chunks`, `writer`, `compaction`, `backend`. Only `client.py`
knows of Java.

Where files go is asked of a `placement`; Peace, which plans it, has a folder of its own, `peace/`.
"""
