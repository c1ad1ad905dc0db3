"""A writer folder as this process knows it. Reads go through it; if it is our own, `Appender` changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import numpy as np

from safekeeper.backend import CheckpointId
from safekeeper.backends.log.bulk import read_keys, read_pairs, read_stamps
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.index import LogIndex
from safekeeper.backends.log.index_file import U64, IndexTable, fingerprints
from safekeeper.backends.log.location import SEGMENT_SHIFT, TOMBSTONE_BIT, segment_of, segments_of
from safekeeper.backends.log.manifest import Manifest, SegmentEntry, first_line
from safekeeper.backends.log.open_files import NO_ROOM, POOL, most_open
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.recovery import State, load
from safekeeper.backends.log.scan import scan
from safekeeper.backends.log.segment import LogSegment, SegmentCopies
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.errors import Closed, Corruption

R = TypeVar("R")

SMALL_SHARE: Final = 8
"""A segment is small below this part of the usual size."""
_SHORT_TAIL: Final = 1000  # records; read in a few milliseconds
_SHORT_SHARE: Final = 200


@dataclass(frozen=True, slots=True)
class View:
    """What a folder knew at one moment."""

    folder: WriterFolder
    segments: dict[int, LogSegment]
    pinned: bool
    """Whether the segments stay open until `release`. Where there are too many they do not, and may go away."""

    def release(self) -> None:
        """Give back the files."""
        if self.pinned:
            self.folder.unpin(self.segments.values())

    def is_retired(self) -> bool:
        """Whether a compaction of this process has replaced any of the segments since."""
        return any(segment.retired for segment in self.segments.values())

    def stamp(self, location: int) -> tuple[int, int]:
        """The sequence and epoch of the record at *location*."""
        return self.read(location, lambda segment: segment.read_stamp(location))

    def value(self, location: int, id: CheckpointId) -> bytes:
        """The value at *location*, which is that of *id*."""
        group, key = id.group.encode(), id.key
        if self.pinned:
            return self.segments[location >> SEGMENT_SHIFT].read_value(location, group, key)
        return self.read(location, lambda segment: segment.read_value(location, group, key))

    def token(self, location: int, id: CheckpointId) -> bytes:
        """The token of what was created at *location*, which is *id*; nothing if it was written."""
        return self.read(location, lambda segment: segment.read_token(location))

    def read(self, location: int, read: Callable[[LogSegment], R]) -> R:
        """What *read* makes of the segment of *location*."""
        segment = self.segments[segment_of(location)]
        return read(segment) if self.pinned else POOL.read(segment, read)


@dataclass(frozen=True, slots=True)
class IdView(View):
    """What it knew of some ids."""

    locations: list[int]
    """Of the last record of each, which may be a tombstone; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class GroupView(View):
    """What it knew of a group."""

    group: str
    new: dict[bytes, int]
    """The locations of what came after the table."""
    table: IndexTable

    def live_keys(self) -> Iterator[list[bytes]]:
        """The keys of the folder's values: those in memory first, the others in the order of the file."""
        yield [key for key, location in self.new.items() if not location & TOMBSTONE_BIT]
        if self.segments:  # else nothing of it is in the table
            yield from self._keys(np.sort(self.table.live_locations(self.group, self.new)))

    def live_locations(self) -> U64:
        """The locations of the folder's values."""
        new = np.fromiter(self.new.values(), np.uint64, len(self.new))
        live = new[new & np.uint64(TOMBSTONE_BIT) == 0]
        return np.concatenate([live, self.table.live_locations(self.group, self.new)])

    def last_entries(self) -> tuple[U64, U64, U64]:
        """The fingerprints of all keys, in two halves, and the locations of their last records."""
        table, old = self.table, self.table.last_entries(self.group, self.new)
        high, low = fingerprints(self.new, table.seed)
        new = np.fromiter(self.new.values(), np.uint64, len(self.new))
        pairs = ((high, table.high[old]), (low, table.low[old]), (new, table.locations[old]))
        return tuple(map(np.concatenate, pairs))  # type: ignore[return-value]

    def read_pairs(self, locations: U64) -> Iterator[list[tuple[bytes, bytes]]]:
        """The keys and values at *locations*, in the order in which they lie there."""
        group = self.group.encode()
        for number, here in _by_segment(np.sort(locations)):
            with self._opened(number) as segment:
                yield from read_pairs(segment, here, group)

    def read_stamps(self, locations: U64) -> tuple[U64, U64]:
        """The sequences and epochs of the records at *locations*."""
        locations = locations & ~np.uint64(TOMBSTONE_BIT)  # which would come before the offset in their order
        order, stamps = np.argsort(locations), np.zeros((2, len(locations)), np.uint64)
        done = 0
        for number, here in _by_segment(locations[order]):
            with self._opened(number) as segment:
                stamps[:, order[done : done + len(here)]] = read_stamps(segment, here)
            done += len(here)
        return stamps[0], stamps[1]

    @contextmanager
    def _opened(self, number: int) -> Iterator[LogSegment]:
        """A segment, open as long as the block lasts."""
        segment = self.segments[number]
        if self.pinned:
            yield segment
            return
        POOL.pin(segment)
        try:
            yield segment
        finally:
            POOL.unpin(segment)

    def last_records(self) -> Iterator[tuple[bytes, int]]:
        """The location of the last record of each key, tombstones among them."""
        yield from self.new.items()
        locations = self.table.locations[self.table.last_entries(self.group, self.new)]
        locations = locations[np.argsort(locations & ~np.uint64(TOMBSTONE_BIT))]
        keys = chain.from_iterable(self._keys(locations & ~np.uint64(TOMBSTONE_BIT)))
        yield from zip(keys, locations.tolist(), strict=True)

    def _keys(self, locations: U64) -> Iterator[list[bytes]]:
        """The keys at *locations*, which are sorted, in their order."""
        group = self.group.encode()
        for number, here in _by_segment(locations):
            with self._opened(number) as segment:
                yield from read_keys(segment, here, group)


