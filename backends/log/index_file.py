"""The index file: where the newest record of each id is. Immutable, mapped, as small as 24 bytes an id.

    index:    "SKLOGIDX" | xxh3 u64 of all that follows | version u32 | groups u32 | entries u64
              | entry_start u64 (groups + 1) | name_start u64 (groups + 1)
              | high u64... | low u64... | location u64... | names

Groups are sorted by their names' bytes. The entries of a group are sorted by fingerprint, the xxh3-128 of the key with
the store's seed: a search needs no table, and merging two indexes is one sort.
"""

from __future__ import annotations

import bisect
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakSet

import numpy as np
import xxhash
from numpy.typing import NDArray

from safekeeper.backends.log.files import Buffer, Files
from safekeeper.backends.log.location import TOMBSTONE_BIT, segments_of
from safekeeper.backends.log.manifest import IndexEntry
from safekeeper.backends.log.open_files import most_kept, with_room
from safekeeper.backends.shared.records import VERSION

U64 = NDArray[np.uint64]
Changes = Mapping[str, Mapping[bytes, int]]
"""Locations by group and key."""

_HEAD: Final = struct.Struct("<8sQIIQ")
_MARK: Final = b"SKLOGIDX"
_CHECKED_FROM: Final = 16
_LOW: Final = (1 << 64) - 1

_mapped: WeakSet[mmap.mmap] = WeakSet()


