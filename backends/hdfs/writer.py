"""Writing: the writes of many threads become few blocks in one open segment.

Whoever finds nobody writing leads: takes all that is queued, appends it as blocks and syncs once, for all of them.

A sync that fails ends its segment: what was on its way may still appear in it, with the sequence that it had. So
nothing is appended behind it; the write is tried once more in a new segment, with a higher sequence, and from then on
reading the old segment is like reading anybody's.

A sequence is a time of the NameNode's clock, which we know between two bounds only: it may lie a little ahead. Before a
write returns that must have passed, so that whoever writes next gets a later one. A sync often takes as long; where it
does not, a writer that is alone need not wait:

- Whoever writes has a segment open, at every moment, from before its first write returns: its next one is created
  before the last one is completed. So a listing shows who else writes.
- Who has listed and seen nobody else may return without waiting, for 0.3 s from when it began to list. It waits before
  it completes its last segment instead: who comes then sees nobody.
- Who creates a segment while it has none lists afterwards. If it sees another's, it waits for longer than that before
  it gives out its first sequence: by then the other one has seen it, and what that returned without waiting has passed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Condition, Lock
from typing import Final

from safekeeper.backend import Batch, CheckpointId
from safekeeper.backends.hdfs.chunks import ChunkFiles, R, T, remove_chunks, write_chunks
from safekeeper.backends.hdfs.client import Client
from safekeeper.backends.hdfs.layout import HdfsLargeValue, Piece, RecordLocation, block_for
from safekeeper.backends.hdfs.placement import Placement
from safekeeper.backends.hdfs.segments import OpenSegment
from safekeeper.backends.hdfs.store import HdfsStore
from safekeeper.backends.shared.records import check_value
from safekeeper.backends.shared.server_clock import Clock, Reading, now
from safekeeper.errors import Closed, SafekeeperError, Unavailable

_MOST_BYTES: Final = 16 << 20  # of batches in one sync; a larger batch goes alone
_ALONE: Final = 300_000  # microseconds for which having seen nobody else is good
_JOINING: Final = 0.45  # seconds: longer than that, by more than the clock's bounds are apart
_SELDOM: Final = 5_000_000  # microseconds after which one that is not alone looks whether it is
_MOST_UNCERTAIN: Final = 100_000  # microseconds


class _QueuedBatch:
    """One caller's batch on its way."""

    __slots__ = ("done", "error", "heads", "nbytes", "records", "seconds", "sequence")

    def __init__(self, records: list[Piece], heads: list[Piece]) -> None:
        self.records, self.heads = records, heads
        self.nbytes = sum(len(piece.key) + len(piece.value or b"") for piece in records)
        self.done = False
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.sequence = 0


