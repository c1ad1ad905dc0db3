"""`memory:` keeps checkpoints in a dict: for tests, examples and measuring what everything around a store costs.

memory:         a store of its own, gone when it is closed
memory:NAME     one store for all handles with this name in the process, there until the process ends
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Self

from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, Survives, check_creation
from safekeeper.backends.shared.pages import pages
from safekeeper.url import Url


@dataclass(slots=True)
class _Store:
    groups: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    tokens: dict[CheckpointId, bytes] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """`memory:`, a store of its own, or `memory:NAME`, one for all handles with this name in the process."""


_named: dict[str, _Store] = {}


class MemoryBackend(Backend):
    """Checkpoints in a dict, group by group. Batches are atomic: readers and writers take turns."""

    survives = Survives.NOTHING
    scope = Scope.PROCESS
    atomic_batch = True
    url_options = (MemoryOptions,)

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._store = _named.setdefault(name, _Store()) if name else _Store()

    @classmethod
    def from_url(cls, url: Url) -> Self:
        """Open `memory:` or `memory:NAME`."""
        url.options(MemoryOptions)
        return cls((url.host or "") + url.path)

    def write(self, batch: Batch) -> Receipt:
        self.check_open()
        groups = self._store.groups
        with self._store.lock:
            for id, value in batch.items():
                self._store.tokens.pop(id, None)
                if value is not None:
                    groups.setdefault(id.group, {})[id.key] = value
                elif id.group in groups:
                    groups[id.group].pop(id.key, None)
                    if not groups[id.group]:
                        del groups[id.group]
        return Receipt(self.survives)

    def create(self, id: CheckpointId, value: bytes, token: bytes) -> bool:
        """Store *value* if *id* is absent."""
        self.check_open()
        check_creation(id, value, token)
        with self._store.lock:
            group = self._store.groups.setdefault(id.group, {})
            if id.key not in group:
                group[id.key] = value
                self._store.tokens[id] = token
            return self._store.tokens.get(id) == token

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        self.check_open()
        groups, nothing = self._store.groups, dict[bytes, bytes]()
        with self._store.lock:
            return [groups.get(id.group, nothing).get(id.key) for id in ids]

    def keys(self, group: str) -> Iterator[bytes]:
        self.check_open()
        with self._store.lock:
            keys = list(self._store.groups.get(group, ()))
        for key in keys:
            self.check_open()
            yield key

    def scan(self, group: str) -> Iterator[Sequence[tuple[bytes, bytes]]]:
        """All keys of *group* with their values, as they are now."""
        self.check_open()
        with self._store.lock:
            pairs = list(self._store.groups.get(group, {}).items())
        for page in pages(pairs):
            self.check_open()
            yield page

    def groups(self) -> Iterator[str]:
        self.check_open()
        with self._store.lock:
            groups = list(self._store.groups)
        for group in groups:
            self.check_open()
            yield group
