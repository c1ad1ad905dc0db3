"""Walking the blocks of a segment: for recovery, for rebuilding an index, and for readers that catch up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xxhash

from safekeeper.backends.log import columnar
from safekeeper.backends.log.format import (
    BLOCK,
    BLOCK_MARK,
    COLUMNS,
    GRAVE_BIT,
    GRAVE_FLAG,
    MOVED,
    RECORD,
    ROW_BIT,
    BlockHeader,
    check_value,
    decode_block,
    decode_record_head,
    place_of,
    verified_id,
)
from safekeeper.backends.log.segment import Segment

_WINDOW: Final = 1 << 20


Found = tuple[bytes, bytes, int, int]
"""A record that a scan met: group, key, place and sequence."""


@dataclass(slots=True)
class Scan:
    """What a walk over the blocks of a segment met."""

    end: int
    """Where the last good block ends."""
    sequence: int
    """The sequence of the last good block, or what was given if there is none."""
    synced: int = 0
    """The highest sequence that a good block's header names as durable."""
    found: list[Found] = field(default_factory=list)
    """The records, in the order in which they lie there."""
    complete: bool = True
    """False if the walk ended at something that is no good block, before the end that was asked for."""


def scan(segment: Segment, start: int, end: int | None, sequence: int = 0, until: int | None = None) -> Scan:
    """Walk the blocks from *start* to *end*, or until something is no good block if *end* is None.

    With *until*, the walk ends behind the block of that sequence, whatever follows.
    """
    result = Scan(start, sequence)
    window, base = b"", start
    while (end is None or result.end < end) and (until is None or result.sequence < until):
        position = result.end - base
        if len(window) - position < BLOCK.size:
            window, base, position = segment.read(_WINDOW, result.end), result.end, 0
        header = decode_block(window[position : position + BLOCK.size], segment.nonce, result.end)
        if header is None:
            break
        size = BLOCK.size + header.length
        if len(window) - position < size:
            window, base, position = segment.read(max(_WINDOW, size), result.end), result.end, 0
        records = _rows if header.kind == COLUMNS else _records
        found = records(window, position, header, place_of(segment.number, result.end))
        if found is None:
            break
        result.found += found
        result.end += size
        if header.sequence > result.sequence:
            result.sequence = header.sequence
        if header.synced > result.synced:
            result.synced = header.synced
    result.complete = (end is None or result.end >= end) and (until is None or result.sequence >= until)
    return result


def _records(window: bytes, block: int, header: BlockHeader, place: int) -> list[Found] | None:
    """The records of the block that begins at *block* of *window* and has *place*; None if any checksum fails."""
    unpack, digest, size = RECORD.unpack_from, xxhash.xxh3_64_intdigest, RECORD.size
    found = []
    position, end = block + BLOCK.size, block + BLOCK.size + header.length
    if end > len(window):
        return None
    for _ in range(header.records):
        if position + size > end:
            return None
        check, value_check, sequence, epoch, value_size, key_size, group_size, flags = unpack(window, position)
        group_at = position + size
        key_at = group_at + group_size
        value_at = key_at + key_size
        value_end = value_at + value_size
        if digest(window[position + 8 : value_at]) != check or value_end > end:
            return None
        if digest(window[value_at:value_end]) != value_check:
            return None
        if header.kind != MOVED and (sequence != header.sequence or epoch != header.epoch):
            return None
        at = place + (position - block >> 3)
        found.append(
            (window[group_at:key_at], window[key_at:value_at], at | GRAVE_BIT if flags & GRAVE_FLAG else at, sequence)
        )
        position = value_end + 7 & ~7
    return found if position == end else None


def _rows(window: bytes, block: int, header: BlockHeader, place: int) -> list[Found] | None:
    """The same for a block of columns."""
    columns = columnar.decode_columns(memoryview(window)[block : block + header.size], header)
    if columns is None:
        return None
    group, keys = columns
    return [(group, key, at, header.sequence) for key, at in zip(keys, row_places(place, len(keys)), strict=True)]


def row_places(block: int, count: int) -> range:
    """The places of the rows of a block of columns whose own place is *block*."""
    first = block + columnar.ROWS_START // 8 | ROW_BIT
    step = columnar.ROW_SIZE // 8
    return range(first, first + count * step, step)


def damaged_records(block: bytes, header: BlockHeader) -> Iterator[tuple[int, tuple[bytes, bytes] | None]]:
    """The damaged records of a block that fails: where each starts, and its id if only its value is damaged.

    Behind a record whose head is damaged nothing more can be told.
    """
    position = BLOCK.size
    for _ in range(header.records):
        raw = block[position:]
        head = decode_record_head(raw)
        id = head and verified_id(head, raw)
        if head is None or id is None:
            yield position, None
            return
        if check_value(raw[head.value_start : head.value_start + head.value_size]) != head.value_check:
            yield position, id
        position += head.size


def blocks_behind(segment: Segment, offset: int) -> Iterator[tuple[int, BlockHeader]]:
    """The offsets and headers of valid blocks at any multiple of 8 behind *offset*: what came after a damaged place."""
    offset += 8
    while len(raw := segment.read(_WINDOW + BLOCK.size, offset)) >= BLOCK.size:
        marks = np.frombuffer(raw, "<u4", len(raw) // 8 * 2)[2::2]  # a header's mark is 8 bytes behind its start
        for unit in np.flatnonzero(marks == BLOCK_MARK).tolist():
            start = unit * 8
            header = decode_block(raw[start : start + BLOCK.size], segment.nonce, offset + start)
            if header is not None and start < _WINDOW:
                yield offset + start, header
        offset += _WINDOW
