"""Where the newest record of each id is: in memory, for all writers of the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from safekeeper.backends.hdfs.layout import LocatedRecord, RecordLocation

_Locations = dict[str, dict[bytes, RecordLocation]]
"""By group and key."""


class HdfsIndex:
    """Where the newest record of each id is. It does not lock: its owner does, for each call."""

    def __init__(self) -> None:
        self._live: _Locations = {}
        self._tombstones: _Locations = {}
        self._created: _Locations = {}
        """What was created counts where nothing is live. It is kept apart, since segments are read in any order."""
        self.highest = 0
        """The highest sequence that was ever met."""

    def add(self, found: Iterable[LocatedRecord]) -> list[RecordLocation]:
        """Take in what was found; the values that it replaced, which were there until now."""
        replaced = []
        for group, key, location in found:
            live = self._live.get(group, {}).get(key)
            tombstone = self._tombstones.get(group, {}).get(key)
            created = self._created.get(group, {}).get(key) if self._created else None
            if location.is_created:
                if not (tombstone is not None and tombstone >= location) and (created is None or created < location):
                    self._put(self._created, group, key, location)
                    if created is not None and created[:2] != location[:2]:
                        replaced.append(created)
                    self.highest = max(self.highest, location.sequence)
                continue
            if location.is_tombstone and created is not None and created < location:
                self._remove(self._created, group, key)
                replaced.append(created)
            if (live is not None and live >= location) or (tombstone is not None and tombstone >= location):
                continue
            self._put(self._tombstones if location.is_tombstone else self._live, group, key, location)
            if location.is_tombstone and live is not None:
                self._remove(self._live, group, key)
            elif not location.is_tombstone and tombstone is not None:
                self._remove(self._tombstones, group, key)
            if live is not None and live[:2] != location[:2]:  # not where it is a copy
                replaced.append(live)
            self.highest = max(self.highest, location.sequence)
        return replaced

    def _put(self, locations: _Locations, group: str, key: bytes, location: RecordLocation) -> None:
        keys = locations.get(group)
        if keys is None:
            keys = locations[group] = {}
        keys[key] = location

    def _remove(self, locations: _Locations, group: str, key: bytes) -> None:
        del locations[group][key]
        if not locations[group]:
            del locations[group]

    def find(self, group: str, key: bytes) -> RecordLocation | None:
        """Where the value of an id is."""
        return self._live.get(group, {}).get(key) or self._created.get(group, {}).get(key)

    def keys(self, group: str) -> list[bytes]:
        """The keys of a group that have a value."""
        return [key for key, _ in self.values(group)]

    def values(self, group: str) -> list[tuple[bytes, RecordLocation]]:
        """The keys of a group that have a value, and where that is."""
        return list({**self._created.get(group, {}), **self._live.get(group, {})}.items())

    def groups(self) -> list[str]:
        """The groups that have a key with a value."""
        return list({**self._live, **self._created})

    def in_files(self, file_ids: Collection[int]) -> list[LocatedRecord]:
        """The newest records, tombstones too, that are in these files."""
        return [found for found in self._all() if found.location.file_id in file_ids]

    def live_in_files(self) -> dict[int, tuple[int, int]]:
        """How many newest records, tombstones too, each file has, and their bytes."""
        live: dict[int, tuple[int, int]] = {}
        for found in self._all():
            count, size = live.get(found.location.file_id, (0, 0))
            live[found.location.file_id] = count + 1, size + found.location.size
        return live

    def heads(self) -> list[RecordLocation]:
        """Where the heads of the large values are."""
        return [found.location for found in self._all() if found.location.is_head]

    def forget_files(self, file_ids: Collection[int]) -> None:
        """Forget what is in these files: they are gone, and what of them still counted has been found elsewhere."""
        for locations in (self._live, self._tombstones, self._created):
            gone = [(f.group, f.key) for f in self._in(locations) if f.location.file_id in file_ids]
            for group, key in gone:
                self._remove(locations, group, key)

    def count(self) -> int:
        """How many ids have a value."""
        return sum(map(len, self._live.values())) + sum(
            key not in self._live.get(group, ()) for group, keys in self._created.items() for key in keys
        )

    def _all(self) -> Iterator[LocatedRecord]:
        yield from self._in(self._live)
        yield from self._in(self._tombstones)
        yield from self._in(self._created)

    def _in(self, locations: _Locations) -> Iterator[LocatedRecord]:
        return (
            LocatedRecord(group, key, location) for group, keys in locations.items() for key, location in keys.items()
        )
