"""The end of the log: claiming it, appending blocks, beginning the next segment. Used by one thread at a time."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final, NoReturn

from safekeeper.backends.log.blocks import Block, ColumnBlock, CreatedBlock, NewId, RecordBlock
from safekeeper.backends.log.claim import Claims, Seat, claiming, give_back, release, take_over, take_seat
from safekeeper.backends.log.files import Buffer, place_of
from safekeeper.backends.log.index import LogIndex
from safekeeper.backends.log.index_file import IndexTable
from safekeeper.backends.log.location import MAX_OFFSET
from safekeeper.backends.log.manifest import VERSION, Manifest, SegmentEntry
from safekeeper.backends.log.open_files import list_folder, with_room
from safekeeper.backends.log.recovery import State, durable_end, load
from safekeeper.backends.log.root import Root
from safekeeper.backends.log.segment import LogSegment
from safekeeper.backends.log.writer_folder import WriterFolder
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.backends.shared.local_files import os_errors_as_unavailable
from safekeeper.backends.shared.records import SEGMENT_HEAD, NewRecord, encode_segment_head
from safekeeper.columns import Columns
from safekeeper.errors import Closed, Conflict, TooLarge, Unavailable

_JOINED: Final = 256 << 10  # up to here one copy is cheaper than many buffers for the kernel
_ZEROS: Final = memoryview(bytes(1 << 20))
_FIRST_AHEAD: Final = 64 << 10
_BUFFERED: Final = 1 << 20
_OURS: Final = re.compile(r"(\d{8,})\.(?:segment|index)|(?:manifest|head)\.tmp")


class Appender:
    """Appends blocks to a folder that this process has claimed."""

    def __init__(self, root: Root, folder: WriterFolder, lock_fd: int, epoch: int) -> None:
        self._root = root
        self.folder = folder
        self._files = folder.files
        self._path = folder.path
        self._lock_fd = lock_fd
        self.epoch = epoch
        known = folder.state
        self._status = WriterStatus.of_writer(
            folder.path, known.sequence, known.manifest.sequence, known.manifest.generation
        )
        self._always = folder.options.sync == "always"
        self._manifest_lock = Lock()
        self._next_number = max([folder.state.manifest.next, *(number + 1 for number in _numbers(self._path))])
        self._given = folder.state.sequence  # to a block, whether or not it was written
        self._appended = self._flushed = self._synced = folder.state.sequence
        self._segment: LogSegment | None = None  # none: the next write begins one
        self._fd = -1
        self._place: tuple[int, int] | None = None  # which file the segment is
        self._end = folder.state.tail
        self._ahead = 0
        self._spare: tuple[int, SegmentEntry] | None = None  # created, but not known to be in the manifest
        self._broken: str | None = None
        self._closed = False
        self.appended = 0
        """Bytes of blocks since the claim."""
        self.records = 0
        """Records since the claim."""

    # --- claiming and leaving -----------------------------------------------------------------------------------------

    @classmethod
    def claim(cls, root: Root) -> Appender:
        """Become a writer of the root: in the folder of one that is gone, or in a new one."""
        root.files.make_folder(root.path)
        with claiming(root.path) as claims:
            root.catch_up()  # what those wrote who are gone must be known before a sequence is chosen
            appender = cls._take(root, take_seat(root.path, root.files), claims)
            root.adopt(appender.folder, own=True)
        return appender

    @classmethod
    def claim_abandoned(cls, root: Root, path: Path, patience: float = 1.0) -> Appender | None:
        """Become the writer of the folder at *path* if it has none, to tidy it up; None if it has one, or is gone."""
        with claiming(root.path, patience) as claims:
            seat = take_over(path, root.files) if path.is_dir() else None
            if seat is None:
                return None
            appender = cls._take(root, seat, claims)
            root.adopt(appender.folder, own=False)
        return appender

    @classmethod
    def _take(cls, root: Root, seat: Seat, claims: Claims) -> Appender:
        """Begin to write in a folder that was just claimed."""
        folder = WriterFolder(seat.folder, root.options, root.files)
        appender: Appender | None = None
        try:
            folder.begin_writing(_load_or_begin(root, seat))
            _write_tail_again(folder)
            WriterStatus.reveal(folder.path, folder.state.sequence)
            appender = cls(root, folder, seat.lock_fd, seat.epoch)
            appender._take_over()
            claims.publish(appender.epoch)
        except BaseException:
            if appender is not None:
                appender._close_files()
            folder.close()
            release(seat.lock_fd)
            raise
        return appender

    def _take_over(self) -> None:
        """Seal what the writer before left, durably, and begin a segment."""
        self._begin_segment()
        self._status.publish(self._flushed, self._synced)
        named = self.folder.state.manifest.file_names()
        for name in list_folder(self._path):
            if _OURS.fullmatch(name) and name not in named:
                self._files.remove(self._path / name)

    def close(self) -> None:
        """Seal the segment and give the root back. Raise `Unavailable` only if that loses what was acknowledged."""
        try:
            if self._always:
                with suppress(OSError, Conflict, Unavailable):  # the next writer seals it as well
                    self.change_manifest(self._sealed)
            elif self._broken is None:
                with os_errors_as_unavailable(self._path):
                    self.sync()
                    self.change_manifest(self._sealed)
        finally:
            with self._manifest_lock:  # a pass that is still under way shall not touch what others may own from now on
                self._closed = True
            self._close_files()
            self._root.drop(self.folder)
            release(self._lock_fd)

    def _close_files(self) -> None:
        self._abandon()
        spare, self._spare = self._spare, None
        if spare is not None:
            os.close(spare[0])

    # --- appending ----------------------------------------------------------------------------------------------------

    def append(self, entries: list[NewRecord], columns: list[Columns], created: Sequence[NewId] = ()) -> float:
        """Append *entries* as one block and each of *columns* and of *created* as one, durable with `sync=always`, for
        readers to see.

        It returns how many seconds the sync took.
        """
        self._check_open()
        if self._broken is not None:
            raise Unavailable(self._broken)
        try:
            if created and self.folder.state.manifest.version < VERSION:
                self.change_manifest(lambda manifest: replace(manifest, version=VERSION))
            return self._append(entries, columns, created)
        except OSError as error:
            self.check_not_fenced(error)
            raise

    def _append(self, entries: list[NewRecord], columns: list[Columns], created: Sequence[NewId]) -> float:
        blocks = self._encode(entries, columns, created)
        size = sum([block.size for block in blocks])
        if size > MAX_OFFSET:
            raise TooLarge(f"a batch has at most {MAX_OFFSET} bytes, this one has {size}: split it")
        segment = self._segment
        if segment is None or (self._end > SEGMENT_HEAD.size and self._end + size > self.folder.options.segment):
            segment = self._begin_segment()
        parts: list[Buffer] = []
        start = end = self._end
        for block in blocks:
            parts += block.parts(segment.nonce, end, self._synced)
            end += block.size
        try:
            seconds = self._write(parts, end) if self._always else self._keep(parts, segment)
            self.check_not_fenced()
            self._check_segment()
        except BaseException:
            self._forget_block(segment)
            raise
        self._install_surely(blocks, segment, start)
        if segment.pending is not None and len(segment.pending[1]) >= _BUFFERED:
            self.flush()
        return seconds

    def check_not_fenced(self, cause: Exception | None = None) -> None:
        """Raise `Conflict` if the folder was taken over: nothing may be acknowledged that its owner has not seen."""
        if self._status.fenced:
            self._abandon()
            raise Conflict(f"{self._path} was taken over by another process: write again to go on") from cause

    def _check_segment(self) -> None:
        """Raise `Unavailable` if what is written goes where nobody will find it."""
        if self._segment is not None and self._place != place_of(self._segment.path):
            self._give_up(self._segment.path)
        if self._status.is_removed():
            self._give_up(self._path)

    def check_folder(self) -> None:
        """Raise `Unavailable` if the folder is not there any more, or another one of the same name is."""
        if not self._status.is_in(self._path):
            self._give_up(self._path)

    def _give_up(self, path: Path) -> NoReturn:
        self.check_not_fenced()  # first: then it has another name, and all is well
        self._broken = (
            f"{path} was removed, moved or replaced while it was written to: what was saved there is gone unless it"
            " is put back; open the store again to begin anew"
        )
        self._abandon()
        raise Unavailable(self._broken)

    def _encode(self, entries: list[NewRecord], columns: list[Columns], created: Sequence[NewId]) -> list[Block]:
        # Chosen after all that others have chosen, and said before it is written: see "Several writers" in the docs.
        self._status.choose()
        self._given = max(self._given, self._root.highest_beside(self.folder))
        blocks: list[Block] = []
        if entries:
            self._given += 1
            blocks.append(RecordBlock(entries, self._given, self.epoch))
        for batch in columns:
            self._given += 1
            blocks.append(ColumnBlock(batch, self._given, self.epoch))
        for new in created:
            self._given += 1
            blocks.append(CreatedBlock(new, self._given, self.epoch))
        self._status.take(self._given)
        return blocks

    def _install_surely(self, blocks: list[Block], segment: LogSegment, start: int) -> None:
        try:
            try:
                self._install(blocks, segment, start)
            except OSError:
                raise
            except BaseException:  # a signal in the middle: what others may see must be in the index
                self._install(blocks, segment, start)
                raise
        except OSError:  # nobody else was told: to them the block is one that failed, and so it is to us
            self._forget_block(segment)
            raise

    def _install(self, blocks: list[Block], segment: LogSegment, start: int) -> None:
        """Let readers see *blocks*, which begin at *start*. An `OSError` means that nobody sees them."""
        offset = start
        with self.folder.lock:
            if self._always:  # with the lock held: what is seen here must be seen elsewhere at the same moment
                self._status.publish(self._given, self._given)
                self._flushed = self._synced = self._given
            state = self.folder.state
            for block in blocks:
                block.install(state, segment.number, offset)
                offset += block.size
                self.records += block.count
            self._appended = state.sequence = self._given
            self._end = state.tail = offset
        self.appended += offset - start

    def _write(self, parts: list[Buffer], end: int) -> float:
        if end - self._end <= _JOINED:
            parts = [b"".join(parts)]
            if end > self._ahead:
                # Zeros behind the block, in the same call: the next blocks overwrite them, and syncing those has no
                # metadata to write. Large blocks go without, since zeros would cost them as much as they bring.
                room = max(self.folder.options.segment - end, 0)
                parts.append(_ZEROS[: min(max(end, _FIRST_AHEAD), room)])
                self._ahead = end + len(parts[-1])
        started = time.perf_counter()
        self._files.write_synced(self._fd, parts, self._end)
        return time.perf_counter() - started

    def _keep(self, parts: list[Buffer], segment: LogSegment) -> float:
        """Put blocks into a buffer, where readers in this process see them."""
        if segment.pending is None:
            segment.pending = (self._end, bytearray())
        start, buffer = segment.pending
        buffer[self._end - start :] = b"".join(parts)
        return 0.0

    def _forget_block(self, segment: LogSegment) -> None:
        """Give up a block that may or may not be there, whole or not: another one never takes its place."""
        if self._always:
            self._abandon()
        elif segment.pending is not None:
            start, buffer = segment.pending
            del buffer[self._end - start :]

    def flush(self) -> None:
        """Hand the buffer to the kernel: from then on a killed process loses nothing of it."""
        if self._segment is None or self._segment.pending is None:
            return
        start, buffer = self._segment.pending
        with self._breaking():
            self._files.write(self._fd, [buffer], start)
            self.check_not_fenced()
            self._check_segment()
        self._segment.pending = None
        self._flushed = self._appended
        self._status.publish(self._flushed, self._synced)

    def sync(self) -> None:
        """Make everything appended so far durable. Raise `Unavailable` if some of it is lost."""
        if self._broken is not None:
            raise Unavailable(self._broken)
        if self._synced == self._appended or self._segment is None:
            return
        self.flush()
        with self._breaking():
            self._files.sync(self._fd)
        self._synced = self._appended
        self._status.publish(self._flushed, self._synced)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """If the block fails, records that were acknowledged are lost: no later write may look as if all were well."""
        try:
            yield
        except BaseException as error:
            self._broken = f"{self._path}: writes that were not yet synced are lost ({error}): open the log again"
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Never write behind a block that failed: the segment ends before it, and the next write seals it there."""
        fd, self._fd, self._segment = self._fd, -1, None
        if fd >= 0:
            os.close(fd)

    # --- segments and the manifest ------------------------------------------------------------------------------------

    def rotate(self) -> None:
        """Seal the open segment, if it holds anything, and begin the next one."""
        if self._end > SEGMENT_HEAD.size:
            self._begin_segment()

    def _begin_segment(self) -> LogSegment:
        """Seal the segment and begin the next one, both durably."""
        self._check_segment()
        self.sync()
        self._abandon()  # first: from the moment the manifest is replaced, and that may fail half-way, it is sealed
        self._spare = self._spare or self.create_segment(0)  # one that was made before the disk was full is used now
        fd, entry = self._spare[0], replace(self._spare[1], sequence=self._synced + 1)
        segment = LogSegment(self._path, entry)
        before = self.folder.state.manifest.segments
        self._files.sync_folder(self._path)
        self.change_manifest(
            lambda manifest: _with_segment(self._sealed(manifest), entry), lambda state: state.begin(segment)
        )
        self._spare = None
        self._end = self._ahead = SEGMENT_HEAD.size
        self._fd, self._segment, self._place = fd, segment, place_of(fd)
        self._remove_unused(before)
        return segment

    def _remove_unused(self, before: Sequence[SegmentEntry]) -> None:
        """Remove the segment that was open before, if nothing was ever written to it."""
        if before and before[-1].file_name not in self.folder.state.manifest.file_names():
            with self.folder.lock:
                self.folder.retire([before[-1].number])
            self._files.remove(self._path / before[-1].file_name)

    def create_segment(self, sequence: int) -> tuple[int, SegmentEntry]:
        """Create the file of a segment of records from *sequence* on; its content is durable, its name is not."""
        entry = SegmentEntry(self.take_number(), secrets.randbits(64), sequence)
        fd = self._files.create(self._path / entry.file_name)
        try:
            self._files.write_synced(fd, [encode_segment_head(entry.number, entry.nonce)], 0)
        except BaseException:
            os.close(fd)
            self._files.remove(self._path / entry.file_name)
            raise
        return fd, entry

    def take_number(self) -> int:
        """A number that no segment or index file has or had."""
        with self._manifest_lock:
            self._check_open()
            self.check_folder()
            self._next_number += 1
            return self._next_number - 1

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.folder.root} was closed: open it again")

    def _sealed(self, manifest: Manifest) -> Manifest:
        """The manifest with the open segment sealed where its last good block ends; without it, if it has none."""
        if not manifest.segments or manifest.segments[-1].end is not None:
            return manifest
        *others, last = manifest.segments
        if self._spare is not None and last.number == self._spare[1].number:
            # It was begun by the last manifest, and then a signal came: the one before is sealed, this one unused.
            return replace(manifest, segments=tuple(others))
        kept = [replace(last, end=self._end)] if self._end > SEGMENT_HEAD.size else []
        return replace(manifest, segments=(*others, *kept), sequence=max(manifest.sequence, self._synced))

    def change_manifest(
        self, change: Callable[[Manifest], Manifest], install: Callable[[State], object] = lambda _: None
    ) -> None:
        """Replace the manifest by what *change* makes of it, durably, and do to the state what *install* does.

        If that fails, either of the two manifests may be there, and the state goes by the old one. *install* may be
        called twice.
        """
        with self._manifest_lock:
            self._check_open()
            self.check_not_fenced()
            self.check_folder()
            manifest = replace(change(self.folder.state.manifest), epoch=self.epoch, next=self._next_number)
            manifest = manifest.save(self._path, self._files)
            try:
                self._adopt(manifest, install)
            except BaseException:  # a signal in the middle: what is in the manifest must be in the state
                self._adopt(manifest, install)
                raise

    def _adopt(self, manifest: Manifest, install: Callable[[State], object]) -> None:
        with self.folder.lock:
            install(self.folder.state)
            self.folder.state.manifest = manifest
        self._status.publish_generation(manifest.generation)


