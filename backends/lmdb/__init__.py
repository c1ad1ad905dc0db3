"""`lmdb:` keeps checkpoints in LMDB, a memory-mapped B+ tree: one environment, one database, one transaction per batch.

    ROOT/data.mdb       the tree
    ROOT/lock.mdb       LMDB's own lock and table of readers

    00 "safekeeper"     the mark: version of the layout and the setting `sync`, written by the first write

A batch is a transaction: whole or absent, after a crash and to every reader. Any number of processes may write; LMDB's
lock makes them take turns, and it is freed when its holder dies (but not while its holder is stopped: then writers
wait). The processes must see each other's ids, that is, live in one PID namespace.

`sync` belongs to the store, not to a handle, since LMDB without sync may damage everything in a power cut, not only the
last writes. With `always`, data and then the root are synced before a write returns. With `none` (MDB_NOSYNC,
no MDB_WRITEMAP) both are handed to the kernel in this order: a killed process loses nothing, a crashed kernel anything.

LMDB has no checksums. Values carry one here, so a damaged value is found out; a damaged page of the tree may look like
missing ids or end the process. What the disk does is not LMDB's concern; where it matters, take `log:` or `file:`.

The names and records of ids are drawn in `layout.py`; the options are the fields of `LmdbOptions`. The code reads well
in this order: `layout`, `environment` (one per process and store), `backend`.
"""
