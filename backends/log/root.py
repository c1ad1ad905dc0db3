"""A root as this process knows it: the folders of all its writers. What is newest of an id is decided here.

Each folder has its own index. An id that only one folder knows, which is nearly every id, costs no more than with one
folder; where several know it, the record with the highest (sequence, epoch) counts. Before every look at several
folders they are caught up with, and the look is repeated until none of them has changed meanwhile: so an id that goes
and the tombstone that hid it are never seen the one without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from safekeeper.backend import CheckpointId, Stats
from safekeeper.backends.log.claim import Claims, writer_folders
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.index_file import U64
from safekeeper.backends.log.location import SEGMENT_SHIFT, TOMBSTONE_BIT
from safekeeper.backends.log.open_files import most_open
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.recovery import State
from safekeeper.backends.log.writer_folder import GroupView, IdView, View, WriterFolder
from safekeeper.errors import Closed, Corruption, Unavailable

R = TypeVar("R")
V = TypeVar("V", bound=View)


_MOVING: Final = (Corruption, Closed, FileNotFoundError)
"""What it may look like when a folder is compacted or taken over while somebody reads it."""


_FEW_IDS: Final = 4
_TRIES: Final = 10  # of a look at files that are not pinned

Settle = Callable[["Root", WriterFolder], bool]
"""Called for a folder with more in it than its writer has answered; whether anything has come of it."""


class _Look:
    """Which folder somebody looks at. When that fails, only what has changed there is a reason to look again."""

    def __init__(self) -> None:
        self.folder: WriterFolder | None = None
        self.state: State | None = None
        """What is looked at; None if that is still to be loaded."""

    def at(self, folder: WriterFolder, state: State | None) -> None:
        """Go on to the next one."""
        self.folder, self.state = folder, state


class Root:
    """All folders of a root, for all handles of a process."""

    def __init__(self, path: Path, options: LogOptions, files: Files, settle: Settle) -> None:
        self.path = path
        self._settle = settle
        self.options = options
        self.files = files
        self.own: WriterFolder | None = None
        """The folder that this process writes to, from its first write on."""
        self._known: tuple[int, tuple[WriterFolder, ...]] = -1, ()
        """The epoch as of which the folders were listed, -1 if they changed since, and these: replaced together, since
        others look without the lock."""
        self._claims: Claims | None = None
        self._unread = False  # whether there are folders of which only the status is known, which may be old
        self._lock = Lock()
        self._closed = False

    # --- which folders there are --------------------------------------------------------------------------------------

    def folders(self) -> tuple[WriterFolder, ...]:
        """The folders, as of now."""
        claims = self._claims = self._claims or Claims.of_reader(self.path)
        seen, folders = self._known
        epoch = claims.epoch if claims else 0  # 0: listed every time
        return folders if epoch and epoch == seen else self._list(epoch)

    def is_removed(self) -> bool:
        """Whether the files that were opened here are not the ones that others find."""
        claims = self._claims  # once: who closes the root takes it away
        return claims is not None and claims.is_removed()

    def _list(self, epoch: int) -> tuple[WriterFolder, ...]:
        """List the folders, and close those that are gone."""
        with self._lock:
            if self._closed:
                raise Closed(f"{self.path} was closed: open it again")
            known = {folder.path: folder for folder in self._known[1]}
            paths = writer_folders(self.path)
            folders = tuple(known.get(path) or WriterFolder(path, self.options, self.files) for path in paths)
            self._unread |= any(folder.path not in known for folder in folders)
            for folder in folders:
                folder.forget_status()
            self._known = epoch, folders  # from now on nobody looks
            for folder in {*known.values()} - {*folders, self.own}:
                folder.close()
            return folders

    def adopt(self, folder: WriterFolder, own: bool) -> None:
        """Take in a folder that this process has claimed; with *own* it is the one for this process to write to."""
        with self._lock:
            _, folders = self._known
            read = [other for other in folders if other.path == folder.path]
            self.own = folder if own else self.own
            self._known = -1, (*(other for other in folders if other not in read), folder)  # the highest epoch
            for other in read:
                other.close()

    def drop(self, folder: WriterFolder) -> None:
        """Forget a folder that this process does not write to any more, so that it is read like those of others."""
        with self._lock:
            self.own = None if self.own is folder else self.own
            self._known = -1, tuple(other for other in self._known[1] if other is not folder)
            folder.close()

    def highest_beside(self, own: WriterFolder) -> int:
        """The highest sequence that any other writer has chosen."""
        folders, highest = self.folders(), 0
        if self._unread:
            self._unread = False
            for folder in folders:
                with suppress(*_MOVING):  # then its status has to do
                    folder.refresh()
            folders = self.folders()
        for folder in folders:
            if folder is not own and (sequence := folder.highest) > highest:
                highest = sequence
        return highest

    def seed(self) -> int:
        """What fingerprints are seeded with, the same in all folders to make them comparable; 0 if nobody chose."""
        return next((seed for folder in self._known[1] if (seed := folder.state.manifest.seed)), 0)

    # --- reading ------------------------------------------------------------------------------------------------------

    def refresh(self) -> tuple[WriterFolder, ...]:
        """Catch up with all writers, also with those that are gone; the folders."""
        while True:
            folders = self.catch_up()
            open_ends = [folder for folder in folders if folder.state.has_more]
            settled = [folder for folder in open_ends if self._settle(self, folder)]
            if not settled:
                return folders
            self._list(0)

    def catch_up(self) -> tuple[WriterFolder, ...]:
        """Catch up with what all writers have answered; the folders."""
        if self.is_removed():  # a writer finds out by itself, with each block
            raise Unavailable(f"{self.path} was removed, moved or replaced while it was open: open the store again")
        while True:
            folders, look = self.folders(), _Look()
            try:
                for folder in folders:
                    look.at(folder, None)
                    folder.refresh()
                return folders
            except _MOVING:
                if not self._has_moved_on(look):
                    raise

    def _read_one(self, id: CheckpointId) -> list[bytes | None] | None:
        """The value of *id*, as `read` gives it, in few steps. None if somebody has to look: something has changed
        since the last look, or several folders know the id."""
        folders = self._unchanged()
        one = len(folders) == 1  # which is caught up with at any moment; several have to be at the same
        if not folders or (one and not folders[0].is_caught_up()):
            return None
        with folders[0].lock if one else _all_locks(folders):
            if not (one or all(map(WriterFolder.is_caught_up, folders))):
                return None
            known = [(folder, at) for folder in folders if (at := folder.state.index.find_last(id.group, id.key))]
            if len(known) != 1:
                return None if known else [None]
            ((folder, location),) = known
            if location & TOMBSTONE_BIT:
                return [None]
            segments = folder.pin((location >> SEGMENT_SHIFT,))
        try:
            (segment,) = segments.values()
            return [segment.read_value(location, id.group.encode(), id.key)]
        finally:
            folder.unpin(segments.values())

    def _unchanged(self) -> tuple[WriterFolder, ...]:
        """The folders, if they are the ones that are known; nothing if somebody has to look."""
        claims, (seen, folders) = self._claims, self._known
        if claims is None or not 0 < claims.epoch == seen or claims.is_removed():
            return ()
        return folders

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """The values of *ids*."""
        if len(ids) == 1:
            try:
                if (values := self._read_one(ids[0])) is not None:
                    return values
            except (*_MOVING, OSError):
                pass  # what it means is decided below
        while True:
            folders, look = self.refresh(), _Look()
            if len(ids) > _FEW_IDS and len(ids) > (most := max(self._most_pinned(), 1)):
                return [value for at in range(0, len(ids), most) for value in self.read(ids[at : at + most])]
            if len(folders) != 1:
                return self._read_newest(ids)
            try:
                look.at(folders[0], folders[0].state)
                return folders[0].read(ids)
            except _MOVING:
                if not self._has_moved_on(look):
                    raise

    def _most_pinned(self) -> int:
        """How many segments of each folder may be pinned at once."""
        return most_open() // max(len(self._known[1]), 1)

    def token(self, id: CheckpointId) -> bytes | None:
        """The token that *id* was created with, nothing if it was written; None if there is no such id."""
        return self._read_newest([id], IdView.token)[0]

    def _read_newest(
        self, ids: Sequence[CheckpointId], read: Callable[[IdView, int, CheckpointId], bytes] = IdView.value
    ) -> list[bytes | None]:
        """What *read* makes of the newest record of each of *ids*; None for those that have no value."""
        most = self._most_pinned()
        for tries in range(_TRIES):
            views = self.look(lambda folder, _: folder.pin_ids(ids, most))
            states = [view.folder.state for view in views]
            try:
                return [
                    read(*newest, id) if (newest := _newest(at, views)) is not None else None
                    for at, id in enumerate(ids)
                ]
            except Corruption:
                if tries == _TRIES - 1 or not _may_be_gone(views, states):
                    raise
            finally:
                _release(views)
        return []

    def keys(self, group: str) -> Iterator[bytes]:
        """The keys of a group."""
        return chain.from_iterable(self.key_pages(group))

    def key_pages(self, group: str) -> Iterator[list[bytes]]:
        """The keys of a group, in pages."""
        return self._of_group(group, False, _newest_keys)

    def scan(self, group: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """The keys of a group with their values, in pages."""
        return self._of_group(group, True, _newest_pairs)

    def _of_group(self, group: str, values: bool, items: Callable[[list[GroupView]], Iterator[R]]) -> Iterator[R]:
        """The *items* of the folders that know *group*; with *values*, those of new records can be read as well."""
        most = self._most_pinned()
        for tries in range(_TRIES):
            views = self.look(lambda folder, several: folder.pin_group(group, values or several, most))
            states = [view.folder.state for view in views]
            try:
                yield from items([view for view in views if view.segments or view.new])
                return
            except Corruption:  # from the beginning: a key may be listed twice
                if tries == _TRIES - 1 or not _may_be_gone(views, states):
                    raise
            finally:
                _release(views)

    def groups(self) -> Iterator[str]:
        """The groups with at least one id."""
        for name, folders in self._by_group().items():
            if folders[0].has_values(name) if len(folders) == 1 else any(True for _ in self.keys(name)):
                yield name

    def _by_group(self) -> dict[str, list[WriterFolder]]:
        """The groups that have or had an id, with the folders that know them."""
        found: dict[str, list[WriterFolder]] = {}
        for folder in self.refresh():
            for name in folder.group_names():
                found.setdefault(name, []).append(folder)
        return found

    def stats(self, details: dict[str, int | float | str]) -> Stats:
        """What the log holds, with *details* added to its own."""
        folders = self.refresh()
        shared = {name for name, knowing in self._by_group().items() if len(knowing) > 1}
        ids = sum(folder.count_ids(shared) for folder in folders) + sum(len(set(self.keys(name))) for name in shared)
        own = {
            "writers": len(folders),
            "segments": sum(len(folder.state.manifest.segments) for folder in folders),
            "indexed": sum(len(folder.state.index.table) for folder in folders),
        }
        return Stats(ids, self.bytes_stored(), own | details)

    def bytes_stored(self) -> int:
        """What the files of all writers occupy."""
        return sum(folder.bytes_stored() for folder in self.folders())

    def renew_locks(self) -> None:
        """Forget who holds a lock, in the child of a fork: nobody does there, and a listing gives back its files."""
        for folder in self._known[1]:
            folder.lock = Lock()

    def close(self) -> None:
        """Give back the files. Reads that are under way end well; later ones raise `Closed`."""
        with self._lock:
            self._closed = True
            self._claims = None
            for folder in self._known[1]:
                folder.close()

    # --- looking at several folders at once ---------------------------------------------------------------------------

    def look(self, look: Callable[[WriterFolder, bool], V]) -> list[V]:
        """What *look* makes of each folder, in one moment in which all are caught up with.

        Its second argument says whether there are several folders. What it returns holds pins.
        """
        while True:
            folders, looking = self.refresh(), _Look()
            try:
                if (views := _at_once(folders, look, looking)) is not None:
                    return views
            except _MOVING:
                if not self._has_moved_on(looking):
                    raise

    def _has_moved_on(self, look: _Look) -> bool:
        """Whether the folder that a look has failed at has changed since, so that trying again is right."""
        folders = self._list(0)
        return look.folder is not None and (look.folder not in folders or look.folder.has_moved_on(look.state))


def _all_locks(folders: Iterable[WriterFolder]) -> ExitStack:
    """The locks of all *folders*, taken, until it is closed."""
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(folder.lock)
        return locks.pop_all()


def _at_once(
    folders: Sequence[WriterFolder], look: Callable[[WriterFolder, bool], V], looking: _Look
) -> list[V] | None:
    views: list[V] = []
    try:
        with _all_locks(folders):
            if len(folders) > 1 and not all(folder.is_current() for folder in folders):
                return None
            for folder in folders:
                looking.at(folder, folder.state)
                views.append(look(folder, len(folders) > 1))
    except BaseException:
        _release(views)
        raise
    return views


def _may_be_gone(views: Sequence[View], states: Sequence[State]) -> bool:
    """Whether files may be missing because nobody had pinned them, and another process, or this one, has compacted."""
    looked_at = zip(views, states, strict=True)
    return any(not view.pinned and (view.is_retired() or view.folder.has_moved_on(state)) for view, state in looked_at)


def _release(views: Iterable[View]) -> None:
    for view in views:
        view.release()


def _newest(at: int, views: Iterable[IdView]) -> tuple[IdView, int] | None:
    """Which folder has the value of the id number *at* of what the views are of, and where; None if there is none."""
    known = [view for view in views if view.locations[at]]
    if not known:
        return None
    newest = known[0] if len(known) == 1 else max(known, key=lambda view: view.stamp(view.locations[at]))
    location = newest.locations[at]
    return None if location & TOMBSTONE_BIT else (newest, location)


def _newest_keys(views: Sequence[GroupView]) -> Iterator[list[bytes]]:
    """The keys whose newest record in any folder is a value."""
    if len(views) == 1:
        return views[0].live_keys()
    return iter([[key for key, _, location in _newest_records(views) if not location & TOMBSTONE_BIT]])


def _newest_records(views: Iterable[GroupView]) -> Iterator[tuple[bytes, GroupView, int]]:
    """Each key with its newest record in any folder."""
    known: dict[bytes, list[tuple[GroupView, int]]] = {}
    for view in views:
        for key, location in view.last_records():
            known.setdefault(key, []).append((view, location))
    for key, records in known.items():
        yield key, *(records[0] if len(records) == 1 else max(records, key=lambda record: record[0].stamp(record[1])))


def _newest_pairs(views: Sequence[GroupView]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The keys with their newest values."""
    for view, locations in _newest_locations(views):
        yield from view.read_pairs(locations)