def _load_or_begin(root: Root, seat: Seat) -> State:
    """What is in a folder that was just claimed."""
    try:
        state = load(seat.folder, everything=True)
    except BaseException:
        give_back(seat, root.files)
        raise
    if state is None:
        seed = root.seed() or secrets.randbits(64)
        state = State(Manifest(seed), LogIndex(IndexTable(seed)))
    return state


def _write_tail_again(folder: WriterFolder) -> None:
    """Make durable what was found in the open segment and may be in memory only, before a new status shows it.

    To sync it is not enough. Its pages count as clean if the sync of the writer before has failed: they are in memory,
    they are not on disk, and nobody brings them there who does not write them.
    """
    state = folder.state
    if not state.manifest.segments or state.manifest.segments[-1].end is not None:
        return
    entry = state.manifest.segments[-1]
    with folder.pinned([entry.number]) as segments:
        start = durable_end(segments[entry.number], entry, state)
    fd = with_room(lambda: os.open(folder.path / entry.file_name, os.O_RDWR | os.O_CLOEXEC))
    try:
        for offset in range(start, state.tail, len(_ZEROS)):
            raw = os.pread(fd, min(len(_ZEROS), state.tail - offset), offset)
            folder.files.write(fd, [raw], offset)
        folder.files.sync(fd)
    finally:
        os.close(fd)


def _numbers(path: Path) -> Iterator[int]:
    """The numbers of the files in the folder at *path*, also of those that a crash left behind."""
    return (int(match[1]) for name in list_folder(path) if (match := _OURS.fullmatch(name)) and match[1])


def _with_segment(manifest: Manifest, entry: SegmentEntry) -> Manifest:
    return replace(manifest, segments=(*manifest.segments, entry))