@dataclass(slots=True)
class IndexTable:
    """The entries of an index, in memory or mapped."""

    seed: int
    names: list[bytes] = field(default_factory=list)
    """The groups, sorted."""
    starts: U64 = field(default_factory=lambda: np.zeros(1, np.uint64))
    """Where the entries of each group start, and the end of the last."""
    high: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    low: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))
    locations: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))

    def __len__(self) -> int:
        return len(self.locations)

    def entries(self, group: str) -> slice:
        """Which entries belong to *group*."""
        name = group.encode()
        at = bisect.bisect_left(self.names, name)
        if at == len(self.names) or self.names[at] != name:
            return slice(0, 0)
        return slice(int(self.starts[at]), int(self.starts[at + 1]))

    def find(self, group: str, key: bytes) -> int:
        """The location of an id, 0 if it has none."""
        if not self.names:
            return 0
        at = self.position(group, key)
        return int(self.locations[at]) if at >= 0 else 0

    def position(self, group: str, key: bytes) -> int:
        """Which entry is that of an id, -1 if there is none."""
        entries = self.entries(group)
        if entries.start == entries.stop:
            return -1
        fingerprint = xxhash.xxh3_128_intdigest(key, self.seed)
        high, low = np.uint64(fingerprint >> 64), fingerprint & _LOW
        at = entries.start + int(self.high[entries].searchsorted(high))
        while at < entries.stop and self.high[at] == high:
            if int(self.low[at]) == low:
                return int(at)
            at += 1
        return -1

    def segments(self, group: str) -> list[int]:
        """The numbers of the segments that hold something of a group."""
        entries = self.entries(group)
        if entries.start == entries.stop:  # at once: a small group that is looked at often is in no table
            return []
        numbers: list[int] = np.unique(segments_of(self.locations[entries])).tolist()
        return numbers

    def live_locations(self, group: str, new: Iterable[bytes]) -> U64:
        """The locations of a group's values, but for those whose keys are in *new*."""
        locations: U64 = self.locations[self.last_entries(group, new)]
        live: U64 = locations[locations & np.uint64(TOMBSTONE_BIT) == 0]
        return live

    def last_entries(self, group: str, new: Iterable[bytes]) -> NDArray[np.int64]:
        """The entries of a group's last records, tombstones among them, but for those whose keys are in *new*."""
        entries = self.entries(group)
        old = np.ones(entries.stop - entries.start, bool)
        if len(old):
            old[self._positions(entries, new)] = False
        last: NDArray[np.int64] = np.flatnonzero(old) + entries.start
        return last

    def _positions(self, entries: slice, keys: Iterable[bytes]) -> NDArray[np.int64]:
        """Which of *entries* are those of *keys*, as far as they have one."""
        high, low = fingerprints(keys, self.seed)
        all_high, all_low = self.high[entries], self.low[entries]
        at, last = all_high.searchsorted(high), len(all_high) - 1
        while True:
            near = np.minimum(at, last)
            same = (at <= last) & (all_high[near] == high)
            wrong = same & (all_low[near] != low)
            if not wrong.any():
                found: NDArray[np.int64] = near[same]
                return found
            at[wrong] += 1

    def merged(self, changes: Changes) -> IndexTable:
        """A table with *changes* on top of this one."""
        new = _table_of(changes, self.seed)
        names = sorted({*self.names, *new.names})
        number = {name: i for i, name in enumerate(names)}
        groups = np.concatenate([_group_numbers(self, number), _group_numbers(new, number)])
        high, low = np.concatenate([self.high, new.high]), np.concatenate([self.low, new.low])
        locations = np.concatenate([self.locations, new.locations])
        order = np.lexsort((low, high, groups))  # stable: of two with one fingerprint the newer comes last
        groups, high, low = groups[order], high[order], low[order]
        last = np.ones(len(order), bool)
        last[:-1] = (groups[1:] != groups[:-1]) | (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return _grouped(self.seed, names, groups[last], high[last], low[last], locations[order][last])

    def only(self, keep: NDArray[np.bool_]) -> IndexTable:
        """A table with the entries for which *keep* is true."""
        groups = np.repeat(np.arange(len(self.names)), np.diff(self.starts).astype(np.int64))
        return _grouped(self.seed, self.names, groups[keep], self.high[keep], self.low[keep], self.locations[keep])

    def write(self, path: Path, number: int, files: Files) -> IndexEntry:
        """Create the file *path* with this table, its content durable but not its name."""
        name_starts = np.concatenate([[0], np.cumsum([len(name) for name in self.names], dtype=np.uint64)])
        parts: list[Buffer] = [
            struct.pack("<IIQ", VERSION, len(self.names), len(self)),
            *(
                array.astype("<u8").data.cast("B")
                for array in (self.starts, name_starts, self.high, self.low, self.locations)
                if len(array)
            ),
            b"".join(self.names),
        ]
        check = xxhash.xxh3_64()
        for part in parts:
            check.update(part)
        parts.insert(0, _MARK + check.digest()[::-1])
        fd = files.create(path)
        try:
            files.write_synced(fd, parts, 0)
        finally:
            os.close(fd)
        return IndexEntry(number, sum(map(len, parts)), check.intdigest())


def open_index_file(folder: Path, entry: IndexEntry, seed: int) -> IndexTable | None:
    """The table in an index file, mapped if few are; None if it is missing, or not in every byte what was written."""
    try:
        fd = with_room(lambda: os.open(folder / entry.file_name, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    try:
        if os.fstat(fd).st_size != entry.size:
            return None
        data = _content(fd, entry.size)
    finally:
        os.close(fd)
    mark, check, version, groups, entries = _HEAD.unpack_from(data)
    if (mark, check, version) != (_MARK, entry.check, VERSION):
        return None
    if xxhash.xxh3_64_intdigest(data[_CHECKED_FROM:]) != check:
        return None
    words = np.frombuffer(data, "<u8", 2 * (groups + 1) + 3 * entries, _HEAD.size)
    starts, name_starts, high, low, locations = np.split(
        words, np.cumsum([groups + 1, groups + 1, entries, entries]).tolist()
    )
    blob = bytes(data[_HEAD.size + words.nbytes :])
    bounds = name_starts.tolist()
    names = [blob[bounds[i] : bounds[i + 1]] for i in range(groups)]
    return IndexTable(seed, names, starts, high, low, locations)


def _content(fd: int, size: int) -> memoryview:
    """What is in a file: mapped, or read if many are, since each map keeps a file open."""
    if len(_mapped) < most_kept():
        mapped = with_room(lambda: mmap.mmap(fd, size, access=mmap.ACCESS_READ))
        _mapped.add(mapped)
        return memoryview(mapped)
    data = bytearray(size)
    done = 0
    while done < size and (count := os.preadv(fd, [memoryview(data)[done:]], done)):
        done += count
    return memoryview(data)


def common_entries(one: IndexTable, other: IndexTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the ids are that two tables with one seed both have: their entries in the one and in the other."""
    number = {name: i for i, name in enumerate(sorted({*one.names, *other.names}))}
    groups = np.concatenate([_group_numbers(one, number), _group_numbers(other, number)])
    high, low = np.concatenate([one.high, other.high]), np.concatenate([one.low, other.low])
    order = np.lexsort((low, high, groups))  # stable: of two with one fingerprint the one comes before the other
    groups, high, low = groups[order], high[order], low[order]
    same = (groups[1:] == groups[:-1]) & (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return order[:-1][same], order[1:][same] - len(one)


def _table_of(changes: Changes, seed: int) -> IndexTable:
    """The entries of *changes*, group by group, not yet sorted within a group."""
    by_name = sorted((group.encode(), keys) for group, keys in changes.items() if keys)
    high, low = fingerprints((key for _, keys in by_name for key in keys), seed)
    locations = np.array([location for _, keys in by_name for location in keys.values()], np.uint64)
    starts = np.cumsum([0, *(len(keys) for _, keys in by_name)], dtype=np.uint64)
    return IndexTable(seed, [name for name, _ in by_name], starts, high, low, locations)


def fingerprints(keys: Iterable[bytes], seed: int) -> tuple[U64, U64]:
    """The two halves of the fingerprints of *keys*."""
    digest = xxhash.xxh3_128_digest
    halves = np.frombuffer(b"".join([digest(key, seed) for key in keys]), ">u8").astype(np.uint64).reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def _group_numbers(table: IndexTable, number: Mapping[bytes, int]) -> NDArray[np.int64]:
    numbers = np.array([number[name] for name in table.names], np.int64)
    return np.repeat(numbers, np.diff(table.starts).astype(np.int64))


def _grouped(
    seed: int, names: list[bytes], groups: NDArray[np.int64], high: U64, low: U64, locations: U64
) -> IndexTable:
    """A table from entries in order, each with the number of its group; groups that have none are left out."""
    counts = np.bincount(groups, minlength=len(names))
    starts = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.uint64)
    return IndexTable(
        seed, [name for name, count in zip(names, counts, strict=True) if count], starts, high, low, locations
    )
