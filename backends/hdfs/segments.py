"""Segment files: reading one, whoever wrote it, and the one that this process is writing.

Blocks are appended to an open segment, each synced, until it is sealed with its contents.
"""

from __future__ import annotations

import secrets
import time
from copy import copy
from threading import Lock
from typing import TYPE_CHECKING

from safekeeper.backends.hdfs.client import Client, FileStatus, InputStream
from safekeeper.backends.hdfs.errors import Missing
from safekeeper.backends.hdfs.layout import (
    HEADS,
    LocatedRecord,
    Piece,
    Scanner,
    block_for,
    encode_footer,
    encode_pieces,
)
from safekeeper.backends.hdfs.placement import Turn
from safekeeper.backends.shared.records import RECORDS, encode_segment_head
from safekeeper.errors import Unavailable

if TYPE_CHECKING:
    from safekeeper.backends.hdfs.store import HdfsStore


class HdfsSegment:
    """A segment file and how far it is known."""

    def __init__(self, client: Client, path: str, file_id: int) -> None:
        self.path = path
        self.file_id = file_id
        self.complete = False
        """Whether all of it is in the index and nothing will be added."""
        self.size = 0
        """Its bytes, as far as they are known."""
        self.records = 0
        """How many it has, replaced ones too."""
        self.lowest = 0
        """The lowest sequence of what is newest in it of each id; 0 if nothing is known of it yet."""
        self._client = client
        self._lock = Lock()
        self._stream: InputStream | None = None
        self._scanner = Scanner(path, file_id)

    @property
    def is_creation(self) -> bool:
        """Whether its name says to others who has created an id."""
        return self.path.rpartition("/")[2].startswith("created-")

    def unread(self) -> HdfsSegment:
        """The same file, of which nothing is known yet."""
        return HdfsSegment(self._client, self.path, self.file_id)

    def load(self, status: FileStatus) -> list[LocatedRecord]:
        """What is new in it since the last time. Where this raises, nothing has changed: the next time finds it all."""
        # A stream that was opened earlier sees no more of an open file than then.
        stream = self._open_again() if status.is_open else self._opened(status.length)
        scanner, found = copy(self._scanner), None
        if not status.is_open and not scanner.end:
            found = scanner.read_contents(stream.read, stream.length)
        if found is None:
            found = list(scanner.scan(stream.read, stream.length))
        self._scanner = scanner
        self.size, self.records, self.complete = stream.length, scanner.records, not status.is_open
        lowest = min((each.location.sequence for each in found), default=self.lowest)
        self.lowest = min(self.lowest, lowest) or lowest
        return found

    def _open_again(self) -> InputStream:
        try:
            self._stream = self._client.open(self.path, is_open=True)
        except Missing:
            raise
        except Unavailable:
            # Its DataNodes are away, or were started again after its writer died: then nobody can read it before HDFS
            # has taken it from that writer, which it does after a minute if somebody asks, else after 20.
            self._client.nudge(self.path)
            raise
        return self._stream

    def contents(self) -> list[LocatedRecord]:
        """All that is newest in a complete segment, read anew."""
        stream = self._opened(self.size)
        scanner = Scanner(self.path, self.file_id)
        found = scanner.read_contents(stream.read, stream.length)
        return list(scanner.scan(stream.read, stream.length)) if found is None else found

    def read(self, offset: int, size: int) -> bytes:
        """The bytes of records that the index knows of."""
        return self._opened(offset + size).read(offset, size)

    def _opened(self, length: int) -> InputStream:
        """A stream that reaches to *length* if the file does: one that was opened earlier may see less of it."""
        with self._lock:
            if self._stream is None or self._stream.length < length:
                # The old one is not closed: others may be reading from it, and between two reads it holds nothing.
                self._stream = self._client.open(self.path)
            return self._stream


class OpenSegment:
    """The segment that is being written. Used by one thread at a time."""

    def __init__(self, store: HdfsStore, writer: int, number: int, turn: Turn, needed: int, size: int) -> None:
        """*size* is that of the first batch: no batch is spread over HDFS blocks, or some of it would not be synced."""
        self._turn = turn
        self._needed = needed
        self._to_disk = store.options.sync == "hsync"
        self._writer = writer
        self._nonce = secrets.randbits(64)
        path = store.path("segments", f"{writer:08x}-{number:06d}")
        self._out = store.client.create(
            path,
            replication=store.replication,
            block_size=block_for(max(size, store.options.segment)),
            favoured=turn.favoured,
            to_disk=self._to_disk,
        )
        self.segment = HdfsSegment(store.client, path, self._out.file_id)
        self._head = encode_segment_head(number, self._nonce)  # goes with the first block
        self.end = len(self._head)
        self._newest: dict[tuple[str, bytes], LocatedRecord] = {}
        self._replicas = self._most_replicas = 0
        self._synced = 0
        self.latest = 0
        """The sequence of what was appended last, whether or not that succeeded."""

    def append(self, records: list[Piece], heads: list[Piece], sequence: int) -> tuple[list[LocatedRecord], float]:
        """Append what was written at one moment; what the index is to learn, and how many seconds the sync took."""
        parts, found = [self._head], []
        end, self.latest = self.end, sequence
        for pieces, kind in ((records, RECORDS), (heads, HEADS)):
            if pieces:
                block, placed = encode_pieces(
                    pieces, kind, self._nonce, end, self.segment.file_id, sequence, self._writer, self._synced
                )
                parts += block
                found += placed
                end += sum(map(len, block))
        seconds = self._write_and_sync(b"".join(parts))
        self._head = b""
        self.end, self._synced = end, sequence
        for each in found:
            self._newest[each.group, each.key] = each
        self.segment.records += len(found)
        self.segment.lowest = self.segment.lowest or sequence
        return found, seconds

    def _write_and_sync(self, data: bytes) -> float:
        started = time.perf_counter()
        self._replicas = self._out.append(data, to_disk=self._to_disk)
        seconds = time.perf_counter() - started
        if self._replicas < self._needed:
            raise Unavailable(f"{self._out.path}: only {self._replicas} DataNode has it: start another one")
        if not self._most_replicas:
            self._turn.written_to(self._out.pipeline())
        self._most_replicas = max(self._most_replicas, self._replicas)
        return seconds

    @property
    def thinned_out(self) -> bool:
        """Whether fewer DataNodes have what was written last than what was written before."""
        return self._replicas < self._most_replicas

    def seal(self) -> None:
        """Complete the file with its contents, so that nobody has to read all of it."""
        found, count = list(self._newest.values()), self.segment.records
        footer = encode_footer(found, count, self._nonce, self.end, self._synced, self._writer)
        # Before closing: a file that is complete for the NameNode but not on a disk is lost whole in a power cut.
        self._write_and_sync(self._head + footer)
        self._out.close()
        self.segment.complete, self.segment.size = True, self.end + len(footer)
        self._turn.done()

    def abandon(self) -> None:
        """Write no more to it, sealed or not. What was acknowledged stays."""
        self._out.abandon()
        self._turn.done()
