"""Reading a writer's folder as it is: what the index file knows, then the tail. It writes nothing.

Torn or corrupt? Below the end of a sealed segment everything must be whole. In the open one, the first place that is no
good block is `Corruption` if a later header, the writer status or the manifest names a sequence above the last good one
as durable; otherwise it is a torn tail, never acknowledged, and is cut. What is good decides, not the writer status: it
may be old. It says only which of the good blocks everybody may see already.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from safekeeper.backends.log.index import LogIndex
from safekeeper.backends.log.index_file import IndexTable, open_index_file
from safekeeper.backends.log.manifest import NAME, Manifest, SegmentEntry, load_manifest
from safekeeper.backends.log.open_files import POOL, list_folder
from safekeeper.backends.log.scan import Scan, ScannedRecords, blocks_behind, scan
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.backends.shared.records import SEGMENT_HEAD
from safekeeper.errors import Corruption


@dataclass(slots=True)
class Counts:
    """How many records a segment holds, live or dead."""

    puts: int = 0
    tombstones: int = 0


@dataclass(slots=True)
class State:
    """A writer's folder in memory."""

    manifest: Manifest
    index: LogIndex
    segments: dict[int, LogSegment] = field(default_factory=dict)
    counts: dict[int, Counts] = field(default_factory=dict)
    sequence: int = 0
    """The last one that was found."""
    tail: int = 0
    """Where the last good block of the open segment ends, if there is an open one."""
    highest: int = 0
    """The last one that was found, whether or not readers may see it."""
    durable: int = 0
    """The last sequence of which a writer has said that it is. What is behind may be in memory only."""
    loaded_from: bytes | None = None
    """The first line of the manifest that it was loaded from."""

    @property
    def has_more(self) -> bool:
        """Whether there are good blocks that readers may not see: being written, left so by a writer that is gone, or
        acknowledged, if the status is older than they are."""
        return self.highest > self.sequence

    def begin(self, segment: LogSegment) -> None:
        """Take in a segment that nothing was written to yet, to be the open one."""
        self.segments[segment.number], self.counts[segment.number] = segment, Counts()
        self.tail = SEGMENT_HEAD.size

    def count(self, number: int, found: ScannedRecords) -> None:
        """Count the records that were found in a segment."""
        tombstones = found.tombstones()
        self.counts[number].tombstones += tombstones
        self.counts[number].puts += len(found) - tombstones

    def apply(self, found: ScannedRecords) -> None:
        """Bring the index up to date with records in the order of their sequence."""
        recent = {group: self.index.recent.setdefault(group.decode(), {}) for group in set(found.groups)}
        if len(recent) == 1:
            recent[found.groups[0]].update(zip(found.keys, found.locations, strict=True))
            return
        for group, key, location in zip(found.groups, found.keys, found.locations, strict=True):
            recent[group][key] = location

    def close(self) -> None:
        """Close the files of all segments that nobody has pinned, and of the others when that is over."""
        for segment in self.segments.values():
            POOL.retire(segment)


def load(folder: Path, *, everything: bool = False) -> State | None:
    """The state of *folder*, None if nothing was ever written there.

    What its writer has not answered, and what a writer that was killed has left so, nobody sees before the folder is
    claimed again, since those who have the log open do not see it either. With *everything* it is part of the state.
    """
    status = WriterStatus.of_reader(folder)  # before the manifest, so that it knows the files of what the status names
    synced = (status and status.synced) or 0
    manifest = find_manifest(folder, status)
    if manifest is None:
        return None
    table = _open_table(folder, manifest)
    if table is None:
        manifest = _without_index(manifest)
        table = IndexTable(manifest.seed)
    state = State(manifest, LogIndex(table), sequence=manifest.sequence)
    names = set(list_folder(folder))
    found = ScannedRecords()
    for entry in manifest.segments:
        if entry.file_name not in names:
            raise Corruption(f"{folder / entry.file_name}: offset 0: the segment is missing")
        state.segments[entry.number] = segment = LogSegment(folder, entry)
        state.counts[entry.number] = Counts(entry.puts, entry.tombstones)
        if entry.end is None or entry.indexed < entry.end:
            met = _scan_open(segment, entry, manifest, synced, None if everything else status)
            state.count(entry.number, met.found)
            found.add(met.found)
            state.sequence = max(state.sequence, met.sequence)
            state.highest = max(state.highest, state.sequence, met.highest)
            state.tail = met.end
            state.durable = max(synced, manifest.sequence, met.synced)
    state.apply(found.in_order())  # moved records are older than what stands before them
    return state


