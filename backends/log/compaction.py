"""The pass that writes the index file and gives space back: dead segments go, mostly dead ones are rewritten.

What makes a segment dead is durable before its file is removed: the copies of its live records, the index that points
to them, and last the manifest, which takes the new files in and the old ones out in one step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np

from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.index_file import IndexTable, open_index_file
from safekeeper.backends.log.liveness import LivenessMasks, compare
from safekeeper.backends.log.location import TOMBSTONE_BIT, location_of, segment_of, segments_of
from safekeeper.backends.log.manifest import IndexEntry, Manifest, SegmentEntry
from safekeeper.backends.log.recovery import Counts, State
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.log.writer import LogWriter
from safekeeper.backends.log.writer_folder import SMALL_SHARE, WriterFolder
from safekeeper.backends.shared.records import BLOCK, MOVED, SEGMENT_HEAD, encode_block
from safekeeper.errors import Corruption

MANY_SMALL: Final = 8
"""So many small sealed segments are merged into one."""
_MANY_TOMBSTONES: Final = 1000
_TOMBSTONE_SHARE: Final = 4  # tombstones may be as many as one quarter of the live ids
_MOST_COPIED: Final = 512 << 20
_MOVED_BLOCK: Final = 1 << 20

Pace = Callable[[int], None]
"""Called with a number of bytes that were copied; it may sleep, or raise to end the pass."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How much of a segment is still of use."""

    entry: SegmentEntry
    """As it would stand in a manifest whose index knows everything up to `indexed`."""
    live: int
    """Puts that are the newest of their id."""
    live_tombstones: int
    """Tombstones that are the newest of their id."""
    replaced: int = 0
    """Live puts that are not the newest of their id: another folder has a newer record."""
    bound: int = 0
    """Live tombstones that are needed for the sake of other folders."""

    @property
    def dead_puts(self) -> int:
        """Puts that are not."""
        return self.entry.puts - self.live

    @property
    def dead_share(self) -> float:
        """The share of records that nobody needs."""
        records = self.entry.puts + self.entry.tombstones
        return 1 - (self.live - self.replaced + self.live_tombstones) / records if records else 1.0

    @property
    def live_bytes(self) -> float:
        """About how many bytes a copy of what is needed has."""
        return (1 - self.dead_share) * self.entry.indexed


class LogCompactor:
    """Runs passes over a writer folder, one at a time."""

    def __init__(self, root: Root, folder: WriterFolder, writer: LogWriter) -> None:
        self._root = root
        self._folder = folder
        self._writer = writer
        self._running = Lock()
        self._doubtful: list[Path] = []  # files that only one of the manifests names between which it is open

    def run(self, pace: Pace, everything: bool = False) -> None:
        """Write an index file and compact what is worth it; with *everything*, whatever has a dead record."""
        with self._running:
            try:
                self._run(pace, everything)
            except (OSError, Corruption) as error:  # its files may be gone: its folder may be another writer's by now
                with self._writer.exclusive() as appender:
                    appender.check_not_fenced(error)
                raise

    def _run(self, pace: Pace, everything: bool) -> None:
        folder = self._folder
        with self._writer.exclusive() as appender:
            appender.sync()
            if self._doubtful:
                # The last pass could not replace the manifest, or did not get an answer. What it made goes before this
                # one makes more: it may be a full disk that it failed for.
                appender.change_manifest(lambda manifest: manifest)
                self._remove_doubtful()
            if everything:
                appender.rotate()
            with folder.lock:
                frozen = folder.state.index.freeze()
                entries = _covered(folder)
                sequence = folder.state.sequence
        table = folder.state.index.table.merged(frozen)
        liveness = compare(self._root, folder, table)
        occupancies = _occupancies(entries, table, liveness)
        victims = choose(occupancies, folder.options.segment, folder.options.compact_dead, everything)
        copier = _LiveRecordCopier(folder, appender, pace)
        try:
            table = copier.copy(table, victims, _oldest_dirty(occupancies, victims), liveness)
            number = appender.take_number()
            copier.made.append(folder.path / IndexEntry(number, 0, 0).file_name)
            index = table.write(copier.made[-1], number, folder.files)
            folder.files.sync_folder(folder.path)
        except BaseException:
            appender.check_folder()
            copier.remove()
            raise
        finally:
            copier.close()
        mapped = open_index_file(folder.path, index, table.seed)
        removed = folder.state.manifest.index
        dead = [entry.file_name for entry in entries if entry.number in victims]
        dead += [removed.file_name] if removed else []

        def change(manifest: Manifest) -> Manifest:
            known = {entry.number: entry for entry in entries}
            kept = [_indexed(entry, known) for entry in manifest.segments if entry.number not in victims]
            segments = (*kept[:-1], *copier.entries, kept[-1])  # the open one stays the last
            return replace(manifest, segments=segments, index=index, sequence=max(manifest.sequence, sequence))

        def install(state: State) -> None:
            state.index.thaw(mapped or table)
            for entry in copier.entries:
                state.segments[entry.number] = LogSegment(folder.path, entry)
                state.counts[entry.number] = Counts(entry.puts, entry.tombstones)
            folder.retire(victims)

        self._doubtful = [*copier.made, *(folder.path / name for name in dead)]
        appender.change_manifest(change, install)
        self._remove_doubtful()

    def _remove_doubtful(self) -> None:
        """Remove those of the last pass's files that the manifest does not name."""
        named = self._folder.state.manifest.file_names()
        for path in self._doubtful:
            if path.name not in named:
                self._folder.files.remove(path)
        self._doubtful = []


