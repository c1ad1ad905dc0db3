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
from typing import TypeAlias, TypeVar

from safekeeper.backend import Backend, CheckpointId
from safekeeper.errors import BadState, Corruption, SafekeeperError, Unavailable
from safekeeper.keeper.fuse import Fuse
from safekeeper.keeper.pipeline import Pipeline

_log = logging.getLogger("safekeeper")

T = TypeVar("T")

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
            return self._guarded(lambda: self._backend.read([id]))[0]
        return self._guarded(lambda: self._read_until(until, id))[0]

    def recover(
        self,
        group: str,
        batch: int,
        decode: Callable[[CheckpointId, bytes], T],
        progress: Callable[[Progress], object] | None,
        on_error: OnError | None,
    ) -> Iterator[tuple[bytes, T]]:
        """The keys and states of *group*, each key once, several batches under way at a time."""
        self._pipeline.check_open()
        ids = (CheckpointId(group, key) for key in _once(self._backend.keys(group)))
        under_way: deque[tuple[list[CheckpointId], Future[list[bytes | None]]]] = deque()
        listed = recovered = failed = 0
        while True:
            while len(under_way) < self._threads and (page := list(islice(ids, batch))):
                listed += len(page)
                under_way.append((page, self._start(page)))
            if progress is not None:
                progress(Progress(listed, recovered, not under_way, failed))
            if not under_way:
                return
            for id, value in self._page(*under_way.popleft()):
                try:
                    if isinstance(value, Corruption):
                        raise value
                    state = decode(id, value)
                except (BadState, Corruption) as error:
                    if on_error is None:
                        raise
                    failed += 1
                    on_error(id, error)
                else:
                    recovered += 1
                    yield id.key, state

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
            return self._guarded(partial(_result, self._start([id]), self._timeout))[0]
        except Corruption as error:
            named = Corruption(f"{id}: {error}")
            named.__cause__ = error
            return named

    def _read_until(self, until: float, id: CheckpointId) -> list[bytes | None]:
        if not self._free.acquire(timeout=max(until - time.monotonic(), 0.0)):
            raise Unavailable(f"{id}: {self._threads} fetches are under way and none of them comes to an end")
        try:
            future = self._start([id])
        except BaseException:
            self._free.release()
            raise
        future.add_done_callback(lambda _: self._free.release())
        return _result(future, max(until - time.monotonic(), 0.0))

    def _start(self, ids: Sequence[CheckpointId]) -> Future[list[bytes | None]]:
        """Read *ids* in a thread of its own, a daemon: a read that never returns holds up nobody's exit."""
        future: Future[list[bytes | None]] = Future()

        def read() -> None:
            try:
                future.set_result(self._backend.read(ids))
            except BaseException as error:
                future.set_exception(error)

        try:
            Thread(target=read, name="safekeeper-fetch", daemon=True).start()
        except RuntimeError as error:
            raise Unavailable(f"there is no thread to fetch with: {error}") from error
        return future

    def _guarded(self, read: Callable[[], list[T]]) -> list[T]:
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


def _once(keys: Iterable[bytes]) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for key in keys:
        if key not in seen:
            seen.add(key)
            yield key
