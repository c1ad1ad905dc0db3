from __future__ import annotations

import threading

import pytest

from safekeeper import (
    BadState,
    Batch,
    CheckpointId,
    Corruption,
    Fuse,
    Progress,
    SafeKeeper,
    SafekeeperError,
    Unavailable,
)
from safekeeper.backend import Scope
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

ID, OTHER = CheckpointId("group", b"key"), CheckpointId("group", b"other")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_fuse_blows_after_failures_in_a_row_and_then_lets_one_probe_through():
    clock = Clock()
    fuse = Fuse(failures=3, rest=10, clock=clock)
    for _ in range(2):
        fuse.check()
        assert not fuse.failed()
    fuse.succeeded()  # not in a row
    for failure in range(3):
        fuse.check()
        assert fuse.failed() == (failure == 2)
    for _ in range(5):
        clock.now += 1.9
        with pytest.raises(Unavailable, match="the last 3 fetches failed"):
            fuse.check()
    clock.now += 0.6
    fuse.check()  # the probe
    with pytest.raises(Unavailable):
        fuse.check()  # and nobody else meanwhile
    fuse.failed()
    clock.now += 9.9
    with pytest.raises(Unavailable):
        fuse.check()
    clock.now += 0.2
    fuse.check()
    assert fuse.succeeded()
    for _ in range(10):
        fuse.check()


def test_a_probe_that_never_comes_back_is_followed_by_another():
    clock = Clock()
    fuse = Fuse(failures=1, rest=10, clock=clock)
    fuse.failed()
    for _ in range(3):
        clock.now += 10.1
        fuse.check()


def test_unavailable_is_never_absent(store):
    clock = Clock()
    with SafeKeeper(store, fuse=Fuse(failures=3, rest=10, clock=clock)) as keeper:
        keeper.save(ID, 41).result()
        store.fail("read", times=3)
        for _ in range(10):
            with pytest.raises(Unavailable):
                keeper.fetch(ID)
        assert store.calls["read"] == 3, "the others failed at once"
        assert keeper.metrics().failed_fetches == 3
        clock.now += 11
        assert keeper.fetch(ID) == 41
        assert keeper.fetch(OTHER) is None
        assert keeper.metrics().fetches == 2


def test_damage_is_no_reason_to_stop_fetching(store):
    with SafeKeeper(store, fuse=Fuse(failures=1)) as keeper:
        store.fail("read", times=3, error=Corruption("at offset 7"))
        for _ in range(3):
            with pytest.raises(Corruption):
                keeper.fetch(ID)
        assert keeper.fetch(ID) is None


def test_a_probe_that_finds_damage_mends_the_fuse(store):
    """The store answered, and the other ids are fetched again."""
    clock = Clock()
    with SafeKeeper(store, fuse=Fuse(failures=1, rest=10, clock=clock)) as keeper:
        store.fail("read")
        with pytest.raises(Unavailable):
            keeper.fetch(ID)
        clock.now += 11
        store.fail("read", error=Corruption("at offset 7"))
        with pytest.raises(Corruption):
            keeper.fetch(ID)
        assert keeper.fetch(OTHER) is None
        assert keeper.metrics().failed_fetches == 2


def test_a_fetch_with_a_timeout_does_not_hang_on_a_stuck_store(store):
    keeper = SafeKeeper(store, fetch_timeout=0.02, fetch_threads=2)
    keeper.save(ID, 41).result()
    with store.hold("read") as gate:
        for _ in range(2):
            with pytest.raises(Unavailable, match="did not answer a fetch"):
                keeper.fetch(ID)
        gate.wait_for(2)
        with pytest.raises(Unavailable, match="2 fetches are under way"):
            keeper.fetch(ID)
        assert store.calls["read"] == 2, "no more threads than allowed are stuck"
        with pytest.raises(Unavailable, match="did not answer a fetch"):
            next(keeper.recover("group"))
    assert keeper.fetch(ID, timeout=60) == 41
    keeper.close()


def test_a_fetch_with_a_timeout_does_not_hang_behind_a_stuck_save(store):
    with SafeKeeper(store) as keeper:
        with store.hold("write"):
            keeper.save(ID, 41)
            with pytest.raises(Unavailable, match="a save of it is still under way"):
                keeper.fetch(ID, timeout=0.02)
        assert keeper.fetch(ID) == 41


