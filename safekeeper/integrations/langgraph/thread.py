"""One thread in a store: put, read, prune, delete and copy by the rules of `layout.py`."""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from safekeeper import large
from safekeeper.backend import TOKEN_BYTES, Batch, CheckpointId, SupportsAtomicBatch, SupportsCreate
from safekeeper.errors import Conflict, Corruption
from safekeeper.integrations.langgraph import layout
from safekeeper.integrations.langgraph.layout import KEPT, MARK, ThreadKeys
from safekeeper.integrations.langgraph.recent import RecentParts
from safekeeper.integrations.langgraph.values import CutValue, Element, Packed, names_in, packed, unpacked, with_array

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import CipherProtocol

    from safekeeper.backend import Backend

_log = logging.getLogger(__name__)

BATCH_BYTES = 16 << 20
"""More than this is not written at once."""
PAGE = 64
_TRIES = 20
_THREADS = 1024
_NAMESPACES = 8


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """What stands under the id of a checkpoint."""

    thread: str
    ns: str
    id: str
    parent: str | None
    checkpoint: Element
    metadata: Element
    token: str
    values: dict[str, CutValue]

    def encode(self) -> bytes:
        """The body."""
        return layout.pack(
            [self.thread, self.ns, self.id, self.parent, self.checkpoint, self.metadata, self.token, self.values]
        )

    @classmethod
    def decode(cls, body: bytes | memoryview) -> StoredCheckpoint:
        """What `encode` made."""
        thread, ns, id, parent, checkpoint, metadata, token, values = layout.unpack(body)
        return cls(thread, ns, id, parent, tuple(checkpoint), tuple(metadata), token, values)

    @property
    def names(self) -> set[bytes]:
        """The parts that it needs."""
        return set(names_in(self.values.values()))


@dataclass(frozen=True, slots=True)
class StoredWrites:
    """What stands under the id of some writes of a task."""

    task: str
    path: str
    token: str
    rows: list[tuple[int, str, CutValue]]
    """Index, channel and value."""

    def encode(self) -> bytes:
        """The body."""
        return layout.pack([self.task, self.path, self.token, self.rows])

    @classmethod
    def decode(cls, body: bytes | memoryview) -> StoredWrites:
        """What `encode` made."""
        task, path, token, rows = layout.unpack(body)
        return cls(task, path, token, [tuple(row) for row in rows])

    @property
    def names(self) -> set[bytes]:
        """The parts that they need."""
        return set(names_in(value for _, _, value in self.rows))


@dataclass(frozen=True, slots=True)
class PendingRow:
    """One pending write, with what it is sorted by."""

    path: str
    task: str
    index: int
    channel: str
    value: CutValue
    token: str


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint with its writes and all their parts."""

    stored: StoredCheckpoint
    writes: list[PendingRow]
    """In the order in which LangGraph applies them."""
    parts: Mapping[tuple[str, bytes], Packed]

    def elements(self, token: str) -> Mapping[bytes, Packed]:
        """The elements of the parts with *token*, by name."""
        return {name: elements for (its, name), elements in self.parts.items() if its == token}


class KnownParts:
    """Which parts were stored under which token, of the threads that were used last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: OrderedDict[str, tuple[str, OrderedDict[str, set[bytes]]]] = OrderedDict()
        self.recent = RecentParts()
        """The contents of some of them."""

    def of(self, thread: str) -> tuple[str | None, set[bytes]]:
        """The token, and the parts that have it."""
        with self._lock:
            token, namespaces = self._threads.get(thread, (None, {}))
            return token, set[bytes]().union(*namespaces.values())

    def learn(self, thread: str, ns: str, token: str, names: set[bytes]) -> None:
        """The last checkpoint of *ns* has these."""
        with self._lock:
            known, namespaces = self._threads.pop(thread, (token, OrderedDict()))
            if known != token:
                namespaces = OrderedDict()
            namespaces.pop(ns, None)
            namespaces[ns] = names
            self._threads[thread] = token, namespaces
            if len(namespaces) > _NAMESPACES:
                namespaces.popitem(last=False)
            if len(self._threads) > _THREADS:
                self._threads.popitem(last=False)

    def forget(self, thread: str) -> None:
        """The token is another one."""
        with self._lock:
            self._threads.pop(thread, None)


