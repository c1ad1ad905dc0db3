"""From batches to blocks: what is written, and what the index learns when that has happened."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from safekeeper.backend import Batch, CheckpointId
from safekeeper.backends.log.column_block import encode_columns, split_column
from safekeeper.backends.log.files import Buffer
from safekeeper.backends.log.location import TOMBSTONE_BIT, location_of
from safekeeper.backends.log.recovery import State
from safekeeper.backends.log.scan import row_locations
from safekeeper.backends.shared.records import (
    BLOCK,
    COLUMNS,
    EMPTY_CHECK,
    RECORDS,
    NewRecord,
    encode_block,
    encode_record_head,
    encode_records,
    padded,
    padding,
)
from safekeeper.columns import Columns


class RecordBlock:
    """The single operations of one or more batches."""

    __slots__ = ("_entries", "_epoch", "_payload", "_sequence", "_starts", "count", "size")

    def __init__(self, entries: list[NewRecord], sequence: int, epoch: int) -> None:
        self._entries, self._sequence, self._epoch = entries, sequence, epoch
        self._payload, self._starts, length = encode_records(entries, sequence, epoch)
        self.size = BLOCK.size + length
        self.count = len(entries)

    def parts(self, nonce: int, offset: int, synced: int) -> list[bytes]:
        """The bytes of the block at *offset* of the segment with *nonce*."""
        length = self.size - BLOCK.size
        head = encode_block(nonce, offset, self._epoch, self._sequence, synced, length, self.count, RECORDS)
        return [head, *self._payload]

    def install(self, state: State, segment: int, offset: int) -> None:
        """Let the index know where the records are."""
        counts, tombstones = state.counts[segment], 0
        first = location_of(segment, offset + BLOCK.size)
        last, keys = "", dict[bytes, int]()  # no group has no name
        for (group, _, key, value, _), start in zip(self._entries, self._starts, strict=True):
            if group != last:
                last, keys = group, state.index.keys_of(group)
            if value is None:
                keys[key] = first + (start >> 3) | TOMBSTONE_BIT
                tombstones += 1
            else:
                keys[key] = first + (start >> 3)
        counts.tombstones += tombstones
        counts.puts += self.count - tombstones


class ColumnBlock:
    """One batch of columns."""

    __slots__ = ("_columns", "_epoch", "_payload", "_sequence", "count", "size")

    def __init__(self, columns: Columns, sequence: int, epoch: int) -> None:
        self._columns, self._sequence, self._epoch = columns, sequence, epoch
        self._payload = encode_columns(columns, sequence, epoch)
        self.size = BLOCK.size + sum(map(len, self._payload))
        self.count = len(columns)

    def parts(self, nonce: int, offset: int, synced: int) -> list[Buffer]:
        """The bytes of the block at *offset* of the segment with *nonce*."""
        length = self.size - BLOCK.size
        head = encode_block(nonce, offset, self._epoch, self._sequence, synced, length, self.count, COLUMNS)
        return [head, *self._payload]

    def install(self, state: State, segment: int, offset: int) -> None:
        """Let the index know where the rows are."""
        keys = split_column(self._columns.keys.data, self._columns.keys.offsets)
        locations = row_locations(location_of(segment, offset), len(keys))
        state.index.put_many(self._columns.group, zip(keys, locations, strict=True))
        state.counts[segment].puts += len(keys)


@dataclass(frozen=True, slots=True)
class NewId:
    """An id to be created."""

    id: CheckpointId
    value: bytes
    token: bytes


class CreatedBlock:
    """One id that is created."""

    __slots__ = ("_epoch", "_id", "_payload", "_sequence", "count", "size")

    def __init__(self, new: NewId, sequence: int, epoch: int) -> None:
        self._id, self._sequence, self._epoch = new.id, sequence, epoch
        check = xxhash.xxh3_64(new.token)
        check.update(new.value)
        group = new.id.group.encode()
        head = encode_record_head(sequence, epoch, group, new.id.key, new.value, check.intdigest(), new.token)
        length = len(head) + len(new.token) + len(new.value)
        self._payload = [head, new.token, new.value, padding(length)]
        self.size = BLOCK.size + padded(length)
        self.count = 1

    def parts(self, nonce: int, offset: int, synced: int) -> list[bytes]:
        """The bytes of the block at *offset* of the segment with *nonce*."""
        length = self.size - BLOCK.size
        head = encode_block(nonce, offset, self._epoch, self._sequence, synced, length, self.count, RECORDS)
        return [head, *self._payload]

    def install(self, state: State, segment: int, offset: int) -> None:
        """Let the index know where the record is."""
        state.index.put(self._id.group, self._id.key, location_of(segment, offset + BLOCK.size))
        state.counts[segment].puts += 1


Block = RecordBlock | ColumnBlock | CreatedBlock


def entries_of(batch: Batch) -> list[NewRecord]:
    """What a batch of single operations puts into records. It needs no sequence, so callers can do it in parallel."""
    if batch.columns is not None:
        return []
    check = xxhash.xxh3_64_intdigest  # `check_value` without a call
    return [
        (group, group.encode(), key, value, check(value) if value else EMPTY_CHECK)
        for (group, key), value in batch.items()
    ]
