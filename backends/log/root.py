"""A root as this process knows it: the folders of all its writers. What is newest of an id is decided here.

Each folder has its own index. An id that only one folder knows, which is nearly every id, costs no more than with one
folder; where several know it, the record with the highest (sequence, epoch) counts. Before every look at several
folders they are caught up with, and the look is repeated until none of them has changed meanwhile: so an id that goes
and the tombstone that hid it are never seen the one without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from safekeeper.backend import CheckpointId, Stats
from safekeeper.backends.log.claim import Claims, writer_folders
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.location import TOMBSTONE_BIT, segment_of
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.writer_folder import GroupView, IdView, Store, View
from safekeeper.errors import Closed, Corruption

V = TypeVar("V", bound=View)


class _LookedAt:
    """Folders that a caller looks at. Another thread may load them anew before the caller has found out that it must:
    then there is nothing left to do, but what the caller has seen is old all the same."""

    def __init__(self, stores: tuple[Store, ...]) -> None:
        self.stores = stores
        self._loads = [store.loads for store in stores]

    def is_old(self) -> bool:
        """Whether any of them was loaded since."""
        return self._loads != [store.loads for store in self.stores]


class Root:
    """All folders of a root, for all handles of a process."""

    def __init__(self, path: Path, options: LogOptions, files: Files) -> None:
        self.path = path
        self.options = options
        self.files = files
        self.own: Store | None = None
        """The folder that this process writes to, from its first write on."""
        self._stores: tuple[Store, ...] = ()
        self._claims: Claims | None = None
        self._seen_epoch = -1
        self._unread = False  # whether there are folders of which only the head is known, which may be old
        self._lock = Lock()
        self._closed = False

    # --- which folders there are --------------------------------------------------------------------------------------

    def stores(self) -> tuple[Store, ...]:
        """The folders, as of now."""
        claims = self._claims = self._claims or Claims.of_reader(self.path)
        epoch = claims.epoch if claims else 0  # 0: listed every time
        if not epoch or epoch != self._seen_epoch:
            self._list(epoch)
        return self._stores

    def _list(self, epoch: int) -> None:
        """List the folders, and close those that are gone."""
        with self._lock:
            if self._closed:
                raise Closed(f"{self.path} was closed: open it again")
            known = {store.folder: store for store in self._stores}
            folders = writer_folders(self.path)
            self._stores = tuple(known.get(path) or Store(path, self.options, self.files) for path in folders)
            self._seen_epoch = epoch
            self._unread |= any(store.folder not in known for store in self._stores)
            for store in self._stores:
                store.forget_head()
            for store in {*known.values()} - {*self._stores, self.own}:
                store.close()

    def adopt(self, store: Store, own: bool) -> None:
        """Take in a folder that this process has claimed; with *own* it is the one for this process to write to."""
        with self._lock:
            read = [other for other in self._stores if other.folder == store.folder]
            self._stores = (*(other for other in self._stores if other not in read), store)  # the highest epoch
            self.own = store if own else self.own
            self._seen_epoch = -1
            for other in read:
                other.close()

    def drop(self, store: Store) -> None:
        """Forget a folder that this process does not write to any more, so that it is read like those of others."""
        with self._lock:
            self._stores = tuple(other for other in self._stores if other is not store)
            self.own = None if self.own is store else self.own
            self._seen_epoch = -1
            store.close()

    def highest_beside(self, own: Store) -> int:
        """The highest sequence that any other writer has chosen."""
        stores, highest = self.stores(), 0
        if self._unread:
            self._unread = False
            with suppress(Corruption):  # then its head has to do
                self.refresh()
            stores = self._stores
        for store in stores:
            if store is not own and (sequence := store.highest) > highest:
                highest = sequence
        return highest

    def seed(self) -> int:
        """What fingerprints are seeded with, the same in all folders to make them comparable; 0 if nobody chose."""
        return next((seed for store in self._stores if (seed := store.state.manifest.seed)), 0)

    # --- reading ------------------------------------------------------------------------------------------------------

    def refresh(self) -> tuple[Store, ...]:
        """Catch up with all writers; the folders."""
        while True:
            looked_at = _LookedAt(self.stores())
            try:
                for store in looked_at.stores:
                    store.refresh()
            except (Corruption, Closed, FileNotFoundError):
                if not self._has_moved_on(looked_at):
                    raise
            else:
                return looked_at.stores

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """The values of *ids*."""
        while True:
            looked_at = _LookedAt(self.refresh())
            try:
                return looked_at.stores[0].read(ids) if len(looked_at.stores) == 1 else self._read_newest(ids)
            except (Corruption, Closed):
                if not self._has_moved_on(looked_at):
                    raise

    def _read_newest(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        views = self.look(lambda store, _: store.pin_ids(ids))
        try:
            return [_newest_value(id, at, views) for at, id in enumerate(ids)]
        finally:
            _release(views)

    def keys(self, group: str) -> Iterator[bytes]:
        """The keys of a group."""
        views = self.look(lambda store, several: store.pin_group(group, several))
        try:
            known = [view for view in views if view.segments or view.new]
            yield from known[0].live_keys() if len(known) == 1 else _newest_keys(known)
        finally:
            _release(views)

    def groups(self) -> Iterator[str]:
        """The groups with at least one id."""
        for name, stores in self._by_group().items():
            if stores[0].has_values(name) if len(stores) == 1 else any(True for _ in self.keys(name)):
                yield name

    def _by_group(self) -> dict[str, list[Store]]:
        """The groups that have or had an id, with the folders that know them."""
        found: dict[str, list[Store]] = {}
        for store in self.refresh():
            for name in store.group_names():
                found.setdefault(name, []).append(store)
        return found

    def stats(self, details: dict[str, int | float | str]) -> Stats:
        """What the log holds, with *details* added to its own."""
        stores = self.refresh()
        shared = {name for name, knowing in self._by_group().items() if len(knowing) > 1}
        ids = sum(store.count_ids(shared) for store in stores) + sum(len(set(self.keys(name))) for name in shared)
        own = {
            "writers": len(stores),
            "segments": sum(len(store.state.manifest.segments) for store in stores),
            "indexed": sum(len(store.state.index.table) for store in stores),
        }
        return Stats(ids, self.bytes_stored(), own | details)

    def bytes_stored(self) -> int:
        """What the files of all writers occupy."""
        return sum(store.bytes_stored() for store in self.stores())

    def renew_locks(self) -> None:
        """Forget who holds a lock, in the child of a fork: nobody does there, and a listing gives back its files."""
        for store in self._stores:
            store.lock = Lock()

    def close(self) -> None:
        """Give back the files. Reads that are under way end well; later ones raise `Closed`."""
        with self._lock:
            self._closed = True
            for store in self._stores:
                store.close()

    # --- looking at several folders at once ---------------------------------------------------------------------------

    def look(self, look: Callable[[Store, bool], V]) -> list[V]:
        """What *look* makes of each folder, in one moment in which all are caught up with.

        Its second argument says whether there are several folders. What it returns holds pins.
        """
        while True:
            looked_at = _LookedAt(self.refresh())
            try:
                views = _at_once(looked_at.stores, look)
            except (Corruption, Closed):
                if not self._has_moved_on(looked_at):
                    raise
            else:
                if views is not None:
                    return views

    def _has_moved_on(self, looked_at: _LookedAt) -> bool:
        """Whether anything has changed since then, so that trying again is right."""
        self._list(0)
        return self._stores != looked_at.stores or looked_at.is_old() or any(s.has_moved_on() for s in self._stores)


def _at_once(stores: Sequence[Store], look: Callable[[Store, bool], V]) -> list[V] | None:
    views: list[V] = []
    try:
        with ExitStack() as locks:
            for store in stores:
                locks.enter_context(store.lock)
            if len(stores) > 1 and not all(store.is_current() for store in stores):
                return None
            for store in stores:
                views.append(look(store, len(stores) > 1))
    except BaseException:
        _release(views)
        raise
    return views


def _release(views: Iterable[View]) -> None:
    for view in views:
        view.store.unpin(view.segments.values())


def _newest_value(id: CheckpointId, at: int, views: Iterable[IdView]) -> bytes | None:
    """The value of *id*, which is the one number *at* of what the views are of."""
    known = [view for view in views if view.locations[at]]
    if not known:
        return None
    newest = known[0] if len(known) == 1 else max(known, key=lambda view: view.stamp(view.locations[at]))
    location = newest.locations[at]
    if location & TOMBSTONE_BIT:
        return None
    return newest.segments[segment_of(location)].read_value(location, id.group.encode(), id.key)


def _newest_keys(views: Iterable[GroupView]) -> Iterator[bytes]:
    """The keys whose newest record in any folder is a value."""
    known: dict[bytes, list[tuple[GroupView, int]]] = {}
    for view in views:
        for key, location in view.last_records():
            known.setdefault(key, []).append((view, location))
    for key, records in known.items():
        _, location = records[0] if len(records) == 1 else max(records, key=lambda record: record[0].stamp(record[1]))
        if not location & TOMBSTONE_BIT:
            yield key
