"""`file:` keeps one file per id: what Apache S4 did by default, done so that nothing is lost. The baseline.

    ROOT/GROUP/KEY.ckpt         one id
    ROOT/.tmp/WRITER/           files being written; its writer holds a lock on the folder

Names and content are those of `shared/named_values.py`.

A write goes to a temporary file, is synced, then renamed over the old file, then the folder is synced: at any moment
the old file or the new one is there, whole. A group's folder stays when its last id goes: if it could be removed and
made again by somebody else, a rename into it would be durable only after a sync of the root, on every write.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self

from safekeeper.backend import Backend, Batch, CheckpointId, Damage, Receipt, Scope, check_creation
from safekeeper.backends.shared.local_files import (
    check_folder,
    check_local,
    make_folder,
    os_errors_as_unavailable,
    survives_on,
    sync_folder,
    unavailable,
    unusable,
)
from safekeeper.backends.shared.named_values import (
    MAX_HEADER_BYTES,
    decode,
    decode_id,
    decode_of_group,
    decode_value,
    encode,
    escape,
    token_of,
    unescape,
)
from safekeeper.backends.shared.pages import pages
from safekeeper.errors import Corruption
from safekeeper.url import Url
from safekeeper.wire import write_all

_SUFFIX = ".ckpt"
_TEMPORARY = ".tmp"
_FIRST_READ = 16 << 10


@dataclass(frozen=True, slots=True)
class FileOptions:
    """`file:///var/lib/app` or `file:relative/path`."""


class FileBackend(Backend):
    """One file per id below a root folder. Any number of processes may read and write it."""

    scope = Scope.HOST
    url_options = (FileOptions,)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._root = Path(root)
        check_folder(self._root)
        with os_errors_as_unavailable(self._root):
            check_local(self._root)
            self.survives = survives_on(self._root)
        self._lock = Lock()
        self._temporary: _TemporaryFolder | None = None
        self._durable: set[Path] = set()  # folders that are known to be there after a power cut

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `file:///absolute/path` or `file:relative/path`."""
        url.options(FileOptions)
        return cls(url.local_path())

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        try:
            return self._write(batch)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self.check_open()  # closing takes the temporary folder away from the writes under way
            raise (unavailable if self._temporary else unusable)(self._root, error) from error

    def _write(self, batch: Batch) -> Receipt:
        waiting: list[tuple[Path, Path]] = []
        folders: set[Path] = set()
        syncing = 0.0
        try:
            for id, value in batch.items():
                path = self._path(id)
                folders.add(path.parent)
                if value is None:
                    path.unlink(missing_ok=True)
                    continue
                temporary = self._temporary_folder().new_name()
                waiting.append((temporary, path))
                syncing += _write_synced(temporary, encode(id, value))
            while waiting:
                self._move(*waiting[-1])
                waiting.pop()
        finally:
            for temporary, _ in waiting:
                temporary.unlink(missing_ok=True)
        started = time.perf_counter()
        for folder in folders:
            with suppress(FileNotFoundError):  # nothing was ever put there
                sync_folder(folder)
        return Receipt(self.survives, syncing + time.perf_counter() - started)

    def _move(self, temporary: Path, path: Path) -> None:
        self._make_durable(path.parent)
        os.rename(temporary, path)

    def _make_durable(self, folder: Path) -> None:
        if folder not in self._durable:
            make_folder(folder)
            self._durable.add(folder)

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """A file gets its name by a link, which fails if the name is taken."""
        self.check_open()
        check_creation(id, value, token)
        with os_errors_as_unavailable(self._root):
            temporary = self._temporary_folder().new_name()
            path = self._path(id)
            try:
                _write_synced(temporary, encode(id, value, token))
                self._make_durable(path.parent)
                while True:
                    try:
                        os.link(temporary, path)
                        created = True
                        break
                    except FileExistsError:
                        with suppress(FileNotFoundError):  # it was deleted just now
                            created = token_of(path, path.read_bytes()) == token
                            break
                sync_folder(path.parent)  # also if it was there: whoever made it may have died before this
                return created
            except FileNotFoundError:
                self.check_open()
                raise
            finally:
                temporary.unlink(missing_ok=True)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            return [self._read(id) for id in ids]

    def _read(self, id: CheckpointId) -> bytes | None:
        path = self._path(id)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return decode_value(path, data, id)

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for path in _files(self._root / escape(group.encode())):
                self.check_open()
                key = unescape(path.name.removesuffix(_SUFFIX))
                if key is not None:
                    yield key
                elif id := _read_id(path):
                    yield id.key

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Each file is read once, in the order of the folder."""
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for page in pages(self._pairs(group)):
                self.check_open()
                yield page

    def _pairs(self, group: str) -> Iterator[tuple[bytes, bytes]]:
        raw = group.encode()
        folder = f"{self._root}/{escape(raw)}"
        for name in _names(folder):  # no `Path`: making one takes longer than reading a small file
            path = f"{folder}/{name}"
            try:
                data = _read_file(path)
            except FileNotFoundError:  # it was deleted meanwhile
                continue
            key, value = decode_of_group(path, data, raw)
            if escape(key) + _SUFFIX != name:
                id = CheckpointId(group, key)
                raise Corruption(f"{path}: holds {id}, which belongs in another file: files were renamed")
            yield key, value

    def groups(self) -> Iterator[str]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for folder in _folders(self._root):
                self.check_open()
                group = unescape(folder.name)
                if group is not None:
                    if next(_files(folder), None):
                        yield group.decode()
                elif id := next(filter(None, map(_read_id, _files(folder))), None):
                    yield id.group

    def verify(self, checked: Callable[[int], object]) -> Iterator[Damage]:
        """Read every file and check its sum and that it stands where its id belongs."""
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for path in (path for folder in _folders(self._root) for path in _files(folder)):
                self.check_open()
                try:
                    data = path.read_bytes()
                    checked(len(data))
                    id, _ = decode(path, data)
                    if self._path(id) != path:
                        yield Damage(str(path), f"holds {id}, which belongs in another file: files were renamed")
                except FileNotFoundError:
                    continue
                except Corruption as error:
                    yield Damage(str(path), str(error).removeprefix(f"{path}: "))

    def exists(self) -> bool:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            return (self._root / _TEMPORARY).is_dir() or any(True for _ in self.groups())

    def close(self) -> None:
        super().close()
        if self._owner != os.getpid():
            return  # in a forked child the folder is the parent's, and the lock may be held by nobody
        with self._lock:
            temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.close()

    def _path(self, id: CheckpointId) -> Path:
        return self._root / escape(id.group.encode()) / (escape(id.key) + _SUFFIX)

    def _temporary_folder(self) -> _TemporaryFolder:
        with self._lock:
            self.check_open()
            if self._temporary is None:
                self._temporary = _TemporaryFolder(self._root / _TEMPORARY)
            return self._temporary


class _TemporaryFolder:
    """A folder for the files one writer has under way, locked while the writer lives. Dead writers' are removed."""

    def __init__(self, parent: Path) -> None:
        make_folder(parent.parent)
        make_folder(parent)
        self._numbers = itertools.count()
        self._fd = -1
        while self._fd < 0:
            self.path = parent / f"{os.getpid()}-{secrets.token_hex(8)}"
            os.mkdir(self.path, 0o700)
            self._fd = _lock_folder(self.path)  # not there any more: somebody swept it before it was locked
        for other in _folders(parent):
            if other != self.path and (fd := _lock_folder(other)) >= 0:
                shutil.rmtree(other, ignore_errors=True)
                os.close(fd)

    def new_name(self) -> Path:
        return self.path / str(next(self._numbers))

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def _lock_folder(path: Path) -> int:
    """A descriptor that holds the lock of *path*, or -1 if it is held by somebody or the folder is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return -1


def _read_id(path: Path) -> CheckpointId | None:
    """The id of a file, without reading its value; None if the file is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return decode_id(path, file.read(MAX_HEADER_BYTES))[0]
    except FileNotFoundError:
        return None


def _write_synced(path: Path, pieces: Sequence[bytes]) -> float:
    """Create *path* with *pieces* as its content, durable; how long the sync took."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, pieces)
        started = time.perf_counter()
        os.fsync(fd)
        return time.perf_counter() - started
    finally:
        os.close(fd)


def _read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, _FIRST_READ)
        if len(data) < _FIRST_READ:
            return data
        with open(fd, "rb", closefd=False) as file:
            return data + file.read()
    finally:
        os.close(fd)


def _files(folder: Path) -> Iterator[Path]:
    return (folder / name for name in _names(folder))


def _names(folder: str | Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if entry.name.endswith(_SUFFIX))
    except FileNotFoundError:
        return


def _folders(parent: Path) -> Iterator[Path]:
    try:
        with os.scandir(parent) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_dir() and entry.name != _TEMPORARY)
    except FileNotFoundError:
        return
