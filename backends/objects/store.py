"""The part of `objects+SCHEME:` that is about fsspec and not about checkpoints: to list, get and put whole objects.

fsspec's file systems are of two kinds here. A `FlatStore` is an object store: it lists by prefix, and an upload appears
whole or not at all. A `FolderStore` has files that grow while they are written, and folders that stay when they are
empty; there an object is written under a name that nobody looks at and moved when it is complete.

All paths are relative to the root. `FileNotFoundError` means that an object is gone; everything else that a driver
raises goes up as it is, and `errors_as_unavailable` makes it an error of the contract.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from safekeeper.backend import MAX_VALUE_BYTES, Scope, Survives
from safekeeper.backends.shared.local_files import make_folder
from safekeeper.backends.shared.named_values import MAX_HEADER_BYTES

OBJECT = "v"
"""What the name of every object begins with; a prefix lets object stores answer in one request."""
TEMPORARY = ".tmp"
"""The folder in the root for objects that are being written."""
MAX_OBJECT_BYTES = MAX_HEADER_BYTES + MAX_VALUE_BYTES
LEAST_RATE = 256 * 1024
"""Bytes a second that a request that is not to fail carries at least."""
_LARGE_UPLOAD = 4 * LEAST_RATE
_TRIES = 20
_EXISTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
"""What S3 answers to a conditional put: there is an object of this name, or one is being made."""


class ObjectStore(ABC):
    """Whole objects below a root."""

    survives = Survives.NOTHING
    scope = Scope.NETWORK
    failed_is_over = False
    """Whether a call that raised cannot take effect any more."""
    creates = False
    """Whether it has `put_new`."""

    def __init__(self, files: Any, root: str) -> None:
        self.files = files
        self.root = root.rstrip("/")

    @abstractmethod
    def objects(self, folder: str) -> list[str]:
        """The names of the objects in *folder*, sorted; none if there is no such folder."""

    @abstractmethod
    def tree(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        """The names of the folders in *folder*, each with the names of its objects, sorted."""

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of the folders in the root."""

    def exists(self) -> bool:
        """Whether anything is there."""
        return bool(self.folders())

    @abstractmethod
    def put(self, path: str, pieces: Sequence[bytes]) -> None:
        """Create an object of *pieces*, whole or not at all."""

    def put_new(self, path: str, pieces: Sequence[bytes]) -> bool:
        """Create an object of *pieces* unless there is one of this name, in one step; whether there was none."""
        raise NotImplementedError

    @abstractmethod
    def get(self, path: str, size: int | None = None) -> bytes:
        """The content of an object, or its first *size* bytes."""

    def remove(self, path: str) -> None:
        """Delete an object. That it is gone is not an error."""
        with suppress(FileNotFoundError):
            self._remove(self._path(path))

    def _remove(self, path: str) -> None:
        self.files.rm_file(path)

    def prune(self, folder: str) -> None:  # noqa: B027 - most stores have nothing to do
        """Delete *folder* if it is empty and would stay otherwise."""

    def size(self) -> int:
        """How many bytes all objects have together."""
        return int(self.files.du(self.root, total=True))

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


