"""Giving back space: what still counts of some complete segments is copied into a new one, then they are removed.

One process does this at a time, in these steps, and may die or be held up between any two of them:

    1. create ROOT/compaction/TIME-WRITER, which is open from now on
    2. list that folder: if another file in it is open, remove the own one and leave it to the other
    3. remove the others: they are complete or half complete, of processes that died or were held up for long
    4. refresh, choose segments, copy their newest records into the file, complete it
    5. rename it into ROOT/segments
    6. remove the segments that were copied

- Two at once: each creates before it lists, so at least one sees the other. HDFS takes a file from a writer that was
  silent for a minute and completes it; so whoever was held up before 5 finds its file gone, and nothing has happened.
- Dies between 5 and 6: every record is there twice, with the same sequence; the next one removes the old ones.
- A copy keeps its sequence, so it loses against whatever was written meanwhile.
- A tombstone goes when nothing older of its id can turn up any more: no segment that stays has a record of it that is
  older, and every segment that is open began after it (a block on its way when its writer failed appears late). Nor
  while anything is being created, or whoever did so has died less than a day ago.
- Segments whose names say who has created an id stay until they are old: see `creation.py`.
- Readers that find a file gone list again. What they look for was copied or replaced before it went.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock
from typing import Final

from safekeeper.backend import Compaction
from safekeeper.backends.hdfs.client import OutputStream
from safekeeper.backends.hdfs.layout import LocatedRecord, RecordLocation, block_for, encode_copies, encode_footer
from safekeeper.backends.hdfs.segments import HdfsSegment
from safekeeper.backends.hdfs.store import HdfsStore
from safekeeper.backends.hdfs.writer import HdfsWriter
from safekeeper.backends.shared.records import BLOCK, check_value, encode_record_head, encode_segment_head, padding
from safekeeper.errors import SafekeeperError

_MANY_SMALL: Final = 8
_SMALL_SHARE: Final = 0.25
_BLOCK_BYTES: Final = 4 << 20
_SWEEP_SECONDS: Final = 3600.0


class HdfsCompactor:
    """Compacts one store, by and by."""

    def __init__(self, store: HdfsStore, writer: HdfsWriter) -> None:
        self._store = store
        self._writer = writer
        self._sweep_at = time.monotonic() + _SWEEP_SECONDS
        self._running = Lock()

    def run(self, everything: bool = False) -> Compaction:
        """Compact what is worth it, or *everything* that has a dead record. Another process at it is not an error."""
        with self._running:
            return self._run(everything)

    def _run(self, everything: bool) -> Compaction:
        self._store.refresh()
        before = self._bytes()
        if everything or time.monotonic() > self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_SECONDS
            self.sweep()
        while self._pass(everything):
            pass
        self._store.refresh()
        return Compaction(before, self._bytes())

    def keep_up(self) -> None:
        """The same in the background, where nobody wants to know of trouble: there is a next time."""
        with suppress(SafekeeperError):
            self.run()

    def _bytes(self) -> int:
        with self._store.lock:
            return sum(segment.size for segment in self._store.segments.values())

    def _pass(self, everything: bool) -> bool:
        """One new segment for some old ones; False if there is nothing left to do, or somebody else does it."""
        client = self._store.client
        for segment in self._foreign_open():
            client.nudge(segment.path)
        if not self._choose(everything):
            return False
        name = f"{self._writer.clock.next():020d}-{self._writer.id:08x}"
        path = self._store.path("compaction", name)
        options = self._store.options
        out = client.create(
            path,
            replication=self._store.replication,
            block_size=block_for(options.segment),
            to_disk=options.sync == "hsync",
        )
        try:
            if not self._alone(name):
                return False
            self._store.refresh()
            victims = self._choose(everything)
            if not victims:
                return False
            self._copy(victims, out, path)
            self._remove(victims)
            return True
        finally:
            out.abandon()
            client.delete(path)

    def _alone(self, name: str) -> bool:
        """Whether nobody else is at it; what others left is removed then."""
        client, folder = self._store.client, self._store.path("compaction")
        others = [status for status in client.listing(folder) or () if status.name != name]
        busy = [status for status in others if status.is_open]
        for status in busy:
            client.nudge(f"{folder}/{status.name}")
        if not busy:
            for status in others:
                client.delete(f"{folder}/{status.name}")
        return not busy

    def _foreign_open(self) -> list[HdfsSegment]:
        with self._store.lock:
            segments = self._store.segments.values()
            return [segment for segment in segments if not segment.complete and segment not in self._store.own]

    def _choose(self, everything: bool) -> list[HdfsSegment]:
        """The segments to compact together: as much as one new segment takes."""
        options = self._store.options
        with self._store.lock:
            live = self._store.index.live_in_files()
            complete = [segment for segment in self._store.segments.values() if segment.complete]
        # Those whose names others go by stay until nobody does: see `creation.py`.
        old = self._writer.clock.next() - options.orphans_after * 1_000_000
        complete = [segment for segment in complete if not segment.is_creation or segment.lowest < old]
        small = {segment.file_id for segment in complete if segment.size < options.segment * _SMALL_SHARE}
        gather = small if len(small) >= (2 if everything else _MANY_SMALL) else set()
        worth = 0.0 if everything else options.compact_dead
        chosen: list[HdfsSegment] = []
        room: int = options.segment
        for segment in sorted(complete, key=lambda segment: live.get(segment.file_id, (0, 0))[1]):
            count, size = live.get(segment.file_id, (0, 0))
            dead = segment.records - count
            mostly_dead = dead > worth * segment.records and (everything or segment.file_id not in small)
            wanted = mostly_dead or segment.file_id in gather or not segment.records
            if wanted and (size <= room or not chosen):
                chosen.append(segment)
                room -= size
        return chosen

    # --- copying ------------------------------------------------------------------------------------------------------

    def _copy(self, victims: list[HdfsSegment], out: OutputStream, path: str) -> None:
        """Put what counts of *victims* into a new segment; there is none if nothing does."""
        with self._store.lock:
            found = self._store.index.in_files({segment.file_id for segment in victims})
        kept = [each for each in found if not each.location.is_tombstone]
        tombstones = self._needed_tombstones([each for each in found if each.location.is_tombstone], victims)
        if not kept and not tombstones:
            return
        copy = _CompactedSegment(out, self._writer.id)
        for batch in _batches(kept):
            records = self._store.records(each.location for each in batch)
            copy.append(batch, [records[each.location] for each in batch])
        for batch in _batches(tombstones):
            copy.append(batch, [_encode_tombstone(each) for each in batch])
        copy.complete(to_disk=self._store.options.sync == "hsync")
        name = path.rpartition("/")[2]
        self._store.client.rename(path, self._store.path("segments", name))

    def _needed_tombstones(self, tombstones: list[LocatedRecord], victims: list[HdfsSegment]) -> list[LocatedRecord]:
        """Those of *tombstones* without which something older could come back."""
        if not tombstones or self._store.client.listing(self._store.path("creating"), of_one_moment=False):
            return tombstones  # what is about to be created may be older, too
        with self._store.lock:
            staying = [segment for segment in self._store.segments.values() if segment not in victims]
        latest = max(each.location.sequence for each in tombstones)
        open_since = min((segment.lowest for segment in staying if not segment.complete), default=latest + 1)
        older: set[tuple[str, bytes]] = set()
        for segment in staying:
            if segment.complete and segment.lowest <= latest:
                older.update((each.group, each.key) for each in segment.contents())
        return [each for each in tombstones if each.location.sequence >= open_since or (each.group, each.key) in older]

    def _remove(self, victims: list[HdfsSegment]) -> None:
        self._store.refresh()  # first learn where everything is now
        for segment in victims:
            self._store.client.delete(segment.path)

    # --- what died on the way -----------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Remove chunks that no value has, once they are old: their writer died before the value was whole."""
        store, client = self._store, self._store.client
        client.delete(store.path("clock"))
        before = self._writer.clock.next() // 1000 - store.options.orphans_after * 1000
        for status in client.listing(store.path("creating"), of_one_moment=False) or ():
            if status.modified < before:
                client.delete(store.path("creating", status.name))
        chunks = client.listing(store.path("chunks"), of_one_moment=False) or ()
        old = [status.name for status in chunks if status.modified < before]
        if not old:
            return
        store.refresh()
        with store.lock:
            heads = store.index.heads()
        used = {name for head in store.heads(heads) for name in head.names()}
        for name in old:
            if name not in used:
                client.delete(store.path("chunks", name))