def test_recover_gives_every_key_once_with_its_state_and_tells_how_far_it_is(store):
    seen: list[Progress] = []
    with SafeKeeper(store) as keeper:
        for n in range(1000):
            keeper.save(CheckpointId("group", b"%d" % n), n)
        keeper.save(CheckpointId("elsewhere", b"1"), "other")
        keeper.flush()
        store.calls.clear()
        assert dict(keeper.recover("group", batch=64, progress=seen.append)) == {b"%d" % n: n for n in range(1000)}
        assert store.calls["read"] == 16, "in batches"
        assert keeper.metrics().fetches == 1000
        assert list(keeper.recover("empty")) == []
    assert [p.recovered for p in seen] == sorted(p.recovered for p in seen)
    assert seen[-1] == Progress(listed=1000, recovered=1000, done=True)
    assert [p.done for p in seen[:-1]] == [False] * (len(seen) - 1)


def test_recover_reads_in_parallel(store):
    with SafeKeeper(store, fetch_threads=4) as keeper:
        for n in range(40):
            keeper.save(CheckpointId("group", b"%d" % n), n)
        keeper.flush()
        found: list[object] = []
        with store.hold("read") as gate:
            recovering = threading.Thread(target=lambda: found.extend(keeper.recover("group", batch=5)))
            recovering.start()
            gate.wait_for(4)
            assert store.calls["read"] == 4
        recovering.join()
        assert len(found) == 40


class Repeating(MemoryBackend):
    """Lists keys twice, and one that is deleted meanwhile: the contract allows it."""

    scan = None

    def keys(self, group):
        keys = list(super().keys(group))
        yield from [*keys, b"deleted", *keys]


class ScanningTwice(MemoryBackend):
    """Gives keys twice, in pages of some sizes: the contract allows it."""

    def scan(self, group):
        pairs = [pair for page in super().scan(group) for pair in page]
        yield from (pairs[:3], [], pairs, pairs[2:])


@pytest.mark.parametrize("scope", (Scope.PROCESS, Scope.NETWORK))
def test_recover_by_a_scan_gives_no_key_twice(scope):
    seen: list[Progress] = []
    store = ScanningTwice()
    store.scope = scope
    with SafeKeeper(store) as keeper:
        for n in range(10):
            keeper.save(CheckpointId("group", b"%d" % n), n)
        keeper.flush()
        assert sorted(keeper.recover("group", batch=3, progress=seen.append)) == [(b"%d" % n, n) for n in range(10)]
        assert keeper.metrics().fetches == 21
    assert [progress.recovered for progress in seen] == [3, 3, 6, 9, 10, 10, 10, 10, 10]
    assert seen[-1] == Progress(listed=10, recovered=10, done=True)


def test_a_recovery_by_a_scan_does_not_hang_on_a_stuck_store():
    stuck, released = threading.Event(), threading.Event()

    class Stuck(MemoryBackend):
        def scan(self, group):
            yield from super().scan(group)
            stuck.set()
            released.wait(60)

    keeper = SafeKeeper(Stuck(), fetch_timeout=0.02)
    keeper.save(ID, 41).result()
    recovery = keeper.recover("group")
    assert next(recovery) == (b"key", 41)
    assert stuck.wait(60)
    with pytest.raises(Unavailable, match="did not answer a fetch"):
        next(recovery)
    released.set()
    keeper.close()


def test_an_unavailable_store_ends_a_recovery_by_a_scan():
    class Leaving(MemoryBackend):
        def scan(self, group):
            yield from super().scan(group)
            raise Unavailable("gone")

    with SafeKeeper(Leaving()) as keeper:
        keeper.save(ID, 41).result()
        recovery = keeper.recover("group", on_error=lambda *_: None)
        assert next(recovery) == (b"key", 41)
        with pytest.raises(Unavailable, match="gone"):
            next(recovery)
        assert keeper.metrics().failed_fetches == 1


def test_recover_gives_no_key_twice_and_nothing_for_what_is_gone():
    seen: list[Progress] = []
    with SafeKeeper(Repeating()) as keeper:
        for n in range(10):
            keeper.save(CheckpointId("group", b"%d" % n), n)
        keeper.flush()
        assert len(list(keeper.recover("group", batch=3, progress=seen.append))) == 10
    assert seen[-1] == Progress(listed=11, recovered=10, done=True)


def test_a_recovery_that_fails_says_so_and_leaves_nothing_behind():
    with Faulty(MemoryBackend()) as store, SafeKeeper(store) as keeper:
        for n in range(100):
            keeper.save(CheckpointId("group", b"%d" % n), n)
        keeper.flush()
        store.fail("read", skip=5)
        with pytest.raises(Unavailable):
            list(keeper.recover("group", batch=10))
        assert len(list(keeper.recover("group", batch=10))) == 100


