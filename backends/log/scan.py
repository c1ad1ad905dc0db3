"""Walking the blocks of a segment: for recovery, for rebuilding an index, and for readers that catch up.

The segment is read a window at a time. Headers and heads are decoded for all blocks and records of a window together;
left to Python are following the lengths and calling the checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from safekeeper.backends.log import column_block
from safekeeper.backends.log.location import ROW_BIT, TOMBSTONE_BIT, location_of
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.shared.records import (
    BLOCK,
    BLOCK_MARK,
    COLUMNS,
    MOVED,
    RECORD,
    TOMBSTONE_FLAG,
    BlockHeader,
    block_seeds,
    check_value,
    decode_block,
    decode_record_head,
    padded_sizes,
    verified_id,
)

_WINDOW: Final = 1 << 20
_FIRST_WINDOW: Final = 64 << 10  # a reader that catches up has little to read
_GROWTH: Final = 4

_HEADERS: Final = np.dtype(
    {
        "names": ["check", "mark", "epoch", "sequence", "synced", "length", "records", "kind"],
        "formats": ["<u8", "<u4", "<u4", "<u8", "<u8", "<u8", "<u4", "<u4"],
    }
)
HEADS: Final = np.dtype(
    {
        "names": ["check", "value_check", "sequence", "epoch", "value", "key", "group", "flags", "more"],
        "formats": ["<u8", "<u8", "<u8", "<u4", "<u4", "<u2", "<u1", "<u1", "<u4"],
    }
)
"""`RECORD` as numpy knows it, with the first four bytes of the group. No record is shorter."""
_SIZES: Final = struct.Struct("<IHB")  # of value, key and group
_SIZES_AT: Final = 28


@dataclass(slots=True)
class ScannedRecords:
    """Records that a scan met, in the order in which they lie there: item *i* of each list is about the same one."""

    groups: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    locations: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, other: ScannedRecords) -> None:
        """Put the records of *other* behind these."""
        self.groups += other.groups
        self.keys += other.keys
        self.locations += other.locations
        self.sequences += other.sequences

    def tombstones(self) -> int:
        """How many of them are deletes."""
        return int(np.count_nonzero(np.array(self.locations, np.uint64) & np.uint64(TOMBSTONE_BIT)))

    def in_order(self) -> ScannedRecords:
        """The same records by sequence; of those with one sequence, the later one stays the later."""
        sequences = np.array(self.sequences, np.uint64)
        if (sequences[1:] >= sequences[:-1]).all():
            return self
        order = np.argsort(sequences, kind="stable").tolist()
        lists = (self.groups, self.keys, self.locations, self.sequences)
        return ScannedRecords(*([items[at] for at in order] for items in lists))


@dataclass(slots=True)
class Scan:
    """What a walk over the blocks of a segment met."""

    end: int
    """Where the last good block ends."""
    sequence: int
    """The sequence of the last good block, or what was given if there is none."""
    synced: int = 0
    """The highest sequence that a good block's header names as durable."""
    found: ScannedRecords = field(default_factory=ScannedRecords)
    """The records, in the order in which they lie there."""
    highest: int = 0
    """The sequence of the last good block behind those that were walked over, if somebody has looked."""
    complete: bool = True
    """False if the walk ended at something that is no good block, before the end that was asked for."""

    def go_on(self, more: Scan) -> None:
        """Add a walk that began where this one ended."""
        self.end, self.sequence, self.complete = more.end, more.sequence, more.complete
        self.synced = max(self.synced, more.synced)
        self.found.add(more.found)