def is_worth_a_pass(root: Root, folder: WriterFolder) -> bool:
    """Whether a pass over a folder that nobody writes would find anything to rewrite or drop."""
    with folder.lock:
        frozen, entries = folder.view_all().new, _covered(folder)
    table = folder.state.index.table.merged(frozen)
    occupancies = _occupancies(entries, table, compare(root, folder, table))
    return bool(choose(occupancies, folder.options.segment, folder.options.compact_dead, everything=False))


def _covered(folder: WriterFolder) -> list[SegmentEntry]:
    """The segments as an index that is made now knows them."""
    state = folder.state
    return [
        replace(
            entry,
            indexed=state.tail if entry.end is None else entry.end,
            puts=state.counts[entry.number].puts,
            tombstones=state.counts[entry.number].tombstones,
        )
        for entry in state.manifest.segments
    ]


def _indexed(entry: SegmentEntry, known: dict[int, SegmentEntry]) -> SegmentEntry:
    """*entry* with what the new index knows of it; one that was begun after that is as it was."""
    covered = known.get(entry.number)
    return replace(covered, end=entry.end) if covered else entry


def _occupancies(entries: list[SegmentEntry], table: IndexTable, liveness: LivenessMasks) -> list[Occupancy]:
    base = min((entry.number for entry in entries), default=0)
    numbers = segments_of(table.locations).astype(np.int64) - base
    tombstones = (table.locations & np.uint64(TOMBSTONE_BIT)) != 0
    size = max((entry.number for entry in entries), default=0) - base + 1
    chosen = (
        ~tombstones,
        tombstones,
        ~tombstones & liveness.replaced,
        tombstones & liveness.hiding & ~liveness.replaced,
    )
    counts = np.stack([np.bincount(numbers[mask], minlength=size) for mask in chosen]).T.tolist()
    return [Occupancy(entry, *counts[entry.number - base]) for entry in entries]


