"""What backends are compared with, behind the same driver: a raw file, RocksDB and SQLite, each synced on every write.

    raw:///path            one file, appended to and synced with `fdatasync`; where things are is known in memory only
    rocksdict:///path      RocksDB through rocksdict, every write batch synced
    sqlite:///path         one table in WAL mode with synchronous=FULL

They are written as somebody would who needs nothing more, so they are no backends: they hide no limits, do not check
what they read, and know nothing of forks. `open_store` opens them and everything that `safekeeper.open` opens.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Self

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope
from safekeeper.backends.local import make_folder, survives_on, write_all
from safekeeper.errors import BadUrl
from safekeeper.registry import Url


class _Baseline(Backend):
    scope = Scope.HOST

    def __init__(self, path: Path) -> None:
        super().__init__()
        make_folder(path)
        self.survives = survives_on(path)

    @classmethod
    def from_url(cls, url: Url) -> Self:
        return cls(Path(url.local_path()))


class RawFile(_Baseline):
    """Values one behind the other in a file that only this handle can read."""

    scope = Scope.PROCESS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._fd = os.open(path / "data", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._places: dict[CheckpointId, tuple[int, int]] = {}
        self._end = 0
        self._lock = Lock()

    def write(self, batch: Batch) -> Receipt:
        with self._lock:
            values = []
            for id, value in batch.items():
                if value is None:
                    self._places.pop(id, None)
                    continue
                self._places[id] = self._end, len(value)
                self._end += len(value)
                values.append(value)
            write_all(self._fd, values)
            os.fdatasync(self._fd)
        return Receipt(self.survives)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        places = (self._places.get(id) for id in ids)
        return [None if place is None else os.pread(self._fd, place[1], place[0]) for place in places]

    def keys(self, group: str) -> Iterator[bytes]:
        return iter([id.key for id in list(self._places) if id.group == group])

    def groups(self) -> Iterator[str]:
        return iter({id.group for id in list(self._places)})

    def close(self) -> None:
        if self._open:
            os.close(self._fd)
        super().close()


class RocksDict(_Baseline):
    """RocksDB, raw bytes, one key `group 0 key` for each id."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        from rocksdict import Options, Rdict, WriteBatch, WriteOptions

        self._new_batch = WriteBatch
        self._db: Any = Rdict(str(path), Options(raw_mode=True))
        self._synced = WriteOptions()
        self._synced.sync = True

    def write(self, batch: Batch) -> Receipt:
        writes = self._new_batch(raw_mode=True)
        for id, value in batch.items():
            if value is None:
                writes.delete(_flat(id))
            else:
                writes.put(_flat(id), value)
        self._db.write(writes, self._synced)
        return Receipt(self.survives)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        found: list[bytes | None] = self._db.get([_flat(id) for id in ids])
        return found

    def keys(self, group: str) -> Iterator[bytes]:
        prefix = group.encode() + b"\0"
        for key in self._db.keys(from_key=prefix):
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :]

    def groups(self) -> Iterator[str]:
        return iter({key.partition(b"\0")[0].decode() for key in self._db.keys()})  # noqa: SIM118 - no dict

    def close(self) -> None:
        if self._open:
            self._db.close()
        super().close()


def _flat(id: CheckpointId) -> bytes:
    return id.group.encode() + b"\0" + id.key


class Sqlite(_Baseline):
    """One table. One connection, which the threads take turns with."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = Lock()
        self._db = sqlite3.connect(path / "data.sqlite", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL").fetchall()
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE IF NOT EXISTS t (g TEXT, k BLOB, v BLOB, PRIMARY KEY (g, k)) WITHOUT ROWID")

    def write(self, batch: Batch) -> Receipt:
        with self._lock:
            self._db.execute("BEGIN")
            for id, value in batch.items():
                if value is None:
                    self._db.execute("DELETE FROM t WHERE g = ? AND k = ?", (id.group, id.key))
                else:
                    self._db.execute("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", (id.group, id.key, value))
            self._db.execute("COMMIT")
        return Receipt(self.survives)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        query = "SELECT v FROM t WHERE g = ? AND k = ?"
        with self._lock:
            rows = [self._db.execute(query, (id.group, id.key)).fetchone() for id in ids]
        return [None if row is None else row[0] for row in rows]

    def keys(self, group: str) -> Iterator[bytes]:
        with self._lock:
            return iter([row[0] for row in self._db.execute("SELECT k FROM t WHERE g = ?", (group,))])

    def groups(self) -> Iterator[str]:
        with self._lock:
            return iter([row[0] for row in self._db.execute("SELECT DISTINCT g FROM t")])

    def close(self) -> None:
        if self._open:
            self._db.close()
        super().close()


BASELINES: dict[str, type[_Baseline]] = {"raw": RawFile, "rocksdict": RocksDict, "sqlite": Sqlite}
"""By scheme."""


def open_store(url: str) -> Backend:
    """Open a baseline, or what `safekeeper.open` opens."""
    parsed = Url.parse(url)
    baseline = BASELINES.get(parsed.scheme)
    if baseline is None:
        return safekeeper.open(url)
    try:
        return baseline.from_url(parsed)
    except ModuleNotFoundError as error:
        raise BadUrl(f"{parsed.scheme}: needs the module {error.name}: pip install 'safekeeper[bench]'") from error
