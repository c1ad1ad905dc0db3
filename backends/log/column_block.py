"""Blocks of columns: many puts of one group, written as they came, without a step per record.

    columns:  xxh3 u64 | keys_len u64 | values_len u64 | group_len u8 | group, 255 bytes with zeros
              | row (count + 1 times) | keys | zeros to 8 | page xxh3 u64... | values | zeros to 8
    row:      number u32 | key_start u32 | value_start u64

The first checksum covers lengths, group and page checksums and is seeded with sequence and epoch. A page is 16 KiB of
(rows, keys, zeros) or of values: reading one value verifies the pages that it touches and no others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from safekeeper.backends.log.files import Buffer
from safekeeper.backends.shared.records import BLOCK, COLUMNS, BlockHeader, decode_block, padded, padding
from safekeeper.columns import Column, Columns
from safekeeper.errors import TooLarge

_HEAD: Final = struct.Struct("<QQQ256p")
_CHECKED_FROM: Final = 8
_ROW: Final = np.dtype([("number", "<u4"), ("key", "<u4"), ("value", "<u8")])
_PAGE: Final = 16 * 1024
_MOST_ROWS: Final = 16 * 1024  # in one read of several rows
_MOST_BYTES: Final = 4 << 20

ROWS_START: Final = BLOCK.size + _HEAD.size
"""Where the rows begin, counted from the start of the block."""
ROW_SIZE: Final = _ROW.itemsize


class _Layout:
    """Where the parts of a block of columns are, counted from the start of the block."""

    def __init__(self, count: int, keys_size: int, values_size: int) -> None:
        self.keys = ROWS_START + (count + 1) * ROW_SIZE
        self.table = padded(self.keys + keys_size)
        self.left_pages = -(-(self.table - ROWS_START) // _PAGE)
        self.values_size = values_size
        self.values = self.table + 8 * (self.left_pages + -(-values_size // _PAGE))
        self.end = padded(self.values + values_size)


def encode_columns(columns: Columns, sequence: int, epoch: int) -> list[Buffer]:
    """The payload of the block that holds *columns*. Keys and values are not copied one by one."""
    count = len(columns)
    keys, values = _contiguous(columns.keys), _contiguous(columns.values)
    if len(keys) >= 1 << 32 or count >= (1 << 32) - 1:
        raise TooLarge(f"a batch has at most 4 GiB of keys, this one has {len(keys)}: split it")
    rows = np.empty(count + 1, _ROW)
    rows["number"] = np.arange(count + 1)
    rows["key"] = columns.keys.offsets - columns.keys.offsets[0]
    rows["value"] = columns.values.offsets - columns.values.offsets[0]
    left = memoryview(b"".join((rows.tobytes(), keys, padding(len(keys)))))
    table = struct.pack(f"<{_pages(left) + _pages(values)}Q", *_page_checks(left), *_page_checks(values))
    head = _HEAD.pack(0, len(keys), len(values), columns.group.encode())
    check = xxhash.xxh3_64_intdigest(head[_CHECKED_FROM:] + table, _seed(sequence, epoch))
    return [check.to_bytes(8, "little") + head[_CHECKED_FROM:], left, table, values, padding(len(values))]


def _contiguous(column: Column) -> memoryview:
    return column.data[column.offsets[0] : column.offsets[-1]]


def _pages(data: memoryview) -> int:
    return -(-len(data) // _PAGE)


def _page_checks(data: memoryview) -> list[int]:
    check = xxhash.xxh3_64_intdigest
    return [check(data[start : start + _PAGE]) for start in range(0, len(data), _PAGE)]


def _seed(sequence: int, epoch: int) -> int:
    return sequence ^ epoch << 32


def split_column(data: bytes | memoryview, starts: NDArray[np.int64]) -> list[bytes]:
    """The items of a column as objects, at the speed of C where all have one length."""
    lengths = np.diff(starts)
    if len(lengths) and lengths[0] > 0 and (lengths == lengths[0]).all():
        items: list[bytes] = np.frombuffer(data, f"V{lengths[0]}", len(lengths), starts[0]).tolist()
        return items
    data = bytes(data)
    return [data[start:end] for start, end in pairwise(starts.tolist())]


def decode_columns(block: memoryview, header: BlockHeader) -> tuple[bytes, list[bytes]] | None:
    """The group and the keys of a whole block, every page of it verified; None if a checksum fails."""
    if len(block) < ROWS_START:
        return None
    _, keys_size, values_size, group = _HEAD.unpack_from(block, BLOCK.size)
    layout = _Layout(header.records, keys_size, values_size)
    if layout.end != len(block):
        return None
    table = block[layout.table : layout.values]
    left, values = block[ROWS_START : layout.table], block[layout.values : layout.values + values_size]
    if not _head_is_whole(block[BLOCK.size : ROWS_START], table, header):
        return None
    if struct.unpack(f"<{len(table) // 8}Q", table) != (*_page_checks(left), *_page_checks(values)):
        return None
    starts = np.frombuffer(left, _ROW, header.records + 1)["key"].astype(np.int64)
    return group, split_column(block[layout.keys : layout.keys + keys_size], starts)


def _head_is_whole(head: Buffer, table: Buffer, header: BlockHeader) -> bool:
    check = xxhash.xxh3_64(head[_CHECKED_FROM:], _seed(header.sequence, header.epoch))
    check.update(table)
    return check.intdigest() == int.from_bytes(head[:_CHECKED_FROM], "little")


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """One verified row."""

    group: bytes
    key: bytes
    sequence: int
    epoch: int
    value: Callable[[], bytes | None]
    """Reads the value; None if a checksum fails."""


def read_row(read: Callable[[int, int], bytes], offset: int, nonce: int) -> ColumnRow | None:
    """The row at *offset* of a segment, where `read(size, offset)` reads it; None if anything is damaged."""
    block = ColumnBlockReader.at_row(read, offset, nonce)
    return block.read_row((offset - block.first_row) // ROW_SIZE) if block else None


class ColumnBlockReader:
    """Reads some rows of a block: what is needed for them, and verified, but no more."""

    def __init__(
        self, read: Callable[[int, int], bytes], start: int, header: BlockHeader, layout: _Layout, group: bytes
    ) -> None:
        self._read = read
        self._start = start
        self._layout = layout
        self.group = group
        self.count, self.sequence, self.epoch = header.records, header.sequence, header.epoch
        self.first_row = start + ROWS_START
        """The offset of its first row."""
        self._checks = np.zeros(0, np.uint64)

    @classmethod
    def at_row(cls, read: Callable[[int, int], bytes], offset: int, nonce: int) -> ColumnBlockReader | None:
        """The block whose row is at *offset* of a segment; None if it is damaged."""
        number = int.from_bytes(read(4, offset), "little")
        start = offset - number * ROW_SIZE - ROWS_START
        if start < 0:
            return None
        raw = read(ROWS_START, start)
        header = decode_block(raw, nonce, start)
        if header is None or header.kind != COLUMNS or number >= header.records or len(raw) < ROWS_START:
            return None
        _, keys_size, values_size, group = _HEAD.unpack_from(raw, BLOCK.size)
        layout = _Layout(header.records, keys_size, values_size)
        if layout.end != header.size:  # the lengths are not verified yet, and may ask for more memory than there is
            return None
        table = read(layout.values - layout.table, start + layout.table)
        if not _head_is_whole(raw[BLOCK.size :], table, header):
            return None
        block = cls(read, start, header, layout, group)
        block._checks = np.frombuffer(table, "<u8")
        return block

    def read_row(self, number: int) -> ColumnRow | None:
        """One row; None if it is damaged."""
        rows = self._rows(number, number + 1)
        if rows is None:
            return None
        (_, key_at, value_at), (_, key_end, value_end) = rows.tolist()
        key = self._keys(key_at, key_end)
        if key is None:
            return None
        return ColumnRow(self.group, key, self.sequence, self.epoch, lambda: self._values(value_at, value_end))

    def read_pairs(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, int, list[tuple[bytes, bytes]] | None]]:
        """The keys and values of the rows *numbers*, which are sorted, in pieces: from which of them to which the piece
        is, and None if it is damaged."""
        first = 0
        while first < len(numbers):
            last = int(np.searchsorted(numbers, numbers[first] + _MOST_ROWS))
            begin, end = int(numbers[first]), int(numbers[last - 1]) + 1
            rows = self._rows(begin, end)
            if rows is None:
                yield first, last, None
                first = last
                continue
            chosen = numbers[first:last] - begin
            starts = rows["value"].astype(np.int64)
            fitting = np.searchsorted(starts[chosen + 1], starts[0] + _MOST_BYTES, "right")
            chosen = chosen[: max(int(fitting), 1)]
            yield first, first + len(chosen), self._pairs(rows[: chosen[-1] + 2], chosen)
            first += len(chosen)

    def _pairs(self, rows: NDArray[Any], chosen: NDArray[np.int64]) -> list[tuple[bytes, bytes]] | None:
        columns = []
        for name, read in (("key", self._keys), ("value", self._values)):
            starts = rows[name].astype(np.int64)
            data = read(int(starts[0]), int(starts[-1]))
            if data is None:
                return None
            starts -= starts[0]
            if len(chosen) == len(rows) - 1:
                columns.append(split_column(data, starts))
            else:
                bounds = zip(starts[chosen].tolist(), starts[chosen + 1].tolist(), strict=True)
                columns.append([data[start:end] for start, end in bounds])
        return list(zip(*columns, strict=True))

    def _rows(self, begin: int, end: int) -> NDArray[Any] | None:
        """The rows from *begin* to *end*, and the one behind them."""
        raw = self._left(begin * ROW_SIZE, (end + 1) * ROW_SIZE)
        if raw is None:
            return None
        rows = np.frombuffer(raw, _ROW)
        return rows if (rows["number"] == np.arange(begin, end + 1)).all() else None

    def _keys(self, begin: int, end: int) -> bytes | None:
        keys_at = self._layout.keys - ROWS_START
        return self._left(keys_at + begin, keys_at + end)

    def _left(self, begin: int, end: int) -> bytes | None:
        checks = self._checks[: self._layout.left_pages]
        return _verified(self._read, self.first_row, self._layout.table - ROWS_START, checks, begin, end)

    def _values(self, begin: int, end: int) -> bytes | None:
        checks, values = self._checks[self._layout.left_pages :], self._start + self._layout.values
        return _verified(self._read, values, self._layout.values_size, checks, begin, end)


def _verified(
    read: Callable[[int, int], bytes], area: int, size: int, checks: NDArray[np.uint64], begin: int, end: int
) -> bytes | None:
    """Bytes *begin* to *end* of the area at offset *area*, after verifying the pages they lie in; None if one fails."""
    if begin == end:
        return b""
    first, last = begin // _PAGE, (end - 1) // _PAGE
    raw = memoryview(read(min((last + 1) * _PAGE, size) - first * _PAGE, area + first * _PAGE))
    if _page_checks(raw) != checks[first : last + 1].tolist():
        return None
    return bytes(raw[begin - first * _PAGE : end - first * _PAGE])
