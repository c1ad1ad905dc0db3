from concurrent.futures import ThreadPoolExecutor

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Closed, Corruption, Unavailable
from safekeeper.testing import Faulty, Slow

ID = CheckpointId("group", b"key")
CALLS = {
    "write": lambda store: store.write(Batch({ID: b"value"})),
    "read": lambda store: store.read([ID]),
    "keys": lambda store: list(store.keys("group")),
    "groups": lambda store: list(store.groups()),
}


@pytest.fixture
def inner():
    with safekeeper.open("memory:") as store:
        yield store


@pytest.fixture
def faulty(inner):
    with Faulty(inner) as store:
        yield store


@pytest.mark.parametrize("wrapper", (Slow, Faulty))
def test_a_wrapper_is_the_backend_inside(inner, wrapper):
    with wrapper(inner) as store:
        assert (store.scope, store.survives, store.asserted) == (inner.scope, inner.survives, inner.asserted)
        store.write(Batch({ID: b"value"}))
        assert inner.read([ID]) == store.read([ID]) == [b"value"]
        assert (list(store.keys("group")), list(store.groups())) == ([b"key"], ["group"])


@pytest.mark.parametrize("wrapper", (Slow, Faulty))
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_closing_a_wrapper_closes_both(inner, wrapper, call):
    store = wrapper(inner)
    store.close()
    for handle in (store, inner):
        with pytest.raises(Closed):
            call(handle)


def test_slow_takes_the_time_it_was_given_for_each_call(inner):
    slept = []
    store = Slow(inner, write=3, read=2, listing=1, sleep=slept.append)
    for call in CALLS.values():
        call(store)
    assert slept == [3, 2, 1, 1]


@pytest.mark.parametrize("method", CALLS)
def test_a_fault_strikes_its_method_and_no_other(faulty, method):
    faulty.fail(method)
    for name, call in CALLS.items():
        if name != method:
            call(faulty)
    with pytest.raises(Unavailable, match=method):
        CALLS[method](faulty)
    CALLS[method](faulty)
    assert faulty.calls == {**dict.fromkeys(CALLS, 1), method: 2}


def test_a_write_that_fails_before_did_not_happen_and_one_that_fails_after_did(inner, faulty):
    for when, found in (("before", None), ("after", b"value")):
        faulty.fail("write", when=when)
        with pytest.raises(Unavailable):
            faulty.write(Batch({ID: b"value"}))
        assert inner.read([ID]) == [found]


def test_a_fault_lets_some_calls_through_and_strikes_the_next_ones(faulty):
    faulty.fail("read", skip=1, times=2, error=Corruption("bits have flipped"))
    outcomes = []
    for _ in range(5):
        try:
            outcomes.append(faulty.read([ID]))
        except Corruption as error:
            outcomes.append(str(error))
    assert outcomes == [[None], "bits have flipped", "bits have flipped", [None], [None]]


def test_held_writes_stop_before_they_happen_and_go_on_when_released(inner, faulty):
    with ThreadPoolExecutor(2) as pool:
        with faulty.hold("write") as gate:
            writes = [pool.submit(faulty.write, Batch({CheckpointId("group", key): b""})) for key in (b"1", b"2")]
            gate.wait_for(2)
            assert list(inner.keys("group")) == []
        for write in writes:
            write.result()
    assert sorted(inner.keys("group")) == [b"1", b"2"]
    faulty.write(Batch({ID: b"not held any more"}))


def test_held_after_means_that_it_has_happened(inner, faulty):
    with ThreadPoolExecutor(1) as pool, faulty.hold("write", when="after") as gate:
        write = pool.submit(faulty.write, Batch({ID: b"value"}))
        gate.wait_for()
        assert inner.read([ID]) == [b"value"]
        assert not write.done()
        gate.release()
        write.result()


def test_waiting_for_calls_that_do_not_come_is_an_error(faulty):
    with faulty.hold("write") as gate, pytest.raises(TimeoutError, match="0 of 1"):
        gate.wait_for(timeout=0.01)
