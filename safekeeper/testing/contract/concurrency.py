"""The part of the contract about threads, and about several handles and processes on one store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from safekeeper.backend import Backend, Batch, CheckpointId, Scope, SupportsAtomicBatch
from safekeeper.testing.contract.base import Kit, Opener, check_value, delete, get, put
from safekeeper.testing.peer import Handle, Peer

_SIZES = (10, 200_000, 4_000, 0, 65_536)


class ConcurrencyContract(Kit):
    """Threads, handles and processes get along: every value is whole, and the write that came later wins."""

    def test_threads_that_write_different_ids_do_not_disturb_each_other(self, store: Backend, group: str) -> None:
        def write(thread: int) -> None:
            for turn in range(10):
                ids = [CheckpointId(group, b"%d-%d" % (thread, n)) for n in range(3)]
                store.write(Batch(dict.fromkeys(ids, b"%d-%d" % (thread, turn))))
                assert store.read(ids) == [b"%d-%d" % (thread, turn)] * 3

        _at_once(*(partial(write, thread) for thread in range(4)))
        ids = [CheckpointId(group, b"%d-%d" % (thread, n)) for thread in range(4) for n in range(3)]
        assert store.read(ids) == [b"%d-9" % thread for thread in range(4) for _ in range(3)]
        assert set(store.keys(group)) == {id.key for id in ids}

    def test_of_two_writes_at_once_one_wins_whole_for_everybody(
        self, store: Backend, opened: Opener, group: str
    ) -> None:
        id = CheckpointId(group, b"key")
        other = opened()
        for turn in range(10):
            values = [bytes([65 + writer]) * _SIZES[(turn + writer) % len(_SIZES)] for writer in range(3)]
            handles = (store, store, other)
            _at_once(*(partial(put, handle, id, value) for handle, value in zip(handles, values, strict=True)))
            seen = [get(store, id), get(other, id), get(opened(), id)]
            check_value("here", seen[0], *values)
            check_value("through another handle", seen[1], seen[0])
            check_value("through a new handle", seen[2], seen[0])

    def test_of_a_put_and_a_delete_at_once_one_wins_for_everybody(
        self, store: Backend, opened: Opener, group: str
    ) -> None:
        id = CheckpointId(group, b"key")
        other = opened()
        for turn in range(10):
            value = b"%d" % turn
            _at_once(partial(put, store, id, value), partial(delete, other, id))
            seen = get(store, id)
            assert seen in (value, None)
            assert get(other, id) == seen
            listed = [id.key] if seen is not None else []
            assert [sorted(set(handle.keys(group))) for handle in (store, other)] == [listed, listed]

    def test_readers_never_see_a_torn_value(self, store: Backend, opened: Opener, group: str) -> None:
        id = CheckpointId(group, b"key")
        values = [bytes([65 + n]) * size for n, size in enumerate(_SIZES)]
        put(store, id, values[0])
        readers = (store, opened())
        writer = opened()

        def write() -> None:
            for turn in range(40):
                put(writer, id, values[turn % len(values)])

        with ThreadPoolExecutor(3) as pool:
            writing = pool.submit(write)
            for reading in [pool.submit(_read_meanwhile, handle, id, values, writing) for handle in readers]:
                reading.result()
            writing.result()

    def test_a_later_write_wins_whichever_handle_made_it(self, store: Backend, opened: Opener, group: str) -> None:
        _check_order([store, opened(), opened()], group)

    def test_a_later_write_wins_whichever_process_made_it(
        self, store: Backend, opened: Opener, peer: Peer, group: str
    ) -> None:
        if store.scope < Scope.HOST:
            pytest.skip("other processes do not see this store")
        _check_order([store, peer, opened()], group)

    def test_a_batch_is_seen_whole(self, store: Backend, opened: Opener, group: str) -> None:
        if not isinstance(store, SupportsAtomicBatch):
            pytest.skip("this backend promises each id whole, not whole batches")
        assert store.atomic_batch, "atomic_batch is True or not there at all"
        ids = [CheckpointId(f"{group}-{n % 2}", b"%d" % n) for n in range(6)]
        writer = opened()

        def write() -> None:
            for turn in range(30):
                writer.write(Batch(dict.fromkeys(ids, b"%d" % turn * 1000)))
                delete(writer, *ids)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not writing.done():
                seen = store.read(ids)
                for id, value in zip(ids, seen, strict=True):
                    check_value(f"{id}, read together with {ids[0]}", value, seen[0])
            writing.result()


def _at_once(*calls: Callable[[], object]) -> None:
    """Run *calls* in a thread each, started together."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(run, call) for call in calls]:
            future.result()


def _read_meanwhile(store: Backend, id: CheckpointId, values: list[bytes], writing: Future[None]) -> None:
    while True:
        last = writing.done()
        check_value(id, get(store, id), *values)
        if last:
            return


def _check_order(handles: Sequence[Handle], group: str) -> None:
    ids = [CheckpointId(group, b"a"), CheckpointId(group, b"b")]
    for turn, writer in enumerate((0, 0, 0, 0, 1, 2, 2, 1, 0, 1, 1, 1, 2, 0, 2, 1, 2, 2, 0, 1)):
        batch = Batch({ids[0]: b"%d" % turn})
        if turn % 5:
            batch.put(ids[1], b"%d" % turn)
        else:
            batch.delete(ids[1])
        handles[writer].write(batch)
        expected = [b"%d" % turn, b"%d" % turn if turn % 5 else None]
        assert [handle.read(ids) for handle in handles] == [expected] * len(handles)
        listed = {id.key for id, value in zip(ids, expected, strict=True) if value is not None}
        assert [set(handle.keys(group)) for handle in handles] == [listed] * len(handles)
