"""What an event that raised has changed is undone, or its key fails until somebody has decided: it is never saved."""

from __future__ import annotations

import random
import threading

import pytest

from safekeeper import BadState, Checkpointed, CheckpointId, Conflict, Every, HalfDone, SafeKeeper

KEY = b"foo"
ID = CheckpointId("words", KEY)


@pytest.fixture
def keeper(store):
    with SafeKeeper(store, serializer="json") as keeper:
        yield keeper


def elements(keeper, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0}, tick=0.01, **settings)


def count(group, key=KEY, times=1, **options):
    for _ in range(times):
        with group.event(key, **options) as element:
            element.state["count"] += 1
    return element


def fail(group, key=KEY, **options):
    """Raise in the middle of an event."""
    with pytest.raises(ZeroDivisionError), group.event(key, **options) as element:
        change_and_raise(element)


def change_and_raise(element):
    if isinstance(element.state, int):
        element.state += 1000
    else:
        element.state["count"] += 1000
    raise ZeroDivisionError("half-way")


@pytest.mark.parametrize("ttl", (None, 0.01))
@pytest.mark.parametrize("trigger", (Every(events=1), Every(events=1000), Every(seconds=0.01), None), ids=str)
def test_a_key_whose_event_raised_half_way_fails_and_is_not_saved(keeper, trigger, ttl, let_it_sweep):
    keeper.save(ID, {"count": 1}).result()
    with elements(keeper, trigger=trigger, ttl=ttl) as group:
        fail(group)
        let_it_sweep(group)
        for enter in (lambda: count(group), lambda: count(group, undo=True), lambda: group.look(KEY).__enter__()):
            with pytest.raises(HalfDone, match=r"words/foo: .*ZeroDivisionError\('half-way'\).*checkpoint.*forget"):
                enter()
        count(group, b"another")
        assert KEY not in [ticket.id.key for ticket in group.checkpoint()], "none of its events is not stored"
    assert keeper.fetch(ID) == {"count": 1}


@pytest.mark.parametrize("nbytes", (10, 100_000), ids=("small", "large"))
def test_undo_puts_the_element_back(keeper, nbytes):
    """Also while a worker has still to serialize it."""
    with elements(keeper) as group:
        with group.event(KEY) as element:
            element.state = {"count": 1, "text": "x" * nbytes}
        fail(group, undo=True)
        assert count(group, undo=True).state == {"count": 2, "text": "x" * nbytes}
        fail(group, undo=True)
    assert keeper.fetch(ID)["count"] == 2


def test_undo_puts_back_a_state_that_was_replaced(keeper):
    with Checkpointed(keeper, "words", lambda: 0) as group:
        for _ in range(3):
            fail(group, undo=True)
            with group.event(KEY) as element:
                element.state += 1
    assert keeper.fetch(ID) == 3


def test_undo_costs_one_serialization_an_event(keeper):
    with elements(keeper, trigger=None) as group:
        count(group)
        encode, calls = keeper._encode, []
        keeper._encode = lambda state: calls.append(state) or encode(state)
        count(group, times=10)
        assert len(calls) == 0
        count(group, times=10, undo=True)
        assert len(calls) == 10


def test_what_cannot_be_put_back_is_not_begun(keeper):
    with elements(keeper, trigger=None) as group:
        with group.event(KEY) as element:
            element.state = {"count": {1, 2}}
        with pytest.raises(BadState), group.event(KEY, undo=True):
            raise AssertionError("it was begun")
        with group.event(KEY) as element:
            element.state = {"count": 1}
    assert keeper.fetch(ID) == {"count": 1}


def test_a_checkpoint_of_the_key_stores_it_as_it_is(keeper):
    with elements(keeper) as group:
        count(group)
        fail(group)
        (ticket,) = group.checkpoint(KEY)
        ticket.result()
        assert keeper.fetch(ID) == {"count": 1001}
        assert count(group).state == {"count": 1002}
    assert keeper.fetch(ID) == {"count": 1002}


