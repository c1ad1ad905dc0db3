"""What fsspec sees: `safekeeper://VOLUME/PATH` over a store."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction

import safekeeper
from safekeeper.errors import BadUrl
from safekeeper.integrations.filesystem import layout
from safekeeper.integrations.filesystem.layout import FileEntry, VolumePath
from safekeeper.integrations.filesystem.volume import FileVolumes, VolumeReader, VolumeWriter, copy_into
from safekeeper.large import PART_BYTES

if TYPE_CHECKING:
    from safekeeper.backend import Backend

STORE = "SAFEKEEPER_STORE"
"""The environment variable with the URL of the store, for whoever is not given one."""


class SharedTransaction(Transaction):  # type: ignore[misc]
    """Files that appear together: those that are small share a write, which is atomic where the store's batches are."""

    def complete(self, commit: bool = True) -> None:
        """Let the files stand, or leave nothing of them."""
        files, fs = [*self.files], self.fs
        if commit:
            created = [file for file in files if file.exclusive]
            for file in created:
                file.commit()
            entries = {file.path: file.entry for file in files if not file.exclusive}
            if entries:
                fs.files.put(entries)
            self.files.clear()
        super().complete(commit)


class SafekeeperFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files in any backend.

        fs = fsspec.filesystem("safekeeper", store="log:///var/lib/files")
        with fs.open("safekeeper://main/models/1.pt", "wb") as file: ...

    *store* is a URL, or else what `$SAFEKEEPER_STORE` has. A file is there, whole, when it was closed; `xb` fails if
    there is one. Files of a `with fs.transaction` appear at its end, and share a write. Directories above a file are
    made with it. Listings are never cached.
    """

    protocol = "safekeeper"
    root_marker = ""
    transaction_type = SharedTransaction

    def __init__(self, store: str | None = None, *, part_bytes: int = PART_BYTES, **options: Any) -> None:
        super().__init__(store=store, part_bytes=part_bytes, **options)
        if hasattr(self, "files"):
            return  # fsspec gives out one instance for equal arguments, and calls this again
        url = store or os.environ.get(STORE)
        if not url:
            raise BadUrl(f"give the file system a store, as in store='log:///var/lib/files', or set {STORE}")
        self.store: Backend = safekeeper.open(url)
        self.files = FileVolumes(self.store, part_bytes)

    @property
    def fsid(self) -> str:
        """What stands for this file system in caches of others."""
        return f"safekeeper_{self._fs_token}"

    def close(self) -> None:
        """Close the store. Whoever asks for the same file system later gets a new one."""
        type(self)._cache.pop(self._fs_token, None)
        self.store.close()

    # Looking

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What is in a directory; of a file, itself."""
        path = self._strip_protocol(path)
        if not path:
            found = [
                _info(VolumePath(volume, ()), FileEntry(True, 0)) for volume in layout.volumes_in(self.store.groups())
            ]
        else:
            at = VolumePath.parse(path)
            entry = self.files.get(at)
            found = [_info(at, entry)] if not entry.is_directory else [_info(*one) for one in self.files.entries_in(at)]
        found.sort(key=lambda info: info["name"])
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size, type and time of one file or directory."""
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        at = VolumePath.parse(path)
        return _info(at, self.files.get(at))

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is something. That the store cannot be reached is an error, not an absence."""
        path = self._strip_protocol(path)
        return not path or self.files.find(VolumePath.parse(path)) is not None

    def isdir(self, path: str) -> bool:
        """Whether it is a directory."""
        path = self._strip_protocol(path)
        return not path or ((found := self.files.find(VolumePath.parse(path))) is not None and found.is_directory)

    def isfile(self, path: str) -> bool:
        """Whether it is a file."""
        path = self._strip_protocol(path)
        return bool(path) and (found := self.files.find(VolumePath.parse(path))) is not None and not found.is_directory

    def modified(self, path: str) -> datetime:
        """When it was written."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def created(self, path: str) -> datetime:
        """The same: a file is written once."""
        return self.modified(path)

    # Changing

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Make a directory."""
        at = self._path(path)
        if not create_parents:
            for above in at.above:
                self.files.get(above)
        self.files.make_directory(at, exist_ok=False)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        self.files.make_directory(self._path(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Delete an empty directory."""
        self.files.remove_directory(self._path(path))

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        self.files.delete_file(self._path(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, and directories if it is *recursive*."""
        if recursive and maxdepth is None:
            for one in self.expand_path(path):
                self.files.delete_tree(self._path(one))
            return
        for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
            if recursive and self.isdir(one):
                self.rmdir(one)
            else:
                self.rm_file(one)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file, or make a directory where one was."""
        source, target = self._path(path1), self._path(path2)
        if self.files.get(source).is_directory:
            self.files.make_directory(target, exist_ok=True)
        else:
            self.files.copy_file(source, target)

    def mv_file(self, path1: str, path2: str, **_: Any) -> None:
        """Move a file: the new one is there before the old one is gone."""
        self.files.rename_file(self._path(path1), self._path(path2))

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Move a file, or a directory if it is *recursive*."""
        one = isinstance(path1, str) and isinstance(path2, str) and not path2.endswith("/")
        if one and self.isfile(path1) and not self.isdir(path2) and self._path(path1) != self._path(path2):
            self.mv_file(path1, path2)
            return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a whole file."""
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def pipe(self, path: Any, value: bytes | None = None, **options: Any) -> None:
        """Write whole files; several small ones share a write."""
        if isinstance(path, dict) and not self._intrans and options.get("mode") != "create":
            with self.transaction:
                super().pipe(path, value, **options)
        else:
            super().pipe(path, value, **options)

    def sweep(self, volume: str, age: float = 24 * 3600.0) -> int:
        """Delete what dead writers have left in *volume*, more than *age* seconds ago; how many files it was for."""
        return self.files.sweep(volume, age)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> Any:
        at = self._path(path)
        if mode == "rb":
            entry = self.files.get(at)
            if entry.is_directory:
                raise IsADirectoryError(f"{path} is a directory")
            return io.BufferedReader(VolumeReader(self.files, at, entry), buffer_size=1 << 20)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"a file is opened to read (rb), write (wb, xb) or append (ab), not with {mode!r}")
        if mode == "xb" and self.files.find(at) is not None:
            raise FileExistsError(f"{path} exists already")
        if self.isdir(path):
            raise IsADirectoryError(f"{path} is a directory")
        writer = DeferredWriter(self.files, at, exclusive=mode == "xb", autocommit=autocommit)
        if mode == "ab" and (entry_now := self.files.find(at)) is not None:
            copy_into(writer, VolumeReader(self.files, at, entry_now))
        return writer

    def _path(self, path: str) -> VolumePath:
        return VolumePath.parse(self._strip_protocol(path))


class DeferredWriter(VolumeWriter):
    """A file that fsspec writes: in a transaction it waits for `commit`."""

    def __init__(self, files: FileVolumes, path: VolumePath, *, exclusive: bool, autocommit: bool) -> None:
        self.exclusive, self._autocommit = exclusive, autocommit
        super().__init__(files, path)

    def finish(self) -> None:
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        """Let the file stand."""
        if self.exclusive:
            self.files.create(self.path, self.entry)
        else:
            self.files.put({self.path: self.entry})


def _info(path: VolumePath, entry: FileEntry) -> dict[str, Any]:
    kind = "directory" if entry.is_directory else "file"
    return {"name": str(path), "size": entry.size, "type": kind, "mtime": entry.modified / 1000}