class StoredThread:
    """One thread; made anew whenever it is needed."""

    def __init__(
        self,
        store: Backend,
        thread: str,
        cipher: CipherProtocol | None,
        known: KnownParts,
        *,
        group: str | None = None,
    ) -> None:
        """*group* is for reading a thread whose name is not known."""
        self._store, self.thread, self._cipher, self._known = store, thread, cipher, known
        self._group = layout.thread_group(thread) if group is None else group
        self._parts_group = layout.parts_group(self._group)

    # Writing

    def put(self, stored: StoredCheckpoint, parts: Mapping[bytes, list[Element]]) -> None:
        """Store a checkpoint that needs *parts*; its token is chosen here."""
        self._put(stored.ns, {layout.checkpoint_key(stored.ns, stored.id): stored}, parts)

    def put_writes(self, ns: str, id: str, writes: StoredWrites, parts: Mapping[bytes, list[Element]]) -> None:
        """Store the writes of a task: the first one of an index counts, of a special one the last."""
        special = {
            layout.writes_key(ns, id, writes.task, row[0]): replace(writes, rows=[row])
            for row in writes.rows
            if row[0] < 0
        }
        if special:
            self._put(ns, special, _only(parts, special.values()))
        rows, slot = [row for row in writes.rows if row[0] >= 0], 0
        while rows:
            key = layout.writes_key(ns, id, writes.task, slot)
            mine = replace(writes, rows=rows)
            if self._create(ns, key, mine, _only(parts, [mine])):
                return
            if (there := self._read_writes(key)) is None:
                continue  # it was deleted meanwhile
            taken = {index for index, _, _ in there.rows}
            rows, slot = [row for row in rows if row[0] not in taken], slot + 1

    def _create(self, ns: str, key: bytes, writes: StoredWrites, parts: Mapping[bytes, list[Element]]) -> bool:
        """Store *writes* unless there are others under *key*; whether it did."""
        token, new = self._new_parts(parts)
        self._write_all(new)
        value = layout.seal(self._cipher, replace(writes, token=token).encode())
        if not create(self._store, CheckpointId(self._group, key), value):
            return False
        if parts and self._mark() != token:  # rule 3
            self._known.forget(self.thread)
            self._put(ns, {key: writes}, parts)
        return True

    def _put(
        self, ns: str, heads: Mapping[bytes, StoredCheckpoint | StoredWrites], parts: Mapping[bytes, list[Element]]
    ) -> None:
        """Store *parts*, and then *heads*, which need them."""
        for _ in range(_TRIES):
            token, new = self._new_parts(parts)
            bodies = {key: replace(head, token=token).encode() for key, head in heads.items()}
            sealed = {CheckpointId(self._group, key): layout.seal(self._cipher, body) for key, body in bodies.items()}
            self._write_in_order(new, sealed)
            if not parts:
                return
            if self._mark() == token:  # rule 3
                self._known.learn(self.thread, ns, token, set(parts))
                return
            self._known.forget(self.thread)
        raise Conflict(f"thread {self.thread} is pruned or deleted again and again: try again later")

    def _new_parts(self, parts: Mapping[bytes, list[Element]]) -> tuple[str, dict[CheckpointId, bytes]]:
        """The token for what needs *parts*, and those that are not stored under it, as far as is known."""
        if not parts:
            return "", {}
        new = {}
        token, known = self._known.of(self.thread)
        if token is None and (token := self._mark()) is None:
            token = secrets.token_hex(8)
            new[CheckpointId(self._group, MARK)] = token.encode()
        for name in parts.keys() - known:
            elements = with_array(packed(parts[name]))
            new[self._part_id(token, name)] = layout.seal(self._cipher, layout.pack_part(elements))
            self._known.recent.add(self._parts_group, token, name, elements)
        return token, new

    def _write_in_order(self, first: Mapping[CheckpointId, bytes], then: Mapping[CheckpointId, bytes]) -> None:
        """Rule 1."""
        small = sum(map(len, first.values())) + sum(map(len, then.values())) <= BATCH_BYTES
        if small and (not first or isinstance(self._store, SupportsAtomicBatch)):
            self._store.write(Batch({**first, **then}))
            return
        self._write_all(first)
        self._write_all(then)

    def _write_all(self, values: Mapping[CheckpointId, bytes]) -> None:
        """Write *values*, not too much at a time."""
        batch = Batch()
        for id, value in values.items():
            if len(value) > BATCH_BYTES:
                large.write(self._store, id, value)
                continue
            if batch.nbytes + len(value) > BATCH_BYTES:
                self._store.write(batch)
                batch = Batch()
            batch.put(id, value)
        if len(batch):
            self._store.write(batch)

    # Reading

    def keys(self) -> list[bytes]:
        """What the thread's group has."""
        return list(self._store.keys(self._group))

    def load(self, ns: str, id: str | None) -> LoadedCheckpoint | None:
        """A checkpoint, the newest one of *ns* without an *id*; None if there is none."""
        while True:
            keys, tried = self.keys(), set[str]()
            for candidate in layout.ids_of(keys, ns) if id is None else [id]:
                loaded = self.load_listed(ns, candidate, layout.writes_among(keys, ns, candidate))
                if loaded is not None:
                    self._learn(loaded.stored)
                    return loaded
                tried.add(candidate)
            if id is not None or set(layout.ids_of(self.keys(), ns)) <= tried:
                return None

    def _learn(self, stored: StoredCheckpoint) -> None:
        """Parts that the next checkpoint need not store again. What has an old token is no help."""
        if stored.token and self._known.of(self.thread)[0] is None and self._mark() == stored.token:
            self._known.learn(self.thread, stored.ns, stored.token, stored.names)

    def load_listed(self, ns: str, id: str, writes: Sequence[bytes]) -> LoadedCheckpoint | None:
        """A checkpoint that was listed; None if it is gone, or was never acknowledged."""
        keys = [layout.checkpoint_key(ns, id), *writes]
        while True:
            bodies = self._read(keys)
            if bodies[0] is None:
                return None
            stored = StoredCheckpoint.decode(bodies[0])
            pending = {
                key: StoredWrites.decode(body)
                for key, body in zip(keys[1:], bodies[1:], strict=True)
                if body is not None
            }
            heads: dict[bytes, StoredCheckpoint | StoredWrites] = {keys[0]: stored, **pending}
            wanted = {part for head in heads.values() for part in needs(head)}
            parts = self._read_parts(sorted(wanted))
            if len(parts) == len(wanted):
                return LoadedCheckpoint(stored, _in_order(pending.values()), parts)
            if self._read(keys) != bodies:
                continue  # replaced, or deleted
            lost = next(key for key, head in heads.items() if not needs(head) <= parts.keys())
            self.check_never_acknowledged(lost, heads[lost])
            if lost == keys[0]:
                return None
            keys.remove(lost)

    def check_never_acknowledged(self, key: bytes, lost: StoredCheckpoint | StoredWrites) -> None:
        """Raise unless *lost*, whose parts are gone, came too late for a prune and was left by a process that died."""
        token, kept = self._kept()
        if token is None or lost.token in (token, self._mark()) or key in kept:
            raise Corruption(f"{CheckpointId(self._group, key)}: parts of it are gone from {self._parts_group}")
        _log.warning("%s is passed over: it was never acknowledged", CheckpointId(self._group, key))

    def read_stored(self, both: Sequence[tuple[str, str]]) -> list[StoredCheckpoint | None]:
        """Checkpoints without their parts."""
        bodies = self._read([layout.checkpoint_key(ns, id) for ns, id in both])
        return [None if body is None else StoredCheckpoint.decode(body) for body in bodies]

    def read_rows(self, keys: Sequence[bytes]) -> list[PendingRow]:
        """The writes under *keys*, in the order in which LangGraph applies them."""
        return _in_order(StoredWrites.decode(body) for body in self._read(keys) if body is not None)

    def read_parts_of(self, token: str, values: Iterable[CutValue]) -> Mapping[bytes, Packed]:
        """The elements of the parts of *values*."""
        wanted = sorted({(token, name) for name in names_in(values)})
        found = self._read_parts(wanted)
        if len(found) < len(wanted):
            raise Corruption(f"parts are gone from {self._parts_group}")
        return {name: elements for (_, name), elements in found.items()}

    def _read_parts(self, wanted: Sequence[tuple[str, bytes]]) -> dict[tuple[str, bytes], Packed]:
        """Those of the *wanted* parts that are there. One in memory is there, too, if its token is that of the mark:
        nobody has begun to delete it (rule 2)."""
        recent = self._known.recent
        found = recent.find(self._parts_group, wanted)
        ids = [self._part_id(token, name) for token, name in wanted if (token, name) not in found]
        values = self._store.read([*ids, CheckpointId(self._group, MARK)]) if found else self._read_values(ids)
        if found:
            mark = (values.pop() or b"").decode()
            if gone := [self._part_id(*part) for part in found if part[0] != mark]:
                found = {part: elements for part, elements in found.items() if part[0] == mark}
                ids, values = ids + gone, values + self._store.read(gone)
        for id, body in zip(ids, self._opened(ids, values), strict=True):
            if body is not None:
                token, name = layout.split_part_key(id.key)
                found[token, name] = elements = with_array(layout.unpack_part(body))
                recent.add(self._parts_group, token, name, elements)
        return found

    def _read_writes(self, key: bytes) -> StoredWrites | None:
        (body,) = self._read([key])
        return None if body is None else StoredWrites.decode(body)

    def _read(self, keys: Sequence[bytes]) -> list[bytes | memoryview | None]:
        return self._bodies([CheckpointId(self._group, key) for key in keys])

    def _bodies(self, ids: Sequence[CheckpointId]) -> list[bytes | memoryview | None]:
        """What is stored under *ids*."""
        return self._opened(ids, self._read_values(ids))

    def _read_values(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return self._store.read(ids) if ids else []

    def _opened(self, ids: Sequence[CheckpointId], values: Sequence[bytes | None]) -> list[bytes | memoryview | None]:
        """The bodies of *values*, which were read under *ids*."""
        bodies: list[bytes | memoryview | None] = []
        for id, value in zip(ids, values, strict=True):
            whole = large.whole(self._store, id, value) if value is not None and large.is_head(value) else value
            bodies.append(None if whole is None else layout.unseal(self._cipher, id, whole))
        return bodies

    def _mark(self) -> str | None:
        (value,) = self._store.read([CheckpointId(self._group, MARK)])
        return None if value is None else value.decode()

    def _kept(self) -> tuple[str | None, list[bytes]]:
        value = large.read(self._store, CheckpointId(self._group, KEPT))
        if value is None:
            return None, []
        token, *keys = value.split(b"\n")
        return token.decode(), keys

    def _part_id(self, token: str, name: bytes) -> CheckpointId:
        return CheckpointId(self._parts_group, layout.part_key(token, name))

    # Deleting

    def prune(self, choose: Choose) -> None:
        """Delete the checkpoints that *choose* chooses, their writes, and every part that nobody needs any more."""
        if not self.keys():
            return
        for _ in range(_TRIES):
            token = self._replace_mark()
            parts = self._listed_parts(token)
            keys = ThreadKeys.of(self.keys())
            doomed = set(choose(SurveyedThread(self, parts), keys))
            left = self._heads([both for both in keys.checkpoints if both not in doomed], keys)
            _, before = self._kept()
            if self._mark() == token:  # rule 2
                break
        else:
            raise Conflict(f"thread {self.thread} is pruned by others again and again: try again later")
        # What is not whole has lost its parts to an earlier prune, or its put is about to write them anew.
        whole = {key for key, head in left.items() if head.token == token or needs(head) <= parts}
        kept = [key for key in left if key in whole or key in before]
        large.write(self._store, CheckpointId(self._group, KEPT), b"\n".join([token.encode(), *kept]))
        gone = [layout.checkpoint_key(*both) for both in doomed]
        gone += [key for both in doomed for key in keys.writes.get(both, ())]
        self._delete([CheckpointId(self._group, key) for key in gone])
        needed = {part for head in left.values() for part in needs(head)}
        self._delete([self._part_id(*part) for part in parts - needed])

    def delete(self) -> None:
        """Delete everything of the thread."""
        if not self.keys():
            return
        for _ in range(_TRIES):
            token = self._replace_mark()
            parts, keys = self._listed_parts(token), self.keys()
            if self._mark() == token:
                break
        else:
            raise Conflict(f"thread {self.thread} is being written: try again when it is not")
        self._delete([CheckpointId(self._group, key) for key in keys if key not in (MARK, KEPT)])
        self._delete([self._part_id(*part) for part in parts])
        large.delete(self._store, CheckpointId(self._group, KEPT))
        self._delete([CheckpointId(self._group, MARK)])

    def _replace_mark(self) -> str:
        token = secrets.token_hex(8)
        self._store.write(Batch({CheckpointId(self._group, MARK): token.encode()}))
        self._known.forget(self.thread)
        return token

    def _listed_parts(self, token: str) -> set[tuple[str, bytes]]:
        """The parts that do not have *token*."""
        listed = map(layout.split_part_key, self._store.keys(self._parts_group))
        return {part for part in listed if part[0] != token}

    def _heads(
        self, checkpoints: Sequence[tuple[str, str]], keys: ThreadKeys
    ) -> dict[bytes, StoredCheckpoint | StoredWrites]:
        """*checkpoints* and their writes, and writes that have no checkpoint, by key."""
        there, chosen = set(keys.checkpoints), set(checkpoints)
        wanted = [layout.checkpoint_key(*both) for both in checkpoints]
        wanted += [key for both, some in keys.writes.items() if both in chosen or both not in there for key in some]
        heads = {}
        for some in _pages(wanted):
            for key, body in zip(some, self._read(some), strict=True):
                if body is not None:
                    heads[key] = _decode(key, body)
        return heads

    def _delete(self, ids: Sequence[CheckpointId]) -> None:
        """Delete *ids*, which are of one group."""
        big = self._large_keys(ids[0].group) if ids else set()
        for some in _pages(ids, 512):
            batch = Batch()
            for id in some:
                if id.key in big:
                    large.delete(self._store, id)
                else:
                    batch.delete(id)
            self._store.write(batch)

    def _large_keys(self, group: str) -> set[bytes]:
        """The keys of *group* whose values are large."""
        pieces = large.parts_group(group)
        notes = [CheckpointId(pieces, key) for key in self._store.keys(pieces) if b"_" not in key]
        return {owner for owner in self._store.read(notes) if owner is not None} if notes else set()

    # Copying

    def copy_to(self, target: StoredThread) -> None:
        """Copy all checkpoints and writes to *target*, the oldest first."""
        keys = ThreadKeys.of(self.keys())
        there = set(map(layout.split_part_key, self._store.keys(self._parts_group)))
        for some in _pages(keys.checkpoints[::-1]):
            left = [layout.checkpoint_key(*both) for both in some]
            left += [key for both in some for key in keys.writes.get(both, ())]
            heads = {}
            for key, body in zip(left, self._read(left), strict=True):
                if body is None:
                    continue  # deleted meanwhile
                head = _decode(key, body)
                if not needs(head) <= there:
                    self.check_never_acknowledged(key, head)
                    continue
                heads[key] = replace(head, thread=target.thread) if isinstance(head, StoredCheckpoint) else head
            parts = _PartsOf(self, {name: token for head in heads.values() for token, name in needs(head)})
            target._put(some[0][0], heads, parts)


class _PartsOf(Mapping[bytes, list[Element]]):
    """Parts of a thread, read when they are needed."""

    def __init__(self, thread: StoredThread, tokens: Mapping[bytes, str]) -> None:
        self._thread, self._tokens = thread, tokens

    def __getitem__(self, name: bytes) -> list[Element]:
        part = (self._tokens[name], name)
        found = self._thread._read_parts([part])
        if part not in found:
            raise Conflict(f"thread {self._thread.thread} was pruned while it was copied: copy it again")
        return list(unpacked(found[part]))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._tokens)

    def __len__(self) -> int:
        return len(self._tokens)


