"""The embedded stores that the log is measured against, each with a sync before `save` returns."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import safekeeper
from safekeeper import Batch, CheckpointId, Columns

Items = Sequence[tuple[bytes, bytes]]
T = TypeVar("T")


class EmbeddedStore(Protocol):
    """A store in its simplest form."""

    def save(self, key: bytes, value: bytes) -> None:
        """Keep one value, durable."""

    def save_all(self, items: Items) -> None:
        """Keep several values with one sync."""

    def fetch(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def close(self) -> None:
        """Give everything back."""


class BackendPeer:
    """A safekeeper backend, as a store in its simplest form."""

    def __init__(self, url: str) -> None:
        self._store = safekeeper.open(url)

    def save(self, key: bytes, value: bytes) -> None:
        self._store.write(Batch({CheckpointId("bench", key): value}))

    def save_all(self, items: Items) -> None:
        self._store.write(Batch({CheckpointId("bench", key): value for key, value in items}))

    def save_columns(self, columns: Columns) -> None:
        self._store.write(Batch.of_columns(columns))

    def fetch(self, key: bytes) -> bytes | None:
        return self._store.read([CheckpointId("bench", key)])[0]

    def close(self) -> None:
        self._store.close()


class RawFile:
    """Bytes at the end of a file and `fdatasync`, in a loop: the limit, with an index that is a dict."""

    def __init__(self, folder: Path, ahead: int = 0) -> None:
        folder.mkdir()
        self._fd = os.open(folder / "raw", os.O_RDWR | os.O_CREAT, 0o600)
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = 0
        self._ahead = ahead
        if ahead:
            os.pwrite(self._fd, bytes(ahead), 0)
            os.fsync(self._fd)

    def save(self, key: bytes, value: bytes) -> None:
        self.save_all([(key, value)])

    def save_all(self, items: Items) -> None:
        if self._ahead and self._end + sum(len(value) for _, value in items) > self._ahead:
            self._end = 0  # round and round over blocks that exist
        start = self._end
        for key, value in items:
            self._places[key] = (self._end, len(value))
            self._end += len(value)
        os.pwritev(self._fd, [value for _, value in items], start)
        os.fdatasync(self._fd)

    def fetch(self, key: bytes) -> bytes | None:
        if (place := self._places.get(key)) is None:
            return None
        return os.pread(self._fd, place[1], place[0])

    def close(self) -> None:
        os.close(self._fd)


class Lmdb:
    """LMDB with its default, a sync per transaction."""

    def __init__(self, folder: Path) -> None:
        import lmdb

        self._env: Any = lmdb.open(str(folder), map_size=4 << 30)

    def save(self, key: bytes, value: bytes) -> None:
        self.save_all([(key, value)])

    def save_all(self, items: Items) -> None:
        with self._env.begin(write=True) as transaction:
            for key, value in items:
                transaction.put(key, value)

    def fetch(self, key: bytes) -> bytes | None:
        with self._env.begin() as transaction:
            return transaction.get(key)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._env.close()


class Sqlite:
    """SQLite in WAL mode, synchronous=FULL, a connection per thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._path = folder / "store.sqlite"
        self._local = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._connection().execute("create table state (key blob primary key, value blob) without rowid")

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=full")
            self._local.connection = connection
            self._all.append(connection)
        return connection

    def save(self, key: bytes, value: bytes) -> None:
        self._connection().execute("insert or replace into state values (?, ?)", (key, value))

    def save_all(self, items: Items) -> None:
        connection = self._connection()
        connection.execute("begin immediate")
        connection.executemany("insert or replace into state values (?, ?)", items)
        connection.execute("commit")

    def fetch(self, key: bytes) -> bytes | None:
        row = self._connection().execute("select value from state where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        for connection in self._all:
            connection.close()


class LevelDb:
    """LevelDB through plyvel, sync writes."""

    def __init__(self, folder: Path) -> None:
        import plyvel

        self._db: Any = plyvel.DB(str(folder), create_if_missing=True)

    def save(self, key: bytes, value: bytes) -> None:
        self._db.put(key, value, sync=True)

    def save_all(self, items: Items) -> None:
        with self._db.write_batch(sync=True) as batch:
            for key, value in items:
                batch.put(key, value)

    def fetch(self, key: bytes) -> bytes | None:
        return self._db.get(key)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._db.close()


class RocksDb:
    """RocksDB through rocksdict, sync writes."""

    def __init__(self, folder: Path) -> None:
        import rocksdict

        self._module: Any = rocksdict
        self._db: Any = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True))
        self._sync: Any = rocksdict.WriteOptions()
        self._sync.sync = True
        self._db.set_write_options(self._sync)

    def save(self, key: bytes, value: bytes) -> None:
        self._db[key] = value

    def save_all(self, items: Items) -> None:
        batch = self._module.WriteBatch(raw_mode=True)
        for key, value in items:
            batch.put(key, value)
        self._db.write(batch, self._sync)

    def fetch(self, key: bytes) -> bytes | None:
        return self._db.get(key)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._db.close()


class SlateDb:
    """SlateDB in a local folder. A save is put, flushed, and waited for until SlateDB calls it durable.

    That means that the object store has it. SlateDB's store of local files does not sync, so such a save survives the
    process, not the power: the other peers promise more. Its Python API is asyncio's: it gets a loop in a thread.
    """

    def __init__(self, folder: Path) -> None:
        from slatedb import uniffi

        self._module: Any = uniffi
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        # The store begins at the root of all files: SlateDB takes the path where the database is named.
        builder = uniffi.DbBuilder(str(folder.absolute()).lstrip("/"), uniffi.ObjectStore.resolve("file:///"))
        self._db: Any = self._wait(builder.build())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _durable(self, writing: Coroutine[Any, Any, Any]) -> None:
        handle = await writing
        await self._db.flush()  # else it waits for the next flush by SlateDB's clock, every 100 ms
        await handle.await_durable()

    def save(self, key: bytes, value: bytes) -> None:
        self._wait(self._durable(self._db.put(key, value)))

    def save_all(self, items: Items) -> None:
        batch = self._module.WriteBatch()
        for key, value in items:
            batch.put(key, value)
        self._wait(self._durable(self._db.write(batch)))

    def fetch(self, key: bytes) -> bytes | None:
        return self._wait(self._db.get(key))  # type: ignore[no-any-return]

    def close(self) -> None:
        self._wait(self._db.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


PEERS: dict[str, Callable[[Path], EmbeddedStore]] = {
    "file": lambda folder: BackendPeer(f"file://{folder}"),
    "lmdb": Lmdb,
    "sqlite": Sqlite,
    "leveldb": LevelDb,
    "rocksdb": RocksDb,
}
"""The stores to compare with that sync every save, by name."""
