"""`LmdbBackend`: the contract on top of an environment, which all handles of a process share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Literal, Self, TypeVar

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Stats, Survives, check_creation
from safekeeper.backends.lmdb.environment import Environment, Sync, Transaction, has_data
from safekeeper.backends.lmdb.errors import ErrorsAsOurs
from safekeeper.backends.lmdb.layout import (
    BEHIND,
    FIRST_GROUP,
    HASHED,
    PLAIN,
    apply,
    count_tokens,
    create,
    first_name,
    get,
    list_keys,
    scan_page,
)
from safekeeper.backends.lmdb.options import DEFAULT_MAP_SIZE, LmdbOptions
from safekeeper.backends.shared.local_files import check_folder, check_local, make_folder, survives_on, sync_folder
from safekeeper.url import Size, Url

T = TypeVar("T")


class LmdbBackend(Backend):
    """One LMDB environment. Any number of processes on this host may read and write it; batches are atomic."""

    scope = Scope.HOST
    atomic_batch: Literal[True] = True
    url_options = (LmdbOptions,)

    def __init__(
        self, root: str | os.PathLike[str], sync: Sync | None = None, map_size: int = DEFAULT_MAP_SIZE
    ) -> None:
        super().__init__()
        options = LmdbOptions(sync, Size(map_size))  # which checks them
        self._root = Path(root)
        self._sync = options.sync
        self._map_size = options.map_size
        self._lock = Lock()
        self._environment: Environment | None = None
        self._durable = False
        self._receipt = Receipt(Survives.NOTHING)
        self._errors = ErrorsAsOurs(self._root)
        check_folder(self._root)
        with self._errors:
            check_local(self._root)
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
        self._change(lambda transaction: apply(transaction, batch))
        if self._receipt.survives is not self.survives:  # one for all writes: making it takes its time, too
            self._receipt = Receipt(self.survives)
        return self._receipt

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Looked up and put in one transaction, of which LMDB lets one run at a time."""
        self.check_open()
        check_creation(id, value, token)
        return self._change(lambda transaction: create(transaction, id, value, token))

    def _change(self, work: Callable[[Transaction], T]) -> T:
        self.check_open()
        with self._errors if self._durable else ErrorsAsOurs(self._root, first=True):
            if not self._durable:
                make_folder(self._root)
            made = self._attach().write(work)
            if not self._durable:
                sync_folder(self._root)
                self._durable = True
        return made

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        with self._errors:
            environment = self._existing()
            if environment is None or not ids:
                return [None] * len(ids)
            return environment.read(lambda transaction: [get(transaction, id) for id in ids])

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        after, end = group.encode(), group.encode() + BEHIND
        while page := self._page(after, end):
            for name, key in page:
                self.check_open()
                yield key
                after = name

    def _page(self, after: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        with self._errors:
            environment = self._existing()
            return environment.read(lambda transaction: list_keys(transaction, after, end)) if environment else []

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """The entries of *group* in their order; each page is of one moment."""
        after = group.encode()
        while True:
            self.check_open()
            page, after = self._scan_page(group, after)
            if not page:
                return
            yield page

    def _scan_page(self, group: str, after: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        with self._errors:
            environment = self._existing()
            if environment is None:
                return [], after
            return environment.read_bytes(lambda transaction: scan_page(transaction, group, after))

    def groups(self) -> Iterator[str]:
        self.check_open()
        start = FIRST_GROUP
        while name := self._first_name(start):
            group = name.partition(PLAIN)[0].partition(HASHED)[0]
            yield group.decode()
            start = group + BEHIND

    def _first_name(self, start: bytes) -> bytes | None:
        with self._errors:
            environment = self._existing()
            return environment.read(lambda transaction: first_name(transaction, start)) if environment else None

    def stats(self) -> Stats:
        """The numbers that LMDB keeps."""
        self.check_open()
        with self._errors:
            environment = self._existing()
            if environment is None:
                return Stats(0, 0)
            return environment.stats(beside=environment.read(count_tokens))

    def exists(self) -> bool:
        self.check_open()
        with self._errors:
            return has_data(self._root)

    def close(self) -> None:
        if self._owner != os.getpid():
            self._open = False
            return
        with self._lock:
            self._open = False
            environment, self._environment = self._environment, None
        if environment is not None:
            environment.release()
