"""What each byte of a small store is for, found by reading `docs/format.md`, not by asking the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from safekeeper import CheckpointId

SEGMENT_HEAD = 32
BLOCK_HEAD = struct.Struct("<Q4sIQQQII")
RECORD_HEAD = struct.Struct("<QQQIIHBB")
COLUMNS_HEAD = struct.Struct("<QQQ256p")

Role = Literal["head", "block", "record", "columns", "values", "padding", "behind"]


@dataclass(frozen=True, slots=True)
class Area:
    """Bytes of a segment that serve one purpose."""

    start: int
    end: int
    role: Role
    block: int = -1
    """Which block of the segment it belongs to, counted from 0."""
    ids: frozenset[CheckpointId] = frozenset()
    """The ids that are read with the help of these bytes."""


@dataclass(slots=True)
class SegmentLayout:
    """A segment of a store, as its manifest and its bytes say."""

    path: Path
    sealed: bool
    indexed: bool
    """Whether the index file knows all of it, so that opening the store does not read it."""
    areas: list[Area] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    """Where each block ends."""

    def area(self, offset: int) -> Area:
        return next(area for area in self.areas if area.start <= offset < area.end)


def layout_of(folder: Path) -> list[SegmentLayout]:
    """The segments of a writer's folder, in the order of the manifest."""
    manifest = json.loads((folder / "manifest").read_bytes().split(b"\n", 1)[1])
    layouts = []
    for entry in manifest["segments"]:
        path = folder / f"{entry['number']:08}.segment"
        sealed = entry["end"] is not None
        layout = SegmentLayout(path, sealed, sealed and entry["indexed"] == entry["end"])
        layout.areas = list(_areas(path.read_bytes(), layout.blocks))
        layouts.append(layout)
    return layouts


def _areas(data: bytes, ends: list[int]) -> Iterator[Area]:
    yield Area(0, SEGMENT_HEAD, "head")
    offset = SEGMENT_HEAD
    while data[offset + 8 : offset + 12] == b"SKLB":
        *_, length, count, kind = BLOCK_HEAD.unpack_from(data, offset)
        end = offset + BLOCK_HEAD.size + length
        inside = _columns if kind == 2 else _records
        yield from inside(data, offset, count, end, len(ends))
        ends.append(end)
        offset = end
    yield Area(offset, len(data), "behind")


def _records(data: bytes, block: int, count: int, end: int, number: int) -> Iterator[Area]:
    yield Area(block, block + BLOCK_HEAD.size, "block", number)
    offset = block + BLOCK_HEAD.size
    for _ in range(count):
        *_, value_size, key_size, group_size, _ = RECORD_HEAD.unpack_from(data, offset)
        key = offset + RECORD_HEAD.size + group_size
        id = CheckpointId(data[offset + RECORD_HEAD.size : key].decode(), data[key : key + key_size])
        last = key + key_size + value_size
        yield Area(offset, last, "record", number, frozenset([id]))
        offset = (last + 7) // 8 * 8
        yield Area(last, offset, "padding", number)
    assert offset == end


def _columns(data: bytes, block: int, count: int, end: int, number: int) -> Iterator[Area]:
    head = block + BLOCK_HEAD.size
    _, keys_size, values_size, group = COLUMNS_HEAD.unpack_from(data, head)
    rows = head + COLUMNS_HEAD.size
    keys = rows + 16 * (count + 1)
    starts = [struct.unpack_from("<IIQ", data, rows + 16 * i)[1:] for i in range(count + 1)]
    ids = [CheckpointId(group.decode(), data[keys + starts[i][0] : keys + starts[i + 1][0]]) for i in range(count)]
    table = (keys + keys_size + 7) // 8 * 8
    values = table + 16  # one page of rows and keys, one page of values
    yield Area(block, values, "columns", number, frozenset(ids))
    with_value = [id for id, this, following in zip(ids, starts, starts[1:], strict=False) if this[1] < following[1]]
    yield Area(values, values + values_size, "values", number, frozenset(with_value))
    yield Area(values + values_size, end, "padding", number)
