"""`log:` keeps checkpoints in indexed append-only files: the embedded default.

    ROOT/writer-7/00000012.segment      blocks of records, appended; what is written together is one block
    ROOT/writer-7/00000013.index        where the newest record of each id is, mapped
    ROOT/writer-7/manifest              which files belong to the folder

Concurrent writes share one write and one sync. Any number of processes write, each to a folder of its own, and read
all of them. The bytes, what may be believed of them after a crash, and how writers get along are in `docs/format.md`;
the code reads well in this order: `shared/records`, `location`, `column_block`, `manifest`, `segment`, `scan`,
`index_file`, `index`, `recovery`, `writer_status`, `writer_folder` (reading a folder), `root` (reading all), `claim`,
`blocks`, `appender`, `writer`, `liveness`, `compaction`, `abandoned`; for damage, `verify` and `salvage`.
"""
