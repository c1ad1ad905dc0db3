"""`file:` keeps one file per id: what Apache S4 did by default, done so that nothing is lost. The baseline.

    ROOT/GROUP/KEY.ckpt         one id
    ROOT/.tmp/WRITER/           files being written; its writer holds a lock on the folder

Every name is the escaped group or key: letters, digits, `_` and `-` stand for themselves, any other byte is `%xx`; of a
name that would be too long the beginning is kept and `=` and a hash follow. The file holds the id in full.

A write goes to a temporary file, is synced, then renamed over the old file, then the folder is synced: at any moment
the old file or the new one is there, whole. A group's folder stays when its last id goes: if it could be removed and
made again by somebody else, a rename into it would be durable only after a sync of the root, on every write.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import secrets
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self
from urllib.parse import unquote_to_bytes

import xxhash

from safekeeper.backend import MAX_GROUP_BYTES, MAX_KEY_BYTES, Backend, Batch, CheckpointId, Damage, Receipt, Scope
from safekeeper.backends.local import make_folder, os_errors_as_unavailable, survives_on, sync_folder, write_all
from safekeeper.errors import Corruption
from safekeeper.registry import Url

# file:   "SKF1" | xxh3 u64 | group_len u8 | key_len u16 | group | key | value to the end of the file
#         little endian; the checksum covers everything after itself; frozen: version 2 gets another mark
_MARK = b"SKF1"
_HEAD = struct.Struct("<4sQBH")
_CHECKED_FROM = 12
_SUFFIX = ".ckpt"
_TEMPORARY = ".tmp"

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = [chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in range(256)]
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class FileOptions:
    """`file:` has no options."""


class FileBackend(Backend):
    """One file per id below a root folder. Any number of processes may read and write it."""

    scope = Scope.HOST

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._root = Path(root)
        with os_errors_as_unavailable(self._root):
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
        with os_errors_as_unavailable(self._root):
            try:
                return self._write(batch)
            except FileNotFoundError:
                self.check_open()  # closing takes the temporary folder away from the writes under way
                raise

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
                syncing += _write_synced(temporary, _encode(id, value))
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
        folder = path.parent
        if folder not in self._durable:
            make_folder(folder)
            self._durable.add(folder)
        os.rename(temporary, path)

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
        found, value = _decode(path, data)
        if found != id:
            raise Corruption(f"{path}: holds {found} instead of {id}: files were renamed")
        return value

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for path in _files(self._root / _name(group.encode())):
                self.check_open()
                key = _unescape(path.name.removesuffix(_SUFFIX))
                if key is not None:
                    yield key
                elif id := _read_id(path):
                    yield id.key

    def groups(self) -> Iterator[str]:
        self.check_open()
        with os_errors_as_unavailable(self._root):
            for folder in _folders(self._root):
                self.check_open()
                group = _unescape(folder.name)
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
                    id, _ = _decode(path, data)
                    if self._path(id) != path:
                        yield Damage(str(path), f"holds {id}, which belongs in another file: files were renamed")
                except FileNotFoundError:
                    continue
                except Corruption as error:
                    yield Damage(str(path), str(error).removeprefix(f"{path}: "))

    def close(self) -> None:
        super().close()
        if self._owner != os.getpid():
            return  # in a forked child the folder is the parent's, and the lock may be held by nobody
        with self._lock:
            temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.close()

    def _path(self, id: CheckpointId) -> Path:
        return self._root / _name(id.group.encode()) / (_name(id.key) + _SUFFIX)

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


def _name(raw: bytes) -> str:
    name = "".join([_ESCAPED[byte] for byte in raw])
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:100]}={hashlib.sha256(raw).hexdigest()}"


def _unescape(name: str) -> bytes | None:
    """What `_name` was made from; None if it is not in the name in full."""
    return None if "=" in name else unquote_to_bytes(name)


def _encode(id: CheckpointId, value: bytes) -> list[bytes]:
    group = id.group.encode()
    checked = b"%c%b%b%b" % (len(group), len(id.key).to_bytes(2, "little"), group, id.key)
    checksum = xxhash.xxh3_64(checked)
    checksum.update(value)
    return [_MARK, checksum.intdigest().to_bytes(8, "little"), checked, value]


def _decode_id(path: Path, data: bytes) -> tuple[CheckpointId, int]:
    """The id in the head of a file, and where its value starts."""
    if data[:4] != _MARK:
        raise Corruption(f"{path}: is no checkpoint file of version 1")
    if len(data) < _HEAD.size:
        raise Corruption(f"{path}: ends after {len(data)} bytes")
    _, _, group_size, key_size = _HEAD.unpack_from(data)
    key_from = _HEAD.size + group_size
    try:
        return CheckpointId(
            data[_HEAD.size : key_from].decode(), data[key_from : key_from + key_size]
        ), key_from + key_size
    except ValueError as error:
        raise Corruption(f"{path}: holds no valid id: {error}") from error


def _decode(path: Path, data: bytes) -> tuple[CheckpointId, bytes]:
    """The id and the value in a file, both checked."""
    id, start = _decode_id(path, data)
    if xxhash.xxh3_64_intdigest(memoryview(data)[_CHECKED_FROM:]) != _HEAD.unpack_from(data)[1]:
        raise Corruption(f"{path}: the checksum does not match: the file was damaged after it was written")
    return id, data[start:]


def _read_id(path: Path) -> CheckpointId | None:
    """The id of a file, without reading its value; None if the file is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return _decode_id(path, file.read(_HEAD.size + MAX_GROUP_BYTES + MAX_KEY_BYTES))[0]
    except FileNotFoundError:
        return None


def _write_synced(path: Path, parts: Sequence[bytes]) -> float:
    """Create *path* with *parts* as its content, durable; how long the sync took."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, parts)
        started = time.perf_counter()
        os.fsync(fd)
        return time.perf_counter() - started
    finally:
        os.close(fd)


def _files(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries if entry.name.endswith(_SUFFIX))
    except FileNotFoundError:
        return


def _folders(parent: Path) -> Iterator[Path]:
    try:
        with os.scandir(parent) as entries:
            yield from (Path(entry.path) for entry in entries if entry.is_dir() and entry.name != _TEMPORARY)
    except FileNotFoundError:
        return