def _newest_locations(views: Sequence[GroupView]) -> list[tuple[GroupView, U64]]:
    """Where the values of a group are: those that no other folder has a newer record of."""
    if len(views) < 2:
        return [(view, view.live_locations()) for view in views]
    if len({view.table.seed for view in views}) > 1:  # then fingerprints cannot be compared
        newest = [(view, location) for _, view, location in _newest_records(views) if not location & TOMBSTONE_BIT]
        return [(view, np.array([at for of, at in newest if of is view], np.uint64)) for view in views]
    high, low, locations = map(np.concatenate, zip(*(entries := [view.last_entries() for view in views]), strict=True))
    owners = np.repeat(np.arange(len(views)), [len(of_view[0]) for of_view in entries])
    shared = np.flatnonzero(_repeated(high, low))
    sequence, epoch = np.zeros((2, len(locations)), np.uint64)
    for number, view in enumerate(views):
        mine = shared[owners[shared] == number]
        sequence[mine], epoch[mine] = view.read_stamps(locations[mine])
    order = shared[np.lexsort((epoch[shared], sequence[shared], low[shared], high[shared]))]
    keep = locations & np.uint64(TOMBSTONE_BIT) == 0
    keep[order[:-1][(high[order[:-1]] == high[order[1:]]) & (low[order[:-1]] == low[order[1:]])]] = False
    return [(view, locations[keep & (owners == number)]) for number, view in enumerate(views)]


def _repeated(high: U64, low: U64) -> NDArray[np.bool_]:
    """Which fingerprints there are more than once."""
    order = np.lexsort((low, high))
    same = np.flatnonzero((high[order[:-1]] == high[order[1:]]) & (low[order[:-1]] == low[order[1:]]))
    found = np.zeros(len(high), bool)
    found[order[same]] = found[order[same + 1]] = True
    return found