class HdfsWriter:
    """The writer of one store in this process, from its first write on."""

    def __init__(self, store: HdfsStore, placement: Placement, needed: int, sealed: Callable[[], object]) -> None:
        """*needed* is how many DataNodes must have a write for what is declared of it; *sealed* is told of segments."""
        self._store = store
        self._placement = placement
        self._needed = needed
        self._sealed = sealed
        self.id = secrets.randbits(32)
        """The number that stands for this writer in names and records."""
        self.clock = Clock(self._read_clock, eager=False)
        self._clock_known = False
        self._number = 0
        self._changed = Condition()
        self._queue: list[_QueuedBatch] = []
        self._led = self._closed = self._looking = False
        self._open: OpenSegment | None = None
        self._numbering = Lock()
        self._large = 0
        self._chunk_writers = _Workers(store.client, store.options.workers)
        self._chores = ThreadPoolExecutor(1, "safekeeper-hdfs-chores")

    # --- the queue ----------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> float:
        """Make a batch durable; how many seconds its sync took."""
        records: list[Piece] = []
        large: list[tuple[CheckpointId, bytes]] = []
        for id, value in batch.items():
            if value is not None and len(value) >= self._store.options.large:
                large.append((id, value))
            else:
                records.append(Piece(id.group, id.key, value, check_value(value)))
        queued = _QueuedBatch(records, self.write_large(large) if large else [])
        led = False
        while not queued.done:
            batches = self._wait(queued)
            if batches:
                self._lead(batches)
            led = queued in batches
        if queued.error is not None:
            raise queued.error if led else _for_follower(queued.error)
        self._settle(queued.sequence)
        return queued.seconds

    def _settle(self, sequence: int) -> None:
        """Return when every write that begins afterwards, anywhere, gets a higher sequence."""
        store, moment = self._store, now()
        if moment - store.looked_at > (_ALONE // 2 if store.alone_at else _SELDOM) and not self._looking:
            self._looking = True
            self.submit(self._look)
        if moment - store.alone_at > _ALONE or self.clock.uncertainty() > _MOST_UNCERTAIN:
            self.clock.settle(sequence)

    def _look(self) -> None:
        """Look who else is writing."""
        try:
            with suppress(SafekeeperError):
                self._store.look()
        finally:
            self._looking = False

    def _wait(self, queued: _QueuedBatch) -> list[_QueuedBatch]:
        """Wait in the queue; what is to be written by the caller now, nothing if somebody else has done it."""
        with self._changed:
            if queued not in self._queue:
                self._queue.append(queued)
            try:
                self._changed.wait_for(lambda: queued.done or not self._led)
            except BaseException:  # a signal
                if queued in self._queue:
                    self._queue.remove(queued)
                raise
            if queued.done:
                return []
            self._led = True
            batches: list[_QueuedBatch] = []
            size = 0
            while self._queue and (not batches or size + self._queue[0].nbytes <= _MOST_BYTES):
                size += self._queue[0].nbytes
                batches.append(self._queue.pop(0))
            return batches

    def _lead(self, batches: list[_QueuedBatch]) -> None:
        error: BaseException | None = None
        sequence, seconds = 0, 0.0
        try:
            sequence, seconds = self._append(batches)
        except BaseException as raised:
            error = raised
        with self._changed:
            for queued in batches:
                queued.done, queued.error, queued.sequence, queued.seconds = True, error, sequence, seconds
            self._led = False
            self._changed.notify_all()

    # --- segments -----------------------------------------------------------------------------------------------------

    def _append(self, batches: list[_QueuedBatch]) -> tuple[int, float]:
        if self._closed:
            raise Closed("this store was closed: open a new one")
        records = [piece for queued in batches for piece in queued.records]
        heads = [piece for queued in batches for piece in queued.heads]
        try:
            return self._append_once(records, heads)
        except Unavailable:
            if not self._abandon_open():  # it could not even begin
                raise
        except BaseException:
            self._abandon_open()
            raise
        try:
            return self._append_once(records, heads)
        except BaseException:
            self._abandon_open()
            raise

    def _append_once(self, records: list[Piece], heads: list[Piece]) -> tuple[int, float]:
        """Append it to the segment; its sequence, and how many seconds the sync took."""
        to = self._segment_for(sum(len(p.group) + len(p.key) + len(p.value or b"") + 64 for p in records))
        sequence = self.clock.next(after=self._store.index.highest)
        found, seconds = to.append(records, heads, sequence)
        with self._store.lock:
            replaced = self._store.index.add(found)
        if to.thinned_out:
            with suppress(Unavailable):  # the write has happened; the next one tries it again
                self._next_segment()
        if large := [location for location in replaced if location.is_head]:
            self.submit(lambda: self._remove_replaced(large))
        return sequence, seconds

    def _segment_for(self, size: int) -> OpenSegment:
        """The segment that so many bytes go to."""
        if self._open is None:
            to = self._begin_segment(size)
            if not self._store.is_alone(self._store.look()):
                time.sleep(_JOINING)
            return to
        return self._next_segment(size) if self._open.end + size > self._store.options.segment else self._open

    def _begin_segment(self, size: int) -> OpenSegment:
        turn = self._placement.segment(self._store.replication)
        number, self._number = self._number, self._number + 1  # also if it fails: the file may be there all the same
        try:
            self._open = to = OpenSegment(self._store, self.id, number, turn, self._needed, size)
        except BaseException:
            turn.done()
            raise
        self._store.check_policy("segments", to.segment.path)
        with self._store.lock:
            self._store.own.add(to.segment)
            self._store.segments[to.segment.file_id] = to.segment
        return to

    def _next_segment(self, size: int = 0) -> OpenSegment:
        old = self._open
        to = self._begin_segment(size)
        if old is not None:
            self._seal(old)
        return to

    def _seal(self, old: OpenSegment) -> None:
        """Complete a segment. That it fails loses nothing: it is then one whose writer died."""
        try:
            old.seal()
        except SafekeeperError:
            self._abandon(old)
        except BaseException:  # a signal
            self._abandon(old)
            raise
        else:
            with self._store.lock:
                self._store.own.discard(old.segment)
        self._sealed()

    def _abandon(self, old: OpenSegment) -> None:
        """Write no more to a segment; from now on it is read like anybody's."""
        with self._store.lock:
            self._store.own.discard(old.segment)
            self._store.segments[old.segment.file_id] = old.segment.unread()
        old.abandon()

    def _abandon_open(self) -> bool:
        """Write no more to the open segment; False if there is none."""
        old, self._open = self._open, None
        if old is None:
            return False
        self.clock.settle(old.latest)
        self._abandon(old)
        return True

    def _seal_open(self) -> None:
        old, self._open = self._open, None
        if old is not None:
            self.clock.settle(old.latest)
            self._seal(old)

    def _read_clock(self) -> Reading | None:
        """What the NameNode's clock shows: the time that it gives to a new folder. Nothing of it stays."""
        client, path = self._store.client, self._store.path("clock", secrets.token_hex(8))
        try:
            sent = now()
            client.make_folder(path)
            received = now()
            status = client.status(path)
            client.delete(path)
        except Unavailable:
            if not self._clock_known:
                raise
            return None  # what is known is good for a while
        self._clock_known = True
        return None if status is None else Reading(sent, received, status.modified * 1000)

    # --- large values -------------------------------------------------------------------------------------------------

    def write_large(self, values: Sequence[tuple[CheckpointId, bytes]]) -> list[Piece]:
        """Write the chunks of large values, all together; the records of their heads, which are to follow."""
        options, started = self._store.options, time.monotonic()
        with self._numbering:
            first, self._large = self._large + 1, self._large + len(values)
        heads = [
            HdfsLargeValue(len(value), 0, options.chunk, self.id, first + n) for n, (_, value) in enumerate(values)
        ]
        folder = self._store.path("chunks")
        self._store.check_policy("chunks", folder)
        checks = [self._chunk_writers.start(check_value, value) for _, value in values]
        how = ChunkFiles(folder, self._store.replication, self._needed, options.sync == "hsync")
        # What is written together is one checkpoint, by the name of what has waited longest.
        pairs = [(head, value) for head, (_, value) in zip(heads, values, strict=True)]
        write_chunks(self._chunk_writers, self._placement, how, pairs, values[0][0].group)
        if time.monotonic() - started > options.orphans_after / 2:
            raise Unavailable(f"{values[0][0]}: writing its chunks took too long: raise orphans-after=")
        found = [head._replace(check=check.result()).encode() for head, check in zip(heads, checks, strict=True)]
        return [Piece(id.group, id.key, raw, check_value(raw)) for (id, _), raw in zip(values, found, strict=True)]

    def _remove_replaced(self, locations: list[RecordLocation]) -> None:
        """Remove the chunks of values that are no longer; what this misses is found by a compaction."""
        with suppress(SafekeeperError):
            remove_chunks(self._store.client, self._store.path("chunks"), self._store.heads(locations))

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file that is not there yet, as durable as a segment."""
        store, to_disk = self._store, self._store.options.sync == "hsync"
        size = block_for(max(len(data), store.options.segment))
        out = store.client.create(path, replication=store.replication, block_size=size, to_disk=to_disk)
        try:
            if out.append(data, to_disk=to_disk) < self._needed:
                raise Unavailable(f"{path}: only {out.replicas()} DataNode has it: start another one")
            out.close()
        except BaseException:
            out.abandon()
            raise

    # --- others -------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Complete the open segment, if there is one, between two writes."""
        self._exclusively(self._seal_open)

    def submit(self, chore: Callable[[], object]) -> None:
        """Do *chore* some time, after those before it."""
        with suppress(RuntimeError):  # closed
            self._chores.submit(chore)

    def close(self) -> None:
        """Complete what is open and wait for the chores."""
        self._exclusively(self._seal_open, closing=True)
        self._chores.shutdown()
        self._placement.close()  # those who wait for a turn go on without one
        self._chunk_writers.close()

    def _exclusively(self, work: Callable[[], None], closing: bool = False) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._led)
            self._led = True
        try:
            work()
            self._closed = self._closed or closing
        finally:
            with self._changed:
                self._led = False
                self._changed.notify_all()


class _Workers:
    """The threads that write chunks."""

    def __init__(self, client: Client, count: int) -> None:
        self.client = client
        self._pool = ThreadPoolExecutor(count, "safekeeper-hdfs-write")

    def start(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Begin *work*."""
        try:
            return self._pool.submit(work, item)
        except RuntimeError as error:
            raise Closed("this store was closed: open a new one") from error

    def in_parallel(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """*work* on all *items*, several at once; when this returns or raises, all of it has ended."""
        futures = [self.start(work, item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _for_follower(error: BaseException) -> SafekeeperError:
    """What a caller gets whose batch failed in another caller's thread: an exception object belongs to one thread."""
    copy = type(error)(*error.args) if isinstance(error, SafekeeperError) else Unavailable(f"interrupted: {error!r}")
    copy.__cause__ = error
    return copy
