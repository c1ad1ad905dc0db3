"""Reading and checking everything, past what is damaged: it lists places where recovery would stop at the first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from safekeeper.backend import CheckpointId, Damage
from safekeeper.backends.log.claim import writer_folders
from safekeeper.backends.log.index_file import open_index_file
from safekeeper.backends.log.manifest import IndexEntry, SegmentEntry, load_manifest
from safekeeper.backends.log.recovery import find_manifest
from safekeeper.backends.log.scan import ScannedRecords, blocks_behind, damaged_records, scan
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.backends.shared.records import BLOCK, COLUMNS, SEGMENT_HEAD, BlockHeader, decode_block
from safekeeper.errors import Corruption


def verify(root: Path, checked: Callable[[int], object]) -> Iterator[Damage]:
    """What is damaged in the folders of *root*. A tail that was never confirmed is no damage.

    *checked* is called with the size of each segment that was read. A folder that somebody takes over meanwhile has
    another name then, and is begun again.
    """
    done: set[int] = set()
    while begun := {number: folder for folder in writer_folders(root) if (number := _inode(folder)) not in {*done, 0}}:
        for number, folder in begun.items():
            damage = list(_verify_folder(folder, checked))
            if _inode(folder) == number:
                done.add(number)
                yield from damage


def _inode(folder: Path) -> int:
    """What a folder keeps when it gets another name; 0 if it is gone."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return 0


def _verify_folder(folder: Path, checked: Callable[[int], object]) -> Iterator[Damage]:
    status = WriterStatus.of_reader(folder)
    try:
        manifest = find_manifest(folder, status)
    except Corruption as error:
        yield damage_of(error)
        return
    if manifest is None:
        return
    durable = max(manifest.sequence, (status and status.synced) or 0)
    index = manifest.index
    if index is not None and open_index_file(folder, index, manifest.seed) is None and _is_still_named(folder, index):
        yield Damage(str(folder / index.file_name), "the index file is missing or damaged; it will be rebuilt")
    for entry in manifest.segments:
        damage = list(_verify_segment(folder, entry, durable))
        checked(_size(folder / entry.file_name))
        if damage and _is_still_named(folder, entry):
            yield from damage


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_still_named(folder: Path, entry: SegmentEntry | IndexEntry) -> bool:
    """Whether compaction has not replaced a file meanwhile."""
    manifest = load_manifest(folder)
    return manifest is not None and entry.file_name in manifest.file_names()


def damage_of(error: Corruption) -> Damage:
    """What an error of this backend says, as a place and a problem."""
    before, offset, problem = re.split(r"(: offset \d+): ", str(error), maxsplit=1)
    return Damage(before + offset, problem)


def _verify_segment(folder: Path, entry: SegmentEntry, durable: int) -> Iterator[Damage]:
    segment = LogSegment(folder, entry)
    try:
        segment.open()
    except Corruption as error:
        yield damage_of(error)
        return
    try:
        for found in walk(segment, entry, durable):
            if isinstance(found, BadBlock):
                yield from _lost(segment, found)
    finally:
        segment.close()


@dataclass(frozen=True, slots=True)
class BadBlock:
    """A place in a segment where a whole block should be."""

    offset: int
    header: BlockHeader | None
    """None if not even that is whole."""
    raw: bytes
    """The block as it is; nothing without a header."""


def walk(segment: LogSegment, entry: SegmentEntry, durable: int) -> Iterator[ScannedRecords | BadBlock]:
    """The records of a segment, and the damaged places between them. A tail that was never confirmed is neither."""
    offset, sequence = SEGMENT_HEAD.size, entry.sequence - 1
    while entry.end is None or offset < entry.end:
        met = scan(segment, offset, entry.end, sequence)
        yield met.found
        offset, sequence = met.end, met.sequence
        if met.complete and entry.end is not None:
            return
        behind = list(blocks_behind(segment, offset))
        if entry.end is None:
            confirmed = max([durable, *(header.synced for _, header in behind)])
            if confirmed > sequence:  # or its writer lives, and went on meanwhile
                met = scan(segment, offset, None, sequence)
                yield met.found
                offset, sequence = met.end, met.sequence
            if confirmed <= sequence:
                return
        header = decode_block(segment.read(BLOCK.size, offset), segment.nonce, offset)
        yield BadBlock(offset, header, segment.read(header.size, offset) if header else b"")
        following = [start for start, _ in behind if start >= offset + (header.size if header else BLOCK.size)]
        if not following:
            return
        offset = min(following)


def _lost(segment: LogSegment, bad: BadBlock) -> Iterator[Damage]:
    """What is lost with a block that is not whole."""
    offset, header, block = bad.offset, bad.header, bad.raw
    place = f"{segment.path}: offset "
    if header is None:
        yield Damage(f"{place}{offset}", "no whole block: what was written here is lost")
        return
    if header.kind == COLUMNS or len(block) < header.size:
        yield Damage(f"{place}{offset}", f"a block of {header.records} records is damaged")
        return
    for start, id in damaged_records(block, header):
        known = CheckpointId(id[0].decode(), id[1]) if id else None
        yield Damage(f"{place}{offset + start}", "the value is damaged" if known else "a record is damaged", known)
