"""Finding the state of queries whose checkpoint is gone, and removing it.

Spark does not tell a state store that a query is over for good; deleting its checkpoint folder is how people say so.
The commits of a query are in groups `spark/QUERY/OPERATOR/PARTITION/STORE`; in each group the key `location` says where
the checkpoint is, and the checkpoint's file `metadata` says which query it belongs to.

A query is gone when the folder is not there but the one above it is, or when another query has the folder now. When
that cannot be told (a file system that is not known here or does not answer, a disk that is not mounted, a folder of
another host) the state stays and the reason is named. It stays, too, if groups tell several places and any of these is
not gone: the query was moved, and some groups learn so with their next commit.

Whoever dies half-way leaves what can be found again: `location` goes last in each group.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.errors import Unavailable
from safekeeper.integrations.filesystem.layout import FileEntry, VolumePath, directory_groups, volumes_in
from safekeeper.integrations.filesystem.volume import FileVolumes, VolumeReader

PREFIX = "spark/"
"""What the groups of queries start with."""

LOCATION = b"location"
"""The key, in each group, whose value is the checkpoint's folder."""

_DELETED_AT_ONCE = 1000


class Fate(Enum):
    """What is known of a query's checkpoint."""

    THERE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """A query that has state in a store."""

    id: str
    location: str
    """Its checkpoint's folder; empty if no group tells it. If groups tell several, one that is not gone."""
    groups: tuple[str, ...]
    keys: int
    """How many keys the groups have: commits, their parts, and the location."""
    fate: Fate
    reason: str
    """Why that is so, for a person."""


def stored_queries(store: Backend, gone: Sequence[str] = ()) -> Iterator[StoredQuery]:
    """The queries that have state in *store*. Checkpoints at or below the locations *gone* are not looked for."""
    by_query: dict[str, list[str]] = {}
    for group in dict.fromkeys(store.groups()):
        if group.startswith(PREFIX) and group.count("/") >= 4:
            by_query.setdefault(group.split("/")[1], []).append(group)
    for query, groups in by_query.items():
        keys = sum(len(set(store.keys(group))) for group in groups)
        location, fate, reason = _look_at_all(store, query, _locations(store, groups), gone)
        yield StoredQuery(query, location, tuple(groups), keys, fate, reason)


def groups_below(store: Backend, location: str) -> list[str]:
    """The groups with the state of the queries whose checkpoint is *location* or below it.

    Where it is stands in each group, and changes there when the group is written next: of a query that was moved some
    still tell the old place. Raise `Unavailable` then: the state would be taken for that of either place.
    """
    groups = [group for group in dict.fromkeys(store.groups()) if group.startswith(PREFIX)]
    places: dict[str, set[str]] = {}
    for group, value in zip(groups, store.read([CheckpointId(group, LOCATION) for group in groups]), strict=True):
        if value is not None:
            places.setdefault(group.split("/")[1], set()).add(value.decode())
    here = {query for query, all_of_it in places.items() if any(_is_below(place, location) for place in all_of_it)}
    for query in sorted(here):
        if elsewhere := sorted(place for place in places[query] if not _is_below(place, location)):
            raise Unavailable(
                f"a part of the state of query {query} belongs to {elsewhere[0]}, not to {location}: "
                "run a batch of the query where it is now, with movedCheckpoint=adopt, and try again"
            )
    return [group for group in groups if group.split("/")[1] in here]


def groups_to_remove(files: FileVolumes, path: VolumePath) -> list[str]:
    """What `groups_below` finds. Raise `Unavailable` if a checkpoint elsewhere has such a query, too: it is a copy,
    where the query may go on, and has no other state."""
    groups = groups_below(files.store, f"safekeeper://{path}")
    queries = {group.split("/")[1] for group in groups}
    inside = {below.id for below, _ in files.files_below(path) if below.names[-1] == "metadata"} if groups else set()
    for id, query in _owners(files.store) if groups else ():
        if query in queries and id not in inside:
            copy = unquote(id.group.removeprefix("files.").replace(":", "", 1))
            raise Unavailable(
                f"safekeeper://{copy} is a checkpoint of query {query}, too, whose state would go with "
                f"safekeeper://{path}: remove that one first, or start it with movedCheckpoint=adopt"
            )
    return groups


def _owners(store: Backend) -> Iterator[tuple[CheckpointId, str]]:
    """The files of all checkpoints in *store* that say which query they belong to, with that query."""
    groups = list(dict.fromkeys(store.groups()))
    folders = [group for volume in volumes_in(groups) for group in sorted(directory_groups(volume, groups))]
    ids = [CheckpointId(folder, b"metadata") for folder in folders]
    for id, value in zip(ids, store.read(ids), strict=True):
        if value is not None:
            with suppress(ValueError, KeyError, TypeError):  # it is not Spark's
                yield id, str(json.loads(FileEntry.decode(id, value).content)["id"])