def scan(segment: LogSegment, start: int, end: int | None, sequence: int = 0, until: int | None = None) -> Scan:
    """Walk the blocks from *start* to *end*, or until something is no good block if *end* is None.

    With *until*, the walk ends behind the block of that sequence, whatever follows.
    """
    result = Scan(start, sequence)
    size = _FIRST_WINDOW
    while (end is None or result.end < end) and (until is None or result.sequence < until):
        window = _Window(segment, result.end, size)
        count = len(window.headers)
        if end is not None:
            count = min(count, int(np.searchsorted(window.starts, end - result.end)))
        if until is not None:
            reached = np.flatnonzero(window.headers["sequence"][:count] >= until)
            count = min([count, *(reached[:1] + 1).tolist()])
        good = window.find(count, result.found)
        if good:
            result.end += int(window.ends[good - 1])
            result.sequence = max(result.sequence, int(window.headers["sequence"][:good].max()))
            result.synced = max(result.synced, int(window.headers["synced"][:good].max()))
            size = min(_GROWTH * size, _WINDOW)
        if good < count:
            break
        if not good:
            header = decode_block(window.data, segment.nonce, result.end)
            if header is None or header.size <= size:
                break
            size = header.size
    result.complete = (end is None or result.end >= end) and (until is None or result.sequence >= until)
    return result


