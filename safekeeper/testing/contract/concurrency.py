"""The part of the contract about threads, and about several handles and processes on one store."""

from __future__ import annotations

from functools import partial

import pytest

from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    SupportsAtomicBatch,
    SupportsSomeAtomicBatches,
    concurrent_writes,
    turn_of,
)
from safekeeper.testing.contract.base import Kit, Opener, at_once, check_value, delete, get, meanwhile, put
from safekeeper.testing.peer import Handle

_SIZES = (10, 200_000, 4_000, 0, 65_536)


class ConcurrencyContract(Kit):
    """Threads, handles and processes get along: every value is whole, and the write that came later wins."""

    def test_threads_that_write_different_ids_do_not_disturb_each_other(self, store: Backend, group: str) -> None:
        def write(thread: int) -> None:
            for turn in range(10):
                ids = [CheckpointId(group, b"%d-%d" % (thread, n)) for n in range(3)]
                store.write(Batch(dict.fromkeys(ids, b"%d-%d" % (thread, turn))))
                assert store.read(ids) == [b"%d-%d" % (thread, turn)] * 3

        at_once(*(partial(write, thread) for thread in range(4)))
        ids = [CheckpointId(group, b"%d-%d" % (thread, n)) for thread in range(4) for n in range(3)]
        assert store.read(ids) == [b"%d-9" % thread for thread in range(4) for _ in range(3)]
        assert set(store.keys(group)) == {id.key for id in ids}

    def test_as_many_writes_at_once_as_it_gains_by_are_all_acknowledged(self, store: Backend, group: str) -> None:
        count = concurrent_writes(store)
        assert count >= 1
        ids = [CheckpointId(group, b"%d" % n) for n in range(count)]
        at_once(*(partial(put, store, id, b"value of " + id.key) for id in ids))
        assert store.read(ids) == [b"value of " + id.key for id in ids]

    def test_what_is_written_in_its_turn_is_there(self, store: Backend, group: str) -> None:
        id = CheckpointId(group, b"key")
        with turn_of(store, group, nbytes=100):
            put(store, id, b"value")
            assert get(store, id) == b"value"
        with turn_of(store, group, nbytes=100):
            pass  # nothing is written after all
        put(store, id, b"another")
        assert get(store, id) == b"another"

    def test_of_two_writes_at_once_one_wins_whole_for_everybody(
        self, store: Backend, other: Handle, opened: Opener, group: str
    ) -> None:
        id = CheckpointId(group, b"key")
        for turn in range(10):
            values = [bytes([65 + writer]) * _SIZES[(turn + writer) % len(_SIZES)] for writer in range(2)]
            at_once(partial(put, store, id, values[0]), partial(put, other, id, values[1]))
            seen = get(store, id)
            check_value("seen here", seen, *values)
            check_value("seen by the other writer", get(other, id), seen)
            check_value("seen by a third one", get(opened(), id), seen)

    def test_of_a_put_and_a_delete_at_once_one_wins_for_everybody(
        self, store: Backend, other: Handle, group: str
    ) -> None:
        id = CheckpointId(group, b"key")
        for turn in range(10):
            value = b"%d" % turn
            at_once(partial(put, store, id, value), partial(delete, other, id))
            seen = get(store, id)
            assert seen in (value, None)
            for handle in (store, other):
                assert get(handle, id) == seen
                assert set(handle.keys(group)) == (set() if seen is None else {id.key})

    def test_readers_never_see_a_torn_value(self, store: Backend, other: Handle, group: str) -> None:
        id = CheckpointId(group, b"key")
        values = [bytes([65 + n]) * size for n, size in enumerate(_SIZES)]
        put(store, id, values[0])

        def write() -> None:
            for turn in range(40):
                put(other, id, values[turn % len(values)])

        for _ in meanwhile(write):
            check_value(id, get(store, id), *values)

    def test_a_later_write_wins_whoever_made_it(
        self, store: Backend, other: Handle, opened: Opener, group: str
    ) -> None:
        ids = [CheckpointId(group, b"a"), CheckpointId(group, b"b")]
        handles = (store, other, opened())
        for turn, writer in enumerate((0, 0, 0, 0, 1, 2, 2, 1, 0, 1, 1, 1, 2, 0, 2, 1, 2, 2, 0, 1)):
            value = b"%d" % turn
            batch = Batch({ids[0]: value})
            if turn % 5:
                batch.put(ids[1], value)
            else:
                batch.delete(ids[1])
            handles[writer].write(batch)
            for handle in handles:
                assert handle.read(ids) == [value, value if turn % 5 else None]
                assert set(handle.keys(group)) == ({b"a", b"b"} if turn % 5 else {b"a"})

    def test_a_batch_is_seen_whole(self, store: Backend, other: Handle, group: str) -> None:
        ids = [CheckpointId(f"{group}-{n % 2}", b"%d" % n) for n in range(6)]
        if isinstance(store, SupportsSomeAtomicBatches):
            assert not isinstance(store, SupportsAtomicBatch), "it keeps some batches whole, or all"
            ids = [CheckpointId(group, b"%d" % n) for n in range(6)]
            assert store.why_not_atomic(Batch(dict.fromkeys(ids, bytes(2000)))) is None, "a small batch of a group"
        elif not isinstance(store, SupportsAtomicBatch):
            pytest.skip("this backend promises each id whole, not whole batches")
        else:
            assert store.atomic_batch, "atomic_batch is True or not there at all"

        def write() -> None:
            for turn in range(30):
                other.write(Batch(dict.fromkeys(ids, b"%d" % turn * 1000)))
                delete(other, *ids)

        for _ in meanwhile(write):
            seen = store.read(ids)
            for id, value in zip(ids, seen, strict=True):
                check_value(f"{id}, read together with {ids[0]}", value, seen[0])