def find_manifest(folder: Path, status: WriterStatus | None) -> Manifest | None:
    """The manifest of *folder*, None if it was never written.

    Raise `Corruption` if it is damaged, or gone: the status is set and blocks are written only after the first one.
    """
    manifest = load_manifest(folder)
    if manifest is None:
        sizes = [(folder / name).stat().st_size for name in _names(folder) if name.endswith(".segment")]
        if (status and status.generation) or any(size > SEGMENT_HEAD.size for size in sizes):
            manifest = load_manifest(folder)  # the first one may have come meanwhile
            if manifest is None:
                raise Corruption(f"{folder / NAME}: offset 0: the manifest is missing")
    return manifest


def _names(folder: Path) -> list[str]:
    try:
        return list_folder(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _open_table(folder: Path, manifest: Manifest) -> IndexTable | None:
    if manifest.index is None:
        return IndexTable(manifest.seed)
    return open_index_file(folder, manifest.index, manifest.seed)


def _without_index(manifest: Manifest) -> Manifest:
    """The manifest as if there had never been an index file."""
    segments = [replace(entry, indexed=SEGMENT_HEAD.size, puts=0, tombstones=0) for entry in manifest.segments]
    return replace(manifest, segments=tuple(segments), index=None)


def _before(entry: SegmentEntry, manifest: Manifest) -> int:
    """What is surely no higher than the first sequence behind what the index file knows of a segment."""
    return entry.sequence - 1 if entry.indexed == SEGMENT_HEAD.size else manifest.sequence


def durable_end(segment: LogSegment, entry: SegmentEntry, state: State) -> int:
    """Where the blocks end that are known to be durable, in a segment that is open for reading."""
    met = scan(segment, entry.indexed, None, _before(entry, state.manifest), until=state.durable)
    return met.end if met.sequence <= state.durable else entry.indexed


def _scan_open(
    segment: LogSegment, entry: SegmentEntry, manifest: Manifest, synced: int, status: WriterStatus | None
) -> Scan:
    segment.open()
    try:
        return _scan_entry(segment, entry, manifest, synced, status)
    finally:
        segment.close()  # there may be more of them than a process may have open


def _scan_entry(
    segment: LogSegment, entry: SegmentEntry, manifest: Manifest, synced: int, status: WriterStatus | None
) -> Scan:
    if entry.end is not None:
        met = scan(segment, entry.indexed, entry.end, _before(entry, manifest))
        if not met.complete or met.end != entry.end:
            raise Corruption(f"{segment.path}: offset {met.end}: no whole block, in a sealed segment: damaged")
        return met
    bound = status.bound if status else None
    met = scan(segment, entry.indexed, None, _before(entry, manifest), until=bound)
    rest = scan(segment, met.end, None, met.sequence)  # what nobody may see yet is whole as well, or damaged
    durable = max([synced, manifest.sequence, *(header.synced for _, header in blocks_behind(segment, rest.end))])
    if durable > rest.sequence:  # or its writer lives, and went on between the walk and the search behind its end
        rest.go_on(scan(segment, rest.end, None, rest.sequence))
    if durable > rest.sequence:
        raise Corruption(
            f"{segment.path}: offset {rest.end}: no whole block, but sequence {durable} was durable and"
            f" the last one here is {rest.sequence}: damaged"
        )
    if status is None or bound is None:
        met.go_on(rest)
    else:  # it may have gone on
        met.go_on(scan(segment, met.end, None, met.sequence, until=status.bound))
    met.highest = max(met.sequence, rest.sequence)
    return met