class _Window:
    """Some bytes of a segment and the blocks that are whole in them, one behind the other from the first byte on.

    Their headers are verified, their records are not.
    """

    def __init__(self, segment: LogSegment, offset: int, size: int) -> None:
        self.data = segment.read(size, offset)
        self._words = np.frombuffer(self.data, "<u8", len(self.data) // 8)
        self._location = location_of(segment.number, offset)
        searched = min(len(self.data), _WINDOW)  # a larger window is for the one block that it begins with
        marks = np.frombuffer(self.data, "<u4", searched // 8 * 2)[2::2]  # 8 bytes behind the start of a header
        units = np.flatnonzero(marks == BLOCK_MARK)
        units = units[units + BLOCK.size // 8 <= len(self._words)]
        headers = self._decode(units, _HEADERS)
        starts = units * 8
        ends = starts + BLOCK.size + np.minimum(headers["length"], 1 << 60).astype(np.int64)
        chain = _chain(starts, ends, len(self.data))
        seeds = block_seeds(segment.nonce, np.uint64(offset) + starts[chain].astype(np.uint64)).tolist()
        checks = [
            xxhash.xxh3_64_intdigest(self.data[start + 8 : start + BLOCK.size], seed)
            for start, seed in zip(starts[chain].tolist(), seeds, strict=True)
        ]
        chain = chain[: _first(np.array(checks, np.uint64) != headers["check"][chain])]
        self.headers, self.starts, self.ends = headers[chain], starts[chain], ends[chain]

    def _decode(self, units: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[Any]:
        """The structures that begin at *units* of 8 bytes."""
        decoded: NDArray[Any] = self._words[units[:, None] + np.arange(kind.itemsize // 8)].view(kind)[:, 0]
        return decoded

    def find(self, count: int, found: ScannedRecords) -> int:
        """Add the records of the first *count* blocks to *found*, up to a block that is damaged; how many are whole."""
        columns = np.flatnonzero(self.headers["kind"][:count] == COLUMNS).tolist()
        good = 0
        for at in (*columns, count):
            if good < at:
                whole = self._find_records(good, at, found)
                if whole < at:
                    return whole
            if at < count and not self._find_rows(at, found):
                return at
            good = min(at + 1, count)
        return good

    def _find_rows(self, at: int, found: ScannedRecords) -> bool:
        """The same for the block of columns *at*."""
        start, end = int(self.starts[at]), int(self.ends[at])
        header = BlockHeader(*self.headers[at].tolist()[2:])
        columns = column_block.decode_columns(memoryview(self.data)[start:end], header)
        if columns is None:
            return False
        group, keys = columns
        locations = row_locations(self._location + start // 8, len(keys))
        found.add(ScannedRecords([group] * len(keys), keys, list(locations), [header.sequence] * len(keys)))
        return True

    def _find_records(self, first: int, last: int, found: ScannedRecords) -> int:
        """The same for blocks *first* to *last*, which hold records; the number of the first that is not whole."""
        data, digest = self.data, xxhash.xxh3_64_intdigest
        positions, last = self._follow(first, last)
        owners = np.searchsorted(self.starts, positions, "right") - 1
        heads, blocks = self._decode(positions // 8, HEADS), self.headers[owners]
        key_at = positions + RECORD.size + heads["group"]
        value_at = key_at + heads["key"]
        value_end = value_at + heads["value"]
        groups, keys, values = (positions + RECORD.size).tolist(), key_at.tolist(), value_at.tolist()
        checks = [digest(data[start + 8 : end]) for start, end in zip(positions.tolist(), values, strict=True)]
        value_checks = [digest(data[start:end]) for start, end in zip(values, value_end.tolist(), strict=True)]
        bad = np.array(checks, np.uint64) != heads["check"]
        bad |= np.array(value_checks, np.uint64) != heads["value_check"]
        bad |= (blocks["records"] == 1) & (padded_sizes(value_end) != self.ends[owners])
        strangers = (heads["sequence"] != blocks["sequence"]) | (heads["epoch"] != blocks["epoch"])
        bad |= strangers & (blocks["kind"] != MOVED)
        if bad.any():
            last = int(owners[_first(bad)])
        count = int(np.searchsorted(owners, last))
        locations = self._location + positions // 8 | np.where(heads["flags"] & TOMBSTONE_FLAG, TOMBSTONE_BIT, 0)
        found.groups += [data[start:end] for start, end in zip(groups[:count], keys, strict=False)]
        found.keys += [data[start:end] for start, end in zip(keys[:count], values, strict=False)]
        found.locations += locations[:count].tolist()
        found.sequences += heads["sequence"][:count].tolist()
        return last

    def _follow(self, first: int, last: int) -> tuple[NDArray[np.int64], int]:
        """Where the records of blocks *first* to *last* begin, and the first block whose lengths make no sense.

        It does not look at the length of a record that is alone in its block.
        """
        alone = (self.headers["records"] == 1) & (self.ends - self.starts >= BLOCK.size + HEADS.itemsize)
        positions = [self.starts[first:last][alone[first:last]] + BLOCK.size]
        for number in (first + np.flatnonzero(~alone[first:last])).tolist():
            several = self._follow_block(number)
            if several is None:
                last = number
                break
            positions.append(np.array(several, np.int64))
        merged = np.sort(np.concatenate(positions))
        return merged[: np.searchsorted(merged, self.ends[last - 1]) if last else 0], last

    def _follow_block(self, number: int) -> list[int] | None:
        """Where the records of a block begin; None if their lengths make no sense."""
        position, end = int(self.starts[number]) + BLOCK.size, int(self.ends[number])
        positions: list[int] = []
        for _ in range(int(self.headers["records"][number])):
            if position + HEADS.itemsize > end:  # no record is shorter: a group has a byte, and 7 more for alignment
                return None
            positions.append(position)
            value, key, group = _SIZES.unpack_from(self.data, position + _SIZES_AT)
            position += RECORD.size + value + key + group + 7 & ~7  # `padded`
        return positions if position == end else None


def _chain(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Which of the blocks that seem to be at *starts* follow each other from 0 on, and end within *size*."""
    following = np.searchsorted(starts, ends)
    chain: list[int] = []
    position = at = 0
    while at < len(starts) and starts[at] == position and ends[at] <= size:
        together = _first((starts[at + 1 :] != ends[at:-1]) | (ends[at + 1 :] > size))
        chain += range(at, at + together + 1)
        at += together
        position, at = ends[at], following[at]
    return np.array(chain, np.int64)


def _first(mask: NDArray[np.bool_]) -> int:
    """Where *mask* is true for the first time; its length if it is nowhere."""
    return int(mask.argmax()) if mask.any() else len(mask)


def row_locations(block: int, count: int) -> range:
    """The locations of the rows of a block of columns whose own location is *block*."""
    first = block + column_block.ROWS_START // 8 | ROW_BIT
    step = column_block.ROW_SIZE // 8
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


def whole_ids(block: bytes, header: BlockHeader) -> Iterator[tuple[int, int]]:
    """The records of a block that fails whose ids are whole: where each starts, and TOMBSTONE_BIT if it is a delete."""
    position = BLOCK.size
    for _ in range(header.records):
        raw = block[position:]
        head = decode_record_head(raw)
        if head is None or verified_id(head, raw) is None:
            return
        yield position, TOMBSTONE_BIT if head.flags & TOMBSTONE_FLAG else 0
        position += head.size


def blocks_behind(segment: LogSegment, offset: int) -> Iterator[tuple[int, BlockHeader]]:
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
