"""What is fetched was once the state."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from safekeeper import CheckpointId, SafeKeeper
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.serializers import size_if_immutable

ID = CheckpointId("group", b"key")


class Checking(MemoryBackend):
    """Looks at everything that is written."""

    def __init__(self, check) -> None:
        super().__init__()
        self._check = check
        self.wrong = 0
        self.right = 0

    def write(self, batch):
        for _, value in batch.items():
            if self._check(value):
                self.right += 1
            else:
                self.wrong += 1
        return super().write(batch)


class Account:
    """A state with an invariant that does not hold in the middle of a change: both sides are equal, and as long."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {"debit": 0, "log": [], "credit": 0}

    def change(self, n: int) -> None:
        self.state["debit"] = n
        log = self.state["log"]
        assert isinstance(log, list)
        log.append(n)
        if len(log) > 20:
            log.clear()
        self.state["length"] = len(log)
        self.state["credit"] = n


def is_whole(state: object) -> bool:
    assert isinstance(state, dict)
    return state["debit"] == state["credit"] and len(state["log"]) == state.get("length", 0)


@contextmanager
def changing(account: Account, lock: threading.Lock) -> Iterator[None]:
    """Another thread changes the account all the time, under the lock."""
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            with lock:
                account.change(n)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("workers", (1, 3))
@pytest.mark.parametrize("how", ("lock= outside the lock", "inside the lock"))
def test_a_state_that_changes_all_the_time_is_saved_as_it_once_was(how, workers):
    saves = 100_000
    account, lock = Account(), threading.Lock()
    keepers: list[SafeKeeper] = []
    store = Checking(lambda value: is_whole(keepers[0]._decode(ID, value)))
    # "block", so that every single one is written and looked at, however long it takes.
    settings = {"overflow": "block", "lock_timeout": 100.0, "deadline": 1000.0}
    with SafeKeeper(store, serialization_workers=workers, **settings) as keeper, changing(account, lock):
        keepers.append(keeper)
        for _ in range(saves):
            if how == "inside the lock":
                with lock:
                    keeper.save(ID, account.state)
            else:
                keeper.save(ID, account.state, lock=lock)
        keeper.flush()
        assert keeper.metrics().failed == 0
    assert (store.right, store.wrong) == (saves, 0)


def test_the_check_above_sees_a_state_that_is_read_without_its_lock(eventually):
    """Marking as frozen what is not is the one way to break the promise: here it shows."""

    class Slowly:
        name = "slowly"

        def dumps(self, state):
            first = state["debit"]
            torn = threading.Event()
            torn.wait(0.001)
            return b"%d %d" % (first, state["credit"])

        def loads(self, data):
            return data.split()

    account, lock = Account(), threading.Lock()
    account.state["padding"] = None
    store = Checking(lambda value: len(set(value.split(b"slowly")[1].split())) == 1)
    with SafeKeeper(store, serializer=Slowly()) as keeper, changing(account, lock):
        while not store.wrong:
            keeper.save(ID, account.state, frozen=True).result()


def test_a_mutable_state_is_serialized_before_save_returns(store):
    with SafeKeeper(store) as keeper, store.hold("write") as gate:
        state = {"count": 1}
        keeper.save(ID, state)
        state["count"] = 2
        gate.release()
        assert keeper.fetch(ID) == {"count": 1}


@pytest.mark.parametrize(
    "state",
    (None, True, 1, 1.5, 1j, "text", b"bytes", (1, "two", (3.0, None)), frozenset({1, 2})),
    ids=repr,
)
def test_what_cannot_change_is_known(state):
    assert size_if_immutable(state) is not None


class Text(str):
    """A subclass can have anything in it."""


@pytest.mark.parametrize(
    "state", ([], {}, set(), bytearray(b"x"), ([],), (1, ({},)), Text("x"), object()), ids=lambda s: type(s).__name__
)
def test_what_may_change_is_never_taken_for_immutable(state):
    assert size_if_immutable(state) is None


def over_numpy(pa, np, memory):
    """Arrow data over the memory of a numpy array, which its owner can go on writing, and how it gets there."""
    array = pa.array(memory)
    view = memory[:]
    view.flags.writeable = False
    yield "zero-copy", array
    yield "an array that only seems to be read-only", pa.array(view)
    yield "a buffer", pa.Array.from_buffers(pa.int64(), len(memory), [None, pa.py_buffer(memory)])
    yield "a buffer of a read-only view", pa.Array.from_buffers(pa.int64(), len(memory), [None, pa.py_buffer(view)])
    yield "a slice", array[1:]
    yield "a struct", pa.StructArray.from_arrays([array], ["n"])
    yield "a list", pa.ListArray.from_arrays(pa.array([0, len(memory)], pa.int32()), array)
    yield "a dictionary", pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), array)
    yield "the second chunk", pa.chunked_array([pa.array([1, 2]), array])
    yield "an extension", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
    yield "a record batch", pa.record_batch({"n": array})
    yield "a table", pa.table({"n": array})


def test_arrow_data_over_memory_that_somebody_can_write_is_saved_as_it_was(store):
    """Arrow cannot tell: its buffers say that they are immutable although numpy's memory below them is not."""
    pa, np = importlib.import_module("pyarrow"), importlib.import_module("numpy")
    with SafeKeeper(store, serializer="arrow") as keeper:
        for round in range(60):
            memory = np.zeros(1_000_000, dtype=np.int64)
            ticket = keeper.save(ID, pa.table({"n": memory}))
            memory += 1
            ticket.result()
            stored = keeper.fetch(ID)["n"].to_numpy()
            assert not stored.any(), f"round {round}: {np.count_nonzero(stored)} of {len(stored)} were changed later"


def test_no_arrow_data_is_taken_for_immutable():
    pa, np = importlib.import_module("pyarrow"), importlib.import_module("numpy")
    for how, state in over_numpy(pa, np, np.arange(1000)):
        assert size_if_immutable(state) is None, how
    for state in (pa.table({"n": [1, 2]}), pa.array([1, 2]), pa.allocate_buffer(8), pa.py_buffer(bytes(8))):
        assert size_if_immutable(state) is None


class Blob(bytes):
    """Bytes with attributes, which can change."""


def test_no_view_and_no_array_is_taken_for_immutable():
    np = importlib.import_module("numpy")
    memory = np.arange(1000)
    readonly = memory[:]
    readonly.flags.writeable = False
    for state in (memory, readonly, memoryview(memory).toreadonly(), memoryview(bytes(8)), Blob(8), np.float64(1)):
        assert size_if_immutable(state) is None
        assert size_if_immutable((state,)) is None


def test_arrow_data_that_the_caller_says_is_frozen_is_serialized_by_the_worker(store):
    pa = importlib.import_module("pyarrow")
    table = pa.table({"n": list(range(1000))})
    with SafeKeeper(store, serializer="arrow") as keeper:
        keeper.save(ID, table, frozen=True).result()
        assert keeper.metrics().serialization_wait.count == 1
        assert keeper.fetch(ID) == table
