"""SafeKeeper: two queues in front of any backend.

    with SafeKeeper("log:///var/lib/app") as keeper:
        ticket = keeper.save(CheckpointId("WordCounter", b"foo"), {"count": 41})     # returns at once
        ticket.result()                                                              # now it is durable
        keeper.fetch(CheckpointId("WordCounter", b"foo"))                            # {"count": 41}

`docs/keeper.md` is the guide, with the table of Apache S4's settings and ours.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Self

from safekeeper import places, registry
from safekeeper.backend import (
    MAX_VALUE_BYTES,
    Backend,
    Batch,
    CheckpointId,
    Receipt,
    SupportsAtomicBatch,
    SupportsSomeAtomicBatches,
    as_key,
    check_group,
    concurrent_writes,
    turn_of,
)
from safekeeper.errors import BadId, BadState, BadUrl, SafekeeperError, TooLarge, Unavailable
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.fuse import Fuse
from safekeeper.keeper.guards import Guard
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.line import WaitingLine
from safekeeper.keeper.loops import running_loop
from safekeeper.keeper.metrics import Metrics
from safekeeper.keeper.overflow import Overflow
from safekeeper.keeper.pending import PendingState
from safekeeper.keeper.pipeline import Pipeline
from safekeeper.keeper.reader import OnError, Progress, Reader
from safekeeper.keeper.serializers import (
    UNPACKED_LIMIT,
    Codec,
    Compression,
    Migrate,
    Serializer,
    serializer_named,
    size_if_immutable,
)
from safekeeper.keeper.ticket import Callback, Entry, SavedTogether, StateLock, Ticket, Tray
from safekeeper.large import fits, is_head, parts_group, with_parts

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # with a default: a keeper without `state=` takes and gives anything

    from safekeeper.claims import Claim

    S = TypeVar("S", default=Any)
    T = TypeVar("T")
else:
    from typing import TypeVar

    S, T = TypeVar("S"), TypeVar("T")

_MANY = 1000  # states of `save_many` that are on their way at a time
_SOMETIMES_LATER = frozenset(
    {bytes, str, tuple, frozenset, PendingState}
)  # types of states that a worker may serialize
_ON_EVERY_STORE = "an operator, which keeps its states together on every store"
_SMALL = 4096  # bytes: to serialize so little takes less time than to hand it to another thread
_SERIALIZATION_BOUNDS = Bounds(count=1_000)
_STORAGE_BOUNDS = Bounds()
_BACKOFF = Backoff()


class SafeKeeper(Generic[S]):
    """Keeps states: `save` queues them, workers serialize them and write what is queued as one batch.

    For each id, saves and forgets take effect in the order in which they were made, and every one of them completes
    exactly once, at the latest when there was no progress for its deadline. *store* is a URL or a backend; one that was
    opened here is closed here.

    state           the type of the states: a dataclass, a TypedDict, a struct of msgspec or a model of pydantic.
                    `fetch` then returns it, and `save` refuses what does not fit. None takes what the serializer takes
    serializer      "msgpack", "raw", "json", "arrow", "pickle", a `Serializer`, or None: states are bytes and stored as
                    they are, without a header and without the serialization queue
    compression     "zstd" compresses what gets smaller by it
    unpacked_limit  how many bytes a compressed state has at most before it is compressed, and after it is unpacked
    schema, migrate the version of the application's states; `migrate(state, version)` brings older ones up to it
    overflow        when a queue is full: "block" waits, "reject" refuses the new one, "drop-oldest" drops the oldest,
                    "coalesce" lets a newer state of an id replace the queued one at any time and waits if the queue is
                    full all the same. Only "coalesce" ever leaves out a state that was accepted.
    serialization_queue, storage_queue         how much may wait. A state whose bytes are not known before it is
                    serialized counts as an entry of the first; its worker takes no other before the second has room
    serialization_workers, storage_workers     how many threads, at most; for storage, None has as many as the backend
                    gains by (`SupportsConcurrentWrites`): good for large states, smaller batches for small ones
    keep_alive      seconds after which an idle thread ends
    deadline        seconds without progress after which a save fails, unless it has its own
    lock_timeout    seconds that a worker waits for the lock of a state
    close_deadline  seconds that `close` waits, unless it is told
    backoff         the delays between tries while the store is unavailable
    fetch_timeout   seconds until a fetch is given up; None waits as long as the backend does, and saves a thread
    fetch_threads   how many reads `recover`, and fetches with a timeout, have under way
    fuse            when fetches fail at once
    listener        gets every completed ticket, of all saves and forgets, before a callback of its own does; the same
                    rules hold for it
    """

    def __init__(
        self,
        store: str | Backend,
        *,
        state: type[S] | None = None,
        serializer: str | Serializer | None = "msgpack",
        compression: Compression = None,
        unpacked_limit: int = UNPACKED_LIMIT,
        schema: int = 0,
        migrate: Migrate | None = None,
        overflow: Overflow = "coalesce",
        serialization_queue: Bounds = _SERIALIZATION_BOUNDS,
        storage_queue: Bounds = _STORAGE_BOUNDS,
        serialization_workers: int = 1,
        storage_workers: int | None = 1,
        keep_alive: float = 120.0,
        deadline: float = 60.0,
        lock_timeout: float = 1.0,
        close_deadline: float = 30.0,
        backoff: Backoff = _BACKOFF,
        fetch_timeout: float | None = None,
        fetch_threads: int = 8,
        fuse: Fuse | None = None,
        listener: Callback | None = None,
    ) -> None:
        if isinstance(serializer, str):
            serializer = serializer_named(serializer)
        self._codec: Codec | None = None
        if serializer is not None:
            self._codec = Codec(
                serializer,
                compression=compression,
                unpacked_limit=unpacked_limit,
                schema=schema,
                migrate=migrate,
                state=state,
            )
        elif state is not None:
            raise ValueError("state= needs a serializer: leave out serializer=None")
        self._is_view = False
        self._deadline = deadline
        self._listener = listener
        self._saves_alone = listener is not None or serializer is None
        self.backend = registry.open(store) if isinstance(store, str) else _checked_backend(store)
        """The store. Reading and listing it directly is fine; what is written directly overtakes what is queued."""
        try:
            self._pipeline = Pipeline(
                self.backend,
                self._encode,
                closes_backend=isinstance(store, str),
                overflow=overflow,
                serialization_queue=serialization_queue,
                storage_queue=storage_queue,
                serialization_workers=serialization_workers,
                storage_workers=concurrent_writes(self.backend) if storage_workers is None else storage_workers,
                keep_alive=keep_alive,
                lock_timeout=lock_timeout,
                close_deadline=close_deadline,
                backoff=backoff,
            )
            self._line = WaitingLine(self._pipeline)
            self._reader = Reader(
                self.backend, self._pipeline, timeout=fetch_timeout, threads=fetch_threads, fuse=fuse or Fuse()
            )
        except ValueError:
            if isinstance(store, str):
                self.backend.close()
            raise

    def save(
        self,
        id: CheckpointId,
        state: S,
        *,
        lock: StateLock | None = None,
        frozen: bool = False,
        deadline: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """Store *state* under *id*, in place of what is there. Return at once, with a ticket that completes once.

        What is stored was once the state. A worker serializes later what cannot change: numbers, str, bytes, tuples of
        them, and whatever the caller says is *frozen*; or, with a *lock*, what cannot change while that lock is held.
        Everything else is serialized before this returns, so call it where nobody else changes the state. Never call
        it with *lock* while holding that lock: the worker would wait for the caller, who may wait for the worker.
        What is frozen or locked is never serialized here, however small; a worker takes *lock* for it, serializes it
        and then waits for room for its bytes.

        The save fails when there was no progress for *deadline* seconds: nothing was stored, and the backend showed
        none (`SupportsProgress`). Until then an unavailable store is tried again.
        *callback* gets the completed ticket. In an event loop this never waits, whatever the overflow policy is: what
        finds no room stands in a line. Raise `Closed` after `close`; any other failure is the ticket's.
        """
        plain = lock is None and not frozen and deadline is None and callback is None
        if not plain or self._saves_alone or self._line.entries or type(state) in _SOMETIMES_LATER:
            return self._submit(self._prepare(id, state, lock, frozen, deadline), callback)
        begun = monotonic()
        if type(id) is not CheckpointId:
            _checked(id)
        codec = self._codec
        try:  # without a call of `_encode` if it can be: it is on the way of nearly every save
            value = self._encode(state) if state is None or codec is None else codec.encode(state)
        except SafekeeperError as error:
            entry = self._entry(id, None)
            entry.refused = error
            return self._submit(entry, None)
        now = monotonic()
        ticket = self._pipeline.join(id, value, begun, now, self._deadline)
        if ticket is None:
            entry = Entry(id, now, self._deadline)
            entry.set_value(value)
            entry.serializing = now - begun
            ticket = self._submit(entry, None)
        return ticket

    def save_at_turn(
        self, id: CheckpointId, snapshot: Callable[[], S], *, nbytes: int, deadline: float | None = None
    ) -> Receipt:
        """Store what *snapshot* returns, and wait until it is durable. It is called when the store lets a state of
        about *nbytes* be written (`SupportsTurns`), so what is stored is as new as it can be: where many write at once
        and have to take turns, a state that was taken before is old by then. Elsewhere it is called at once.

        *snapshot* is called once, in this thread. Raise what it raises, and why it was not stored.
        """
        group = _checked(id).group
        with turn_of(self.backend, parts_group(group) if nbytes > MAX_VALUE_BYTES else group, nbytes):
            return self.save(id, snapshot(), deadline=deadline).result()

    def save_many(
        self, states: Mapping[CheckpointId, S] | Iterable[tuple[CheckpointId, S]], *, deadline: float | None = None
    ) -> int:
        """Store all of *states* and wait until they are durable; how many there were. For bulk: it takes less processor
        time than as many calls of `save`, and no more memory than two thousand states and the queue.

        Each is a save of its own. Raise why one was not stored, with its id, when those before it are; what comes after
        it may be stored or not.
        """
        if self._line and not self._pipeline.completions.in_callback:
            self._line.wait()
        items = iter(states.items() if isinstance(states, Mapping) else states)
        total, under_way = 0, list[Entry]()
        patience = self._deadline if deadline is None else deadline
        while some := list(islice(items, _MANY)):
            sent = self._send_many(some, patience)
            self._wait_for(under_way)
            total, under_way = total + len(some), sent
        self._wait_for(under_way)
        return total

    def save_together(
        self,
        states: Mapping[CheckpointId, S],
        *,
        deadline: float | None = None,
        callback: Callback | None = None,
    ) -> Ticket:
        """Store all of *states* in one step: after any crash, and to every reader of the store, all of them are there
        or none is. Return a ticket for all.

        They are serialized before this returns. In order they are as single saves: after what was saved of these ids
        before, and before what is saved later. Raise `SafekeeperError` if the store cannot do that; `log:`, `lmdb:` and
        `memory:` can, and `redis:` with small states of one group.
        """
        store = self.backend
        if not isinstance(store, SupportsAtomicBatch | SupportsSomeAtomicBatches):
            raise SafekeeperError(
                f"{type(store).__name__} stores each id whole, not several together: use log: or lmdb:, or"
                f" {_ON_EVERY_STORE}"
            )
        entries = [self._prepare(id, state, None, False, deadline, now=True) for id, state in states.items()]
        if not entries:
            raise ValueError("there is nothing to save together: give at least one state")
        for entry in entries:
            if entry.refused is None and entry.value is not None and not fits(entry.value):
                entry.refused = TooLarge(
                    f"{entry.id}: it has {len(entry.value)} bytes, and is stored in parts: save it alone"
                )
            if entry.refused is not None:
                entry.refused = type(entry.refused)(f"{entry.id}: {entry.refused}")
                return self._submit(entry, callback)
        if isinstance(store, SupportsSomeAtomicBatches):
            batch = Batch({entry.id: entry.value for entry in entries if entry.value is not None})
            if (why := store.why_not_atomic(batch)) is not None:
                raise SafekeeperError(f"{why}, or use {_ON_EVERY_STORE}")
        SavedTogether(entries, self._listener)
        return self._submit(entries[0], callback)

    def save_bytes(
        self, id: CheckpointId, value: bytes, *, deadline: float | None = None, callback: Callback | None = None
    ) -> Ticket:
        """As `save`, with *value* stored as it is, whatever serializer this keeper has: for formats of their own, such
        as the blocks of a journal, which share batches and syncs with the states in this way.

        It never waits for room, in an event loop or not: what finds none stands in a line, and whoever calls this
        bounds what he has under way. It is read from `backend`, and may be in parts there: `whole`. `fetch` would take
        it for a state.
        """
        entry = self._entry(id, deadline)
        if type(value) is bytes:
            entry.set_value(value)
        else:
            entry.refused = BadState(f"save_bytes takes bytes, not {type(value).__name__}: save takes states")
        return self._line.submit(entry, self._also_tell(callback))

    def whole(self, id: CheckpointId, value: bytes) -> bytes | None:
        """The bytes of which *value* was read from `backend` under *id*; None if they are gone by now.

        Mostly they are *value*. A large value is in parts, which are read here; `forget` then deletes them, too.
        """
        return self._reader.whole(id, value) if is_head(value) else value

    def forget(self, id: CheckpointId, *, deadline: float | None = None, callback: Callback | None = None) -> Ticket:
        """Delete *id* from the store, after the saves of it that were made before. That it is not there is no error."""
        return self._submit(self._entry(id, deadline), callback)

    def forget_group(self, group: str, *, deadline: float | None = None) -> int:
        """Delete every id of *group* from the store and wait for it; how many there were. What its owners have
        copied goes, too.

        It comes after the saves that were made before. What is saved meanwhile may stay or go.
        """
        _check_group(group)
        self.flush()
        count, current = 0, self._reader.place(group)
        for place in places.all_of(self.backend, group):
            for name in reversed([*with_parts([place])]):  # parts of large states last: nobody needs them then
                keys = self._reader.keys(name, b"")
                while page := [self._entry(CheckpointId(name, key), deadline) for key in islice(keys, _MANY)]:
                    self._pipeline.submit_all(page, self._listener)
                    self._wait_for(page)
                    count += len(page) if name == current else 0
        return count

    def keys(self, group: str, *, prefix: bytes | str = b"") -> Iterator[bytes]:
        """The keys of *group* in the store that begin with *prefix*, in any order, each once: where its owner has
        them, if it has one.

        Saves that are still queued may or may not be seen: `flush` first.
        """
        _check_group(group)
        begin = as_key(prefix)
        return self._in_place(group, lambda place: self._reader.keys(place, begin))

    def ping(self, timeout: float | None = None) -> float:
        """Ask the store for something that is not there; how many seconds the answer took.

        Raise `Unavailable` if there is none (within *timeout* seconds). It does not care for the fuse.
        """
        return self._reader.ping(timeout)

    def fetch(self, id: CheckpointId, *, timeout: float | None = None) -> S | None:
        """The state stored under *id*; None if there is none.

        It waits for the saves of this id that were made before. Raise `Unavailable` if the store does not answer
        (within *timeout* seconds) or the fuse has blown, `BadState` or `Corruption` if the bytes are no state: never
        None for these.
        """
        value = self._reader.fetch(_checked(id), timeout)
        return None if value is None else self._decode(id, value)

    def recover(
        self,
        group: str,
        *,
        batch: int = 256,
        progress: Callable[[Progress], object] | None = None,
        on_error: OnError | None = None,
    ) -> Iterator[tuple[bytes, S]]:
        """Every key of *group* with its state, in any order, each once: in one pass where the store has `scan`, else
        read in parallel, *batch* keys at a time.

        A state that cannot be read, for `BadState` or `Corruption`, ends it with that error, which names the id. With
        *on_error* it goes on: that gets the id and the error of each such state. An unavailable store always ends it.

        Saves that are still queued may or may not be seen: `flush` first. *progress* is called after every batch.
        The states are read where the owner of the group has them, if it has one.
        """
        _check_group(group)
        decode = None if self._codec is None else self._codec.decode
        return self._in_place(group, lambda place: self._reader.recover(place, batch, decode, progress, on_error))

    def _in_place(self, group: str, read: Callable[[str], Iterator[T]]) -> Iterator[T]:
        """What *read* finds where the elements of *group* are."""
        yield from read(place := self._reader.place(group))
        if (now := self._reader.place(group)) != place:  # who has copied them deletes those that were read here
            raise Unavailable(f"the elements of {group} were moved to {now} while they were read: read them again")

    def guard(self, claim: Claim, *groups: str) -> Guard:
        """Acknowledge what is saved in *groups* only if *claim* holds after it was written, by one check a batch; if it
        does not, those saves and all later ones fail with `Conflict`. `safekeeper.keeper.guards` tells more."""
        return self._pipeline.guards.add(claim, groups)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every save made before has completed; their tickets tell how.

        Raise `TimeoutError` if *timeout* seconds pass first.
        """
        self._pipeline.flush(timeout)

    def close(self, deadline: float | None = None) -> None:
        """Accept nothing more, store what is queued, and end all threads. Closing twice is not an error.

        What the store has not acknowledged after *deadline* seconds completes with `Closed`, and `Unavailable` is
        raised here. A backend that this keeper opened is closed.
        """
        if left := self._pipeline.close(deadline):
            raise Unavailable(f"{left} saves were not stored before the keeper closed; their tickets tell which")

    @property
    def closed(self) -> bool:
        """Whether it accepts nothing more."""
        return self._pipeline.is_closed

    @property
    def fill(self) -> float:
        """How full the fuller one of the queues is, from 0 to 1."""
        return max(self._pipeline.serialization.queue.fill, self._pipeline.storage.queue.fill)

    def metrics(self) -> Metrics:
        """The numbers as they are now."""
        return self._pipeline.measured()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, entry: Entry, callback: Callback | None) -> Ticket:
        """Send *entry* on its way. An event loop is never kept waiting for room: its saves stand in a line."""
        callback = self._also_tell(callback)
        if running_loop() is not None:
            return self._line.submit(entry, callback)
        if self._line and not self._pipeline.completions.in_callback:
            return self._line.submit(entry, callback, wait=True)
        if entry.together is not None:
            return self._pipeline.submit_together(entry, callback)
        return self._pipeline.submit(entry, callback)

    def _also_tell(self, callback: Callback | None) -> Callback | None:
        """A callback that tells the listener as well."""
        if (listener := self._listener) is None:
            return callback
        return listener if callback is None else partial(_tell_both, listener, callback)

    def __repr__(self) -> str:
        pending = len(self._pipeline.completions)
        closed = ", closed" if self._pipeline.is_closed else ""
        return f"<SafeKeeper on {self.backend!r}, {pending} saves under way{closed}>"

    def _wait_for(self, entries: list[Entry]) -> None:
        """Wait until all of *entries* have completed. Raise why one was not stored."""
        for entry in entries:
            outcome = self._pipeline.outcome(entry)
            if not isinstance(outcome, Receipt):
                raise type(outcome)(f"{entry}: not stored: {outcome}") from outcome

    def _of(self, state: type[T]) -> SafeKeeper[T]:
        """This keeper, with its queues and its store, for states of another type."""
        if self._codec is None:
            raise ValueError("state= needs a serializer: this keeper has none")
        view: Any = copy.copy(self)
        view._codec, view._is_view = self._codec.of(state), True
        return view  # type: ignore[no-any-return]

    def _entry(self, id: CheckpointId, deadline: float | None) -> Entry:
        return Entry(_checked(id), monotonic(), self._deadline if deadline is None else deadline)

    def _prepare(
        self,
        id: CheckpointId,
        state: Any,
        lock: StateLock | None,
        frozen: bool,
        deadline: float | None,
        *,
        now: bool = False,
    ) -> Entry:
        """An entry with the state's bytes, if it must or may as well be serialized *now*, else with the state."""
        if type(id) is not CheckpointId:
            _checked(id)
        entry = Entry(id, monotonic(), self._deadline if deadline is None else deadline)
        if lock is not None or frozen or (type(state) in _SOMETIMES_LATER and not now):
            size = None if lock is not None or self._codec is None else size_if_immutable(state)
            if self._codec is not None and (lock is not None or (frozen if size is None else size > _SMALL)):
                # How many bytes it will be shows when a worker has serialized it; until then it counts as an entry.
                entry.set_state(PendingState(state, self._encode) if self._is_view else state, size or 0, lock)
                return entry
        try:
            entry.value = value = self._encode(state)
            entry.size += len(value)
        except SafekeeperError as error:
            entry.refused = error
        entry.since, begun = monotonic(), entry.since
        entry.serializing = entry.since - begun
        return entry

    def _send_many(self, items: Iterable[tuple[CheckpointId, Any]], patience: float) -> list[Entry]:
        """Serialize all of *items* and send them on their way, mostly a tray for each group; what was sent."""
        sent: list[Entry] = []
        groups: dict[str, dict[CheckpointId, bytes]] = {}
        encode = self._encode
        for id, state in items:
            if type(id) is not CheckpointId:
                _checked(id)
            values = groups.get(id[0])
            if values is None:
                values = groups[id[0]] = {}
            elif id in values:  # each is a save of its own
                sent += self._send_trays(groups, patience)
                values = groups[id[0]] = {}
            try:
                values[id] = encode(state)
            except SafekeeperError as error:
                sent += self._send_trays(groups, patience)
                entry = Entry(id, monotonic(), patience)
                entry.refused = error
                self._pipeline.submit_all([entry], self._listener)
                sent.append(entry)
        return sent + self._send_trays(groups, patience)

    def _send_trays(self, groups: dict[str, dict[CheckpointId, bytes]], patience: float) -> list[Entry]:
        """Send all that is in *groups* on its way and empty that; what was sent."""
        sent: list[Entry] = []
        for values in filter(None, groups.values()):
            tray = Tray(next(iter(values)), monotonic(), patience)
            tray.fill(values, sum(map(len, values.values())) + sum([len(key) for _, key in values]))
            if self._saves_alone:
                self._pipeline.submit_all(entries := list(tray.singly().values()), self._listener)
            else:
                entries = self._pipeline.submit_tray(tray)
            sent += entries
        groups.clear()
        return sent

    def _encode(self, state: Any, get_on: Callable[[], object] | None = None) -> bytes:
        """The bytes to write for *state*; *get_on* is that of `Codec.encode`."""
        if type(state) is PendingState:
            return state.take(get_on)
        if state is None:
            raise BadState("None is what fetch says of an id that is not there: save something else, or forget the id")
        if self._codec is not None:
            return self._codec.encode(state, get_on)
        if type(state) is bytes:
            return state
        raise BadState(f"without a serializer a state is bytes, not {type(state).__name__}")

    def _decode(self, id: CheckpointId, value: bytes) -> Any:
        if self._codec is None:
            return value
        try:
            return self._codec.decode(value)
        except SafekeeperError as error:
            raise type(error)(f"{id}: {error}") from error


def _tell_both(listener: Callback, callback: Callback, ticket: Ticket) -> None:
    try:
        listener(ticket)
    finally:
        callback(ticket)


def _check_group(group: str) -> None:
    if type(group) is not str:
        raise BadId(f"a group is a str, not {type(group).__name__}")
    check_group(group)


def _checked(id: CheckpointId) -> CheckpointId:
    if type(id) is not CheckpointId:
        raise BadId(f"an id is a CheckpointId(group, key), not {id!r:.80}: write CheckpointId('MyState', b'key')")
    return id


def _checked_backend(store: Backend) -> Backend:
    if isinstance(store, PurePath):
        url = Path(store).absolute().as_uri().replace("file:", "log:", 1)
        raise BadUrl(f"a store is a URL, not a path: write {url!r}, or another backend's URL")
    if not isinstance(store, Backend):
        raise BadUrl(f"a store is a URL, such as 'log:///var/lib/app', or an open backend, not {store!r:.80}")
    return store