def choose(occupancies: list[Occupancy], usual: int, dead: float, everything: bool) -> set[int]:
    """Which sealed segments to rewrite or drop."""
    sealed = [segment for segment in occupancies if segment.entry.end is not None]
    small = {segment.entry.number for segment in sealed if segment.entry.indexed < usual // SMALL_SHARE}
    dirty = {
        segment.entry.number for segment in sealed if segment.dead_share > 0 or segment.live_tombstones > segment.bound
    }
    if everything:
        return dirty | (small if len(small) > 1 else set())
    tombstones = sum(segment.live_tombstones - segment.bound for segment in sealed)
    if tombstones > max(_MANY_TOMBSTONES, sum(segment.live for segment in occupancies) // _TOMBSTONE_SHARE):
        return dirty
    chosen = small if len(small) >= MANY_SMALL else set()
    copied = 0.0
    for segment in sorted(sealed, key=lambda segment: -segment.dead_share):
        copied += segment.live_bytes
        if segment.dead_share <= dead or copied > _MOST_COPIED:
            break
        chosen.add(segment.entry.number)
    return chosen


def _oldest_dirty(occupancies: list[Occupancy], victims: set[int]) -> int | None:
    """The lowest sequence of a record in any segment that stays and holds a dead put; None if there is none.

    A tombstone below it hides nothing that could be read again.
    """
    stay = [segment for segment in occupancies if segment.entry.number not in victims]
    return min((segment.entry.sequence for segment in stay if segment.dead_puts), default=None)


class _LiveRecordCopier:
    """Copies what is needed of the chosen segments into new ones."""

    def __init__(self, folder: WriterFolder, appender: Appender, pace: Pace) -> None:
        self._folder = folder
        self._appender = appender
        self._pace = pace
        self._fd = -1
        self._end = 0
        self._counts = Counts()
        self._lowest = self._highest = 0
        self._records: list[bytes] = []
        self._size = 0
        self.entries: list[SegmentEntry] = []
        """The new segments, sealed."""
        self.made: list[Path] = []
        """The files that nothing names yet."""

    def copy(
        self, table: IndexTable, victims: set[int], oldest_dirty: int | None, liveness: LivenessMasks
    ) -> IndexTable:
        """Copy the live records of *victims*; the table that points to the copies, without the tombstones left out."""
        numbers = segments_of(table.locations).astype(np.int64)
        moving = np.flatnonzero(np.isin(numbers, list(victims)))
        moving = moving[np.argsort(table.locations[moving])]
        if not len(moving):
            return table
        locations, keep = table.locations.copy(), np.ones(len(table), bool)
        needed = liveness.hiding & ~liveness.replaced
        for number, entries in groupby(moving.tolist(), lambda at: segment_of(int(table.locations[at]))):
            with self._folder.pinned([number]) as segments:  # one at a time: there may be more than a process may open
                for at in entries:
                    location = int(table.locations[at])
                    tombstone = bool(location & TOMBSTONE_BIT or liveness.replaced[at])
                    segment = segments[number]
                    read = segment.read_as_tombstone if tombstone else segment.read_record
                    record, sequence = read(location)
                    if tombstone and not needed[at] and (oldest_dirty is None or sequence < oldest_dirty):
                        keep[at] = False
                        continue
                    locations[at] = self._append(record, sequence, tombstone)
        self._seal()
        return replace(table, locations=locations).only(keep)

    def _append(self, record: bytes, sequence: int, tombstone: bool) -> int:
        if self._fd < 0:
            self._fd, entry = self._appender.create_segment(sequence)
            self.entries.append(entry)
            self.made.append(self._folder.path / entry.file_name)
            self._end, self._counts = SEGMENT_HEAD.size, Counts()
            self._lowest = self._highest = sequence
        location = location_of(self.entries[-1].number, self._end + BLOCK.size + self._size)
        self._lowest, self._highest = min(self._lowest, sequence), max(self._highest, sequence)
        self._counts.puts += not tombstone
        self._counts.tombstones += tombstone
        self._records.append(record)
        self._size += len(record)
        if self._size >= _MOVED_BLOCK:
            self._write_block()
            if self._end >= self._folder.options.segment:
                self._seal()
        return location | TOMBSTONE_BIT if tombstone else location

    def _write_block(self) -> None:
        if not self._records:
            return
        nonce, epoch, count = self.entries[-1].nonce, self._appender.epoch, len(self._records)
        head = encode_block(nonce, self._end, epoch, self._highest, 0, self._size, count, MOVED)
        self._folder.files.write(self._fd, [b"".join([head, *self._records])], self._end)
        self._end += len(head) + self._size
        self._pace(self._size)
        self._records, self._size = [], 0

    def _seal(self) -> None:
        if self._fd < 0:
            return
        self._write_block()
        self._folder.files.sync(self._fd)
        end, counts = self._end, self._counts
        self.entries[-1] = replace(
            self.entries[-1],
            sequence=self._lowest,
            end=end,
            indexed=end,
            puts=counts.puts,
            tombstones=counts.tombstones,
        )
        self.close()

    def close(self) -> None:
        """Close the file that is being written, if there is one."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Remove the new files, which nothing names yet."""
        for path in self.made:
            with suppress(OSError):
                self._folder.files.remove(path)


def paced(rate: int, sleep: Callable[[float], None]) -> Pace:
    """Copy at most *rate* bytes a second."""
    started, spent = time.monotonic(), 0

    def pace(copied: int) -> None:
        nonlocal spent
        spent += copied
        sleep(max(spent / rate - (time.monotonic() - started), 0))

    return pace
