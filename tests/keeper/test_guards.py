"""A guarded group is acknowledged only while its claim holds, by one check a batch."""

from __future__ import annotations

import pytest

from safekeeper import Backoff, CheckpointId, Conflict, SafeKeeper, Unavailable, claims

A, B = (CheckpointId("orders", key) for key in (b"a", b"b"))
FREE = CheckpointId("free", b"a")


@pytest.fixture
def keeper(store):
    with SafeKeeper(store, backoff=Backoff(0.001, most=0.01)) as keeper:
        yield keeper


@pytest.fixture
def guard(store, keeper):
    return keeper.guard(claims.take(store, "orders"), "orders")


def test_while_the_claim_holds_saves_are_acknowledged(keeper, guard):
    keeper.save(A, 1).result()
    keeper.forget(A).result()
    assert guard.lost is None


def test_one_check_is_for_the_whole_batch(store, keeper, guard):
    with store.hold("write") as gate:
        first = keeper.save(A, 0)
        gate.wait_for(1)
        saves = [keeper.save(CheckpointId("orders", b"%d" % n), n) for n in range(100)]
        before = store.calls["read"]
    for save in [first, *saves]:
        save.result()
    assert store.calls["read"] - before == 2, "one for each batch"


def test_what_was_written_after_the_group_was_taken_is_not_acknowledged(store, keeper, guard):
    with store.hold("write", when="after") as gate:
        late, free = keeper.save(A, 1), None
        gate.wait_for(1)
        claims.take(store.inner, "orders")
        free = keeper.save(FREE, 1)
    with pytest.raises(Conflict, match="orders was taken by process"):
        late.result()
    assert isinstance(guard.lost, Conflict)
    free.result()


def test_whoever_has_lost_the_group_writes_nothing_more_into_it(store, keeper, guard):
    claims.take(store, "orders")
    with pytest.raises(Conflict):
        keeper.save(A, 1).result()
    with pytest.raises(Conflict):
        keeper.save(B, 1).result()
    assert store.read([B]) == [None]
    keeper.save(FREE, 1).result()


def test_of_a_batch_only_the_lost_group_fails(store, keeper, guard):
    other = keeper.guard(claims.take(store, "users"), "users", "users.index")
    with store.hold("write") as gate:
        keeper.save(FREE, 0)
        gate.wait_for(1)
        saves = {
            group: keeper.save(CheckpointId(group, b"x"), 1) for group in ("orders", "users", "users.index", "free")
        }
        claims.take(store.inner, "orders")
    assert {group for group, save in saves.items() if isinstance(save.outcome(), Conflict)} == {"orders"}
    assert guard.lost is not None
    assert other.lost is None


def test_a_check_without_an_answer_is_made_again_and_nothing_is_acknowledged_before(store, keeper, guard):
    store.fail("read", times=3)
    keeper.save(A, 1).result()
    assert keeper.metrics().retries == 3
    store.fail("read", times=10**9)
    with pytest.raises(Unavailable):
        keeper.save(A, 2, deadline=0.05).result()


def test_a_guard_that_has_ended_checks_nothing(store, keeper, guard):
    with pytest.raises(Conflict, match="orders is guarded by this keeper already"):
        keeper.guard(guard.claim, "orders")
    guard.end()
    claims.take(store, "orders")
    keeper.save(A, 1).result()
    keeper.guard(claims.take(store, "orders"), "orders")


def test_a_large_state_is_guarded_too(store, keeper, guard):
    claim = claims.take(store, "orders")
    with pytest.raises(Conflict):
        keeper.save(A, b"x" * (65 << 20)).result()
    claim.check()


def test_what_is_saved_together_with_something_of_a_lost_group_is_not_written(tmp_path):
    with SafeKeeper(f"lmdb://{tmp_path}/store") as keeper:
        guard = keeper.guard(claims.take(keeper.backend, "orders"), "orders")
        keeper.save_together({FREE: 1, A: 1}).result()
        claims.take(keeper.backend, "orders")
        with pytest.raises(Conflict):
            keeper.save(B, 1).result()
        assert guard.lost is not None
        together = keeper.save_together({FREE: 2, A: 2})
        with pytest.raises(Conflict):
            together.result()
        assert [keeper.fetch(id) for id in (FREE, A)] == [1, 1]
        keeper.save(FREE, 3).result()
