"""The contract as a Hypothesis state machine: whatever is done through whichever handle, a dict tells what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol, TypeAlias

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import safekeeper
from safekeeper.backend import MAX_KEY_BYTES, Batch, CheckpointId, Scope
from safekeeper.columns import Columns
from safekeeper.testing.contract.base import LONG, Kit, check_value, fresh_name
from safekeeper.testing.peer import Handle, Peer


class _Reopening(Handle, Protocol):
    def reopen(self) -> None: ...


class _Local:
    """A handle in this process that can be reopened, as a `Peer` can."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store = safekeeper.open(url)

    def write(self, batch: Batch) -> object:
        return self._store.write(batch)

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        return self._store.read(ids)

    def keys(self, group: str) -> Iterable[bytes]:
        return self._store.keys(group)

    def groups(self) -> Iterable[str]:
        return self._store.groups()

    def reopen(self) -> None:
        self.close()
        self._store = safekeeper.open(self._url)

    def close(self) -> None:
        self._store.close()


# Keys and values are drawn by a short name, so that a failing history can be read.
_KEYS = {"empty": b"", "a": b"a", "A": b"A", "a NUL": b"a\0", "a/b": b"a/b", "longest": b"k" * MAX_KEY_BYTES}
_HANDLES = st.integers(0, 2)
_GROUPS = st.integers(0, 2)
_KEY_NAMES = st.sampled_from(list(_KEYS))
_IDS = st.tuples(_GROUPS, _KEY_NAMES)
_VALUES = st.tuples(st.binary(max_size=3), st.sampled_from((1, 1, 300, 30_000)))  # so many times these bytes

Id: TypeAlias = tuple[int, str]
Value: TypeAlias = tuple[bytes, int]


class StoreMachine(RuleBasedStateMachine):
    """Writes and reads through all handles in turn, and compares with a dict after each step."""

    def __init__(self, handles: Sequence[_Reopening]) -> None:
        super().__init__()
        self._handles = handles
        self._name = fresh_name("model")  # the store is shared by all histories: each one has groups of its own
        self._there: dict[CheckpointId, bytes] = {}

    def _group(self, number: int) -> str:
        return f"{self._name}-{number}"

    def _id(self, id: Id) -> CheckpointId:
        return CheckpointId(self._group(id[0]), _KEYS[id[1]])

    @rule(handle=_HANDLES, operations=st.lists(st.tuples(_IDS, st.none() | _VALUES), max_size=6))
    def write(self, handle: int, operations: list[tuple[Id, Value | None]]) -> None:
        """Write a batch of puts and deletes, the same id perhaps more than once."""
        batch = Batch()
        for name, value in operations:
            id = self._id(name)
            if value is None:
                batch.delete(id)
                self._there.pop(id, None)
            else:
                self._there[id] = value[0] * value[1]
                batch.put(id, self._there[id])
        self._handles[handle].write(batch)

    @rule(handle=_HANDLES, group=_GROUPS, rows=st.lists(st.tuples(_KEY_NAMES, _VALUES), max_size=6))
    def write_columns(self, handle: int, group: int, rows: list[tuple[str, Value]]) -> None:
        """Write a batch of columns, the same key perhaps more than once."""
        keys, values = [_KEYS[key] for key, _ in rows], [value[0] * value[1] for _, value in rows]
        self._handles[handle].write(Batch.of_columns(Columns.of(self._group(group), keys, values)))
        for key, value in zip(keys, values, strict=True):
            self._there[CheckpointId(self._group(group), key)] = value

    @rule(handle=_HANDLES, ids=st.lists(_IDS, max_size=8))
    def read(self, handle: int, ids: list[Id]) -> None:
        """Read ids in any order, with repetitions."""
        wanted = [self._id(id) for id in ids]
        values = self._handles[handle].read(wanted)
        assert len(values) == len(wanted)
        for name, id, found in zip(ids, wanted, values, strict=True):
            check_value(name, found, self._there.get(id))

    @rule(handle=_HANDLES, group=_GROUPS)
    def list_keys(self, handle: int, group: int) -> None:
        """List a group, which may not exist."""
        name = self._group(group)
        assert set(self._handles[handle].keys(name)) == {id.key for id in self._there if id.group == name}

    @rule(handle=_HANDLES)
    def list_groups(self, handle: int) -> None:
        """List the groups, among those of others."""
        found = {group for group in self._handles[handle].groups() if group.startswith(self._name)}
        assert found == {id.group for id in self._there}

    @rule(handle=_HANDLES)
    def reopen(self, handle: int) -> None:
        """Close a handle and open another one."""
        self._handles[handle].reopen()

    def teardown(self) -> None:
        """Compare everything through every handle, and leave nothing behind."""
        for number in range(len(self._handles)):
            self.read(number, [(group, key) for group in range(3) for key in _KEYS])
            self.list_groups(number)
        self.write(0, [((group, key), None) for group in range(3) for key in _KEYS])
        self.list_groups(0)


class ModelContract(Kit):
    """The contract against a model."""

    def test_any_history_through_several_handles_gives_what_a_dict_gives(self, url: str) -> None:
        with safekeeper.open(url) as store:
            another = Peer if store.scope >= Scope.HOST else _Local
        with closing(_Local(url)) as first, closing(_Local(url)) as second, closing(another(url)) as third:
            run_state_machine_as_test(
                partial(StoreMachine, [first, second, third]),  # type: ignore[arg-type]  # any factory will do
                settings=hypothesis.settings(
                    max_examples=self.long_examples if LONG else self.examples,
                    stateful_step_count=30,
                    deadline=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                ),
            )
