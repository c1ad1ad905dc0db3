"""What each request about files does, by the rules of `docs/file-systems.md`: so the layout is in one place only.

Whoever writes a file names the write himself, so every request can be sent again: parts have the same ids, and the name
is the token of a create.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from threading import Lock

from safekeeper.agent import protocol
from safekeeper.agent.budget import Budget
from safekeeper.agent.protocol import ErrorCode, FrameKind
from safekeeper.agent.shares import owner_of_path
from safekeeper.backend import MAX_VALUE_BYTES, Batch, CheckpointId, SupportsAtomicBatch, SupportsCreate
from safekeeper.errors import SafekeeperError
from safekeeper.integrations.filesystem import layout
from safekeeper.integrations.filesystem.layout import INLINE_BYTES, FileEntry, VolumePath
from safekeeper.integrations.filesystem.volume import FileVolumes
from safekeeper.keeper import SafeKeeper
from safekeeper.large import fits
from safekeeper.wire import BadFrame, Body

FilePiece = tuple[FrameKind, list[bytes]]
"""A reply that is not the last one."""

LIST_ENTRIES = 1000
"""How many entries go into one FILE_LIST."""

_CREATE, _AGAIN = 1, 2
_NO_WRITE = bytes(16)
_WRITE = struct.Struct("<16sI")
_COMMIT = struct.Struct("<B16sQII")
_FLAG = struct.Struct("<B")

_CODES: dict[int, ErrorCode] = {
    errno.ENOENT: ErrorCode.NOT_FOUND,
    errno.EEXIST: ErrorCode.EXISTS,
    errno.ENOTDIR: ErrorCode.NOT_DIRECTORY,
    errno.EISDIR: ErrorCode.IS_DIRECTORY,
    errno.ENOTEMPTY: ErrorCode.NOT_EMPTY,
    errno.ESTALE: ErrorCode.REPLACED,
}


def code_of(error: Exception) -> ErrorCode:
    """What an error of files is called in an ERROR."""
    number = error.errno if isinstance(error, OSError) else None
    return ErrorCode.INTERNAL if number is None else _CODES.get(number, ErrorCode.INTERNAL)


NO_CREATE = (
    "this backend cannot create a file only if there is none (SupportsCreate), so two drivers on one checkpoint would"
    " overwrite each other: use another backend, or keep checkpoints on another file system"
)
"""Why a store takes no checkpoints."""


class CannotCreate(SafekeeperError):
    """The backend has no `SupportsCreate`, and what was asked needs it."""


class KeptVolumes(FileVolumes):
    """Files whose writes go through a keeper: those that come together share a batch and a sync, and are tried again
    while the store is unavailable.

    Others write to the store, too, so a file is created by the backend itself or not at all.
    """

    def __init__(self, keeper: SafeKeeper) -> None:
        super().__init__(keeper.backend)
        self._keeper = keeper
        self._known = KnownDirectories()

    def create(self, path: VolumePath, entry: FileEntry, token: bytes | None = None) -> None:
        """Refuse where the backend has no `SupportsCreate`: this process is not the only one that creates."""
        if not isinstance(self.store, SupportsCreate):
            raise CannotCreate(NO_CREATE)
        super().create(path, entry, token)

    def prepare(self, paths: Sequence[VolumePath]) -> None:
        """Rule 4: directories that were seen before are not looked at now. What was written is looked at afterwards."""
        if unknown := self._known.others(paths):
            self.have_directories(unknown)
            self._known.add(unknown)

    def forget_directories(self) -> None:
        """Look at all of them again."""
        self._known.clear()

    def write(self, batch: Batch) -> None:
        """Write through the keeper; *batch* stays whole where the store's batches are."""
        puts = {id: value for id, value in batch.items() if value is not None}
        if not all(map(fits, puts.values())):
            self.store.write(
                batch
            )  # a keeper would save it in parts of its own, which no reader of files puts together
        elif len(puts) > 1 and isinstance(self.store, SupportsAtomicBatch):
            self._keeper.save_together(puts).result()
        else:
            keep, forget = self._keeper.save, self._keeper.forget
            tickets = [forget(id) if value is None else keep(id, value) for id, value in batch.items()]
            for ticket in tickets:
                ticket.result()