def _by_segment(locations: U64) -> Iterator[tuple[int, U64]]:
    """The numbers of the segments that sorted *locations* are in, each with those in it."""
    numbers, starts = np.unique(segments_of(locations), return_index=True)
    if len(locations):
        yield from zip(numbers.tolist(), np.split(locations, starts[1:]), strict=True)


@dataclass(frozen=True, slots=True)
class AllView(View):
    """Everything that it knew. Nothing is pinned."""

    table: IndexTable
    new: dict[str, dict[bytes, int]]
    """The locations of what came after the table, by group and key."""
    entries: tuple[SegmentEntry, ...]

    def copies(self) -> SegmentCopies:
        """The segments, to be closed by the caller."""
        return SegmentCopies(self.folder.path, self.entries, max(most_open() // 4, 1))


class WriterFolder:
    """The state of a folder, shared by the handles of a process."""

    def __init__(self, path: Path, options: LogOptions, files: Files) -> None:
        self.root = path.parent
        self.path = path
        self.options = options
        self.files = files
        self.lock = Lock()
        """Guards the state. Held for lookups and for installing what was written, not while records are read."""
        self.state = State(Manifest(seed=0), LogIndex(IndexTable(0)))
        self.writing = False
        """Whether this process is the folder's writer, so that nobody else changes anything."""
        self._loading = Lock()
        self._loaded = self._closed = False
        self._forgotten = 0
        """How often the status was to be looked for anew."""
        self._status: tuple[WriterStatus | None, int] = None, 0
        """What was found, and how often that had been when it was looked for: with another number it may be old."""
        self._sees_everything = False
        self._scanned_for = self._loaded_for = 0  # the last sequence that was looked for in vain
        self._seen_generation: int | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """The values of *ids* in this folder, as far as it is known."""
        with self.lock:
            find = self.state.index.find
            locations = [find(id.group, id.key) for id in ids]
            numbers = {location >> SEGMENT_SHIFT for location in locations if location}
            view = View(self, *self._pin_few(numbers, len(numbers)))
        try:
            return [view.value(location, id) if location else None for id, location in zip(ids, locations, strict=True)]
        finally:
            view.release()

    def pin_ids(self, ids: Sequence[CheckpointId], most: int) -> IdView:
        """What the folder knows of *ids*, with the lock held. At most *most* segments are pinned."""
        last = self.state.index.find_last
        locations = [last(id.group, id.key) for id in ids]
        return IdView(
            self, *self._pin_few({segment_of(location) for location in locations if location}, most), locations
        )

    def view_all(self) -> AllView:
        """Everything that the folder knows, with the lock held."""
        index = self.state.index
        new = {group: index.new_keys(group) for group in {*index.recent, *index.frozen}}
        return AllView(self, {}, False, index.table, new, self.state.manifest.segments)

    def pin_group(self, group: str, stamps: bool, most: int) -> GroupView:
        """What the folder knows of a group, with the lock held; with *stamps*, new records can be read as well. At most
        *most* segments are pinned."""
        index = self.state.index
        new = index.new_keys(group)
        numbers = {*index.table.segments(group), *(map(segment_of, new.values()) if stamps else ())}
        return GroupView(self, *self._pin_few(numbers, most), group, new, index.table)

    def _pin_few(self, numbers: set[int], most: int) -> tuple[dict[int, LogSegment], bool]:
        """Segments, and whether they are pinned: not if there are more than *most*, or there is no room for so many."""
        if not numbers:
            self._check_open()
            return {}, True
        if len(numbers) <= most:
            try:
                return self.pin(numbers), True
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
        self._check_open()
        return {number: self.state.segments[number] for number in numbers}, False

    def group_names(self) -> list[str]:
        """The groups that have or had an id in this folder."""
        with self.lock:
            return list(self.state.index.group_names())

    def has_values(self, group: str) -> bool:
        """Whether the folder has an id of a group, as far as it can tell by itself."""
        with self.lock:
            table, new = self.state.index.table, self.state.index.new_keys(group)
        return (
            any(not location & TOMBSTONE_BIT for location in new.values()) or len(table.live_locations(group, new)) > 0
        )

    # --- describing ---------------------------------------------------------------------------------------------------

    def count_ids(self, but: set[str]) -> int:
        """How many ids have a value in this folder, without those of the groups *but*."""
        with self.lock:
            index = self.state.index
            table, new = index.table, {group: index.new_keys(group) for group in {*index.recent, *index.frozen} - but}
        live = table.locations & np.uint64(TOMBSTONE_BIT) == 0
        for group in but:
            live[table.entries(group)] = False
        return int(np.count_nonzero(live)) + sum(
            (not location & TOMBSTONE_BIT) - bool((before := table.find(group, key)) and not before & TOMBSTONE_BIT)
            for group, keys in new.items()
            for key, location in keys.items()
        )

    def bytes_stored(self) -> int:
        """What the files occupy. One that goes meanwhile counts nothing, nor does a folder that is taken over."""
        size = 0
        with suppress(FileNotFoundError):
            for path in list(self.path.iterdir()):
                with suppress(FileNotFoundError):
                    size += path.stat().st_size
        return size

    def small_segments(self) -> int:
        """How many sealed segments are small."""
        sealed = [entry.end for entry in self.state.manifest.segments if entry.end is not None]
        return sum(end < self.options.segment // SMALL_SHARE for end in sealed)

    def tail_is_long(self) -> bool:
        """Whether reading what the index file does not know would take longer than a moment."""
        with self.lock:
            state = self.state
            known = sum(entry.puts + entry.tombstones for entry in state.manifest.segments)
            records = sum(counts.puts + counts.tombstones for counts in state.counts.values())
            return records - known > max(_SHORT_TAIL, len(state.index.table) // _SHORT_SHARE)

    # --- keeping up with a writer in another process ------------------------------------------------------------------

    @property
    def highest(self) -> int:
        """The highest sequence that the folder's writer is known to have chosen for anything that it may have written.

        It knows nothing of a folder without a status before the first `refresh`.
        """
        status, known = self._current_status(), max(self.state.sequence, self.state.highest)
        return max(known, status.taken or status.visible or 0) if status else known

    @property
    def durable(self) -> int:
        """The last sequence of the folder that is known to be durable."""
        status = self._current_status()
        return max(self.state.manifest.sequence, (status and status.synced) or 0)

    def is_settled(self) -> bool:
        """Whether the writer has nothing under way that could still appear with a sequence chosen before now."""
        status = self._current_status()
        return status is not None and status.settled and self.manifest_is_durable()

    def manifest_is_durable(self) -> bool:
        """Whether its writer has synced the folder since: no power cut brings back the manifest before this one."""
        status = self._current_status()
        return status is not None and (status.generation or 0) >= self.state.manifest.generation

    def is_current(self) -> bool:
        """Whether the state is all that the writer has published, with the lock held."""
        if self.writing:
            return True
        status, looked = self._status
        if looked != self._forgotten or not self._loaded:
            return False
        if status is None:
            return True
        progress = status.progress()
        known = progress.visible is None or progress.visible <= max(self.state.sequence, self._scanned_for)
        return known and progress.generation == self._seen_generation

    def is_caught_up(self) -> bool:
        """Whether `refresh` would find nothing and there is nothing to settle, in one look; if in doubt, False."""
        if not self.writing:
            status, looked = self._status
            if status is None or looked != self._forgotten or not self._loaded:
                return False
            progress = status.progress()
            if progress.generation != self._seen_generation:
                return False
            if progress.visible is None or progress.visible > self.state.sequence:
                return False
        return not (self.state.has_more or self._closed)

    def forget_status(self) -> None:
        """Look for the status anew: the folder may have another writer, which has a status of its own."""
        self._forgotten += 1

    def _current_status(self) -> WriterStatus | None:
        (status, looked), forgotten = self._status, self._forgotten
        if status is None or looked != forgotten:
            status = WriterStatus.of_reader(self.path)  # meanwhile the one before is still old
            self._status = status, forgotten
        return status

    def refresh(self) -> None:
        """Catch up with what another process has written."""
        while not self.writing:
            self._check_open()
            status = self._current_status()
            progress = status.progress() if status else None
            visible = progress.visible if progress else None
            generation = progress.generation if progress else None
            if not self._loaded or generation != self._seen_generation:
                self._load(generation)
            elif status is None or visible is None or visible <= self.state.sequence:
                return
            elif not self._try_to_scan(visible):
                synced = status.synced or 0
                if synced <= max(self.state.sequence, self._loaded_for):
                    return
                self._loaded_for = synced  # what is durable must be there: `load` finds it, or says what is damaged
                self._loaded = False

    def _load(self, generation: int | None) -> None:
        with self._loading:
            if self.writing or self._closed or (self._loaded and generation == self._seen_generation):
                return
            manifest = first_line(self.path)
            try:
                state = load(self.path, everything=self._sees_everything)
                if state is None and not self.path.is_dir():
                    raise FileNotFoundError(f"{self.path} is gone")
            except Corruption:
                if first_line(self.path) == manifest:
                    raise
                return
            state = state or State(Manifest(seed=0), LogIndex(IndexTable(0)))
            state.loaded_from = manifest
            self.install(state)
            self._loaded, self._seen_generation = True, generation  # last: or others took the state before for this one

    def _scan_tail(self, visible: int) -> bool:
        """Read on in the open segment; False if it holds nothing more."""
        with self.lock:
            state = self.state
            if self.writing or self._closed or visible <= state.sequence or not state.manifest.segments:
                return False
            segment = state.segments[state.manifest.segments[-1].number]
            POOL.pin(segment)
            try:
                met = scan(segment, state.tail, None, state.sequence, until=visible)
            finally:
                POOL.unpin(segment)
            state.count(segment.number, met.found)
            state.apply(met.found)
            found = met.sequence > state.sequence
            state.tail, state.sequence = met.end, met.sequence
            self._scanned_for = visible  # what was not synced may have gone with a power cut
            return found

    def is_answered(self) -> bool:
        """Whether all that was found may be seen by now."""
        status = self._current_status()
        return (
            status is None or (status.visible or 0) >= self.state.highest or status.generation != self._seen_generation
        )

    def see_everything(self) -> None:
        """From now on, see also what its writer has not answered, as far as is known."""
        self._sees_everything, self._loaded = True, False

    def _try_to_scan(self, visible: int) -> bool:
        """The same; True as well if its file is gone because there is another manifest, which has to be loaded."""
        state = self.state
        try:
            return self._scan_tail(visible)
        except Corruption:
            if not self.has_moved_on(state):
                raise
            return True

    def has_moved_on(self, state: State | None) -> bool:
        """Whether there is another state than *state*, or a manifest to load one from, so that trying again is right.

        What failed without any, in `refresh`, was tried with the manifest that is there.
        """
        # The file itself, not the status: within a claim that may still be the one of the writer before.
        if self.writing or state is None:
            return False
        if self.state is state and first_line(self.path) == state.loaded_from:
            return False
        self._loaded = False
        return True

    def begin_writing(self, state: State) -> None:
        """This process is the writer now, and *state* is what it found."""
        with self._loading:
            self.writing = True
            self.install(state)

    def install(self, state: State) -> None:
        """Make *state* the one that counts; the files of the one before are closed when nobody reads them any more."""
        with self.lock:
            before, self.state = self.state, state
            before.close()

    # --- segments in use ----------------------------------------------------------------------------------------------

    @contextmanager
    def pinned(self, numbers: Iterable[int]) -> Iterator[dict[int, LogSegment]]:
        """The segments with these numbers, open as long as the block lasts."""
        with self.lock:
            segments = self.pin(numbers)
        try:
            yield segments
        finally:
            self.unpin(segments.values())

    def pin(self, numbers: Iterable[int]) -> dict[int, LogSegment]:
        """The segments with these numbers, open until `unpin`; with the lock held."""
        self._check_open()
        segments: dict[int, LogSegment] = {}
        try:
            for number in numbers:
                POOL.pin(self.state.segments[number])
                segments[number] = self.state.segments[number]
        except BaseException:
            self.unpin(segments.values())
            raise
        return segments

    def unpin(self, segments: Iterable[LogSegment]) -> None:
        """Let go of segments."""
        for segment in segments:
            POOL.unpin(segment)

    def retire(self, numbers: Iterable[int]) -> None:
        """Forget segments, with the lock held; their files are closed when nobody reads them any more."""
        for number in numbers:
            segment = self.state.segments.pop(number, None)
            self.state.counts.pop(number, None)
            if segment is not None:
                POOL.retire(segment)

    def close(self) -> None:
        """Give back the files. Reads that are under way end well; later ones raise `Closed`."""
        with self._loading, self.lock:
            self._closed = True
            self._status = None, self._forgotten
            self.state.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.root} was closed: open it again")
