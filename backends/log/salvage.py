"""What is left of a damaged log, found without its index, and without its manifest if need be. Nothing is changed.

Every segment is walked past what is damaged. Of each id the record with the highest (sequence, epoch) counts, as
always: if that one is damaged, the id is lost, and no older value takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safekeeper.backend import CheckpointId, Damage, Intact
from safekeeper.backends.log.claim import writer_folders
from safekeeper.backends.log.location import TOMBSTONE_BIT, location_of
from safekeeper.backends.log.manifest import SegmentEntry, first_line
from safekeeper.backends.log.recovery import find_manifest
from safekeeper.backends.log.scan import row_locations, whole_ids
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.log.verify import BadBlock, damage_of, walk
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.backends.shared.records import COLUMNS, SEGMENT_HEAD
from safekeeper.errors import Corruption, Unavailable


@dataclass(frozen=True, slots=True)
class _Last:
    """The newest record of an id that was met so far."""

    stamp: tuple[int, int]
    segment: LogSegment
    location: int


class Salvage:
    """One walk over a root."""

    def __init__(self, root: Path, checked: Callable[[int], object]) -> None:
        self._root = root
        self._checked = checked
        self._last: dict[tuple[bytes, bytes], _Last] = {}

    def run(self) -> Iterator[Intact | Damage]:
        """Everything that is intact, and everything that is lost.

        Raise `Unavailable` at the end if files came and went meanwhile: then something may have been overlooked.
        """
        before = self._manifests()
        try:
            yield from self._run()
        except Corruption as error:  # a file that was there a moment ago
            self._check_unchanged(before, error)
            raise
        self._check_unchanged(before)

    def _manifests(self) -> dict[Path, bytes | None]:
        return {folder: first_line(folder) for folder in writer_folders(self._root)}

    def _check_unchanged(self, before: dict[Path, bytes | None], cause: Corruption | None = None) -> None:
        if self._manifests() != before:
            raise Unavailable(f"{self._root} was written meanwhile: stop its writers and begin again") from cause

    def _run(self) -> Iterator[Intact | Damage]:
        for folder in writer_folders(self._root):
            yield from self._folder(folder)
        by_segment: dict[LogSegment, list[tuple[CheckpointId, int]]] = {}
        for (group, key), last in self._last.items():
            if not last.location & TOMBSTONE_BIT:
                by_segment.setdefault(last.segment, []).append((CheckpointId(group.decode(), key), last.location))
        for segment, puts in by_segment.items():
            with _opened(segment):
                yield from (_outcome(segment, id, location) for id, location in puts)

    def _folder(self, folder: Path) -> Iterator[Damage]:
        status = WriterStatus.of_reader(folder)
        try:
            manifest = find_manifest(folder, status)
            entries = list(manifest.segments) if manifest else []
            durable = max(manifest.sequence if manifest else 0, (status and status.synced) or 0)
        except Corruption as error:
            damage = damage_of(error)
            yield Damage(
                damage.place, f"{damage.problem}: what was deleted lately may be back, and a segment may be gone"
            )
            entries, durable = list(_segments_in(folder)), 0
        for entry in entries:
            segment = LogSegment(folder, entry)
            try:
                with _opened(segment):
                    yield from self._segment(segment, entry, durable)
                    self._checked(os.fstat(segment.fd).st_size)
            except Corruption as error:
                yield damage_of(error)

    def _segment(self, segment: LogSegment, entry: SegmentEntry, durable: int) -> Iterator[Damage]:
        for found in walk(segment, entry, durable):
            if isinstance(found, BadBlock):
                yield from self._bad_block(segment, found)
                continue
            for group, key, location in zip(found.groups, found.keys, found.locations, strict=True):
                self._meet(group, key, segment, location)

    def _bad_block(self, segment: LogSegment, bad: BadBlock) -> Iterator[Damage]:
        """Take what is whole of a block that is not."""
        header, where = bad.header, f"{segment.path}: offset {bad.offset}"
        if header is None:
            yield Damage(where, "no whole block: ids that cannot be told are lost, or have an older value")
            return
        if header.kind == COLUMNS:
            locations = list(row_locations(location_of(segment.number, bad.offset), header.records))
        else:
            block = location_of(segment.number, bad.offset)
            locations = [block + (start >> 3) | tombstone for start, tombstone in whole_ids(bad.raw, header)]
        lost = header.records - len(locations)
        for location in locations:
            try:
                group, key = segment.read_id(location)
            except Corruption:
                lost += 1
                continue
            self._meet(group, key, segment, location)
        if lost:
            yield Damage(where, f"{lost} records whose ids cannot be told are lost, or their ids have an older value")

    def _meet(self, group: bytes, key: bytes, segment: LogSegment, location: int) -> None:
        stamp = segment.read_stamp(location)
        before = self._last.get((group, key))
        if before is None or before.stamp <= stamp:
            self._last[group, key] = _Last(stamp, segment, location)


@contextmanager
def _opened(segment: LogSegment) -> Iterator[None]:
    """Have a segment open, whatever its head says: the manifest has what is needed of it."""
    segment.open(checked=False)
    try:
        yield
    finally:
        segment.close()


def _outcome(segment: LogSegment, id: CheckpointId, location: int) -> Intact | Damage:
    try:
        return Intact(id, segment.read_value(location, id.group.encode(), id.key))
    except Corruption as error:
        return Damage(damage_of(error).place, "the value is damaged", id)


def _segments_in(folder: Path) -> Iterator[SegmentEntry]:
    """The segments of a folder without a manifest, by what they say of themselves."""
    for path in sorted(folder.glob("*.segment")):
        with path.open("rb") as file:
            raw = file.read(SEGMENT_HEAD.size)
        if len(raw) == SEGMENT_HEAD.size:
            _, _, number, nonce, _ = SEGMENT_HEAD.unpack(raw)
            yield SegmentEntry(number, nonce, sequence=1)