class KnownDirectories:
    """Directories that were there some time ago, those seen last; several threads may ask."""

    def __init__(self, most: int = 10_000) -> None:
        self._most, self._paths, self._lock = most, dict[VolumePath, None](), Lock()

    def others(self, paths: Iterable[VolumePath]) -> list[VolumePath]:
        """Those of *paths* that are not known."""
        with self._lock:
            return [path for path in paths if path not in self._paths]

    def clear(self) -> None:
        """Know none."""
        with self._lock:
            self._paths.clear()

    def add(self, paths: Iterable[VolumePath]) -> None:
        """Know these, too, and if they are too many, not the oldest any more."""
        with self._lock:
            self._paths.update(dict.fromkeys(paths))
            while len(self._paths) > self._most:
                del self._paths[next(iter(self._paths))]


class FileAnswers:
    """Answers requests about the files in the store of *keeper*; *values* is the room for what is being read."""

    def __init__(self, keeper: SafeKeeper, values: Budget) -> None:
        self._files, self._values = KeptVolumes(keeper), values

    def to(self, kind: FrameKind, body: Body) -> Iterator[FilePiece]:
        """The replies to a request, without the DONE."""
        match kind:
            case FrameKind.STAT:
                return self._stat(body)
            case FrameKind.LIST:
                return self._list(body)
            case FrameKind.READ_FILE:
                return self._read_file(body)
            case FrameKind.WRITE_PART:
                self._write_part(body)
            case FrameKind.WRITE_FILE:
                self._write_file(body)
            case FrameKind.DISCARD:
                self._discard(body)
            case FrameKind.MAKE_DIRECTORY:
                path = _path(body)
                body.end()
                self._files.make_directory(path, exist_ok=True)
            case FrameKind.REMOVE:
                self._remove(body)
            case _:
                raise BadFrame(f"{kind.name} is no request")
        return iter(())

    def _stat(self, body: Body) -> Iterator[FilePiece]:
        path = _path(body)
        body.end()
        yield FrameKind.FILE_LIST, protocol.file_list([_status(path, self._files.get(path))])

    def _list(self, body: Body) -> Iterator[FilePiece]:
        path = _path(body)
        body.end()
        page, found = [], False
        for below, entry in self._files.entries_in(path):
            found = True
            page.append(_status(below, entry))
            if len(page) == LIST_ENTRIES:
                yield FrameKind.FILE_LIST, protocol.file_list(page)
                page = []
        if page:
            yield FrameKind.FILE_LIST, protocol.file_list(page)
        if not found and not self._files.get(path).is_directory:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(path))

    def _read_file(self, body: Body) -> Iterator[FilePiece]:
        path = _path(body)
        write, number = body.unpack(_WRITE)
        body.end()
        entry = self._files.get(path)
        if entry.is_directory:
            raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
        if write not in (_NO_WRITE, entry.write or _NO_WRITE):
            raise OSError(errno.ESTALE, "it was replaced while it was read", str(path))
        if number >= max(1, entry.count):
            raise BadFrame(f"{path} has {entry.count} parts: there is no part {number}")
        size = 0 if entry.write is None else min(entry.part_bytes, entry.size - number * entry.part_bytes)
        with self._values.room(size, _owner(path)):
            data = entry.content if entry.write is None else self._files.read_part(path, entry, number)
            details = (entry.modified, entry.size, entry.write or _NO_WRITE, entry.part_bytes, entry.crc)
            yield FrameKind.FILE, protocol.file(*details, data)

    def _write_part(self, body: Body) -> None:
        path = _path(body)
        write, number = body.unpack(_WRITE)
        data = body.blob()
        body.end()
        _check_write(write)
        self._files.write(Batch({layout.part_id(path.volume, write, number): data}))

    def _write_file(self, body: Body) -> None:
        path = _path(body)
        if not path.names:
            raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
        flags, write, size, part_bytes, crc = body.unpack(_COMMIT)
        data = body.blob()
        body.end()
        _check_write(write)
        if not 1 <= part_bytes <= MAX_VALUE_BYTES or len(data) != ((size - 1) % part_bytes + 1 if size else 0):
            raise BadFrame(f"a file of {size} bytes in parts of {part_bytes} does not end with {len(data)}")
        if size <= INLINE_BYTES and size == len(data):
            self._commit(path, FileEntry(False, layout.now(), size, None, part_bytes, crc, data), {}, write, flags)
            return
        entry = FileEntry(False, layout.now(), size, write, part_bytes, crc)
        if flags & _AGAIN:
            self._commit_again(path, entry, data, flags)
        else:
            self._commit(path, entry, _last_part(path, entry, data), write, flags)

    def _commit(
        self, path: VolumePath, entry: FileEntry, last: dict[CheckpointId, bytes], write: bytes, flags: int
    ) -> None:
        if not flags & _CREATE:
            self._files.put({path: entry}, last)
            return
        if last:
            self._files.write(Batch(last))
        self._files.create(path, entry, write)

    def _commit_again(self, path: VolumePath, entry: FileEntry, last: bytes, flags: int) -> None:
        """Let a file stand whose first commit may have succeeded. Somebody may have replaced or deleted it since, and
        be about to delete its parts: so it gets a copy of them under a name that nobody else knows."""
        assert entry.write is not None
        found = self._files.find(path)
        if found is not None and found.write == entry.write:
            self._files.check_above(path)  # the first commit may have ended before that
            return
        copied = replace(entry, write=layout.new_write())
        if not self._copy_parts(path, entry, copied):
            self._files.delete_content(path, copied)
            raise OSError(errno.ESTALE, "it was written and replaced or deleted since: write it again", str(path))
        try:
            self._commit(path, copied, _last_part(path, copied, last), entry.write, flags)
        except FileExistsError:
            self._files.delete_content(path, copied)
            raise

    def _copy_parts(self, path: VolumePath, entry: FileEntry, to: FileEntry) -> bool:
        """Copy all parts but the last; whether they were all there."""
        assert entry.write is not None
        assert to.write is not None
        for number in range(entry.count - 1):
            with self._values.room(entry.part_bytes, _owner(path)):
                (part,) = self._files.store.read([layout.part_id(path.volume, entry.write, number)])
                if part is None:
                    return False
                self._files.write(Batch({layout.part_id(path.volume, to.write, number): part}))
        return True

    def _discard(self, body: Body) -> None:
        path = _path(body)
        write, count = body.unpack(_WRITE)
        body.end()
        _check_write(write)
        found = self._files.find(path) if path.names else None
        if found is None or found.write != write:  # a file that stands keeps its parts
            self._files.delete_content(path, FileEntry(False, 0, count, write, 1))

    def _remove(self, body: Body) -> None:
        path = _path(body)
        (recursive,) = body.unpack(_FLAG)
        body.end()
        self._files.forget_directories()
        if recursive:
            self._files.delete_tree(path)
        elif self._files.get(path).is_directory:
            self._files.remove_directory(path)
        else:
            self._files.delete_file(path)


def _path(body: Body) -> VolumePath:
    return VolumePath.parse(body.text())


def _owner(path: VolumePath) -> bytes:
    return owner_of_path(str(path).encode())


def _last_part(path: VolumePath, entry: FileEntry, data: bytes) -> dict[CheckpointId, bytes]:
    assert entry.write is not None
    return {layout.part_id(path.volume, entry.write, entry.count - 1): data}


def _check_write(write: bytes) -> None:
    if write == _NO_WRITE:
        raise BadFrame("a write has a name that is not all zeros")


def _status(path: VolumePath, entry: FileEntry) -> tuple[str, bool, int, int]:
    return (path.names[-1] if path.names else "", entry.is_directory, entry.modified, entry.size)