class _CompactedSegment:
    """A segment that gets records from others."""

    def __init__(self, out: OutputStream, writer: int) -> None:
        self._out, self._writer = out, writer
        self._nonce = secrets.randbits(64)
        head = encode_segment_head(0, self._nonce)
        self._end, self._highest = len(head), 0
        self._found: list[LocatedRecord] = []
        out.write(head)

    def append(self, batch: list[LocatedRecord], records: list[bytes]) -> None:
        """One block with the whole records of *batch*, which all go into blocks of one kind."""
        kind = batch[0].location.moved_kind
        self._highest = max(self._highest, *(each.location.sequence for each in batch))
        block = encode_copies(records, kind, self._nonce, self._end, self._highest, self._writer)
        self._out.write(b"".join(block))
        offset = self._end + BLOCK.size
        for (group, key, old), record in zip(batch, records, strict=True):
            location = RecordLocation(
                old.sequence, old.writer, self._out.file_id, offset, len(record), kind, old.is_tombstone
            )
            self._found.append(LocatedRecord(group, key, location))
            offset += len(record)
        self._end = offset

    def complete(self, to_disk: bool) -> None:
        """Seal it; when this returns it is durable and closed for certain."""
        count = len(self._found)
        self._out.write(encode_footer(self._found, count, self._nonce, self._end, self._highest, self._writer))
        self._out.hsync() if to_disk else self._out.hflush()
        self._out.close()


def _batches(found: list[LocatedRecord]) -> Iterator[list[LocatedRecord]]:
    """*found* in the order in which it lies in the files, cut where a block has enough or another kind begins."""
    batch: list[LocatedRecord] = []
    size = 0
    for each in sorted(found, key=lambda each: (each.location.moved_kind, each.location.file_id, each.location.offset)):
        if batch and (size > _BLOCK_BYTES or each.location.moved_kind != batch[0].location.moved_kind):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.location.size
    if batch:
        yield batch


def _encode_tombstone(each: LocatedRecord) -> bytes:
    """The bytes of a tombstone."""
    location = each.location
    raw = encode_record_head(location.sequence, location.writer, each.group.encode(), each.key, None, check_value(None))
    return raw + padding(len(raw))
