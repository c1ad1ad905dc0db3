"""From batches to blocks: what is written, and what the index learns when that has happened."""

from __future__ import annotations

from collections.abc import Sequence

from safekeeper.backend import Batch
from safekeeper.backends.log.columnar import encode_columns, split_column
from safekeeper.backends.log.files import Buffer
from safekeeper.backends.log.format import (
    BLOCK,
    COLUMNS,
    GRAVE_BIT,
    RECORDS,
    BlockHeader,
    Entry,
    check_value,
    encode_block,
    encode_records,
    place_of,
)
from safekeeper.backends.log.recovery import State
from safekeeper.backends.log.scan import row_places
from safekeeper.columns import Columns


class Prepared:
    """A batch, with the work done that needs no sequence. This happens in the caller's thread, while others write."""

    __slots__ = ("columns", "entries")

    def __init__(self, batch: Batch) -> None:
        self.columns = batch.columns
        self.entries: list[Entry] = []
        if batch.columns is None:
            self.entries = [
                (id.group, id.group.encode(), id.key, value, check_value(value)) for id, value in batch.items()
            ]

    def __bool__(self) -> bool:
        return bool(self.entries or self.columns)


class RecordBlock:
    """The single operations of one or more batches."""

    def __init__(self, entries: list[Entry], sequence: int, epoch: int) -> None:
        self._entries = entries
        self._sequence, self._epoch = sequence, epoch
        self._payload, self._starts, self._length = encode_records(entries, sequence, epoch)
        self.size = BLOCK.size + self._length
        self.count = len(entries)

    def parts(self, nonce: int, offset: int, synced: int) -> list[Buffer]:
        """The bytes of the block at *offset* of the segment with *nonce*."""
        header = BlockHeader(self._epoch, self._sequence, synced, self._length, self.count, RECORDS)
        return [encode_block(header, nonce, offset), *self._payload]

    def install(self, state: State, segment: int, offset: int) -> None:
        """Let the index know where the records are."""
        counts, put = state.counts[segment], state.index.put
        first = place_of(segment, offset + BLOCK.size)
        for (group, _, key, value, _), start in zip(self._entries, self._starts, strict=True):
            if value is None:
                put(group, key, first + (start >> 3) | GRAVE_BIT)
                counts.graves += 1
            else:
                put(group, key, first + (start >> 3))
                counts.puts += 1


class ColumnBlock:
    """One batch of columns."""

    def __init__(self, columns: Columns, sequence: int, epoch: int) -> None:
        self._columns = columns
        self._sequence, self._epoch = sequence, epoch
        self._payload = encode_columns(columns, sequence, epoch)
        self._length = sum(map(len, self._payload))
        self.size = BLOCK.size + self._length
        self.count = len(columns)

    def parts(self, nonce: int, offset: int, synced: int) -> list[Buffer]:
        """The bytes of the block at *offset* of the segment with *nonce*."""
        header = BlockHeader(self._epoch, self._sequence, synced, self._length, self.count, COLUMNS)
        return [encode_block(header, nonce, offset), *self._payload]

    def install(self, state: State, segment: int, offset: int) -> None:
        """Let the index know where the rows are."""
        keys = split_column(self._columns.keys.data, self._columns.keys.offsets)
        places = row_places(segment, offset, len(keys))
        state.index.put_many(self._columns.group, zip(keys, places, strict=True))
        state.counts[segment].puts += len(keys)


def blocks_of(batches: Sequence[Prepared], sequence: int, epoch: int) -> list[RecordBlock | ColumnBlock]:
    """The blocks of *batches*, numbered from *sequence* on: one for all single operations, one per batch of columns."""
    blocks: list[RecordBlock | ColumnBlock] = []
    entries = batches[0].entries if len(batches) == 1 else [entry for batch in batches for entry in batch.entries]
    if entries:
        blocks.append(RecordBlock(entries, sequence, epoch))
    for batch in batches:
        if batch.columns:
            blocks.append(ColumnBlock(batch.columns, sequence + len(blocks), epoch))
    return blocks
