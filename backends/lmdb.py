"""`lmdb:` keeps checkpoints in LMDB, a memory-mapped B+ tree: one environment, one database, one transaction per batch.

    ROOT/data.mdb       the tree
    ROOT/lock.mdb       LMDB's own lock and table of readers

    GROUP 00 KEY                  an id. A group has no control characters, so nothing else starts like this
    GROUP 01 sha256(KEY)          an id whose name would be longer than LMDB allows; its value starts with the key
    00 "safekeeper"               the mark: version of this layout and the setting `sync`, written by the first write

A batch is a transaction: whole or absent, after a crash and to every reader. Any number of processes may write; LMDB's
lock makes them take turns, and it is freed when its holder dies (but not while its holder is stopped: then writers
wait). The processes must see each other's ids, that is, live in one PID namespace.

`sync` belongs to the store, not to a handle, since LMDB without sync may damage everything in a power cut, not only the
last writes. With `always`, data and then the root are synced before a write returns. With `none` (MDB_NOSYNC,
no MDB_WRITEMAP) both are handed to the kernel in this order: a killed process loses nothing, a crashed kernel anything.

LMDB has no checksums. Values carry one here, so a damaged value is found out; a damaged page of the tree may look like
missing ids or end the process. What the disk does is not LMDB's concern; where it matters, take `log:` or `file:`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Literal, Self

import lmdb
import xxhash

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Stats, Survives
from safekeeper.backends.lmdb_environment import MAX_READERS, Environment, Sync, Transaction, has_data
from safekeeper.backends.local import file_system_type, make_folder, survives_on, sync_folder, unavailable
from safekeeper.columns import Columns
from safekeeper.errors import BadUrl, Corruption, Unavailable
from safekeeper.url import Size, Url

# record:       xxh3 u64 | value                            under GROUP 00 KEY
#               xxh3 u64 | key_len u16 | key | value        under GROUP 01 sha256(KEY)
#               big endian; the checksum covers the rest of the record, seeded with that of its name; frozen
_PLAIN, _HASHED, _BEHIND = b"\0", b"\1", b"\2"
_LONGEST_NAME = 511
_FIRST_GROUP = b" "  # what comes before is no group, since a group has no control characters
_CHECKSUM = 8
_digest, _seed = xxhash.xxh3_64_digest, xxhash.xxh3_64_intdigest
_PAGE = 1000

_MAP_SIZE = Size(1 << 30)
_REMOTE = re.compile(
    "(9p|afs|beegfs|ceph|cifs|coda|fuse|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|pvfs2|smb3|smbfs|vboxsf|virtiofs)([.].*)?"
)
"""File systems that do not give LMDB the coherent mapped memory it needs; `fuse.` anything is one of them."""

_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)


@dataclass(frozen=True, slots=True)
class LmdbOptions:
    """The options of `lmdb:`."""

    sync: Sync | None = None
    """`always` or `none`, for a new store; `always` if not given. Another store keeps what it was made with."""
    map_size: Size = _MAP_SIZE
    """How much address space to begin with. It doubles when it is full; only what is written takes up disk."""


class LmdbBackend(Backend):
    """One LMDB environment. Any number of processes on this host may read and write it; batches are atomic."""

    scope = Scope.HOST
    atomic_batch: Literal[True] = True

    def __init__(self, root: str | os.PathLike[str], sync: Sync | None = None, map_size: int = _MAP_SIZE) -> None:
        super().__init__()
        self._root = Path(root)
        self._sync = sync
        self._map_size = map_size
        self._lock = Lock()
        self._environment: Environment | None = None
        self._durable = False
        self._receipt = Receipt(Survives.NOTHING)
        self._errors = _ErrorsAsOurs(self._root)
        with self._errors:
            kind = file_system_type(self._root)
            if _REMOTE.fullmatch(kind):
                raise BadUrl(f"{self._root} is on {kind}: LMDB needs a local file system, choose another folder")
            self._declare(sync or "always")
            self._existing()

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `lmdb:///absolute/path` or `lmdb:relative/path`."""
        options = url.options(LmdbOptions)
        return cls(url.local_path(), options.sync, options.map_size)

    def _declare(self, sync: Sync) -> None:
        self.survives = self.asserted | (survives_on(self._root) if sync == "always" else Survives.PROCESS)

    def _existing(self) -> Environment | None:
        """The environment; None if there is no store yet."""
        if self._environment is None and not has_data(self._root):
            return None
        return self._attach()

    def _attach(self) -> Environment:
        """The environment, made if there is none in the folder."""
        if environment := self._environment:
            return environment
        with self._lock:
            self.check_open()
            if self._environment is None:
                self._environment = Environment.of(self._root, self._sync, self._map_size)
                self._declare(self._environment.sync)
            return self._environment

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        with self._errors:
            if not self._durable:
                make_folder(self._root)
            self._attach().write(lambda transaction: _apply(transaction, batch))
            if not self._durable:
                sync_folder(self._root)
                self._durable = True
        if self._receipt.survives is not self.survives:  # one for all writes: making it takes its time, too
            self._receipt = Receipt(self.survives)
        return self._receipt

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        with self._errors:
            environment = self._existing()
            if environment is None or not ids:
                return [None] * len(ids)
            return environment.read(lambda transaction: [_get(transaction, id) for id in ids])

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        after, end = group.encode(), group.encode() + _BEHIND
        while page := self._page(after, end):
            for name, key in page:
                self.check_open()
                yield key
                after = name

    def _page(self, after: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        with self._errors:
            environment = self._existing()
            return environment.read(lambda transaction: _list(transaction, after, end)) if environment else []

    def groups(self) -> Iterator[str]:
        self.check_open()
        start = _FIRST_GROUP
        while name := self._first_name(start):
            group = name.partition(_PLAIN)[0].partition(_HASHED)[0]
            yield group.decode()
            start = group + _BEHIND

    def _first_name(self, start: bytes) -> bytes | None:
        with self._errors:
            environment = self._existing()
            return environment.read(lambda transaction: _first(transaction, start)) if environment else None

    def stats(self) -> Stats:
        """The numbers that LMDB keeps."""
        self.check_open()
        with self._errors:
            environment = self._existing()
            if environment is None:
                return Stats(0, 0)
            return environment.stats()

    def close(self) -> None:
        if self._owner != os.getpid():
            self._open = False
            return
        with self._lock:
            self._open = False
            environment, self._environment = self._environment, None
        if environment is not None:
            environment.release()


class _ErrorsAsOurs:
    """Turns what LMDB and the operating system raise inside a `with` block into errors of the contract.

    Not a generator: this stands around every write, and a generator would take a good part of its time.
    """

    __slots__ = ("_root",)

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        if isinstance(error, OSError):
            raise unavailable(self._root, error) from error
        if isinstance(error, _DAMAGED):
            place = self._root / "data.mdb"
            raise Corruption(f"{place}: {error}: it is no LMDB file, or it was damaged") from error
        if isinstance(error, lmdb.Error):
            raise self._explained(error) from error

    def _explained(self, error: lmdb.Error) -> Unavailable:
        if isinstance(error, lmdb.ReadersFullError):
            return Unavailable(f"{self._root}: {MAX_READERS} reads are going on in all processes: try again")
        number = errno.EROFS if isinstance(error, lmdb.ReadonlyError) else getattr(error, "code", 0)
        if number == errno.EIO and os.statvfs(self._root).f_bavail == 0:
            number = errno.ENOSPC  # LMDB calls a write that was cut short EIO
        if number > 0:  # of the operating system; LMDB's own are negative
            return unavailable(self._root, OSError(number, os.strerror(number)))
        return Unavailable(f"{self._root}: {error}")


def _name(group: str, key: bytes) -> tuple[bytes, bytes]:
    """The name of an id in the tree, and what its record holds before the value."""
    name = group.encode() + _PLAIN + key
    if len(name) <= _LONGEST_NAME:
        return name, b""
    return group.encode() + _HASHED + hashlib.sha256(key).digest(), len(key).to_bytes(2, "big") + key


def _checksum(name: bytes, rest: bytes | memoryview) -> bytes:
    return _digest(rest, _seed(name))


def _apply(transaction: Transaction, batch: Batch) -> None:
    if batch.columns is not None:
        puts = [_record(batch.columns.group, key, value) for key, value in _pairs(batch.columns)]
    else:
        puts = _puts(transaction, batch.items())
    transaction.cursor().putmulti(puts)


def _puts(
    transaction: Transaction, operations: Iterable[tuple[CheckpointId, bytes | None]]
) -> list[tuple[bytes, bytes]]:
    """Carry out the deletes among *operations*; the puts, as names and records."""
    puts = []
    group, start = "", b""
    for id, value in operations:
        if id.group != group:
            group, start = id.group, id.group.encode() + _PLAIN
        name = start + id.key
        if value is None:
            transaction.delete(name if len(name) <= _LONGEST_NAME else _name(group, id.key)[0])
        elif len(name) <= _LONGEST_NAME:  # no call: it would take as long as what LMDB does for a small value
            puts.append((name, _digest(value, _seed(name)) + value))
        else:
            puts.append(_record(group, id.key, value))
    return puts


def _record(group: str, key: bytes, value: bytes | memoryview) -> tuple[bytes, bytes]:
    name, head = _name(group, key)
    rest = head + value if head else value
    return name, _checksum(name, rest) + rest


def _pairs(columns: Columns) -> Iterator[tuple[bytes, memoryview]]:
    """What *columns* put, in order. A key may come twice, the last one counts."""
    keys, values = columns.keys, columns.values
    for (key, key_end), (value, value_end) in zip(
        pairwise(keys.offsets.tolist()), pairwise(values.offsets.tolist()), strict=True
    ):
        yield bytes(keys.data[key:key_end]), values.data[value:value_end]


def _get(transaction: Transaction, id: CheckpointId) -> bytes | None:
    name, head = _name(id.group, id.key)
    record = transaction.get(name)
    if record is None:
        return None
    rest = record[_CHECKSUM:]
    if record[:_CHECKSUM] != _checksum(name, rest):
        raise Corruption(f"the checksum of {id} does not match: it was damaged after it was written")
    if rest[: len(head)] != head:
        raise Corruption(f"another key is stored in the place of {id}")
    return bytes(rest[len(head) :])


def _list(transaction: Transaction, after: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    """The next names after *after* and before *end*, at most a page of them, each with its key."""
    cursor = transaction.cursor()
    page: list[tuple[bytes, bytes]] = []
    there = cursor.set_range(after)
    while there and len(page) < _PAGE and (name := bytes(cursor.key())) < end:
        if name != after:
            page.append((name, _key(name, cursor)))
        there = cursor.next()
    return page


def _key(name: bytes, cursor: lmdb.Cursor[memoryview]) -> bytes:
    group, _, key = name.partition(_PLAIN)
    if _HASHED not in group:
        return key
    record = cursor.value()
    start = _CHECKSUM + 2
    key = bytes(record[start : start + int.from_bytes(record[_CHECKSUM:start], "big")])
    if name != group.partition(_HASHED)[0] + _HASHED + hashlib.sha256(key).digest():
        raise Corruption(f"the key of {name!r} does not match its hash: it was damaged after it was written")
    return key


def _first(transaction: Transaction, start: bytes) -> bytes | None:
    cursor = transaction.cursor()
    return bytes(cursor.key()) if cursor.set_range(start) else None