class FlatStore(ObjectStore):
    """An object store: everything below a prefix is listed at once, and an upload appears whole."""

    def __init__(self, files: Any, root: str, timeout: float | None = None, patient: Any = None) -> None:
        """A driver may itself end a request of which it hears nothing for too long. Of an upload it hears nothing until
        it is done: large ones go through *patient*, another driver of the same kind."""
        super().__init__(files, root)
        self._patient = patient or files
        self._timeout = timeout
        self._limit = self._limit_of(0)
        # How much a download will bring is not known before.
        self._limit_of_download = self._limit_of(MAX_OBJECT_BYTES if patient else 0)

    def _limit_of(self, nbytes: int) -> dict[str, float]:
        """How long a request may take that carries so much: slow is not failed.

        fsspec cancels one that takes longer. A driver's own time-outs do not cover all that it waits for.
        """
        return {"timeout": self._timeout + nbytes / LEAST_RATE} if self._timeout else {}

    def objects(self, folder: str) -> list[str]:
        # The prefix spares s3fs from looking whether the folder is an object when there is nothing in it.
        return sorted(map(_name, self._find(folder, prefix=OBJECT)))

    def tree(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        paths = (path.rsplit("/", 2) for path in sorted(self._find(folder)))
        for name, objects in groupby(paths, lambda parts: parts[1]):
            yield name, [parts[2] for parts in objects]

    def _find(self, folder: str, **only: str) -> Iterable[str]:
        """The paths of all objects below *folder*, those whose name has the prefix if there is one."""
        found: list[str] = self.files.find(self._path(folder), **only, **self._limit)
        return found

    def folders(self) -> list[str]:
        try:
            return [_name(path) for path in self.files.ls(self.root, detail=False, **self._limit)]
        except FileNotFoundError:
            self.objects("")  # raises if it is not the objects that are missing but the bucket
            return []

    def get(self, path: str, size: int | None = None) -> bytes:
        # A range, though it is everything: without one, s3fs asks for the size first.
        end, limit = size or MAX_OBJECT_BYTES, self._limit_of_download
        data: bytes = self.files.cat_file(self._path(path), start=0, end=end, **limit)
        return data

    def put(self, path: str, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        files = self.files if len(data) <= _LARGE_UPLOAD else self._patient
        files.pipe_file(self._path(path), data, **self._limit_of(len(data)))

    def _remove(self, path: str) -> None:
        self.files.rm_file(path, **self._limit)


class S3Store(FlatStore):
    """S3, and what speaks its protocol."""

    creates = True

    def put_new(self, path: str, pieces: Sequence[bytes]) -> bool:
        data = b"".join(pieces)
        files = self.files if len(data) <= _LARGE_UPLOAD else self._patient
        try:
            files.pipe_file(self._path(path), data, mode="create", **self._limit_of(len(data)))
        except OSError as error:
            if isinstance(error, FileExistsError) or _code(error) in _EXISTS:
                return False
            raise
        return True


class MemoryStore(FlatStore):
    """fsspec's memory file system, one for the whole process.

    Its dict is looked at directly: how fsspec lists it is not safe while others write, in many of its versions.
    """

    scope = Scope.PROCESS
    failed_is_over = True
    creates = True

    def put_new(self, path: str, pieces: Sequence[bytes]) -> bool:
        full = self._path(path)
        file = MemoryFile(self.files, full, b"".join(pieces))
        return self.files.store.setdefault(full, file) is file

    def _find(self, folder: str, **only: str) -> Iterable[str]:
        start = f"{self._path(folder)}/"
        return [path for path in tuple(self.files.store) if path.startswith(start)]

    def folders(self) -> list[str]:
        return list({path[len(self.root) + 1 :].partition("/")[0] for path in self._find("")})


class FolderStore(ObjectStore):
    """A file system: files can be seen half written and can be moved, folders stay when they are empty."""

    def objects(self, folder: str) -> list[str]:
        return sorted(self._names(folder))

    def tree(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        for name in self._names(folder):
            yield name, self.objects(f"{folder}/{name}")

    def folders(self) -> list[str]:
        return [name for name in self._names("") if name != TEMPORARY]

    def exists(self) -> bool:
        return any(self._names(""))

    def _names(self, folder: str) -> Iterable[str]:
        try:
            # Without details: fsspec leaves out the files that are gone when it asks for theirs, also if others were
            # put in their place.
            return [_name(path) for path in self.files.ls(self._path(folder), detail=False)]
        except FileNotFoundError:
            return []

    def get(self, path: str, size: int | None = None) -> bytes:
        data: bytes = self.files.cat_file(self._path(path), end=size)
        return data

    def put(self, path: str, pieces: Sequence[bytes]) -> None:
        temporary = self._path(f"{TEMPORARY}/{_name(path)}")
        try:
            self._in_folder_of(temporary, lambda: self._create(temporary, pieces))
            self._in_folder_of(self._path(path), lambda: self._move(temporary, self._path(path)))
        except BaseException:
            with suppress(Exception):
                self.files.rm_file(temporary)
            raise

    def _in_folder_of(self, path: str, work: Callable[[], None]) -> None:
        """Do *work*, which makes *path*; also make the folder around it, if it is missing or being pruned."""
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                return work()
            self._make_folder(path.rpartition("/")[0])
        return work()

    def _make_folder(self, path: str) -> None:
        self.files.makedirs(path, exist_ok=True)

    def _create(self, path: str, pieces: Sequence[bytes]) -> None:
        with self.files.open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)

    def _move(self, temporary: str, path: str) -> None:
        self.files.mv(temporary, path)


class LocalStore(FolderStore):
    """A local folder."""

    survives = Survives.PROCESS
    scope = Scope.HOST
    failed_is_over = True
    creates = True

    def put_new(self, path: str, pieces: Sequence[bytes]) -> bool:
        temporary = self._path(f"{TEMPORARY}/{_name(path)}-{secrets.token_hex(4)}")
        try:
            self._in_folder_of(temporary, lambda: self._create(temporary, pieces))
            self._in_folder_of(self._path(path), lambda: os.link(temporary, self._path(path)))
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.remove(temporary)
        return True

    def _names(self, folder: str) -> Iterable[str]:
        try:
            return os.listdir(self._path(folder))
        except FileNotFoundError:
            return []

    def _make_folder(self, path: str) -> None:
        make_folder(Path(path))  # for this user only

    def _move(self, temporary: str, path: str) -> None:
        os.rename(temporary, path)  # fsspec would copy when it fails, and a copy can be seen half done

    def _remove(self, path: str) -> None:
        os.remove(path)  # as fsspec does, but for taking the path apart first

    def prune(self, folder: str) -> None:
        with suppress(OSError):
            os.rmdir(self._path(folder))


def store_of(files: Any, root: str, timeout: float | None, patient: Any = None) -> ObjectStore:
    """The store that fits an fsspec file system, *timeout* seconds a request if it is asynchronous; see `FlatStore`."""
    if isinstance(files, LocalFileSystem):
        return LocalStore(files, root)
    if isinstance(files, MemoryFileSystem):
        return MemoryStore(files, root)
    if isinstance(files, AsyncFileSystem):
        if type(files)._find is not AsyncFileSystem._find:
            return S3Store(files, root, timeout, patient) if patient else FlatStore(files, root, timeout)
    elif type(files).find is not AbstractFileSystem.find:
        return FlatStore(files, root)
    return FolderStore(files, root)


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _code(error: OSError) -> str:
    """The code in an answer of S3 that *error* was made from; not every server says what s3fs goes by."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