def test_a_checkpoint_of_one_key_saves_no_other(keeper):
    with elements(keeper, trigger=None) as group:
        count(group, b"a")
        count(group, b"b")
        (ticket,) = group.checkpoint(b"a")
        ticket.result()
        assert group.checkpoint(b"a") == [ticket], "which is its newest save"
        assert group.checkpoint(b"never there") == []
        assert keeper.metrics().saves == 1


def test_a_forgotten_key_starts_anew(keeper):
    with elements(keeper) as group:
        count(group, times=5)
        fail(group)
        group.forget(KEY).result()
        assert count(group).state == {"count": 1}


def test_a_key_that_was_not_there_starts_anew(keeper):
    """Nothing can be lost by that, and what fails at its first event is not kept in memory."""
    with elements(keeper) as group:
        fail(group)
        assert len(group) == 0
        assert count(group).state == {"count": 1}


def test_an_event_that_cannot_have_changed_anything_is_not_half_done(keeper):
    with Checkpointed(keeper, "words", lambda: 0) as group:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError), group.event(KEY):
                raise ZeroDivisionError
            with group.event(KEY) as element:
                element.state += 1
        fail(group)
        with pytest.raises(HalfDone):
            group.event(KEY).__enter__()
    assert keeper.fetch(ID) == 3


def test_events_that_are_not_saved_are_never_dropped_and_never_saved_half_done(keeper):
    """Neither a checkpoint nor close may do either: they tell."""
    group = elements(keeper, trigger=Every(events=10))
    count(group, times=5)
    count(group, b"another", times=5)
    fail(group)
    tickets = {ticket.id.key: ticket for ticket in group.checkpoint()}
    tickets[b"another"].result()
    with pytest.raises(HalfDone, match="words/foo"):
        tickets[KEY].result()
    with pytest.raises(HalfDone, match="words/foo"):
        group.close()
    assert keeper.fetch(ID) is None
    group.checkpoint(KEY)
    group.close()
    assert keeper.fetch(ID) == {"count": 1005}


def test_close_says_which_keys_are_left_half_done_although_nothing_is_lost(keeper, caplog):
    with elements(keeper) as group:
        count(group).ticket.result()
        fail(group)
    assert "without what events changed that raised half-way: words/foo" in caplog.text
    assert keeper.fetch(ID) == {"count": 1}


@pytest.mark.parametrize("nbytes", (10, 1_000_000), ids=("small", "large"))
def test_a_save_under_way_is_not_touched_by_an_event_that_raises(store, keeper, nbytes):
    with elements(keeper) as group:
        with store.hold("write") as gate:
            keeper.save(CheckpointId("other", b"first"), 1)
            gate.wait_for(1)
            with group.event(KEY) as element:
                element.state = {"count": 1, "text": "x" * nbytes}
            fail(group)
        element.ticket.result()
    assert keeper.fetch(ID)["count"] == 1


def test_a_save_that_fails_after_an_event_raised_is_not_made_again_with_what_that_changed(store, keeper, eventually):
    group = elements(keeper, owner=None)  # no other writes
    with store.hold("write") as gate:
        store.fail("write", error=Conflict("injected"))
        ticket = count(group).ticket
        gate.wait_for(1)
        fail(group)
    with pytest.raises(Conflict):
        ticket.result()
    count(group, b"another").ticket.result()
    with pytest.raises(HalfDone, match="words/foo"):
        group.close()
    assert keeper.fetch(ID) is None


@pytest.mark.crash
def test_events_of_many_threads_that_raise_now_and_then_count_exactly(store, long_form):
    each, seed = (20_000 if long_form else 400), random.randrange(1 << 32)
    print(f"seed {seed}")
    done = [0] * 4
    with SafeKeeper(store, serializer="json") as keeper:
        with elements(keeper, trigger=Every(events=3), ttl=0.005) as group:

            def handle(thread: int) -> None:
                source = random.Random(seed + thread)
                for _ in range(each):
                    try:
                        with group.event(b"%d" % source.randrange(5), undo=True) as element:
                            element.state["count"] += 1
                            if source.random() < 0.3:
                                raise ZeroDivisionError
                        done[thread] += 1
                    except ZeroDivisionError:
                        pass

            threads = [threading.Thread(target=handle, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(state["count"] for _, state in keeper.recover("words")) == sum(done)
