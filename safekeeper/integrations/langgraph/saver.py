"""The saver that LangGraph is given. What it stores is in `layout.py`, how in `thread.py`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

import safekeeper
from safekeeper.backend import CheckpointId
from safekeeper.integrations.langgraph import layout
from safekeeper.integrations.langgraph.layout import ThreadKeys
from safekeeper.integrations.langgraph.thread import (
    PAGE,
    KnownParts,
    LoadedCheckpoint,
    PendingRow,
    StoredCheckpoint,
    StoredThread,
    StoredWrites,
    SurveyedThread,
    create,
)
from safekeeper.integrations.langgraph.values import ValueCutter, join

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, DeltaChannelHistory
    from langgraph.checkpoint.serde.base import CipherProtocol, SerializerProtocol

    from safekeeper.backend import Backend

_WHOLE_BYTES = 1 << 20
"""Writes over this size are stored in parts."""
_DELTAS = "counters_since_delta_snapshot"


class SafeKeeperSaver(BaseCheckpointSaver[Any]):
    """LangGraph's checkpoints in any store: what checkpoints of a thread have in common is stored once.

        with SafeKeeperSaver("log:///var/lib/agents") as saver:
            graph = builder.compile(checkpointer=saver)

    It may be used by any number of processes, threads and event loops at a time, on one LangGraph thread too. When a
    method returns, what it stored survives what the store's backend declares. Every method has its `a` twin, which does
    the same in another thread.

    `prune` keeps the latest checkpoint of each namespace, and what its delta channels are rebuilt from; it also removes
    what dead processes have left. With LangGraph's `EncryptedSerializer` everything but the names of threads,
    namespaces, checkpoints and tasks is encrypted, and what is equal is still stored once. A serializer that makes
    other bytes of an equal object each time works, but nothing is shared.
    """

    def __init__(self, store: str | Backend, *, serde: SerializerProtocol | None = None) -> None:
        """*store* is a URL, or an open backend, which stays open when the saver is closed."""
        super().__init__(serde=serde)
        self._owned = isinstance(store, str)
        self._store = safekeeper.open(store) if isinstance(store, str) else store
        self._known = KnownParts()
        self._keys: dict[str, bytes] = {}

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, *, serde: SerializerProtocol | None = None) -> Iterator[Self]:
        """As the savers of LangGraph have it: the same as `with SafeKeeperSaver(url)`."""
        with cls(conn_string, serde=serde) as saver:
            yield saver

    def close(self) -> None:
        """Close the store, if this has opened it."""
        if self._owned:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # Checkpoints

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that *config* names, else the latest one; None if there is none."""
        at = _Place.of(config)
        loaded = self._thread(at.thread).load(at.ns, at.id)
        return None if loaded is None else self._tuple(loaded)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads, the newest first."""
        if limit is not None and limit <= 0:
            return
        found = 0
        for thread, ns, id, writes in self._listed(config, get_checkpoint_id(before) if before else None):
            (stored,) = thread.read_stored([(ns, id)])
            if stored is None or (filter and not self._passes(stored, filter)):
                continue
            owner = thread if thread.thread == stored.thread else self._thread(stored.thread)
            if (loaded := owner.load_listed(ns, id, writes)) is not None:
                yield self._tuple(loaded)
                found += 1
                if found == limit:
                    return

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; *config* names its parent."""
        at = _Place.of(config)
        plain, cipher = self._serializer()
        cutter = ValueCutter(plain, self._naming_key(cipher))
        values = {channel: cutter.cut(value) for channel, value in checkpoint["channel_values"].items()}
        bare = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        about = plain.dumps_typed(get_checkpoint_metadata(config, metadata))
        id = checkpoint["id"]
        stored = StoredCheckpoint(at.thread, at.ns, id, at.id, plain.dumps_typed(bare), about, "", values)
        self._thread(at.thread).put(stored, cutter.parts)
        return _Place(at.thread, at.ns, id).config()

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written; of two writes with the same index the first one counts."""
        at = _Place.of(config)
        if at.id is None:
            raise ValueError("writes belong to a checkpoint: config['configurable'] must have a checkpoint_id")
        plain, cipher = self._serializer()
        cutter = ValueCutter(plain, self._naming_key(cipher))
        rows = []
        for index, (channel, value) in enumerate(writes):
            whole = cutter.whole(value)
            cut = whole if len(whole[2][2]) <= _WHOLE_BYTES else cutter.cut(value)
            rows.append((WRITES_IDX_MAP.get(channel, index), channel, cut))
        stored = StoredWrites(task_id, task_path, "", rows)
        self._thread(at.thread).put_writes(at.ns, at.id, stored, cutter.parts)

    # Threads

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        self._thread(str(thread_id)).delete()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of some runs, in all threads: every checkpoint of the store is looked at.

        What later checkpoints need of them for their delta channels is deleted too, as LangGraph has it.
        """
        runs = set(run_ids)
        doomed: dict[str, set[tuple[str, str]]] = {}
        for thread, ns, id, _ in self._listed(None, None) if runs else ():
            (stored,) = thread.read_stored([(ns, id)])
            if stored is not None and self._metadata(stored).get("run_id") in runs:
                doomed.setdefault(stored.thread, set()).add((ns, id))
        for name, some in doomed.items():
            self._thread(name).prune(partial(_these, some))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread."""
        self._thread(str(source_thread_id)).copy_to(self._thread(str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the latest checkpoint of each namespace (`keep_latest`), or nothing (`delete`)."""
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"there is no strategy {strategy!r} to prune by: use 'keep_latest' or 'delete'")
        for thread_id in map(str, thread_ids):
            if strategy == "delete":
                self._thread(thread_id).delete()
            else:
                self._thread(thread_id).prune(self._all_but_latest)

    def _all_but_latest(self, thread: SurveyedThread, keys: ThreadKeys) -> Collection[tuple[str, str]]:
        """What `keep_latest` deletes: everything older than the latest whole checkpoint of its namespace and what its
        delta channels are rebuilt from."""
        older = dict[str, list[str]]()
        for ns, id in keys.checkpoints:
            older.setdefault(ns, []).append(id)
        doomed = set[tuple[str, str]]()
        for ns, ids in older.items():
            for at, id in enumerate(ids):
                (latest,) = thread.read_whole([(ns, id)])
                if latest is not None:
                    needed = self._ancestors_needed(thread, latest)
                    doomed |= {(ns, other) for other in ids[at + 1 :] if other not in needed}
                    break
        return doomed

    def _ancestors_needed(self, thread: SurveyedThread, stored: StoredCheckpoint) -> set[str]:
        """The checkpoints from which the delta channels of *stored* are rebuilt."""
        missing = set(self._metadata(stored).get(_DELTAS) or ()) - stored.values.keys()
        needed, parent = set[str](), stored.parent
        while missing and parent is not None and parent not in needed:
            (ancestor,) = thread.read_whole([(stored.ns, parent)])
            if ancestor is None:
                break
            needed.add(parent)
            missing -= ancestor.values.keys()
            parent = ancestor.parent
        return needed

    # Delta channels

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What a delta channel's value is rebuilt from: the writes since the last ancestor that has a value."""
        if not channels:
            return {}
        at = _Place.of(config)
        thread = self._thread(at.thread)
        keys = ThreadKeys.of(thread.keys())
        chain = _Chain(thread, at.ns, [id for ns, id in keys.checkpoints if ns == at.ns])
        plain, _ = self._serializer()
        remaining, seeds = set(channels), dict[str, Any]()
        collected: dict[str, list[list[PendingRow]]] = {channel: [] for channel in channels}
        for ancestor in chain.above(at.id):
            if not remaining:
                break
            pending = _by_channel(thread.read_rows(keys.writes.get((at.ns, ancestor.id), [])))
            for channel in remaining:
                collected[channel].append(pending.get(channel, []))
            for channel in remaining & ancestor.values.keys():
                value = ancestor.values[channel]
                seeds[channel] = join(plain, value, thread.read_parts_of(ancestor.token, [value]))
            remaining -= seeds.keys()
        history: dict[str, DeltaChannelHistory] = {}
        for channel in channels:
            rows = [row for some in reversed(collected[channel]) for row in some]
            history[channel] = {"writes": [(row.task, channel, self._row_value(thread, row)) for row in rows]}
            if channel in seeds:
                history[channel]["seed"] = seeds[channel]
        return history

    def _row_value(self, thread: StoredThread, row: PendingRow) -> Any:
        return join(self._serializer()[0], row.value, thread.read_parts_of(row.token, [row.value]))

    # The same for asyncio

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while some := await asyncio.to_thread(_take, found):
            for one in some:
                yield one

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Whole numbers; for a thread that came from another saver, text as that one makes it."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.{secrets.randbelow(10**16):016}"
        return 1 if current is None else int(current) + 1

    # Inside

    def _thread(self, thread: str, group: str | None = None) -> StoredThread:
        return StoredThread(self._store, thread, self._serializer()[1], self._known, group=group)

    def _serializer(self) -> tuple[SerializerProtocol, CipherProtocol | None]:
        """What makes bytes of objects, and what encrypts them; apart, so that equal objects can be told."""
        if type(self.serde) is EncryptedSerializer:
            return self.serde.serde, self.serde.cipher
        return self.serde, None

    def _naming_key(self, cipher: CipherProtocol | None) -> bytes:
        """What the names of parts are made with: a secret where values are, or names would tell what is in them."""
        if cipher is None:
            return b""
        cipher_name = cipher.encrypt(b"")[0]
        if cipher_name not in self._keys:
            id = CheckpointId(layout.NAMES, f"names+{cipher_name}".encode())
            (value,) = self._store.read([id])
            if value is None:
                create(self._store, id, layout.seal(cipher, secrets.token_bytes(32)))
                (value,) = self._store.read([id])
            assert value is not None
            self._keys[cipher_name] = bytes(layout.unseal(cipher, id, value))
        return self._keys[cipher_name]

    def _listed(
        self, config: RunnableConfig | None, before: str | None
    ) -> Iterator[tuple[StoredThread, str, str, Sequence[bytes]]]:
        """Thread, namespace, id and keys of the writes of what *config* names, the newest first.

        The name of a thread may be only in its checkpoints.
        """
        at = None if config is None else _Place.of(config)
        if at is None:
            threads = [self._thread("", group) for group in layout.thread_groups(self._store.groups())]
        else:
            threads = [self._thread(at.thread)]
        found = []
        for thread in threads:
            keys = ThreadKeys.of(thread.keys())
            found += [(id, ns, thread, keys.writes.get((ns, id), [])) for ns, id in keys.checkpoints]
        anywhere = config is None or "checkpoint_ns" not in config["configurable"]
        for id, ns, thread, writes in sorted(found, key=lambda one: one[:2], reverse=True):
            if at is not None and ((not anywhere and ns != at.ns) or (at.id is not None and id != at.id)):
                continue
            if before is None or id < before:
                yield thread, ns, id, writes

    def _metadata(self, stored: StoredCheckpoint) -> Any:
        return self._serializer()[0].loads_typed(stored.metadata)

    def _passes(self, stored: StoredCheckpoint, filter: dict[str, Any]) -> bool:
        metadata = self._metadata(stored)
        return all(metadata.get(name) == value for name, value in filter.items())

    def _tuple(self, loaded: LoadedCheckpoint) -> CheckpointTuple:
        plain, _ = self._serializer()
        stored = loaded.stored
        elements = loaded.elements(stored.token)
        checkpoint = plain.loads_typed(stored.checkpoint)
        checkpoint["channel_values"] = {name: join(plain, value, elements) for name, value in stored.values.items()}
        parent = None if stored.parent is None else _Place(stored.thread, stored.ns, stored.parent).config()
        writes = [(row.task, row.channel, join(plain, row.value, loaded.elements(row.token))) for row in loaded.writes]
        at = _Place(stored.thread, stored.ns, stored.id)
        return CheckpointTuple(at.config(), checkpoint, self._metadata(stored), parent, writes)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a config names."""

    thread: str
    ns: str
    id: str | None

    @classmethod
    def of(cls, config: RunnableConfig) -> _Place:
        named = config["configurable"]
        if "thread_id" not in named:
            raise ValueError("config['configurable'] must have a thread_id: it names the conversation")
        return cls(str(named["thread_id"]), str(named.get("checkpoint_ns") or ""), get_checkpoint_id(config) or None)

    def config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": self.id}}


class _Chain:
    """The ancestors of a checkpoint, read some at a time: most often each is the next older one."""

    def __init__(self, thread: StoredThread, ns: str, ids: Sequence[str]) -> None:
        self._thread, self._ns, self._ids = thread, ns, ids
        self._at = {id: at for at, id in enumerate(ids)}
        self._read: dict[str, StoredCheckpoint | None] = {}

    def above(self, id: str | None) -> Iterator[StoredCheckpoint]:
        """The parent of *id*, its parent, and so on; of the newest one without an id."""
        if id is None:
            id = self._ids[0] if self._ids else ""
        seen = {id}
        one = self._get(id)
        while one is not None and one.parent is not None and one.parent not in seen:
            seen.add(one.parent)
            one = self._get(one.parent)
            if one is not None:
                yield one

    def _get(self, id: str) -> StoredCheckpoint | None:
        if id not in self._read:
            at = self._at.get(id)
            wanted = [id] if at is None else self._ids[at : at + PAGE]
            self._read = dict(zip(wanted, self._thread.read_stored([(self._ns, one) for one in wanted]), strict=True))
        return self._read[id]


def _by_channel(rows: Sequence[PendingRow]) -> dict[str, list[PendingRow]]:
    found: dict[str, list[PendingRow]] = {}
    for row in rows:
        found.setdefault(row.channel, []).append(row)
    return found


def _take(found: Iterator[CheckpointTuple]) -> Sequence[CheckpointTuple]:
    return [*islice(found, PAGE)]


def _these(
    doomed: Collection[tuple[str, str]], _thread: SurveyedThread, _keys: ThreadKeys
) -> Collection[tuple[str, str]]:
    return doomed
