"""Creating what is absent: a segment of its own, with a name that only one can give it.

    1. catch up; if the id has a value, it is known who created it
    2. write a whole segment with the one record, under a name that nobody looks at, and close it
    3. wait until its sequence has passed, so that whatever is written from now on has a higher one
    4. rename it to segments/created-HASH-NUMBER: the NameNode lets one of all who try; then begin again at 1

NUMBER is one more than the highest that there is for this id. It never goes back while somebody may still go by an old
listing: a compaction leaves such segments alone until they are as old as `orphans_after`, and whoever takes half as
long from 1 to 4 gives up. Until then it costs a file, so it is for names and not for millions. A write that came
meanwhile counts before what was created, whatever their sequences: so a create never hides a write. A late write of an
absent id that raised `Unavailable` may therefore still come after one.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextlib import suppress
from typing import Final

from safekeeper.backend import TOKEN_BYTES, CheckpointId
from safekeeper.backends.hdfs.chunks import remove_chunks
from safekeeper.backends.hdfs.errors import Exists, Missing
from safekeeper.backends.hdfs.layout import (
    CREATED,
    CREATED_HEADS,
    HdfsLargeValue,
    Piece,
    encode_footer,
    encode_pieces,
)
from safekeeper.backends.hdfs.store import HdfsStore
from safekeeper.backends.hdfs.writer import HdfsWriter
from safekeeper.backends.shared.records import check_value, encode_segment_head
from safekeeper.errors import Unavailable

_TRIES: Final = 100


def create(store: HdfsStore, writer: HdfsWriter, id: CheckpointId, value: bytes, token: bytes) -> bool:
    """Store *value* under *id* if that is absent; whether what stands there was created with *token*."""
    digest = hashlib.sha256(id.group.encode() + b"\0" + id.key).hexdigest()
    name = f"created-{digest[:40]}-"
    for _ in range(_TRIES):
        started = time.monotonic()
        location, number = store.look_for(id, name)
        if location is None:
            _create(store, writer, id, value, token, f"{name}{number + 1:08d}", started)
            continue  # what is there now shows who was first
        with suppress(Missing):  # a compaction has just moved it
            return location.is_created and store.stored_at(location)[:TOKEN_BYTES] == token
    raise Unavailable(f"{id}: it is changed faster than it can be created: try again")


def _create(
    store: HdfsStore, writer: HdfsWriter, id: CheckpointId, value: bytes, token: bytes, name: str, started: float
) -> None:
    """Put a segment with the value under *name*, unless somebody else is quicker."""
    client, kind, options = store.client, CREATED, store.options
    head: HdfsLargeValue | None = None
    if len(value) >= options.large:
        (piece,) = writer.write_large([(id, value)])
        kind, value = CREATED_HEADS, piece.value or b""
        head = HdfsLargeValue.decode(value, str(id))
    sequence = writer.clock.next(after=store.index.highest)
    temporary = store.path("creating", secrets.token_hex(8))
    writer.write_file(temporary, _segment(id, token + value, kind, sequence, writer.id))
    writer.clock.settle(sequence)
    if time.monotonic() - started > options.orphans_after / 2:
        raise Unavailable(f"{id}: creating it took too long: raise orphans-after=")
    try:
        try:
            client.rename(temporary, store.path("segments", name))
        except Missing:  # nobody has ever written here
            client.make_folder(store.path("segments"))
            client.rename(temporary, store.path("segments", name))
    except Exists:
        with suppress(Unavailable):  # it is swept later
            client.delete(temporary)
        if head:
            remove_chunks(client, store.path("chunks"), [head])


def _segment(id: CheckpointId, value: bytes, kind: int, sequence: int, writer: int) -> bytes:
    """The bytes of a segment with one record."""
    nonce = secrets.randbits(64)
    head = encode_segment_head(0, nonce)
    piece = Piece(id.group, id.key, value, check_value(value))
    block, found = encode_pieces([piece], kind, nonce, len(head), 0, sequence, writer, 0)
    data = b"".join([head, *block])
    return data + encode_footer(found, 1, nonce, len(data), sequence, writer)