class SurveyedThread:
    """What a prune may ask of a thread while it chooses: which checkpoints are whole, and what they say."""

    def __init__(self, thread: StoredThread, parts: set[tuple[str, bytes]]) -> None:
        self._thread, self._parts = thread, parts

    def read_whole(self, both: Sequence[tuple[str, str]]) -> list[StoredCheckpoint | None]:
        """The checkpoints, None for those of which parts may be missing."""
        mark = self._thread._mark()
        return [
            stored if stored and (stored.token == mark or self._has(stored)) else None
            for stored in self._thread.read_stored(both)
        ]

    def _has(self, stored: StoredCheckpoint) -> bool:
        return needs(stored) <= self._parts


Choose = Callable[[SurveyedThread, ThreadKeys], Collection[tuple[str, str]]]
"""What a prune is to delete, by namespace and id."""


def create(store: Backend, id: CheckpointId, value: bytes) -> bool:
    """Store *value* unless *id* has one; whether it did. Where the backend cannot, no other thread of this process does
    it meanwhile."""
    if isinstance(store, SupportsCreate):
        return store.create(id, value, secrets.token_bytes(TOKEN_BYTES))
    with _creating:
        if store.read([id]) != [None]:
            return False
        store.write(Batch({id: value}))
        return True


_creating = Lock()


def _in_order(pending: Iterable[StoredWrites]) -> list[PendingRow]:
    rows = [PendingRow(some.path, some.task, *row, some.token) for some in pending for row in some.rows]
    return sorted(rows, key=lambda row: (row.path, row.task, row.index))


def _pages(items: Sequence[Any], size: int = PAGE) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def needs(stored: StoredCheckpoint | StoredWrites) -> set[tuple[str, bytes]]:
    """The parts that *stored* needs, by token and name."""
    return {(stored.token, name) for name in stored.names}


def _decode(key: bytes, body: bytes | memoryview) -> StoredCheckpoint | StoredWrites:
    return StoredCheckpoint.decode(body) if key.startswith(b"c/") else StoredWrites.decode(body)


def _only(parts: Mapping[bytes, list[Element]], writes: Iterable[StoredWrites]) -> Mapping[bytes, list[Element]]:
    return {name: parts[name] for some in writes for name in some.names} if parts else parts
