"""Where the newest record of each id is: in memory, for all writers of the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from safekeeper.backends.hdfs.layout import Entry, Found


class Index:
    """The newest entries. It does not lock: its owner does, for each call."""

    def __init__(self) -> None:
        self._live: dict[str, dict[bytes, Entry]] = {}
        self._tombstones: dict[str, dict[bytes, Entry]] = {}
        self.highest = 0
        """The highest sequence that was ever met."""

    def add(self, found: Iterable[Found]) -> list[Entry]:
        """Take in what was found; the values that it replaced, which were there until now."""
        replaced = []
        for group, key, entry in found:
            live = self._live.get(group, {}).get(key)
            tombstone = self._tombstones.get(group, {}).get(key)
            if (live is not None and live >= entry) or (tombstone is not None and tombstone >= entry):
                continue
            self._put(self._tombstones if entry.is_tombstone else self._live, group, key, entry)
            if entry.is_tombstone and live is not None:
                self._remove(self._live, group, key)
            elif not entry.is_tombstone and tombstone is not None:
                self._remove(self._tombstones, group, key)
            if live is not None and live[:2] != entry[:2]:  # not where it is a copy
                replaced.append(live)
            self.highest = max(self.highest, entry.sequence)
        return replaced

    def _put(self, places: dict[str, dict[bytes, Entry]], group: str, key: bytes, entry: Entry) -> None:
        keys = places.get(group)
        if keys is None:
            keys = places[group] = {}
        keys[key] = entry

    def _remove(self, places: dict[str, dict[bytes, Entry]], group: str, key: bytes) -> None:
        del places[group][key]
        if not places[group]:
            del places[group]

    def find(self, group: str, key: bytes) -> Entry | None:
        """Where the value of an id is."""
        return self._live.get(group, {}).get(key)

    def keys(self, group: str) -> list[bytes]:
        """The keys of a group that have a value."""
        return list(self._live.get(group, ()))

    def groups(self) -> list[str]:
        """The groups that have a key with a value."""
        return list(self._live)

    def in_files(self, file_ids: Collection[int]) -> list[Found]:
        """The newest records, tombstones too, that are in these files."""
        return [found for found in self._all() if found.entry.file_id in file_ids]

    def live_in_files(self) -> dict[int, tuple[int, int]]:
        """How many newest records, tombstones too, each file has, and their bytes."""
        live: dict[int, tuple[int, int]] = {}
        for found in self._all():
            count, size = live.get(found.entry.file_id, (0, 0))
            live[found.entry.file_id] = count + 1, size + found.entry.size
        return live

    def heads(self) -> list[Entry]:
        """Where the heads of the large values are."""
        return [found.entry for found in self._in(self._live) if found.entry.is_head]

    def forget_files(self, file_ids: Collection[int]) -> None:
        """Forget what is in these files: they are gone, and what of them still counted has been found elsewhere."""
        for places in (self._live, self._tombstones):
            gone = [(f.group, f.key) for f in self._in(places) if f.entry.file_id in file_ids]
            for group, key in gone:
                self._remove(places, group, key)

    def count(self) -> int:
        """How many ids have a value."""
        return sum(map(len, self._live.values()))

    def _all(self) -> Iterator[Found]:
        yield from self._in(self._live)
        yield from self._in(self._tombstones)

    def _in(self, places: dict[str, dict[bytes, Entry]]) -> Iterator[Found]:
        return (Found(group, key, entry) for group, keys in places.items() for key, entry in keys.items())
