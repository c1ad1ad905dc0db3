"""The part of the contract about opening, closing, forking and failing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import pytest

import safekeeper
from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    PlacementCounts,
    Receipt,
    Scope,
    SupportsExists,
    SupportsPlacement,
    SupportsProgress,
    Survives,
)
from safekeeper.errors import BadUrl, Closed, SafekeeperError
from safekeeper.registry import url_for_workers
from safekeeper.testing.contract.base import Kit, Opener, delete, get, put
from safekeeper.testing.fork import after_fork
from safekeeper.testing.peer import Peer
from safekeeper.url import Url

_ID = CheckpointId("group", b"key")

_Call: TypeAlias = Callable[[Backend], object]

# Every method that a handle has, called and gone through to the end.
_CALLS: dict[str, _Call] = {
    "write": lambda store: put(store, _ID, b"value"),
    "delete": lambda store: delete(store, _ID),
    "read": lambda store: store.read([_ID]),
    "keys": lambda store: list(store.keys("group")),
    "groups": lambda store: list(store.groups()),
}
_CALLS_FOR_NOTHING: dict[str, _Call] = {
    "write nothing": lambda store: store.write(Batch()),
    "read nothing": lambda store: store.read([]),
}


class LifecycleContract(Kit):
    """Opening takes nothing, closing keeps everything, and what goes wrong is said in safekeeper's own words."""

    def test_opening_and_reading_leave_no_trace(self, url: str, opened: Opener, group: str) -> None:
        before = self.traces(url)
        for _ in range(2):
            store = opened()
            assert store.read([CheckpointId(group, b"key")]) == [None]
            assert list(store.keys(group)) == []
            assert group not in set(store.groups())
            store.close()
        assert self.traces(url) == before

    def test_it_says_who_sees_a_write_and_what_a_write_survives(self, store: Backend, group: str) -> None:
        assert isinstance(store.survives, Survives)
        assert isinstance(store.scope, Scope)
        assert store.asserted == Survives.NOTHING
        receipt = store.write(Batch({CheckpointId(group, b"key"): b"value"}))
        assert isinstance(receipt, Receipt)
        assert store.survives in receipt.survives
        assert receipt.sync_seconds >= 0

    def test_assert_adds_to_what_a_write_survives(self, url: str, group: str) -> None:
        join = "&" if Url.parse(url).query else "?"
        with safekeeper.open(url) as plain, safekeeper.open(f"{url}{join}assert=host,power") as store:
            assert store.survives == plain.survives | Survives.HOST | Survives.POWER
            assert store.asserted == (Survives.HOST | Survives.POWER) & ~plain.survives
            assert store.survives in store.write(Batch({CheckpointId(group, b"key"): b""})).survives

    def test_the_workers_of_a_job_open_the_same_store(self, url: str, store: Backend, group: str) -> None:
        put(store, CheckpointId(group, b"key"), b"value")
        with safekeeper.open(url_for_workers(url)) as worker:
            assert get(worker, CheckpointId(group, b"key")) == b"value"

    def test_planned_files_are_counted_and_no_more_are_hits(self, store: Backend, group: str) -> None:
        before = _placement_counts(store)
        put(store, CheckpointId(group, b"key"), b"value")
        after = _placement_counts(store)
        for counts in (before, after):
            assert 0 <= counts.in_order <= counts.hits <= counts.planned
            assert 0 <= counts.hit_rate <= 1
        assert after.planned >= before.planned
        assert after.unplanned >= before.unplanned

    def test_a_store_exists_when_it_has_been_written(self, store: Backend, opened: Opener, group: str) -> None:
        before = opened()
        assert _exists(before) or list(before.groups()) == []
        put(store, CheckpointId(group, b"key"), b"value")
        assert all(map(_exists, (before, store, opened())))

    def test_a_write_tells_by_the_clock_that_it_got_on(self, store: Backend, group: str) -> None:
        began = time.monotonic()
        put(store, CheckpointId(group, b"key"), b"value")
        assert began <= _last_progress(store) <= time.monotonic()

    def test_an_unknown_option_is_refused(self, url: str) -> None:
        join = "&" if Url.parse(url).query else "?"
        with pytest.raises(BadUrl, match="no-such-option"):
            safekeeper.open(f"{url}{join}no-such-option=1")

    @pytest.mark.parametrize(
        "call", (*_CALLS.values(), *_CALLS_FOR_NOTHING.values()), ids=[*_CALLS, *_CALLS_FOR_NOTHING]
    )
    def test_a_closed_handle_raises_closed(self, store: Backend, call: _Call) -> None:
        put(store, _ID, b"value")
        store.close()
        with pytest.raises(Closed):
            call(store)

    def test_an_iterator_begun_before_closing_raises_closed(self, store: Backend, group: str) -> None:
        store.write(Batch({CheckpointId(f"{group}-{n % 3}", b"%d" % n): b"" for n in range(30)}))
        keys, groups = store.keys(f"{group}-0"), store.groups()
        next(keys), next(groups)
        store.close()
        for iterator in (keys, groups):
            with pytest.raises(Closed):
                list(iterator)

    def test_closing_twice_is_not_an_error_and_closes_nobody_else(
        self, store: Backend, opened: Opener, group: str
    ) -> None:
        id = CheckpointId(group, b"key")
        other = opened()
        put(store, id, b"value")
        put(other, CheckpointId(group, b"other"), b"value")
        store.close()
        store.close()
        assert get(other, id) == b"value"
        put(other, id, b"newer")
        assert get(opened(), id) == b"newer"

    def test_a_with_block_closes(self, url: str) -> None:
        with safekeeper.open(url) as store:
            store.read([_ID])
        with pytest.raises(Closed):
            store.read([_ID])

    def test_closing_under_a_call_gives_its_result_or_an_error_of_ours(self, opened: Opener, group: str) -> None:
        ids = [CheckpointId(group, b"%d" % n) for n in range(2)]
        for _ in range(5):
            store = opened()
            with ThreadPoolExecutor(4) as pool:
                with store:
                    writers = [pool.submit(_write_until_closed, store, id) for id in ids]
                    readers = [pool.submit(_list_until_closed, f) for f in (partial(store.read, ids), store.groups)]
                    while not all(get(store, id) or writer.done() for id, writer in zip(ids, writers, strict=True)):
                        pass
                acknowledged = [writer.result() for writer in writers]
                for reader in readers:
                    reader.result()
            seen = [int(value or b"0") for value in opened().read(ids)]
            for last, value in zip(acknowledged, seen, strict=True):
                assert last <= value <= last + 1
            delete(opened(), *ids)

    def test_a_forked_child_gets_closed_and_the_parent_goes_on(self, peer: Peer) -> None:
        outcomes = peer.call(after_fork)
        assert outcomes == dict.fromkeys(outcomes, "Closed") | {"close": "fine", "close again": "fine"}

    @pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
    def test_a_store_that_cannot_be_reached_is_an_error_of_ours_and_not_empty(
        self, url: str, unreachable_url: str | None, call: _Call
    ) -> None:
        if unreachable_url is None:
            with safekeeper.open(url) as store:
                assert store.scope < Scope.NETWORK, (
                    "a network can fail: override unreachable_url with the URL of a store that cannot be reached"
                )
            pytest.skip("a store on this host without a path: if it can be out of reach, override unreachable_url")
        with pytest.raises(SafekeeperError), safekeeper.open(unreachable_url) as store:
            call(store)


def _exists(store: Backend) -> bool:
    return store.exists() if isinstance(store, SupportsExists) else True


def _last_progress(store: Backend) -> float:
    return store.last_progress if isinstance(store, SupportsProgress) else time.monotonic()


def _placement_counts(store: Backend) -> PlacementCounts:
    return store.placement_counts() if isinstance(store, SupportsPlacement) else PlacementCounts()


def _write_until_closed(store: Backend, id: CheckpointId) -> int:
    """Write 1, 2, 3, ... and return the last number whose write returned."""
    number = 0
    try:
        while True:
            put(store, id, b"%d" % (number + 1))
            number += 1
    except SafekeeperError:
        return number


def _list_until_closed(call: Callable[[], Iterable[object]]) -> None:
    try:
        while True:
            list(call())
    except SafekeeperError:
        return
