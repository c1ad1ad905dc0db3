"""The way back: fetching one state, and recovering all of a group."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf
from threading import BoundedSemaphore, Thread
from typing import Any, TypeAlias, TypeVar

from safekeeper import large, places
from safekeeper.backend import Backend, CheckpointId, Scope, SupportsScan
from safekeeper.errors import BadState, Corruption, SafekeeperError, Unavailable
from safekeeper.keeper.fuse import Fuse
from safekeeper.keeper.pipeline import Pipeline

_log = logging.getLogger("safekeeper")

_NOTHING = CheckpointId("safekeeper.ping", b"")  # nobody saves anything there

T = TypeVar("T")
S = TypeVar("S", bound=Sequence[Any])

OnError: TypeAlias = Callable[[CheckpointId, SafekeeperError], object]
"""Gets the id of a state that cannot be given, and why. What it raises ends the recovery."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a recovery has come."""

    listed: int
    """Keys found so far."""
    recovered: int
    """States given so far; at the end less than `listed` if some were bad, or were deleted meanwhile."""
    done: bool
    """Whether that is all."""
    failed: int = 0
    """States that were there and could not be given, each of which `on_error` was told."""


class Reader:
    """Reads from a backend, with a fuse and without hanging where a timeout is given."""

    def __init__(
        self, backend: Backend, pipeline: Pipeline, *, timeout: float | None, threads: int, fuse: Fuse
    ) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread must read, not {threads}")
        self._backend = backend
        self._pipeline = pipeline
        self._timeout = timeout
        self._threads = threads
        self._free = BoundedSemaphore(threads)
        self._fuse = fuse

    def fetch(self, id: CheckpointId, timeout: float | None) -> bytes | None:
        """The bytes stored under *id*, after the saves of it that are under way."""
        self._pipeline.check_open()
        timeout = self._timeout if timeout is None else timeout
        until = inf if timeout is None else time.monotonic() + timeout
        if ticket := self._pipeline.pending(id):
            try:
                ticket.outcome(timeout)
            except TimeoutError:
                raise Unavailable(f"{id}: a save of it is still under way after {timeout} s") from None
        if timeout is None:
            return self._guarded(lambda: self._read_one(id))[0]
        return self._guarded(lambda: self._read_until(until, id))[0]

    def place(self, group: str) -> str:
        """Where the owner of *group* has its elements; *group* if it has none."""
        return self.ask(partial(places.current, self._backend, group))

    def ask(self, look: Callable[[], T]) -> T:
        """What *look* says, which asks the store; `Unavailable` if it takes longer than a fetch may."""
        self._pipeline.check_open()
        return look() if self._timeout is None else _result(self._start(look), self._timeout)

    def keys(self, group: str, prefix: bytes) -> Iterator[bytes]:
        """The keys of *group* that begin with *prefix*, each once."""
        self._pipeline.check_open()
        seen: set[bytes] = set()
        for key in self._backend.keys(group):
            if key.startswith(prefix) and key not in seen:
                seen.add(key)
                yield key

    def ping(self, timeout: float | None) -> float:
        """How many seconds a read takes."""
        self._pipeline.check_open()
        started = time.monotonic()
        timeout = self._timeout if timeout is None else timeout
        if timeout is None:
            self._backend.read([_NOTHING])
        else:
            self._read_until(started + timeout, _NOTHING)
        return time.monotonic() - started

    def recover(
        self,
        group: str,
        batch: int,
        decode: Callable[[bytes], Any] | None,
        progress: Callable[[Progress], object] | None,
        on_error: OnError | None,
    ) -> Iterator[tuple[bytes, Any]]:
        """The keys and states of *group*, each key once; *progress* is told after each *batch* of them."""
        self._pipeline.check_open()
        recovery = _Recovery(group, batch, decode, self.whole, progress or (lambda _: None), on_error)
        if isinstance(self._backend, SupportsScan):
            pages = self._scanned(self._backend.scan(group))
            while (page := _next(pages)) is not None:
                if not page:
                    recovery.tell(done=True)
                    return
                yield from recovery.of_page(page)
        yield from self._recover_by_keys(recovery)

    def _scanned(self, pages: Iterator[Sequence[tuple[bytes, bytes]]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """*pages*, until an empty one. Of a store on a network, one is under way while the one before is looked at."""

        def step() -> Sequence[tuple[bytes, bytes]]:
            return next(filter(None, pages), ())

        if self._timeout is None and self._backend.scope < Scope.NETWORK:  # nothing to wait for: a thread only costs
            while page := self._guarded(step):
                yield page
            return
        under_way = self._start(step)
        while page := self._guarded(partial(_result, under_way, self._timeout)):
            under_way = self._start(step)
            yield page

    def _recover_by_keys(self, recovery: _Recovery) -> Iterator[tuple[bytes, Any]]:
        """What was not recovered yet, several batches of keys under way at a time."""
        ids = (CheckpointId(recovery.group, key) for key in recovery.new_keys(self._backend.keys(recovery.group)))
        under_way: deque[tuple[list[CheckpointId], Future[list[bytes | None]]]] = deque()
        while True:
            while len(under_way) < self._threads and (page := list(islice(ids, recovery.batch))):
                under_way.append((page, self._start(partial(self._backend.read, page))))
            recovery.tell(done=not under_way)
            if not under_way:
                return
            for id, value in self._page(*under_way.popleft()):
                if isinstance(value, Corruption):
                    recovery.fail(id, value)
                else:
                    yield from recovery.of_value(id.key, value)

    def _page(
        self, ids: list[CheckpointId], future: Future[list[bytes | None]]
    ) -> Iterator[tuple[CheckpointId, bytes | Corruption]]:
        """What is stored under *ids*, or why it cannot be read; nothing of those that are gone."""
        values: list[bytes | Corruption | None]
        try:
            values = [*self._guarded(partial(_result, future, self._timeout))]
        except Corruption:  # of one of them: the others can be read
            values = [self._one(id) for id in ids]
        for id, value in zip(ids, values, strict=True):
            if value is not None:
                yield id, value

    def _one(self, id: CheckpointId) -> bytes | Corruption | None:
        try:
            return self._guarded(partial(_result, self._start(partial(self._backend.read, [id])), self._timeout))[0]
        except Corruption as error:
            named = Corruption(f"{id}: {error}")
            named.__cause__ = error
            return named

    def _read_one(self, id: CheckpointId) -> list[bytes | None]:
        (value,) = self._backend.read([id])
        return [value if value is None or not large.is_head(value) else self.whole(id, value)]

    def whole(self, id: CheckpointId, head: bytes) -> bytes | None:
        """The value whose *head* was read."""
        self._pipeline.in_parts.add(id)
        return large.whole(self._backend, id, head)

    def _read_until(self, until: float, id: CheckpointId) -> list[bytes | None]:
        if not self._free.acquire(timeout=max(until - time.monotonic(), 0.0)):
            raise Unavailable(f"{id}: {self._threads} fetches are under way and none of them comes to an end")
        try:
            future = self._start(partial(self._read_one, id))
        except BaseException:
            self._free.release()
            raise
        future.add_done_callback(lambda _: self._free.release())
        return _result(future, max(until - time.monotonic(), 0.0))

    def _start(self, work: Callable[[], T]) -> Future[T]:
        """Read something in a thread of its own, a daemon: a read that never returns holds up nobody's exit."""
        future: Future[T] = Future()

        def read() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        try:
            Thread(target=read, name="safekeeper-fetch", daemon=True).start()
        except RuntimeError as error:
            raise Unavailable(f"there is no thread to fetch with: {error}") from error
        return future

    def _guarded(self, read: Callable[[], S]) -> S:
        """What *read* returns, unless the fuse has blown; the fuse learns how it went."""
        self._fuse.check()
        started = time.monotonic()
        try:
            values = read()
        except Unavailable as error:
            self._pipeline.count_fetches(0, time.monotonic() - started)
            if self._fuse.failed():
                _log.warning("fetching is given up for a while, after too many failures in a row: %s", error)
            raise
        except Corruption:  # of this id; the store itself answers
            self._pipeline.count_fetches(0, time.monotonic() - started)
            self._mend_fuse()
            raise
        self._pipeline.count_fetches(len(values), time.monotonic() - started)
        self._mend_fuse()
        return values

    def _mend_fuse(self) -> None:
        if self._fuse.succeeded():
            _log.warning("the store answers fetches again")


def _result(future: Future[T], timeout: float | None) -> T:
    if not wait([future], timeout).done:
        raise Unavailable(f"the store did not answer a fetch within {timeout:.1f} s")
    return future.result()


def _next(pages: Iterator[Sequence[tuple[bytes, bytes]]]) -> Sequence[tuple[bytes, bytes]] | None:
    """The next page, an empty one at the end. None if it is damaged: what is left can be read key by key, and then the
    damage gets a name."""
    try:
        return next(pages, ())
    except Corruption:
        return None


class _Recovery:
    """How far the recovery of a group has come."""

    def __init__(
        self,
        group: str,
        batch: int,
        decode: Callable[[bytes], Any] | None,
        whole: Callable[[CheckpointId, bytes], bytes | None],
        progress: Callable[[Progress], object],
        on_error: OnError | None,
    ) -> None:
        self.group, self.batch = group, batch
        self._decode, self._decode_whole = decode or _as_it_is, decode or _identity
        self._whole, self._progress, self._on_error = whole, progress, on_error
        self._seen: set[bytes] = set()
        self._recovered = self._failed = 0

    def tell(self, done: bool) -> None:
        """Say how far it has come."""
        self._progress(Progress(len(self._seen), self._recovered, done, self._failed))

    def new_keys(self, keys: Iterable[bytes]) -> Iterator[bytes]:
        """Those of *keys* that were not met before, each once."""
        for key in keys:
            if key not in self._seen:
                self._seen.add(key)
                yield key

    def of_page(self, page: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Any]]:
        """The states of a page, those whose keys were not met before."""
        seen, decode = self._seen, self._decode
        for start in range(0, len(page), self.batch):
            # Nothing in here is done twice, nor in a function: there may be millions.
            for key, value in page[start : start + self.batch]:
                if key in seen:
                    continue
                seen.add(key)
                try:
                    state = decode(value)
                except (BadState, Corruption) as error:
                    yield from self._in_parts(key, value, error)
                else:
                    self._recovered += 1
                    yield key, state
            self.tell(done=False)

    def of_value(self, key: bytes, value: bytes) -> Iterator[tuple[bytes, Any]]:
        """The state of one key, nothing if it is bad."""
        try:
            state = self._decode(value)
        except (BadState, Corruption) as error:
            yield from self._in_parts(key, value, error)
        else:
            self._recovered += 1
            yield key, state

    def _in_parts(self, key: bytes, value: bytes, error: SafekeeperError) -> Iterator[tuple[bytes, Any]]:
        """The state of *key* if *value* is the head of one in parts; else it is bad, for *error*."""
        try:
            if not large.is_head(value):
                raise error
            whole = self._whole(CheckpointId(self.group, key), value)
            if whole is None:  # deleted meanwhile
                return
            state = self._decode_whole(whole)
        except (BadState, Corruption) as problem:
            self._fail_to_decode(key, problem)
        else:
            self._recovered += 1
            yield key, state

    def _fail_to_decode(self, key: bytes, error: SafekeeperError) -> None:
        id = CheckpointId(self.group, key)
        named = type(error)(f"{id}: {error}")
        named.__cause__ = error
        self.fail(id, named)

    def fail(self, id: CheckpointId, error: SafekeeperError) -> None:
        """Tell that a state cannot be given, or raise *error* if nobody wants to be told."""
        if self._on_error is None:
            raise error
        self._failed += 1
        self._on_error(id, error)


def _as_it_is(value: bytes) -> bytes:
    """The bytes of a keeper without a serializer; a head is not what was saved."""
    if large.is_head(value):
        raise BadState("is in parts")
    return value


def _identity(value: bytes) -> bytes:
    return value