class Damaged(MemoryBackend):
    """Cannot read some keys, and so no page with one of them."""

    damaged: frozenset[bytes] = frozenset()

    def read(self, ids):
        for id in ids:
            if id.key in self.damaged:
                raise Corruption(f"row {id.key!r} at offset 7")
        return super().read(ids)

    def scan(self, group):
        for pairs in super().scan(group):
            for start in range(0, len(pairs), 10):
                page = pairs[start : start + 10]
                if any(key in self.damaged for key, _ in page):
                    raise Corruption("offset 7")
                yield page


class DamagedAndUnscannable(Damaged):
    scan = None


def with_bad_states(store: MemoryBackend) -> dict[bytes, int]:
    """Save 100 states, of which some cannot be read back; the others."""
    states = {b"%d" % n: n for n in range(100)}
    with SafeKeeper(store) as keeper:
        for key, state in states.items():
            keeper.save(CheckpointId("group", key), state)
    with SafeKeeper(store, serializer="pickle") as keeper:
        keeper.save(CheckpointId("group", b"7"), {1, 2}).result()
    with SafeKeeper(store, schema=1) as keeper:
        keeper.save(CheckpointId("group", b"8"), 8).result()
    store.write(Batch({CheckpointId("group", b"9"): b"no state"}))
    (sealed,) = store.read([CheckpointId("group", b"10")])
    store.write(Batch({CheckpointId("group", b"10"): sealed[:-1] + b"?"}))
    return {key: state for key, state in states.items() if key not in BAD}


BAD = (b"7", b"8", b"9", b"10", b"42")
both = pytest.mark.parametrize("kind", (Damaged, DamagedAndUnscannable), ids=("scan", "keys"))


@both
def test_recover_goes_on_after_a_bad_state_and_tells_its_id_and_the_reason(kind):
    store = kind()
    good = with_bad_states(store)
    store.damaged = frozenset({b"42"})
    errors: dict[CheckpointId, SafekeeperError] = {}
    seen: list[Progress] = []
    with SafeKeeper(store) as keeper:
        found = dict(keeper.recover("group", batch=16, progress=seen.append, on_error=errors.__setitem__))
    assert found == good
    assert {id.key: type(error) for id, error in errors.items()} == {
        b"7": BadState,
        b"8": BadState,
        b"9": BadState,
        b"10": Corruption,
        b"42": Corruption,
    }
    assert all(str(error).startswith(f"{id}: ") for id, error in errors.items())
    assert seen[-1] == Progress(listed=100, recovered=95, done=True, failed=5)


@both
@pytest.mark.parametrize("bad", (b"7", b"9", b"10", b"42"))
def test_recover_without_on_error_raises_and_names_the_id(bad, kind):
    store = kind()
    with_bad_states(store)
    store.damaged = frozenset({b"42"})
    with SafeKeeper(store) as keeper:
        for key in {*BAD} - {bad}:
            keeper.forget(CheckpointId("group", key)).result()
        with pytest.raises((BadState, Corruption), match=f"^group/{bad.decode()}: "):
            list(keeper.recover("group", batch=16))


@both
def test_what_on_error_raises_ends_the_recovery(kind):
    store = kind()
    with_bad_states(store)

    def stop(id, error):
        raise KeyError(id.key)

    with SafeKeeper(store) as keeper, pytest.raises(KeyError):
        list(keeper.recover("group", on_error=stop))


def test_an_unavailable_store_is_no_bad_state():
    errors: list[object] = []
    with Faulty(MemoryBackend()) as store, SafeKeeper(store) as keeper:
        keeper.save(ID, 1).result()
        store.fail("read")
        with pytest.raises(Unavailable):
            list(keeper.recover("group", on_error=lambda *error: errors.append(error)))
    assert not errors


def test_a_migration_that_fails_is_a_bad_state():
    errors: dict[CheckpointId, SafekeeperError] = {}
    store = MemoryBackend()
    with SafeKeeper(store) as keeper:
        keeper.save(ID, {"count": 1})
        keeper.save(OTHER, {})
    with SafeKeeper(store, schema=1, migrate=lambda state, version: state["count"]) as keeper:
        assert dict(keeper.recover("group", on_error=errors.__setitem__)) == {b"key": 1}
        with pytest.raises(BadState, match="migrate= failed for schema version 0: KeyError"):
            keeper.fetch(OTHER)
    assert list(errors) == [OTHER]
