"""The part of `lmdb:` that is about LMDB and not about checkpoints: an environment that handles share.

LMDB must not be opened twice in a process (closing one would drop the locks of the other) and must not cross a fork. So
all handles of a process on one store share an `Environment`, which is closed with the last of them. Before a fork every
environment is closed, as soon as its transactions have ended; the parent opens it again when it needs it, and the child
starts with none.

The map can be enlarged only while the process has no transaction. So transactions count themselves in and out, and
whoever must be alone closes the door and waits until the others have left. While the door is open nobody takes a lock.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock
from typing import Literal, TypeAlias, TypeVar

import lmdb

from safekeeper.backend import Stats
from safekeeper.errors import BadUrl, Closed, Conflict

Sync: TypeAlias = Literal["always", "none"]
Transaction: TypeAlias = "lmdb.Transaction[memoryview]"
BytesTransaction: TypeAlias = "lmdb.Transaction[bytes]"
T = TypeVar("T")
B = TypeVar("B", bytes, memoryview)

_MARK = b"\0safekeeper"
_MARKS: dict[Sync, bytes] = {"always": b"1 always", "none": b"1 none"}
_REMOVED = "the files of this store were removed or replaced while it was in use: close it and open it again"
MAX_READERS = 1024
"""Read transactions at the same time, of all processes together."""


def has_data(root: Path) -> bool:
    """Whether there is an environment in *root*. An empty file was left by a process that died making one."""
    try:
        return os.stat(root / "data.mdb").st_size > 0
    except FileNotFoundError:
        return False


def _identities(root: Path) -> list[tuple[int, int]]:
    """What tells the files of an environment from others of the same names; nothing if one of them is missing."""
    try:
        found = [os.stat(f"{root}/{name}") for name in ("data.mdb", "lock.mdb")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(file.st_dev, file.st_ino) for file in found]


class Environment:
    """An LMDB environment that all handles of this process on one store share, with a map that grows as needed."""

    sync: Sync
    """What the store was made with."""

    def __init__(self, root: Path, sync: Sync, map_size: int) -> None:
        self.sync = sync
        self._root = root
        self._map_size = map_size
        self._marked = False
        self._failed = False  # whether a commit failed and nothing was synced since
        self._users = 1
        self._inside: list[None] = []  # as many as there are transactions; its methods are atomic, += is not
        self._door_closed = False
        self._door = Lock()  # held by whoever is alone or waits to be
        self._left = Condition()
        self._lmdb: lmdb.Environment | None = self._open()
        # Kept open so that no other folder gets this inode while the environment is known by it.
        self._folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @classmethod
    def of(cls, root: Path, sync: Sync | None, map_size: int) -> Environment:
        """The environment in the folder *root*, made if there is none; `release` it in the end.

        Raise `BadUrl` if the store was made with another setting than *sync*.
        """
        with _opening:
            folder = os.stat(root)
            environment = _environments.get((folder.st_dev, folder.st_ino))
            if environment is None:
                environment = cls(root, sync or "always", map_size)
                _environments[folder.st_dev, folder.st_ino] = environment
            else:
                environment._users += 1
        try:
            if sync not in (None, environment.sync):
                raise BadUrl(f"{root} was made with sync={environment.sync}: open it so, or copy it to a new store")
            environment._settle()
        except BaseException:
            environment.release()
            raise
        return environment

    def release(self) -> None:
        """Do without the environment from now on. The last user closes it, when the transactions have ended."""
        with _opening:
            self._users -= 1
            if self._users:
                return
            with self._alone():
                self._close()
            for place in [place for place, environment in _environments.items() if environment is self]:
                del _environments[place]
            os.close(self._folder)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """What *work* makes of the store, in one read transaction. It must not keep views of what it was given."""
        return self._run(_begin_read, work)

    def read_bytes(self, work: Callable[[BytesTransaction], T]) -> T:
        """The same for *work* on many small values, for which views take longer than copies."""
        return self._run(_begin_read_bytes, work)

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Let *work* change the store in one transaction; it is begun anew as often as the map has to grow."""

        def work_and_check(transaction: Transaction) -> T:
            if not self._marked:
                self._mark(transaction)
            made = work(transaction)
            self._check_files()
            return made

        made = self._run(_begin_write, work_and_check)
        self._marked = True
        return made

    def stats(self, beside: int) -> Stats:
        """What LMDB knows of itself; *beside* the ids there are so many entries, without the mark."""
        with self._inside_it() as environment:
            tree, info = environment.stat(), environment.info()
        ids, occupied = max(tree["entries"] - beside - 1, 0), (info["last_pgno"] + 1) * tree["psize"]
        return Stats(ids, occupied, {"sync": self.sync, "depth": tree["depth"], "map_size": info["map_size"]})

    def _settle(self) -> None:
        """Make visible what a killed writer had committed but not yet announced, lest the next writer do so later."""
        announced = self.read(lambda transaction: transaction.id())
        with self._inside_it() as environment:
            committed = environment.info()["last_txnid"]
        if committed > announced:
            with suppress(lmdb.ReadonlyError):
                self._run(_begin_write, lambda transaction: None)  # LMDB does it when it finds the lock's owner dead

    def _run(
        self, begin: Callable[[lmdb.Environment], lmdb.Transaction[B]], work: Callable[[lmdb.Transaction[B]], T]
    ) -> T:
        while True:
            environment = self._enter()
            try:
                with begin(environment) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                seen = environment.info()["map_size"]
                # What readers that were killed still held can be used now, perhaps it is enough.
                size = seen if environment.reader_check() else 2 * seen
            except lmdb.MapResizedError:
                seen, size = environment.info()["map_size"], 0
            except lmdb.ReadersFullError:
                if not environment.reader_check():
                    raise
                continue  # readers that were killed had the places
            except lmdb.PanicError:
                seen, size = -1, 0
            finally:
                self._leave()
            if seen < 0:
                self._reopen(environment)
            else:
                self._resize(seen, size)

    def _reopen(self, failed: lmdb.Environment) -> None:
        """Begin anew after the root of a commit could not be written: LMDB refuses everything from then on, though the
        disk may be well again, or was all the time: a file descriptor may report what went wrong with another one."""
        with self._alone():
            if self._lmdb is failed:
                self._failed = True
                self._close()
                self._lmdb = self._open()

    def _resize(self, seen: int, size: int) -> None:
        """Set the size of the map, unless somebody did since it was *seen*; 0 is what other processes made it."""
        with self._alone():
            if self._lmdb is not None and self._lmdb.info()["map_size"] == seen:
                self._lmdb.set_mapsize(size)
                self._map_size = self._lmdb.info()["map_size"]

    def _check_files(self) -> None:
        """Raise if the files have lost their names, or others have them: nobody would find what is written to them. And
        a process with another `lock.mdb` would write at the same time."""
        if not self._files or self._files != _identities(self._root):
            raise FileNotFoundError(errno.ENOENT, _REMOVED, str(self._root))

    def _mark(self, transaction: Transaction) -> None:
        """Write down what the store is made with, or find that another process was quicker and chose otherwise."""
        found = transaction.get(_MARK)
        if found is None:
            transaction.put(_MARK, _MARKS[self.sync])
        elif found != _MARKS[self.sync]:
            raise Conflict(f"{self._root} was made by another process with another sync: open it again")

    def _open(self) -> lmdb.Environment:
        self._marked = False  # it may be another store by now
        environment = self._open_with(self.sync)
        try:
            made_with = _made_with(environment, self._root)
            if self._failed and not environment.flags()["readonly"]:
                # LMDB has put the old root back, but only in memory. It must be on the disk before the pages of the
                # failed commit are used again, for the disk may have the root that names them.
                environment.sync(True)
                self._failed = False
        except BaseException:
            environment.close()
            raise
        if made_with in (None, self.sync):
            return environment
        environment.close()
        self.sync = made_with
        return self._open_with(made_with)

    def _open_with(self, sync: Sync) -> lmdb.Environment:
        def attempt(readonly: bool) -> lmdb.Environment:
            return lmdb.open(
                os.fspath(self._root),
                map_size=self._map_size,
                sync=sync == "always",
                readonly=readonly,
                mode=0o600,
                create=False,
                max_readers=MAX_READERS,
                max_spare_txns=0,
            )

        try:
            opened = attempt(readonly=False)
        except lmdb.Error as error:
            if getattr(error, "code", 0) != errno.EROFS:
                raise
            opened = attempt(readonly=True)
        self._files = _identities(self._root)
        return opened

    def _close(self) -> None:
        if self._lmdb is not None:
            self._lmdb.close()
            self._lmdb = None

    @contextmanager
    def _inside_it(self) -> Iterator[lmdb.Environment]:
        environment = self._enter()
        try:
            yield environment
        finally:
            self._leave()

    def _enter(self) -> lmdb.Environment:
        while True:
            self._inside.append(None)
            # In this order: whoever closes the door looks at who is inside after that.
            if not self._door_closed and (environment := self._lmdb) is not None:
                return environment
            self._leave()
            with self._door:
                if not self._users:
                    raise Closed("this LMDB environment was closed: open a new one")
                if self._lmdb is None:
                    self._lmdb = self._open()

    def _leave(self) -> None:
        self._inside.pop()
        if self._door_closed:
            with self._left:
                self._left.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No transaction of this process runs inside the block."""
        with self._door:
            self._door_closed = True
            try:
                with self._left:
                    self._left.wait_for(lambda: not self._inside)
                yield
            finally:
                self._door_closed = False


def _begin_read(environment: lmdb.Environment) -> Transaction:
    return environment.begin(buffers=True)


def _begin_read_bytes(environment: lmdb.Environment) -> BytesTransaction:
    return environment.begin(buffers=False)


def _begin_write(environment: lmdb.Environment) -> Transaction:
    return environment.begin(write=True, buffers=True)


def _made_with(environment: lmdb.Environment, root: Path) -> Sync | None:
    """The setting that the mark tells; None if nothing was written yet."""
    environment.reader_check()
    with environment.begin() as transaction:  # one for both: another process may make the store meanwhile
        found, empty = transaction.get(_MARK), not transaction.cursor().first()
    for sync, mark in _MARKS.items():
        if found == mark:
            return sync
    if found is not None:
        raise BadUrl(f"{root} is of another version of safekeeper, its mark is {found!r}: open it with that version")
    if not empty:
        raise BadUrl(f"{root} holds an LMDB that is not safekeeper's: choose another folder")
    return None


_environments: dict[tuple[int, int], Environment] = {}
"""The open ones of this process, by device and inode of their folder."""
_opening = Lock()
"""Held while the above changes, and during a fork."""
_during_fork = ExitStack()
"""What was taken before a fork and is given back after it."""


def _before_fork() -> None:
    _during_fork.enter_context(_opening)
    for environment in _environments.values():
        _during_fork.enter_context(environment._alone())
        environment._close()


def _after_fork_in_parent() -> None:
    _during_fork.close()


def _after_fork_in_child() -> None:
    global _opening, _during_fork
    _environments.clear()
    _opening, _during_fork = Lock(), ExitStack()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
