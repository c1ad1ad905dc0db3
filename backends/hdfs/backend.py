"""`HdfsBackend`: the contract on top of a store and its writer, which all handles of a process share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Event, Lock
from typing import Self
from weakref import WeakValueDictionary

from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    Compaction,
    PlacementCounts,
    Receipt,
    Scope,
    Stats,
    Survives,
    check_creation,
)
from safekeeper.backends.hdfs.compaction import HdfsCompactor
from safekeeper.backends.hdfs.creation import create
from safekeeper.backends.hdfs.options import HdfsFolder, HdfsOptions, parse
from safekeeper.backends.hdfs.peace.connect import open_placement
from safekeeper.backends.hdfs.peace.in_process import with_coordinator
from safekeeper.backends.hdfs.placement import MOST_CHUNKS
from safekeeper.backends.hdfs.store import HdfsStore
from safekeeper.backends.hdfs.writer import HdfsWriter
from safekeeper.errors import Closed
from safekeeper.url import Url


class Shared:
    """A store in this process: for reading at once, for writing from the first write on."""

    def __init__(self, folder: HdfsFolder, options: HdfsOptions) -> None:
        self.placement = open_placement(folder, options)
        self.store = HdfsStore(folder, options)
        self.handles = 0
        """How many share it; below 0 while it is being closed."""
        self.closed = Event()
        self._starting = Lock()
        self._writing: tuple[HdfsWriter, HdfsCompactor] | None = None

    def writing(self) -> tuple[HdfsWriter, HdfsCompactor]:
        """The writer, and whoever cleans up behind it."""
        with self._starting:
            if self._writing is None:
                if self.handles < 0:
                    raise Closed("this store was closed: open a new one")
                survives = self.store.survives
                relies_on_another = Survives.HOST in survives or (
                    Survives.OS in survives and self.store.options.sync == "hflush"
                )
                writer = HdfsWriter(self.store, self.placement, 2 if relies_on_another else 1, self._sealed)
                self._writing = writer, HdfsCompactor(self.store, writer)
                writer.submit(self._writing[1].keep_up)  # processes that write little leave many small segments
            return self._writing

    def _sealed(self) -> None:
        if self._writing is not None:
            writer, compactor = self._writing
            writer.submit(compactor.keep_up)

    def close(self) -> None:
        """Complete what is open and let go of everything."""
        with self._starting:
            writing = self._writing
        try:
            if writing is not None:
                writing[0].close()
        finally:
            self.store.close()


_lock = Lock()
_shared: dict[tuple[HdfsFolder, HdfsOptions], Shared] = {}
_opening: WeakValueDictionary[tuple[HdfsFolder, HdfsOptions], Lock] = WeakValueDictionary()
"""Held while a store is opened, which may take long: whoever wants another one does not wait for it."""


def _forget_in_child() -> None:
    global _lock
    _lock = Lock()
    _shared.clear()
    _opening.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def share(folder: HdfsFolder, options: HdfsOptions) -> Shared:
    """The store in *folder*, for one more handle."""
    key = folder, options
    with _lock:
        opening = _opening.setdefault(key, Lock())
    with opening:
        while True:
            with _lock:
                shared = _shared.get(key)
                if shared is not None and shared.handles >= 0:
                    shared.handles += 1
                    return shared
            if shared is None:
                shared = Shared(folder, options)
                with _lock:
                    _shared[key] = shared
            else:
                shared.closed.wait()


def unshare(shared: Shared) -> None:
    """Take back a `share`; the last one closes the store."""
    with _lock:
        shared.handles -= 1
        if shared.handles:
            return
        shared.handles = -1  # whoever opens it again waits until this is done
    try:
        shared.close()
    finally:
        with _lock:
            for key in [key for key, other in _shared.items() if other is shared]:
                del _shared[key]
        shared.closed.set()


class HdfsBackend(Backend):
    """A handle on checkpoints in HDFS."""

    scope = Scope.NETWORK
    url_options = (HdfsOptions,)

    def __init__(self, folder: HdfsFolder, options: HdfsOptions) -> None:
        super().__init__()
        self._shared = share(folder, options)
        self._closing = Lock()

    @property
    def survives(self) -> Survives:
        """By what was last seen of the cluster: when it was opened, with each new segment and with each large value."""
        return self._shared.store.survives | self.asserted

    @survives.setter
    def survives(self, declared: Survives) -> None:
        self.asserted |= declared & ~self.survives

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `hdfs://`; see the package."""
        options = url.options(HdfsOptions)
        return cls(parse(url), options)

    @classmethod
    def url_for_workers(cls, url: str) -> str:
        """*url* with a coordinator of Peace in this process, where it asks for Peace and names none."""
        return with_coordinator(url)

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        if not len(batch):
            return Receipt(self.survives)
        writer, _ = self._shared.writing()
        seconds = writer.write(batch)
        return Receipt(self.survives, seconds)

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """A segment of its own gets a name that only one can give: see `creation.py`."""
        self.check_open()
        check_creation(id, value, token)
        writer, _ = self._shared.writing()
        return create(self._shared.store, writer, id, value, token)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        return self._shared.store.read(ids) if ids else []

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        store = self._shared.store
        store.refresh()
        with store.lock:
            keys = store.index.keys(group)
        for key in keys:
            yield key
            self.check_open()

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """Segment by segment, several pieces of them at once."""
        self.check_open()
        for page in self._shared.store.scan(group):
            self.check_open()
            yield page
            self.check_open()

    def groups(self) -> Iterator[str]:
        self.check_open()
        store = self._shared.store
        store.refresh()
        with store.lock:
            groups = store.index.groups()
        for group in groups:
            yield group
            self.check_open()

    def compact(self) -> Compaction:
        """Rewrite whatever has a dead record, also in our open segment, and remove what writers that died left."""
        self.check_open()
        writer, compactor = self._shared.writing()
        writer.seal()
        return compactor.run(everything=True)

    def stats(self) -> Stats:
        self.check_open()
        store = self._shared.store
        store.refresh()
        with store.lock:
            size = sum(segment.size for segment in store.segments.values())
            ids, segments = store.index.count(), len(store.segments)
        placed = self.placement_counts()
        details = {"segments": segments, "planned_files": placed.planned, "files_as_planned": placed.hits}
        return Stats(ids, size, details)

    def exists(self) -> bool:
        self.check_open()
        return self._shared.store.exists()

    def placement_counts(self) -> PlacementCounts:
        """How many files of this process went where they were planned."""
        return self._shared.placement.counts()

    def turn(self, group: str, nbytes: int) -> AbstractContextManager[None]:
        """Peace's, for the chunks of a large value; small ones take no turn."""
        return self._ahead(group, nbytes, wait=True)

    def announced(self, group: str, nbytes: int) -> AbstractContextManager[None]:
        """To Peace it is one request."""
        return self._ahead(group, nbytes, wait=False)

    def _ahead(self, group: str, nbytes: int, *, wait: bool) -> AbstractContextManager[None]:
        self.check_open()
        store = self._shared.store
        if nbytes < store.options.large:
            return nullcontext()
        count = min(-(-nbytes // store.options.chunk), MOST_CHUNKS)
        return self._shared.placement.ahead(count, store.replication, group, wait=wait)

    @property
    def concurrent_writes(self) -> int:
        """As many as there are threads for chunks; what is small shares a sync in any case."""
        return self._shared.store.options.workers

    @property
    def last_progress(self) -> float:
        """When a DataNode last took something from this process, or Peace's coordinator told it to wait on."""
        return max(self._shared.store.client.got_on, self._shared.placement.last_heard())

    def close(self) -> None:
        if self._owner != os.getpid():
            return super().close()
        with self._closing:
            was_open = self._open
            super().close()
        return unshare(self._shared) if was_open else None
