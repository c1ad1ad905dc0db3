"""`ObjectsBackend`: the contract on top of an object store. The package says how."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Self, TypeVar, cast

from safekeeper.backend import Backend, Batch, CheckpointId, Compaction, Receipt, check_creation
from safekeeper.backends.objects.errors import errors_as_unavailable
from safekeeper.backends.objects.options import NetworkOptions, ObjectsOptions, S3Options, open_store, place_of
from safekeeper.backends.objects.store import OBJECT, TEMPORARY, LocalStore, ObjectStore
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.backends.shared.named_values import (
    MAX_HEADER_BYTES,
    decode,
    decode_id,
    decode_value,
    encode,
    escape,
    token_of,
    unescape,
)
from safekeeper.backends.shared.pages import pages
from safekeeper.errors import Corruption, Unavailable
from safekeeper.url import Url

_GONE = ".gone"
_NEW = ".new"
_SUFFIX = ".ckpt"
_NAME = re.compile(f"{OBJECT}([0-9a-f]{{16}})-[0-9a-f]{{8}}({re.escape(_NEW)}|{re.escape(_GONE)})?")

_DOUBT = 600.0
"""Seconds after which a request that failed is not carried out any more."""
_LEFT_BEHIND = 24 * 3600 * 10**9
"""Nanoseconds after which nobody needs a tombstone any more, nor comes back for a file on its way."""
_TRIES = 100

Item = TypeVar("Item")
Result = TypeVar("Result")


class ObjectsBackend(Backend):
    """One immutable object per write of an id. Any number of processes and hosts may read and write it."""

    url_options = (ObjectsOptions, NetworkOptions, S3Options)

    def __init__(self, store: ObjectStore, place: str, parallel: int = 1) -> None:
        super().__init__()
        self.survives = store.survives
        self.scope = store.scope
        self._store = store
        self._place = place
        self._parallel = self.concurrent_writes = parallel
        self._pool = ThreadPoolExecutor(parallel, "safekeeper-objects") if parallel > 1 else None
        self._lock = Lock()
        self._last_version = 0
        self._doubt_until = 0.0
        self._small = SmallObjects()
        self._written = False
        self._got_on = 0.0

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `objects+file:///path`, `objects+memory://name`, `objects+s3://bucket/prefix` and so on."""
        store, options = open_store(url)
        kind = cast("type[Self]", CreatingObjectsBackend) if store.creates else cls
        return kind(store, place_of(url), 1 if store.failed_is_over else options.parallel)

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        with errors_as_unavailable(self._place, not self._written and isinstance(self._store, LocalStore)):
            self._each(lambda item: self._write(*item), batch.items())
        self._written = True
        return Receipt(self.survives)

    def _write(self, id: CheckpointId, value: bytes | None) -> None:
        folder = _folder(id)
        old = self._objects(folder)
        if value is not None:
            self._replace(folder, old, encode(id, value))
        elif time.monotonic() < self._doubt_until or (_is_there(old) and any(map(_is_mark, old))):
            self._replace(folder, old, [])
        else:
            for name in old:
                if not name.endswith(_GONE):
                    self._store.remove(f"{folder}/{name}")
            self._store.prune(folder)
        self._got_on = time.monotonic()

    def _replace(self, folder: str, old: list[str], pieces: list[bytes]) -> None:
        """Put an object that wins over all *old* ones, or without *pieces* a tombstone, and delete those."""
        with self._in_doubt_if_it_fails():
            self._store.put(f"{folder}/{self._new_name(old)}{'' if pieces else _GONE}", pieces)
        for name in old:
            if pieces and _is_mark(name):
                continue
            with suppress(Exception):  # it is written; what stays counts no more and goes with the next write
                self._store.remove(f"{folder}/{name}")

    @contextmanager
    def _in_doubt_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if not self._store.failed_is_over:
                self._doubt_until = time.monotonic() + _DOUBT
            raise

    def _new_name(self, old: list[str]) -> str:
        highest = _version(old[-1]) if old else 0
        with self._lock:
            # Two more: the one in between is for an object that is created over a tombstone, see `_name_to_create`.
            self._last_version = max(highest + 2, self._last_version + 1, time.time_ns())
            return f"{OBJECT}{self._last_version:016x}-{secrets.token_hex(4)}"

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        with errors_as_unavailable(self._place):
            return self._each(self._read, ids)

    def _read(self, id: CheckpointId) -> bytes | None:
        found = self._newest(_folder(id))
        if found is None:
            return None
        value = decode_value(*found, id)
        if not (self._store.failed_is_over or found[0].endswith(_NEW)):
            self._small.add(*found)  # now that it is known to be whole: the next read of a bad one may get it right
        return value

    def _newest(self, folder: str, size: int | None = None) -> tuple[str, bytes] | None:
        """Place and content of the object that counts, its first *size* bytes if that is given; None if absent."""
        for _ in range(_TRIES):
            names = self._objects(folder)
            if not _is_there(names):
                return None
            path = f"{folder}/{names[-1]}"
            place = f"{self._place}/{path}"
            if (known := self._small.get(place)) is not None:
                return place, known
            with suppress(FileNotFoundError):  # replaced since it was listed
                return place, self._store.get(path, size)
        raise Unavailable(f"{self._place}/{folder} is replaced faster than it can be read: read it again")

    def _objects(self, folder: str) -> list[str]:
        return _valid(self._store.objects(folder))

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        with errors_as_unavailable(self._place):
            folder = escape(group.encode())
            for name, objects in self._store.tree(folder):
                self.check_open()
                if _is_there(_valid(objects)):
                    key = unescape(name.removesuffix(_SUFFIX))
                    if key is not None:
                        yield key
                    elif id := self._id(f"{folder}/{name}"):
                        yield id.key

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """One listing of the group, then the objects that count, some at the same time."""
        self.check_open()
        with errors_as_unavailable(self._place):
            for page in pages(self._pairs(escape(group.encode()))):
                self.check_open()
                yield page

    def _pairs(self, group: str) -> Iterator[tuple[bytes, bytes]]:
        listed = ((f"{group}/{name}", _valid(objects)) for name, objects in self._store.tree(group))
        there = ((folder, names[-1]) for folder, names in listed if _is_there(names))
        for found in self._each_in_turn(lambda one: self._newest_of(*one), there):
            if found is not None:
                yield found

    def _newest_of(self, folder: str, name: str) -> tuple[bytes, bytes] | None:
        """The key and the value of the id whose objects are in *folder*; *name* is the one that was the newest."""
        path = f"{folder}/{name}"
        found: tuple[str, bytes] | None
        try:
            found = f"{self._place}/{path}", self._store.get(path)
        except FileNotFoundError:
            found = self._newest(folder)
        if found is None:
            return None
        id, value = decode(*found)
        if _folder(id) != folder:
            raise Corruption(f"{found[0]}: holds {id}, which belongs elsewhere: objects were renamed")
        return id.key, value

    def groups(self) -> Iterator[str]:
        self.check_open()
        with errors_as_unavailable(self._place):
            for folder in self._store.folders():
                self.check_open()
                there = (name for name, objects in self._store.tree(folder) if _is_there(_valid(objects)))
                group = unescape(folder)
                if group is not None:
                    if any(there):
                        yield group.decode()
                elif id := next(filter(None, (self._id(f"{folder}/{name}") for name in there)), None):
                    yield id.group

    def _id(self, folder: str) -> CheckpointId | None:
        """The id whose objects are in *folder*, without reading its value."""
        found = self._newest(folder, MAX_HEADER_BYTES)
        return decode_id(*found)[0] if found else None

    def compact(self) -> Compaction:
        """Delete what writers that died have left: objects that count no more, old tombstones and unfinished files."""
        self.check_open()
        with errors_as_unavailable(self._place):
            before = self._store.size()
            old = time.time_ns() - _LEFT_BEHIND
            for folder in self._store.folders():
                for name, objects in self._store.tree(folder):
                    names = _valid(objects)
                    young = bool(names) and _version(names[-1]) > old
                    if _is_there(names) or young:
                        names.pop()
                    for object in names:
                        if young and _is_mark(object):
                            continue
                        self._store.remove(f"{folder}/{name}/{object}")
            for name in self._objects(TEMPORARY):
                if _version(name) < old:
                    self._store.remove(f"{TEMPORARY}/{name}")
            return Compaction(before, self._store.size())

    def exists(self) -> bool:
        self.check_open()
        with errors_as_unavailable(self._place):
            return self._store.exists()

    @property
    def last_progress(self) -> float:
        """When the store last took or deleted an object."""
        return self._got_on

    def close(self) -> None:
        super().close()
        if self._pool is not None and self._owner == os.getpid():
            self._pool.shutdown()

    def _each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """What *work* makes of each item. When it fails for one, the others have still ended before this raises."""
        if self._pool is None:
            return [work(item) for item in items]
        running = [self._pool.submit(work, item) for item in items]
        wait(running)
        return [one.result() for one in running]

    def _each_in_turn(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """What *work* makes of each item, in their order; ahead of the caller are as many as the pool does at once."""
        if self._pool is None:
            yield from map(work, items)
            return
        running: deque[Future[Result]] = deque()
        try:
            for item in items:
                running.append(self._pool.submit(work, item))
                if len(running) >= self._parallel:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for one in running:
                one.cancel()


class SmallObjects:
    """Small objects that were read lately, of a store where that is a request: one that was written, not created, has a
    name of its own for ever, so what is listed under it is what was read."""

    def __init__(self, most: int = 4096, most_bytes: int = 256) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._contents: dict[str, bytes] = {}
        self._lock = Lock()

    def get(self, place: str) -> bytes | None:
        """The content of an object that is still there; None if it has to be read."""
        with self._lock:
            return self._contents.get(place)

    def add(self, place: str, content: bytes) -> None:
        """Remember what was read, if it is small, and forget the oldest."""
        if len(content) <= self._most_bytes:
            with self._lock:
                self._contents[place] = content
                while len(self._contents) > self._most:
                    del self._contents[next(iter(self._contents))]


class CreatingObjectsBackend(ObjectsBackend):
    """The same where the store can put an object only if there is none of its name: a local folder, memory and S3."""

    _checked = False

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """An object whose name follows from what is listed while the id is absent: who puts it first creates the id."""
        self.check_open()
        check_creation(id, value, token)
        folder = _folder(id)
        with errors_as_unavailable(self._place, not self._written and isinstance(self._store, LocalStore)):
            self._check_store(folder)
            for _ in range(_TRIES):
                names = self._objects(folder)
                if not _is_there(names):
                    with self._in_doubt_if_it_fails():
                        self._store.put_new(f"{folder}/{_name_to_create(names)}", encode(id, value, token))
                    self._written = True
                    self._got_on = time.monotonic()
                    continue  # what counts now shows who was first
                path = f"{folder}/{names[-1]}"
                with suppress(FileNotFoundError):  # replaced since it was listed
                    return names[-1].endswith(_NEW) and token == token_of(
                        f"{self._place}/{path}", self._store.get(path)
                    )
        raise Unavailable(f"{self._place}/{folder} is changed faster than it can be created: try again")

    def _check_store(self, folder: str) -> None:
        """Raise if the store only says that it has conditions: many servers speak some of the protocol of S3."""
        if self._checked or self._store.failed_is_over:
            return
        path = f"{folder}/probe-{secrets.token_hex(8)}"  # which is no name of an object
        self._store.put_new(path, [b"1"])
        refused = not self._store.put_new(path, [b"2"])
        self._store.remove(path)
        if not refused:
            raise Misconfigured(f"{self._place}: takes no notice of If-None-Match: nothing can be created there")
        self._checked = True


def _name_to_create(names: list[str]) -> str:
    """The name for what is created while *names* are those of an absent id, the same for all who do it.

    It is above the tombstone, and below all that is written, now or later.
    """
    if not names:
        return f"{OBJECT}{0:016x}-{0:08x}{_NEW}"
    return f"{OBJECT}{_version(names[-1]) + 1:016x}{names[-1].removeprefix(OBJECT)[16:25]}{_NEW}"


def _is_mark(name: str) -> bool:
    """Whether others may go by this object when they create: then it stays until there is a newer one to go by."""
    return name.endswith((_NEW, _GONE))


def _folder(id: CheckpointId) -> str:
    return f"{escape(id.group.encode())}/{escape(id.key)}{_SUFFIX}"


def _valid(names: list[str]) -> list[str]:
    """Those of *names* that are names of objects, in their order."""
    return [name for name in names if _NAME.fullmatch(name)]


def _is_there(names: list[str]) -> bool:
    """Whether an id that has these objects has a value."""
    return bool(names) and not names[-1].endswith(_GONE)


def _version(name: str) -> int:
    return int(name[len(OBJECT) :][:16], 16)
