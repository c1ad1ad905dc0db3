"""States over the limit of a value: the keeper writes them in parts, and nobody notices."""

import time

import pytest

from safekeeper import Backoff, Batch, CheckpointId, Corruption, SafeKeeper, Unavailable, large
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.stage import Stage
from safekeeper.testing import Faulty

A, B = CheckpointId("models", b"a"), CheckpointId("models", b"b")
MARKED = b"SKV1 is how a head begins"


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    """1,000 bytes are large here."""
    monkeypatch.setattr(large, "MAX_VALUE_BYTES", 1000)
    monkeypatch.setattr(
        large.LargeWrite.__init__, "__kwdefaults__", {**large.LargeWrite.__init__.__kwdefaults__, "part_bytes": 400}
    )


@pytest.fixture
def store():
    with MemoryBackend() as store:
        yield store


def parts(store):
    return sorted(store.keys("models.parts"))


@pytest.mark.parametrize("serializer", [None, "raw", "msgpack"])
def test_a_large_state_comes_back_by_fetch_and_by_recover(store, serializer):
    with SafeKeeper(store, serializer=serializer) as keeper:
        for state in (b"x" * 5000, b"small", MARKED, MARKED * 200):
            keeper.save(A, state).result()
            keeper.save(B, b"beside").result()
            assert keeper.fetch(A) == state
            assert keeper.fetch(A, timeout=5.0) == state
            assert dict(keeper.recover("models")) == {b"a": state, b"b": b"beside"}
        with SafeKeeper(store, serializer=serializer) as other:
            assert other.fetch(A) == state


def test_recover_by_keys_reads_parts_too(store):
    with SafeKeeper(Faulty(store)) as keeper:  # it has no scan
        keeper.save(A, list(range(2000))).result()
        assert dict(keeper.recover("models")) == {b"a": list(range(2000))}


def test_what_takes_the_place_of_a_large_state_removes_its_parts(store):
    with SafeKeeper(store) as keeper:
        keeper.save(A, b"x" * 5000).result()
        assert len(parts(store)) > 10
        keeper.save(A, b"y" * 1000).result()
        assert len(parts(store)) == 4
        keeper.save(A, b"small").result()
        assert parts(store) == []
        keeper.save(A, b"x" * 5000).result()
        keeper.forget(A).result()
        assert parts(store) == []
        assert keeper.fetch(A) is None


def test_a_keeper_that_has_fetched_a_large_state_removes_its_parts_as_well(store):
    with SafeKeeper(store) as keeper:
        keeper.save(A, b"x" * 5000).result()
    with SafeKeeper(store) as keeper:
        keeper.fetch(A)
        keeper.save(A, b"small").result()
    assert parts(store) == []


def test_large_and_small_states_of_one_batch_are_all_stored(store):
    faulty = Faulty(store)
    with SafeKeeper(faulty) as keeper:
        with faulty.hold("write") as gate:
            first = keeper.save(CheckpointId("models", b"first"), 0)
            gate.wait_for(1)
            tickets = [
                keeper.save(CheckpointId("models", b"%d" % n), bytes(3000) if n % 3 == 0 else n) for n in range(20)
            ]
        for ticket in (first, *tickets):
            ticket.result()
        assert len(dict(keeper.recover("models"))) == 21


@pytest.mark.parametrize("skip", range(0, 12, 2))
def test_a_store_that_fails_in_the_middle_gets_it_again_and_keeps_no_rubbish(store, skip):
    faulty = Faulty(store)
    with SafeKeeper(faulty, backoff=Backoff(first=0.001, most=0.001)) as keeper:
        keeper.save(A, b"old" * 1000).result()
        faulty.fail("write", skip=skip, times=2)
        keeper.save(A, b"new" * 1000).result()
        assert keeper.fetch(A) == b"new" * 1000
    large.sweep(store, "models")
    assert len(parts(store)) == 1 + -(-len(large.read(store, A)) // 400)


def test_every_part_is_progress(store):
    """It takes longer than its deadline allows for any single step."""
    slow = Faulty(store)
    write = slow.write

    def slowly(batch: Batch):
        time.sleep(0.15)
        return write(batch)

    slow.write = slowly
    with SafeKeeper(slow) as keeper:
        keeper.save(A, b"x" * 3000, deadline=0.6).result()


def test_damaged_parts_are_told_with_their_id(store):
    with SafeKeeper(store) as keeper:
        keeper.save(A, b"x" * 5000).result()
        keeper.save(B, 1).result()
        store.write(Batch({CheckpointId("models.parts", parts(store)[-1]): b"?"}))
        with pytest.raises(Corruption, match="models/a"):
            keeper.fetch(A)
        told = []
        assert dict(keeper.recover("models", on_error=lambda id, error: told.append(id))) == {b"b": 1}
        assert told == [A]


def test_a_state_of_the_real_size(monkeypatch, store):
    monkeypatch.undo()
    with SafeKeeper(store, serializer="raw") as keeper:
        state = bytes(1 << 20) * 70
        keeper.save(A, state).result()
        assert keeper.fetch(A) == state
        assert keeper.metrics().bytes_written > len(state)


def test_bytes_as_they_are_are_made_whole_by_whoever_reads_the_store(store):
    with SafeKeeper(store) as keeper:
        for value in (b"x" * 5000, MARKED, b"small", b""):
            keeper.save_bytes(A, value).result()
            (found,) = store.read([A])
            assert keeper.whole(A, found) == value
        keeper.save_bytes(A, b"x" * 5000).result()
    with SafeKeeper(store) as other:  # it has not written the parts
        (found,) = store.read([A])
        assert other.whole(A, found) == b"x" * 5000
        other.forget(A).result()
        assert other.whole(A, found) is None
    assert parts(store) == []


def test_a_save_that_was_given_up_leaves_the_large_state_that_it_was_to_replace(store, monkeypatch):
    """Its deadline comes when the worker has it in hand, and by then the keeper has read that the old one is large."""
    with SafeKeeper(store) as keeper:
        keeper.save(A, b"x" * 5000).result()
    with SafeKeeper(store) as keeper:
        pipeline = keeper._pipeline
        monkeypatch.setattr(Stage, "wake", lambda self: None)  # the worker's part is done here
        ticket = keeper.save(A, ["small"])
        large_one = large.read(store, A)
        with pipeline.lock:
            taken = pipeline.storage.take()
            pipeline.completions.expire_entry(taken[0])
        pipeline.in_parts.add(A)
        pipeline._writer.store(taken)
        assert isinstance(ticket.outcome(), Unavailable)
        assert large.read(store, A) == large_one
        monkeypatch.undo()
        assert keeper.fetch(A) == b"x" * 5000
        keeper.save(A, b"newer").result()
        assert keeper.fetch(A) == b"newer"
    assert parts(store) == []
