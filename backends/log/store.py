"""A log as this process knows it: one `Store` for all handles of a root. Reads go through it; `Writer` changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np

from safekeeper.backend import CheckpointId, Stats
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.format import GRAVE_BIT, segment_of
from safekeeper.backends.log.head import Head
from safekeeper.backends.log.index import Index
from safekeeper.backends.log.index_file import IndexTable
from safekeeper.backends.log.manifest import Manifest
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.recovery import State, load
from safekeeper.backends.log.scan import scan
from safekeeper.backends.log.segment import Segment
from safekeeper.errors import Closed, Corruption

FOLDER: Final = "writer-1"
"""The one writer's folder. A root with several writers has more of them."""

SMALL_SHARE: Final = 8
"""A segment is small below this part of the usual size."""
_SHORT_TAIL: Final = 1000  # records; read in a few milliseconds
_SHORT_SHARE: Final = 200
_MOST_OPEN: Final = 256  # segments open at the same time; a usual limit of files for a process is 1,024


class Store:
    """The state of a log, shared by the handles of a process."""

    def __init__(self, root: Path, options: LogOptions, files: Files) -> None:
        self.root = root
        self.folder = root / FOLDER
        self.options = options
        self.files = files
        self.lock = Lock()
        """Guards the state. Held for lookups and for installing what was written, not while records are read."""
        self.state = State(Manifest(seed=0), Index(IndexTable(0)))
        self.writing = False
        """Whether this process is the writer, so that nobody else changes anything."""
        self._loading = Lock()
        self._loaded = self._closed = False
        self._head: Head | None = None
        self._seen_generation: int | None = None
        self._open: dict[int, Segment] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """The values of *ids*."""
        while True:
            self.refresh()
            try:
                return self._read(ids)
            except Corruption:
                if not self._has_moved_on():
                    raise

    def _read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        with self.lock:
            find = self.state.index.find
            places = [find(id.group, id.key) for id in ids]
            segments = self._pin({place >> 34 for place in places if place})
        try:
            return [
                segments[place >> 34].read_value(place, id.group.encode(), id.key) if place else None
                for id, place in zip(ids, places, strict=True)
            ]
        finally:
            self._unpin(segments.values())

    def keys(self, group: str) -> Iterator[bytes]:
        """The keys of a group: those in memory first, the others read from their records, in the order of the file."""
        while True:
            self.refresh()
            try:
                with self.lock:
                    table, new = self.state.index.table, self.state.index.new_keys(group)
                    segments = self._pin(table.segments(group))
                break
            except Corruption:
                if not self._has_moved_on():
                    raise
        try:
            yield from (key for key, place in new.items() if not place & GRAVE_BIT)
            for place in sorted(table.live_places(group, new)):
                name, key = segments[segment_of(place)].read_id(place)
                if name != group.encode():
                    segments[segment_of(place)].corrupt(place)
                yield key
        finally:
            self._unpin(segments.values())

    def groups(self) -> Iterator[str]:
        """The groups with at least one id."""
        self.refresh()
        with self.lock:
            names = list(self.state.index.group_names())
        for name in names:
            with self.lock:
                table, new = self.state.index.table, self.state.index.new_keys(name)
            if any(not place & GRAVE_BIT for place in new.values()) or table.live_places(name, new):
                yield name

    # --- describing ---------------------------------------------------------------------------------------------------

    def stats(self, details: dict[str, int | float | str]) -> Stats:
        """What the log holds, with *details* added to its own."""
        self.refresh()
        with self.lock:
            manifest, index = self.state.manifest, self.state.index
            table, new = index.table, {group: index.new_keys(group) for group in {*index.recent, *index.frozen}}
        old = int(np.count_nonzero(table.places & np.uint64(GRAVE_BIT) == 0))
        ids = old + sum(
            (not place & GRAVE_BIT) - bool((before := table.find(group, key)) and not before & GRAVE_BIT)
            for group, keys in new.items()
            for key, place in keys.items()
        )
        own = {"segments": len(manifest.segments), "indexed": len(table), "generation": manifest.generation}
        return Stats(ids, self.bytes_stored(), own | details)

    def bytes_stored(self) -> int:
        """What the files occupy. One that compaction removes meanwhile counts nothing."""
        size = 0
        for path in self.folder.glob("*"):
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
            known = sum(entry.puts + entry.graves for entry in state.manifest.segments)
            records = sum(counts.puts + counts.graves for counts in state.counts.values())
            return records - known > max(_SHORT_TAIL, len(state.index.table) // _SHORT_SHARE)

    # --- keeping up with a writer in another process ------------------------------------------------------------------

    def refresh(self) -> None:
        """Catch up with what another process has written."""
        while not self.writing:
            self._check_open()
            head = self._head = self._head or Head.of_reader(self.folder)
            visible = head.visible if head else None  # first: the generation that is seen next has it
            generation = head.generation if head else None
            if not self._loaded or generation != self._seen_generation:
                self._load(generation)
            elif visible is None or visible <= self.state.sequence or not self._scan_tail(visible):
                return

    def _load(self, generation: int | None) -> None:
        with self._loading:
            if self.writing or self._closed or (self._loaded and generation == self._seen_generation):
                return
            try:
                state = load(self.folder)
            except Corruption:
                if self._head is None or self._head.generation == generation:
                    raise
                return
            self._loaded, self._seen_generation = True, generation
            if state is not None:
                self.install(state)

    def _scan_tail(self, visible: int) -> bool:
        """Read on in the open segment; False if it holds nothing more."""
        with self.lock:
            state = self.state
            if self.writing or self._closed or visible <= state.sequence or not state.manifest.segments:
                return False
            segment = state.segments[state.manifest.segments[-1].number]
            self._open_file(segment)
            met = scan(segment, state.tail, None, state.sequence, until=visible)
            state.count(segment.number, met.found)
            state.apply(met.found)
            state.tail, state.sequence = met.end, met.sequence
            return bool(met.found)

    def _has_moved_on(self) -> bool:
        """Whether there is another manifest since the one in use was loaded, so that trying again is right."""
        return not self.writing and self._head is not None and self._head.generation != self._seen_generation

    def begin_writing(self, state: State) -> None:
        """This process is the writer now, and *state* is what it found."""
        with self._loading:
            self.writing = True
            self.install(state)

    def end_writing(self) -> None:
        """Others may write from now on."""
        with self._loading:
            self._loaded = self.writing = False

    def install(self, state: State) -> None:
        """Make *state* the one that counts; the files of the one before are closed when nobody reads them any more."""
        with self.lock:
            before, self.state = self.state, state
            self._open = {}
            before.close()

    # --- segments in use ----------------------------------------------------------------------------------------------

    @contextmanager
    def pinned(self, numbers: Iterable[int]) -> Iterator[dict[int, Segment]]:
        """The segments with these numbers, open as long as the block lasts."""
        with self.lock:
            segments = self._pin(numbers)
        try:
            yield segments
        finally:
            self._unpin(segments.values())

    def _pin(self, numbers: Iterable[int]) -> dict[int, Segment]:
        self._check_open()
        segments: dict[int, Segment] = {}
        for number in numbers:
            segment = segments[number] = self.state.segments[number]
            segment.pins += 1
            if segment.fd < 0:
                try:
                    self._open_file(segment)
                except BaseException:
                    for pinned in segments.values():
                        pinned.pins -= 1
                    raise
        return segments

    def _unpin(self, segments: Iterable[Segment]) -> None:
        with self.lock:
            for segment in segments:
                segment.pins -= 1
                if segment.retired and not segment.pins:
                    segment.close()

    def _open_file(self, segment: Segment) -> None:
        if segment.fd >= 0:
            return
        if len(self._open) >= _MOST_OPEN:
            for number in [number for number, other in self._open.items() if not other.pins][: _MOST_OPEN // 4]:
                self._open.pop(number).close()
        segment.open()
        self._open[segment.number] = segment

    def retire(self, numbers: Iterable[int]) -> None:
        """Forget segments, with the lock held; their files are closed when nobody reads them any more."""
        for number in numbers:
            segment = self.state.segments.pop(number)
            self.state.counts.pop(number)
            self._open.pop(number, None)
            segment.retired = True
            if not segment.pins:
                segment.close()

    def close(self) -> None:
        """Give back the files. Reads that are under way end well; later ones raise `Closed`."""
        with self._loading, self.lock:
            self._closed = True
            self.state.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.root} was closed: open it again")
