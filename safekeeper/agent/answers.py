"""What each request does: requests in, replies out, no sockets."""

from __future__ import annotations

import time
from collections.abc import Generator
from threading import Lock

from safekeeper.agent import protocol
from safekeeper.agent.budget import Budget
from safekeeper.agent.files import FileAnswers, code_of
from safekeeper.agent.protocol import ErrorCode, FrameKind
from safekeeper.agent.shares import owner_of_group
from safekeeper.backend import (
    MAX_VALUE_BYTES,
    Backend,
    CheckpointId,
    PlacementCounts,
    SupportsPlacement,
    check_group,
    check_value,
    concurrent_writes,
)
from safekeeper.errors import BadId, Closed, Conflict, Corruption, SafekeeperError, TooLarge, Unavailable
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.ticket import Ticket
from safekeeper.wire import Body

Reply = tuple[FrameKind, list[bytes]]
"""The kind of a frame and the pieces of its body."""

Replies = Generator[Reply, None, None]

KEY_LIST_BYTES = 256 * 1024
"""About how many bytes of keys go into one KEY_LIST."""

READ_BYTES = 4 * 1024 * 1024
"""About how many bytes of values one call of the backend reads; more, where it reads several of them at once."""

READ_KEYS = 16
"""How many values it reads at most: when they are larger than expected, so many are in memory at once."""

_CODES: dict[type[SafekeeperError], ErrorCode] = {
    Unavailable: ErrorCode.UNAVAILABLE,
    Corruption: ErrorCode.CORRUPTION,
    Conflict: ErrorCode.CONFLICT,
    Closed: ErrorCode.CLOSED,
    TooLarge: ErrorCode.TOO_LARGE,
    BadId: ErrorCode.BAD_ID,
}


class Answers:
    """Answers requests from the store of *keeper*, with at most *value_bytes* of values that are being read and sent.

    The keeper gives it what concurrent commits need: those that come together are written as one batch, with one sync,
    and are tried again while the store is unavailable.
    """

    def __init__(self, keeper: SafeKeeper, value_bytes: int) -> None:
        self._keeper = keeper
        self._placed = Placed(keeper.backend)
        self._values = Budget(value_bytes)
        self._read_bytes = max(READ_BYTES, value_bytes // 4) if concurrent_writes(keeper.backend) > 1 else READ_BYTES
        self._expected = MAX_VALUE_BYTES  # twice the largest value read lately
        self._files = FileAnswers(keeper, self._values)

    @property
    def moved(self) -> float:
        """When any READ last got on, in the time of `time.monotonic`."""
        return self._values.moved

    def pass_over(self, seconds: float) -> None:
        """Let no READ wait for values that a peer has not taken for so long."""
        self._values.pass_over(seconds)

    def to(self, kind: FrameKind, body: Body) -> Replies:
        """The replies to a request, each made when it is asked for; the last one is a DONE.

        Raises what the backend raises, at any step, and `BadFrame` when *body* is not what *kind* says.
        """
        match kind:
            case FrameKind.PUT:
                return self._put(body)
            case FrameKind.DELETE:
                return self._delete(body)
            case FrameKind.KEYS:
                return self._keys(body)
            case FrameKind.READ:
                return self._read(body)
        return self._of_files(kind, body)

    def _of_files(self, kind: FrameKind, body: Body) -> Replies:
        started = time.perf_counter()
        yield from self._files.to(kind, body)
        yield FrameKind.DONE, protocol.done(time.perf_counter() - started, 0.0, *self._placed.take())

    def _put(self, body: Body) -> Replies:
        started = time.perf_counter()
        group, key, value = body.text(), body.blob(), body.blob()
        body.end()
        del body  # the value is a copy: hold the bytes once, not twice, while they are written
        id = CheckpointId(group, key)
        check_value(id, value)  # a keeper would save it in parts, which a `READ` does not put together
        yield self._stored([self._keeper.save(id, value)], started)

    def _delete(self, body: Body) -> Replies:
        started = time.perf_counter()
        yield self._stored([self._keeper.forget(id) for id in _ids(body)], started)

    def _keys(self, body: Body) -> Replies:
        started = time.perf_counter()
        group = body.text()
        body.end()
        check_group(group)
        page: list[bytes] = []
        size = 0
        for key in self._keeper.backend.keys(group):
            page.append(key)
            size += len(key)
            if size >= KEY_LIST_BYTES:
                yield FrameKind.KEY_LIST, protocol.key_list(page)
                page, size = [], 0
        if page:
            yield FrameKind.KEY_LIST, protocol.key_list(page)
        yield _done(started)

    def _read(self, body: Body) -> Replies:
        """A value's size shows only when it is here: until then room is held for what the ones before let expect."""
        started = time.perf_counter()
        ids, at = _ids(body), 0
        owner = owner_of_group(ids[0].group.encode()) if ids else b""
        while at < len(ids):
            expected = self._expected
            some = ids[at : at + max(1, min(READ_KEYS, self._read_bytes // expected))]
            with self._values.room(len(some) * expected, owner) as room:
                values = self._keeper.backend.read(some)
                sizes = [len(value or b"") for value in values]
                room.resize(sum(sizes))
                self._expected = min(MAX_VALUE_BYTES, max(2 * max(sizes), expected // 2, 1))
                for index in range(at, at + len(some)):  # popped: nothing else holds a value while it is sent
                    yield FrameKind.VALUE, protocol.value(index, values.pop(0))
            at += len(some)
        yield _done(started)

    def _stored(self, tickets: list[Ticket], started: float) -> Reply:
        """DONE once all *tickets* are; those that shared a batch shared its sync."""
        sync_seconds = max((ticket.result().sync_seconds for ticket in tickets), default=0.0)
        return FrameKind.DONE, protocol.done(time.perf_counter() - started, sync_seconds, *self._placed.take())


class Placed:
    """Counts the files of a backend that plans where they go, for whoever asks first."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend if isinstance(backend, SupportsPlacement) else None
        self._lock = Lock()
        self._told = PlacementCounts()

    def take(self) -> tuple[int, int]:
        """How many files were planned since the last call, and how many of these went where they were planned."""
        if self._backend is None:
            return 0, 0
        with self._lock:
            before, self._told = self._told, self._backend.placement_counts()
            return self._told.planned - before.planned, self._told.hits - before.hits


def failure(error: Exception) -> Reply:
    """The reply that says what went wrong in answering a request."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), code_of(error))
    known = isinstance(error, SafekeeperError) or code is not ErrorCode.INTERNAL
    message = str(error) if known else f"{type(error).__name__}: {error}"
    return FrameKind.ERROR, protocol.error(code, message)


def _done(started: float) -> Reply:
    return FrameKind.DONE, protocol.done(time.perf_counter() - started, 0.0)


def _ids(body: Body) -> list[CheckpointId]:
    group, keys = body.text(), list(body.keys())
    body.end()
    check_group(group)
    return [CheckpointId(group, key) for key in keys]
