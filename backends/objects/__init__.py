"""`objects+SCHEME:` keeps one immutable object per write of an id, in whatever fsspec can reach under SCHEME.

    ROOT/GROUP/KEY.ckpt/vVERSION-RANDOM         a value; names and content are those of `shared/named_values.py`
    ROOT/GROUP/KEY.ckpt/vVERSION-RANDOM.gone    a tombstone, empty: the id is absent
    ROOT/GROUP/KEY.ckpt/vVERSION-RANDOM.new     a value that was created
    ROOT/.tmp/vVERSION-RANDOM                   one on its way, only where files can be seen half written

VERSION is 16 hexadecimal digits. Of the objects of an id the one with the highest name counts.

To put: list the id's objects, write one with a higher version, delete those that were listed. To delete: list, then
delete from the lowest version to the highest. So at any moment, and wherever a writer dies, what counts is the old
value or the new one, whole; what is left behind counts no more and is deleted by the next write of the id, or by
`compact`. To read: list, get the highest; when it is gone by then, a newer write has deleted it, so list again.

The version is one more than the highest listed, or the clock in nanoseconds if that is higher. Listing makes a write
win over every write that has returned, whatever the clocks say. The clock is for writes that have not: a request that
timed out may still be carried out by the store, unseen when others listed, and must then lose. Within a handle this is
certain; between hosts it needs clocks that differ by less than the time between the two writes. A delete has no version
that could win, so for `_DOUBT` seconds after a put has failed, deletes of that handle leave a tombstone.

To create, where the store can put an object only if there is none of its name (S3, a local folder, memory): list; if
the id is absent, put an object whose name follows from what was listed, and list again. Who was first to put it has
created the id, if it counts then. With nothing listed its version is 0, else one more than that of the tombstone. What
is written has two more at least, so it counts before what is created at the same time. Such a name must not be used a
second time while somebody may still go by an old listing. So a write leaves created objects and tombstones where they
are, a delete leaves a tombstone where there were any, and the next name follows from that. `compact` removes them when
what counts is a day old.

Needed of the store: what was written is listed at once (as S3 does since 2020), and an upload that was cut off leaves
no object. Where that is not so (a local folder, SFTP), a file is written under another name and then moved.

Nothing is known of what such a store survives, except for two: a local folder survives the end of the process (fsspec
does not sync), memory nothing. `?assert=` declares the rest. Secrets come from where the driver looks for them (such as
AWS_SECRET_ACCESS_KEY) or from fsspec's configuration, not from the URL.

The code reads well in this order: `options` (from a URL to a driver), `store` (what is used of fsspec), `backend`.
"""
