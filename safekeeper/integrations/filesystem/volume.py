"""Files and directories by the rules of `docs/file-systems.md`. Errors are those of the operating system's files."""

from __future__ import annotations

import errno
import io
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING

from safekeeper.backend import (
    TOKEN_BYTES,
    Batch,
    CheckpointId,
    Damage,
    SupportsAtomicBatch,
    SupportsCreate,
    SupportsScan,
)
from safekeeper.errors import Corruption, Unavailable
from safekeeper.integrations.filesystem import layout
from safekeeper.integrations.filesystem.layout import INLINE_BYTES, FileEntry, VolumePath
from safekeeper.large import PART_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from safekeeper.backend import Backend

_TRIES = 20
_PAGE = 256
_ROOT = FileEntry(True, 0)
_DAY = 24 * 3600.0
_NONE: Mapping[CheckpointId, bytes] = MappingProxyType({})


class FileVolumes:
    """The files of all volumes of a store."""

    def __init__(self, store: Backend, part_bytes: int = PART_BYTES) -> None:
        self.store, self.part_bytes = store, part_bytes

    def write(self, batch: Batch) -> None:
        """Write to the store; whatever is written goes through here, or through `SupportsCreate`."""
        self.store.write(batch)

    # Looking

    def find(self, path: VolumePath) -> FileEntry | None:
        """What is at *path*; None if nothing is."""
        if not path.names:
            return _ROOT
        return self._entries([path.id])[0]

    def get(self, path: VolumePath) -> FileEntry:
        """What is at *path*; raise `FileNotFoundError` if nothing is."""
        if (found := self.find(path)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return found

    def entries_in(self, path: VolumePath) -> Iterator[tuple[VolumePath, FileEntry]]:
        """What is in the directory *path*, in any order; contents are not read."""
        group = path.group
        for page in self._pages(group):
            for key, value in page:
                yield path.below(key), FileEntry.decode(CheckpointId(group, key), value)

    def _pages(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        if isinstance(self.store, SupportsScan):
            seen = set[bytes]()
            for page in self.store.scan(group):
                yield [pair for pair in page if pair[0] not in seen]
                seen.update(key for key, _ in page)
            return
        keys = sorted(set(self.store.keys(group)))
        for at in range(0, len(keys), _PAGE):
            some = keys[at : at + _PAGE]
            values = self.store.read([CheckpointId(group, key) for key in some])
            yield [(key, value) for key, value in zip(some, values, strict=True) if value is not None]

    def _entries(self, ids: Sequence[CheckpointId]) -> list[FileEntry | None]:
        found = zip(ids, self.store.read(ids), strict=True)
        return [None if value is None else FileEntry.decode(id, value) for id, value in found]

    # Directories

    def make_directory(self, path: VolumePath, *, exist_ok: bool) -> None:
        """Make a directory, and those above it."""
        if path.names:
            if not exist_ok and self.find(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            self.have_directories([*path.above, path])
            self.check_above(path)
        elif not exist_ok:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    def prepare(self, paths: Sequence[VolumePath]) -> None:
        """Rule 4, beforehand, for the directories above a file that is to be written."""
        self.have_directories(paths)

    def have_directories(self, paths: Sequence[VolumePath]) -> bool:
        """Rule 4: write the entries that are missing; whether there were any."""
        if not paths:
            return False
        found = self._entries([path.id for path in paths])
        for path, entry in zip(paths, found, strict=True):
            if entry is not None and not entry.is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        missing = [path.id for path, entry in zip(paths, found, strict=True) if entry is None]
        if missing:
            made = layout.directory().encode()
            self.write(Batch(dict.fromkeys(missing, made)))
        return bool(missing)

    def check_above(self, *paths: VolumePath) -> None:
        """Rule 4, afterwards."""
        above = _all_above(paths)
        for _ in range(_TRIES):
            if not self.have_directories(above):
                return
        raise Unavailable(f"the directories above {paths[0]} are deleted again and again: try again later")

    def remove_directory(self, path: VolumePath) -> None:
        """Delete an empty directory."""
        if not self.get(path).is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if self._is_empty(path) and path.names:
            self._delete([path.id])
            if self._is_empty(path):  # rule 5
                return
            self.have_directories([*path.above, path])
        if not self._is_empty(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    def _is_empty(self, path: VolumePath) -> bool:
        return next(iter(self.store.keys(path.group)), None) is None

    def delete_tree(self, path: VolumePath) -> None:
        """Delete a file, or a directory with all that is in it."""
        entry = self.get(path)
        if not entry.is_directory:
            self.delete_file(path)
            return
        for _ in range(_TRIES):
            inside = list(self.entries_in(path))
            for below, found in inside:
                if found.is_directory:
                    with suppress(FileNotFoundError):
                        self.delete_tree(below)
            self._delete([below.id for below, found in inside if not found.is_directory])
            for below, found in inside:
                self.delete_content(below, found)
            if path.names:
                self._delete([path.id])
            if self._is_empty(path):  # rule 5
                return
        raise Unavailable(f"{path} is written while it is deleted: try again later")

    def _delete(self, ids: Sequence[CheckpointId]) -> None:
        for at in range(0, len(ids), _PAGE):
            batch = Batch()
            for id in ids[at : at + _PAGE]:
                batch.delete(id)
            self.write(batch)

    # FileVolumes

    def delete_file(self, path: VolumePath) -> None:
        """Delete a file."""
        entry = self.get(path)
        if entry.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        self._delete([path.id])
        self.delete_content(path, entry)

    def delete_content(self, path: VolumePath, entry: FileEntry) -> None:
        """Delete the parts of an entry that is not there any more, or never will be."""
        if entry.write is not None:
            with suppress(Unavailable):  # they take space and nothing else
                self._delete([layout.part_id(path.volume, entry.write, number) for number in range(entry.count)])

    def put(self, entries: Mapping[VolumePath, FileEntry], parts: Mapping[CheckpointId, bytes] = _NONE) -> None:
        """Let *entries* of files stand, whose parts are stored but for *parts*; small ones share a write."""
        paths = list(entries)
        self.prepare(_all_above(paths))
        replaced = self._entries([path.id for path in paths])
        for path, old in zip(paths, replaced, strict=True):
            if old is not None and old.is_directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        encoded = {path.id: entry.encode() for path, entry in entries.items()}
        if parts and not isinstance(self.store, SupportsAtomicBatch):
            self.write(Batch(parts))  # rule 1
            parts = {}
        self.write(Batch({**parts, **encoded}))
        self.check_above(*paths)
        for path, old in zip(paths, replaced, strict=True):
            if old is not None and old.write != entries[path].write:
                self.delete_content(path, old)

    def create(self, path: VolumePath, entry: FileEntry, token: bytes | None = None) -> None:
        """Let *entry* of a file stand if there is nothing; raise `FileExistsError` if there is.

        Whoever asks again, because no answer came, does it with the *token* of the first time.
        """
        self.prepare(list(path.above))
        if not self._create(path.id, entry.encode(), token or secrets.token_bytes(TOKEN_BYTES)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        self.check_above(path)

    def _create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        if isinstance(self.store, SupportsCreate):
            for _ in range(2):
                with suppress(Unavailable):
                    return self.store.create(id, value, token)
            return self.store.create(id, value, token)
        with _creating:
            if self.store.read([id]) != [None]:
                return False
            self.write(Batch({id: value}))
            return True

    def rename_file(self, source: VolumePath, target: VolumePath) -> None:
        """Move a file; the content is copied if it is large."""
        entry = self.get(source)
        moved = self._copied(source, target, entry)
        self.put({target: moved})
        self._delete([source.id])
        self.delete_content(source, entry)

    def copy_file(self, source: VolumePath, target: VolumePath) -> None:
        """Copy a file."""
        self.put({target: self._copied(source, target, self.get(source))})

    def _copied(self, source: VolumePath, target: VolumePath, entry: FileEntry) -> FileEntry:
        if entry.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(source))
        if entry.write is None:
            return entry
        with VolumeWriter(self, target) as writer:
            for number in range(entry.count):
                writer.write(self.read_part(source, entry, number))
        return writer.entry

    def read_part(self, path: VolumePath, entry: FileEntry, number: int) -> bytes:
        """One part of a file."""
        assert entry.write is not None
        (part,) = self.store.read([layout.part_id(path.volume, entry.write, number)])
        if part is not None and len(part) == min(entry.part_bytes, entry.size - number * entry.part_bytes):
            return part
        if self.find(path) != entry:  # rule 6
            raise Unavailable(f"{path} was replaced while it was read: open it again")
        raise Corruption(f"{path}: part {number} of it is {'gone' if part is None else 'of another size'}")

    def sweep(self, volume: str, age: float = _DAY) -> int:
        """Delete the parts that no file names, of writes that began more than *age* seconds ago; how many writes."""
        limit = layout.now() - age * 1000
        keys = list(self.store.keys(layout.content_group(volume)))  # before the entries are listed
        old = {write for key in keys if layout.begun(write := layout.write_of(key)) < limit}
        stray = old - set(self._writes_in(volume)) if old else old
        group = layout.content_group(volume)
        self._delete([CheckpointId(group, key) for key in keys if layout.write_of(key) in stray])
        return len(stray)

    def damaged(self, volume: str) -> Iterator[Damage]:
        """Read every file of *volume*; what is not as its entry says. One that is replaced meanwhile is whole."""
        for path, entry in self.files_below(VolumePath(volume, ())):
            try:
                with VolumeReader(self, path, entry) as reader:
                    crc = size = 0
                    while piece := reader.read(PART_BYTES):
                        crc, size = zlib.crc32(piece, crc), size + len(piece)
                if (crc, size) != (entry.crc, entry.size):
                    yield Damage(f"safekeeper://{path}", "its content is not what was written", path.id)
            except Corruption as error:
                yield Damage(f"safekeeper://{path}", str(error), path.id)
            except Unavailable:
                if self.find(path) == entry:
                    raise

    def ids_of(self, path: VolumePath) -> Iterator[CheckpointId]:
        """All ids of a file, or of a directory with all that is in it and what it is in; a file's parts come first."""
        for above in path.above:
            yield above.id
        yield from self._ids_of(path, self.get(path))

    def _ids_of(self, path: VolumePath, entry: FileEntry) -> Iterator[CheckpointId]:
        if entry.write is not None:
            for number in range(entry.count):
                yield layout.part_id(path.volume, entry.write, number)
        if path.names:
            yield path.id
        if entry.is_directory:
            for below, found in self.entries_in(path):
                yield from self._ids_of(below, found)

    def files_below(self, path: VolumePath) -> Iterator[tuple[VolumePath, FileEntry]]:
        """All files in a directory and what is in it."""
        for below, entry in self.entries_in(path):
            if entry.is_directory:
                yield from self.files_below(below)
            else:
                yield below, entry

    def _writes_in(self, volume: str) -> Iterator[bytes]:
        """What the files of *volume* name, also those in a directory whose own entry is gone: one who died while he
        deleted it, just when a file came, has left it so."""
        for group in layout.directory_groups(volume, self.store.groups()):
            for page in self._pages(group):
                for key, value in page:
                    if (write := FileEntry.decode(CheckpointId(group, key), value).write) is not None:
                        yield write


_creating = Lock()


def _all_above(paths: Iterable[VolumePath]) -> list[VolumePath]:
    return sorted({above for path in paths for above in path.above}, key=str)


class VolumeWriter(io.RawIOBase):
    """A file that is being written; it is there when it was closed, or committed after that where it is to wait.

    A `with` block that ends with an exception, and one that nobody closes, leave nothing.
    """

    def __init__(self, files: FileVolumes, path: VolumePath) -> None:
        self.files, self.path = files, path
        self._write: bytes | None = None
        self._buffer = bytearray()
        self._parts = self._size = self._crc = 0
        self._discarded = False
        self._failed = False  # a write did not store all that it was given: it will never be a whole file

    @property
    def entry(self) -> FileEntry:
        """The entry of what was written, whose parts are all stored."""
        if self._failed:
            raise Unavailable(f"{self.path}: a write to it has failed, so it is not stored: write it again")
        if self._write is not None or len(self._buffer) > INLINE_BYTES:
            self._flush_parts(last=True)
        content = b"" if self._write is not None else bytes(self._buffer)
        return FileEntry(False, layout.now(), self._size, self._write, self.files.part_bytes, self._crc, content)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: ReadableBuffer) -> int:
        if self.closed:
            raise ValueError("write to a file that is closed")
        view = memoryview(data).cast("B")
        failed, self._failed = self._failed, True  # until all of it is taken
        self._crc = zlib.crc32(view, self._crc)
        self._size += len(view)
        whole = self.files.part_bytes
        for at in range(0, len(view), whole):
            self._buffer += view[at : at + whole]
            self._flush_parts()
        self._failed = failed
        return len(view)

    def _flush_parts(self, *, last: bool = False) -> None:
        whole = self.files.part_bytes
        while len(self._buffer) >= whole or (last and self._buffer):
            if self._write is None:
                self._write = layout.new_write()
            id = layout.part_id(self.path.volume, self._write, self._parts)
            self._parts += 1  # it may be there, whatever comes
            failed, self._failed = self._failed, True
            self.files.write(Batch({id: bytes(self._buffer[:whole])}))
            self._failed = failed
            del self._buffer[:whole]

    def close(self) -> None:
        if not self.closed:
            super().close()
            if not self._discarded:
                try:
                    self.finish()
                except FileExistsError:
                    self.discard()
                    raise
                finally:
                    if self._failed:
                        self.discard()

    def finish(self) -> None:
        """What is to be done when all bytes are there."""

    def discard(self) -> None:
        """Leave nothing."""
        self._discarded = True
        super().close()
        if self._write is not None:
            stored = FileEntry(False, 0, self._parts * self.files.part_bytes, self._write, self.files.part_bytes)
            self.files.delete_content(self.path, stored)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            self._discarded = True  # nobody has said that it is whole; its parts are swept one day
            super().close()


class VolumeReader(io.RawIOBase):
    """A file to read and to seek in, one part in memory at a time. If it is replaced meanwhile, open it again."""

    def __init__(self, files: FileVolumes, path: VolumePath, entry: FileEntry) -> None:
        self._files, self._path, self.entry = files, path, entry
        self._at = 0
        self._number, self._part = -1, memoryview(entry.content)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.entry.size}[whence]
        if start + offset < 0:
            raise ValueError(f"there is nothing before the beginning of {self._path}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._at >= self.entry.size:
            return 0
        start = self._at
        if self.entry.write is not None:
            number, start = divmod(self._at, self.entry.part_bytes)
            if number != self._number:
                self._part = memoryview(self._files.read_part(self._path, self.entry, number))
                self._number = number
        into = memoryview(buffer).cast("B")
        piece = self._part[start : start + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def copy_into(writer: VolumeWriter, source: io.RawIOBase) -> None:
    """Write all that *source* has."""
    while piece := source.read(PART_BYTES):
        writer.write(piece)