def remove_groups(store: Backend, groups: Iterable[str]) -> None:
    """Delete *groups* of queries; where each checkpoint is goes last."""
    for group in groups:
        commits = (CheckpointId(group, key) for key in set(store.keys(group)) - {LOCATION})
        while some := list(islice(commits, _DELETED_AT_ONCE)):
            _delete(store, some)
        _delete(store, [CheckpointId(group, LOCATION)])


def remove(store: Backend, query: StoredQuery) -> None:
    """Delete everything that *store* has of *query*."""
    remove_groups(store, query.groups)


def _delete(store: Backend, ids: Iterable[CheckpointId]) -> None:
    batch = Batch()
    for id in ids:
        batch.delete(id)
    store.write(batch)


def _locations(store: Backend, groups: Sequence[str]) -> list[str]:
    """Where the query's checkpoint is. A group that a removal has left half-done may not tell it, another does; while
    a query that was moved has not committed in all groups, some tell its old place."""
    found = store.read([CheckpointId(group, LOCATION) for group in groups])
    return list(dict.fromkeys(value.decode() for value in found if value is not None))


def _is_below(location: str, place: str) -> bool:
    """Whether *location* is *place*, or in it."""
    return location == place.rstrip("/") or location.startswith(place.rstrip("/") + "/")


def _look_at_all(store: Backend, query: str, locations: Sequence[str], gone: Sequence[str]) -> tuple[str, Fate, str]:
    """The location that counts, with the fate: the query is gone only if it is so at each of them."""
    if not locations:
        return "", Fate.UNKNOWN, "no group tells where its checkpoint is"
    looks = [(location, *_look(store, query, location, gone)) for location in locations]
    return min(looks, key=lambda look: (Fate.THERE, Fate.UNKNOWN, Fate.GONE).index(look[1]))


def _look(store: Backend, query: str, location: str, gone: Sequence[str]) -> tuple[Fate, str]:
    if any(_is_below(location, place) for place in gone):
        return Fate.GONE, "you say so"
    try:
        return _look_into(_folder(store, location), query)
    except Exception as error:  # any driver's: what cannot be reached is not gone
        return Fate.UNKNOWN, f"its checkpoint cannot be reached: {str(error).strip() or type(error).__name__}"


def _look_into(folder: _Folder, query: str) -> tuple[Fate, str]:
    if not folder.exists():
        if folder.parent_exists():
            return Fate.GONE, "its checkpoint is gone"
        return Fate.UNKNOWN, "not even the folder above its checkpoint is there: is it another host's, or not mounted?"
    try:
        owner = json.loads(folder.metadata())["id"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return Fate.UNKNOWN, "its checkpoint has no metadata that could be read"
    if owner != query:
        return Fate.GONE, "another query has its checkpoint's folder now"
    return Fate.THERE, "its checkpoint is there"


class _Folder(Protocol):
    """The folder of a checkpoint. Every method raises when it cannot be told."""

    def exists(self) -> bool: ...

    def parent_exists(self) -> bool: ...

    def metadata(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _LocalFolder:
    """On this host."""

    path: Path

    def exists(self) -> bool:
        return _exists(self.path)

    def parent_exists(self) -> bool:
        return _exists(self.path.parent)

    def metadata(self) -> bytes:
        return (self.path / "metadata").read_bytes()


@dataclass(frozen=True, slots=True)
class _RemoteFolder:
    """On a file system that fsspec knows."""

    files: Any
    path: str

    def exists(self) -> bool:
        return bool(self.files.exists(self.path))

    def parent_exists(self) -> bool:
        return bool(self.files.exists(self.path.rpartition("/")[0]))

    def metadata(self) -> bytes:
        content: bytes = self.files.cat_file(f"{self.path}/metadata")
        return content


def _exists(path: Path) -> bool:
    """Unlike `Path.exists`, this raises when it cannot be told, as with a folder that may not be entered."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class _StoredFolder:
    """In the store that has the state, too."""

    files: FileVolumes
    path: VolumePath

    def exists(self) -> bool:
        return self.files.find(self.path) is not None

    def parent_exists(self) -> bool:
        """Not so if Spark's files are in another store than the state: then nothing is known of them here."""
        if above := self.path.names[:-1]:
            return self.files.find(VolumePath(self.path.volume, above)) is not None
        return self.path.volume in volumes_in(self.files.store.groups())

    def metadata(self) -> bytes:
        path = VolumePath(self.path.volume, (*self.path.names, "metadata"))
        return VolumeReader(self.files, path, self.files.get(path)).read()


def _folder(store: Backend, location: str) -> _Folder:
    """The folder that Spark knows under *location*, as Hadoop writes it: with a scheme, and nothing escaped."""
    scheme, colon, path = location.partition(":")
    if scheme == "safekeeper":
        return _StoredFolder(FileVolumes(store), VolumePath.parse(path))
    if not colon or scheme == "file":
        return _LocalFolder(Path("/" + (path or location).lstrip("/")))
    import fsspec

    files, path = fsspec.core.url_to_fs({"s3a": "s3", "s3n": "s3"}.get(scheme, scheme) + ":" + path)
    return _RemoteFolder(files, path)
