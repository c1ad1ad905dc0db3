"""Many records of a group in one go, for a scan: large reads, and the checks of all records of a read together.

What is read and checked here is what `LogSegment.read_value` reads and checks. Where a check fails, the record is read
again by itself: it may be in memory and not yet in the file, and if it is damaged, that says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from safekeeper.backend import TOKEN_BYTES
from safekeeper.backends.log.column_block import ROW_SIZE, ColumnBlockReader
from safekeeper.backends.log.location import ROW_BIT, offsets_of
from safekeeper.backends.log.scan import HEADS
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.shared.records import CREATED_FLAG, RECORD, padded_sizes

U64 = NDArray[np.uint64]
Pairs = list[tuple[bytes, bytes]]

_WINDOW: Final = 256 << 10
_GAP: Final = 64 << 10  # it takes as long to read over so many bytes as to begin another read
_NEAR: Final = 16 << 10  # bytes from one record to the next, beyond which a key is sooner read by itself
_BEHIND: Final = 4096  # nearly every record ends so soon
_digest: Final = xxhash.xxh3_64_digest


def read_pairs(segment: LogSegment, locations: U64, group: bytes) -> Iterator[Pairs]:
    """The keys and values at *locations*, which are sorted, all in *segment* and all of *group*."""
    rows = locations & np.uint64(ROW_BIT) != 0
    yield from _pairs_of_records(segment, locations[~rows], group)
    yield from _pairs_of_rows(segment, locations[rows], group)


def read_keys(segment: LogSegment, locations: U64, group: bytes) -> Iterator[list[bytes]]:
    """The keys at *locations*, which are sorted, all in *segment*, all of *group*, and not marked as tombstones, in
    their order."""
    offsets, rows = offsets_of(locations), np.flatnonzero(locations & np.uint64(ROW_BIT))
    records = locations[: rows[0] if len(rows) else None]
    if not len(records) or int(offsets[len(records) - 1] - offsets[0]) > _NEAR * len(records):
        yield [_key(segment, location, group) for location in locations.tolist()]
        return
    for at, data, starts, heads in _windows(segment, records, values=False):
        keys_at = starts + RECORD.size + len(group)
        ends = keys_at + heads["key"]
        keys = [data[start:end] for start, end in _zip(keys_at, ends)]
        bad = _checks([data[start:end] for start, end in _zip(starts + 8, ends)]) != heads["check"]
        bad |= heads["group"] != len(group)
        bad |= _starts_otherwise(data, starts + RECORD.size, group)
        for wrong in np.flatnonzero(bad).tolist():
            keys[wrong] = _key(segment, int(records[at + wrong]), group)
        yield keys if keys else [_key(segment, int(records[at]), group)]
    if len(rows):
        yield [_key(segment, location, group) for location in locations[rows].tolist()]


def read_stamps(segment: LogSegment, locations: U64) -> tuple[U64, U64]:
    """The sequences and the epochs at *locations*, which are sorted, all in *segment*, and not marked as tombstones."""
    stamps = np.zeros((2, len(locations)), np.uint64)
    rows = np.flatnonzero(locations & np.uint64(ROW_BIT))
    for at, data, starts, heads in _windows(segment, locations[: rows[0] if len(rows) else None]):
        ends = starts + RECORD.size + heads["group"] + heads["key"]
        bad = _checks([data[start:end] for start, end in _zip(starts + 8, ends)]) != heads["check"]
        stamps[0, at : at + len(starts)], stamps[1, at : at + len(starts)] = heads["sequence"], heads["epoch"]
        for wrong in (at + np.flatnonzero(bad)).tolist() if len(starts) else [at]:
            stamps[:, wrong] = segment.read_stamp(int(locations[wrong]))
    for at, end, block in _blocks(segment, locations, int(rows[0]) if len(rows) else len(locations)):
        stamps[:, at:end] = [[block.sequence], [block.epoch]]
    return stamps[0], stamps[1]


def _pairs_of_records(segment: LogSegment, locations: U64, group: bytes) -> Iterator[Pairs]:
    for at, data, starts, heads in _windows(segment, locations):
        if not len(starts):  # it is large
            yield [_pair(segment, int(locations[at]), group)]
            continue
        keys_at = starts + RECORD.size + len(group)
        values_at = keys_at + heads["key"]
        keys = [data[start:end] for start, end in _zip(keys_at, values_at)]
        values = [data[start:end] for start, end in _zip(values_at, values_at + heads["value"])]
        bad = _checks([data[start:end] for start, end in _zip(starts + 8, values_at)]) != heads["check"]
        bad |= _checks(values) != heads["value_check"]
        bad |= heads["group"] != len(group)
        bad |= _starts_otherwise(data, starts + RECORD.size, group)
        for created in np.flatnonzero(heads["flags"] & CREATED_FLAG).tolist():
            values[created] = values[created][TOKEN_BYTES:]
        pairs = list(zip(keys, values, strict=True))
        for wrong in np.flatnonzero(bad).tolist():
            pairs[wrong] = _pair(segment, int(locations[at + wrong]), group)
        yield pairs


def _windows(
    segment: LogSegment, locations: U64, *, values: bool = True
) -> Iterator[tuple[int, bytes, NDArray[np.int64], NDArray[Any]]]:
    """Which location is the first in a read, the bytes, where in them records are whole, or without *values* their
    ids, and the heads of these.

    Where there is none, the record is longer than a read.
    """
    offsets = offsets_of(locations)
    breaks = np.append(np.flatnonzero(np.diff(offsets) > _GAP) + 1, len(offsets))
    at = 0
    while at < len(offsets):
        start, behind = int(offsets[at]), int(breaks[np.searchsorted(breaks, at, "right")])
        data = segment.read(min(int(offsets[behind - 1]) - start + _BEHIND, _WINDOW), start)
        starts = offsets[at:behind] - start
        starts = starts[: np.searchsorted(starts, len(data) - HEADS.itemsize, "right")]
        words = np.frombuffer(data, "<u8", len(data) // 8)
        heads = words[starts[:, None] // 8 + np.arange(HEADS.itemsize // 8)].view(HEADS)[:, 0]
        ends = starts + RECORD.size + heads["group"] + heads["key"] + (heads["value"] if values else 0)
        cut = np.flatnonzero(padded_sizes(ends) > len(data))
        whole = int(cut[0]) if len(cut) else len(starts)
        yield at, data, starts[:whole], heads[:whole]
        at += max(whole, 1)


def _checks(pieces: list[bytes]) -> U64:
    return np.frombuffer(b"".join(map(_digest, pieces)), ">u8").astype(np.uint64)


def _zip(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    return zip(starts.tolist(), ends.tolist(), strict=True)


def _starts_otherwise(data: bytes, starts: NDArray[np.int64], group: bytes) -> NDArray[np.bool_]:
    """Where something else than *group* is at *starts*, which are multiples of 4."""
    size = len(group) + 3 & ~3
    expected = np.frombuffer(group.ljust(size, b"\0"), "<u4")
    mask = np.frombuffer((b"\xff" * len(group)).ljust(size, b"\0"), "<u4")
    words = np.frombuffer(data, "<u4", len(data) // 4)
    at = np.minimum(starts[:, None] // 4 + np.arange(len(expected)), len(words) - 1)
    different: NDArray[np.bool_] = (words[at] & mask != expected).any(axis=1)
    return different


def _pairs_of_rows(segment: LogSegment, locations: U64, group: bytes) -> Iterator[Pairs]:
    for at, end, block in _blocks(segment, locations, 0):
        numbers = (offsets_of(locations[at:end]) - block.first_row) // ROW_SIZE
        for first, last, pairs in block.read_pairs(numbers) if block.group == group else [(0, len(numbers), None)]:
            yield pairs or [_pair(segment, location, group) for location in locations[at + first : at + last].tolist()]


def _blocks(segment: LogSegment, locations: U64, at: int) -> Iterator[tuple[int, int, ColumnBlockReader]]:
    """From which location to which the rows are in one block, and that block."""
    offsets = offsets_of(locations)
    while at < len(offsets):
        block = ColumnBlockReader.at_row(segment.read, int(offsets[at]), segment.nonce)
        if block is None:
            segment.corrupt(int(locations[at]))
        end = int(np.searchsorted(offsets, block.first_row + block.count * ROW_SIZE))
        yield at, end, block
        at = end


def _pair(segment: LogSegment, location: int, group: bytes) -> tuple[bytes, bytes]:
    key = _key(segment, location, group)
    return key, segment.read_value(location, group, key)


def _key(segment: LogSegment, location: int, group: bytes) -> bytes:
    name, key = segment.read_id(location)
    if name != group:
        segment.corrupt(location)
    return key
