"""Where the newest record of each id is: dicts for what is new, the index file's table for what is old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from safekeeper.backends.log.index_file import IndexTable
from safekeeper.backends.log.location import TOMBSTONE_BIT

Locations = dict[str, dict[bytes, int]]
"""Locations by group and key; that of a tombstone says that the id was deleted."""


class LogIndex:
    """The index in memory. It does not lock: its owner does, for each call."""

    def __init__(self, table: IndexTable) -> None:
        self.table = table
        self.recent: Locations = {}
        """What came since the last pass began."""
        self.frozen: Locations = {}
        """What a pass is merging into the next table. Between passes it is empty."""

    def put(self, group: str, key: bytes, location: int) -> None:
        """Set the location of one id."""
        self.keys_of(group)[key] = location

    def keys_of(self, group: str) -> dict[bytes, int]:
        """Where the locations of ids of *group* are set."""
        keys = self.recent.get(group)
        if keys is None:
            keys = self.recent[group] = {}
        return keys

    def put_many(self, group: str, locations: Iterable[tuple[bytes, int]]) -> None:
        """Set the locations of many ids of a group; of a key that stands twice the last counts."""
        self.recent.setdefault(group, {}).update(locations)

    def find(self, group: str, key: bytes) -> int:
        """The location of an id's value, 0 if it has none."""
        location = self.find_last(group, key)
        return 0 if location & TOMBSTONE_BIT else location

    def find_last(self, group: str, key: bytes) -> int:
        """The location of the last record of an id, which may be a tombstone; 0 if there is none."""
        for locations in (self.recent, self.frozen):
            if (keys := locations.get(group)) is not None and (location := keys.get(key)):
                return location
        return self.table.find(group, key)

    def new_keys(self, group: str) -> dict[bytes, int]:
        """What the dicts know of a group, a copy."""
        return {**self.frozen.get(group, {}), **self.recent.get(group, {})}

    def group_names(self) -> Iterator[str]:
        """The groups that have or had an id, each once."""
        return iter({*self.recent, *self.frozen, *(name.decode() for name in self.table.names)})

    def freeze(self) -> Locations:
        """Set aside what is new, for a pass; what comes from now on is kept apart from it."""
        if self.frozen:  # the last pass failed
            for group, keys in self.recent.items():
                self.frozen.setdefault(group, {}).update(keys)
        else:
            self.frozen = self.recent
        self.recent = {}
        return self.frozen

    def thaw(self, table: IndexTable) -> None:
        """Take the table of a pass that ended well, which holds what was set aside."""
        self.table = table
        self.frozen = {}
