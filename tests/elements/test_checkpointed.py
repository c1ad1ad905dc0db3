from __future__ import annotations

import threading
import time

import pytest

from safekeeper import (
    Backoff,
    BadId,
    BadState,
    Batch,
    Bounds,
    Calibrate,
    Checkpointed,
    CheckpointId,
    Closed,
    Conflict,
    Every,
    SafeKeeper,
    Unavailable,
)

KEY = b"foo"
ID = CheckpointId("words", KEY)


@pytest.fixture
def keeper(store):
    with SafeKeeper(store, backoff=Backoff(0.001, most=0.01)) as keeper:
        yield keeper


def words(keeper, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0}, tick=0.01, **settings)


def count(group, key=KEY, times=1):
    for _ in range(times):
        with group.event(key) as element:
            element.state["count"] += 1
    return element


def test_an_element_begins_blank_and_is_saved_when_the_trigger_says_so(store, keeper):
    with words(keeper, trigger=Every(events=3)) as group:
        element = count(group, times=2)
        assert element.ticket is None
        count(group).ticket.result()
        assert keeper.fetch(ID) == {"count": 3}
        ticket = element.ticket
        count(group, times=2)
        assert element.ticket is ticket
        count(group)
        assert keeper.fetch(ID) == {"count": 6}


def test_the_first_event_of_an_unknown_key_brings_its_state_back(keeper):
    keeper.save(ID, {"count": 41}).result()
    with words(keeper) as group:
        assert count(group).state == {"count": 42}


def test_what_cannot_be_fetched_is_never_blank(store, keeper):
    keeper.save(ID, {"count": 41}).result()
    with words(keeper) as group:
        store.fail("read")
        with pytest.raises(Unavailable):
            count(group)
        assert len(group) == 0
        assert count(group).state == {"count": 42}


def test_an_element_is_saved_when_its_first_unsaved_event_is_old_enough(keeper, eventually):
    with words(keeper, trigger=Every(events=1000, seconds=0.03)) as group:
        count(group, b"early")
        count(group, times=5)
        eventually(lambda: keeper.fetch(ID) == {"count": 5})
        eventually(lambda: keeper.fetch(CheckpointId("words", b"early")) == {"count": 1})
        saves = keeper.metrics().saves
        time.sleep(0.1)
        assert keeper.metrics().saves == saves, "what has not changed is not saved again"


def test_ttl_evicts_from_memory_and_never_from_the_store(keeper, eventually):
    with words(keeper, trigger=None, ttl=0.05) as group:
        count(group, times=3)
        assert len(group) == 1
        eventually(lambda: len(group) == 0)
        assert keeper.fetch(ID) == {"count": 3}, "it was saved first, although no trigger said so"
        assert count(group).state == {"count": 4}


def test_what_is_not_stored_is_not_evicted(store, keeper, eventually):
    with words(keeper, ttl=0.02) as group:
        with store.hold("write") as gate:
            count(group)
            gate.wait_for(1)
            time.sleep(0.2)
            assert len(group) == 1
        eventually(lambda: len(group) == 0)


def test_a_failed_save_leaves_the_element_dirty_and_is_made_again(store, keeper, eventually):
    with words(keeper, trigger=Every(events=3)) as group:
        store.fail("write", error=Conflict("injected"))
        ticket = count(group, times=3).ticket
        with pytest.raises(Conflict):
            ticket.result()
        eventually(lambda: keeper.fetch(ID) == {"count": 3})


def test_an_event_that_raises_does_not_count(keeper):
    with words(keeper, trigger=Every(events=1)) as group:
        with pytest.raises(ZeroDivisionError), group.event(KEY) as element:
            element.state["count"] = 1 // 0
        assert keeper.metrics().saves == 0
        assert count(group).state == {"count": 1}


def test_what_failed_at_its_first_event_does_not_stay_for_ever(keeper, eventually):
    with words(keeper, ttl=0.02) as group:
        with pytest.raises(ZeroDivisionError), group.event(KEY):
            raise ZeroDivisionError
        eventually(lambda: len(group) == 0)
        assert keeper.fetch(ID) is None


def test_a_trigger_that_raises_does_not_end_the_sweeper(keeper, eventually):
    class Broken:
        def due(self, events, seconds):
            if events < 3:
                raise ZeroDivisionError
            return True

    with words(keeper, trigger=Broken()) as group:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                count(group)
        time.sleep(0.05)  # the sweeper meets it too
        with group._memory.lock:
            group._memory.elements[KEY].version = 3
        eventually(lambda: keeper.fetch(ID) == {"count": 2})


def test_looking_is_no_event_and_leaves_no_trace_of_unknown_keys(keeper):
    keeper.save(ID, {"count": 41}).result()
    with words(keeper) as group:
        with group.look(KEY) as state:
            assert state == {"count": 41}
        with group.look(b"unknown") as state:
            assert state is None
        assert len(group) == 1
        assert keeper.metrics().saves == 1


def test_forget_removes_from_memory_and_store(keeper):
    with words(keeper) as group:
        count(group, times=5)
        group.forget(KEY).result()
        assert len(group) == 0
        assert keeper.fetch(ID) is None
        assert count(group).state == {"count": 1}


def test_an_event_that_waited_while_its_element_was_forgotten_starts_anew(keeper):
    with words(keeper) as group:
        count(group, times=5)
        with group.event(KEY) as element:
            waiting = threading.Thread(target=count, args=(group,))
            waiting.start()
            time.sleep(0.1)  # until it waits for this block
            group.forget(KEY)
            element.state["count"] = 1000
        waiting.join()
    assert keeper.fetch(ID) == {"count": 1}


def test_an_event_while_a_forget_waits_for_room_starts_anew(store, eventually):
    """It must not bring back what is still in the store just then."""
    with SafeKeeper(store, overflow="block", storage_queue=Bounds(count=1)) as keeper, words(keeper) as group:
        count(group, times=5).ticket.result()
        with store.hold("write") as gate:
            keeper.save(CheckpointId("other", b"1"), 1)
            gate.wait_for(1)
            keeper.save(CheckpointId("other", b"2"), 1)
            forgetting = threading.Thread(target=group.forget, args=(KEY,))
            forgetting.start()
            eventually(lambda: keeper._pipeline.storage.queue.blocked == 1)
            counting = threading.Thread(target=count, args=(group,))
            counting.start()
            counting.join(0.1)  # time for it to find what it must not find
        forgetting.join()
        counting.join()
        keeper.flush()
        assert keeper.fetch(ID) == {"count": 1}


def test_an_element_that_had_an_event_just_now_is_not_evicted(keeper):
    with words(keeper, trigger=None, ttl=1000) as group:
        group._evict(count(group))
        assert len(group) == 1
        with group.event(KEY) as element:
            another = threading.Thread(target=group._evict, args=(element,))
            another.start()
            another.join()
        assert len(group) == 1


def test_recover_brings_everything_at_once(store, keeper):
    for n in range(100):
        keeper.save(CheckpointId("words", b"%d" % n), {"count": n})
    keeper.flush()
    with words(keeper) as group:
        count(group, b"7")
        assert group.recover() == 100
        assert len(group) == 100
        reads = store.calls["read"]
        assert count(group, b"50").state == {"count": 51}
        assert count(group, b"7").state == {"count": 9}, "what was in memory was left alone"
        assert store.calls["read"] == reads


def test_recover_goes_on_after_a_state_that_cannot_be_read(store, keeper):
    batch = Batch()
    batch.put(ID, b"not a state")
    store.write(batch)
    keeper.save(CheckpointId("words", b"good"), {"count": 1}).result()
    with words(keeper) as group:
        with pytest.raises(BadState, match="words/foo"):
            group.recover()
        bad = []
        assert group.recover(on_error=lambda id, error: bad.append((id, type(error)))) == 1
        assert bad == [(ID, BadState)]
        with pytest.raises(BadState, match="words/foo"):
            count(group)
        assert count(group, b"good").state == {"count": 2}


def test_close_saves_what_is_dirty_and_says_when_it_is_not_stored(store, keeper):
    group = words(keeper, trigger=Every(events=1000))
    count(group, times=3)
    store.fail("write", error=Conflict("injected"))
    with pytest.raises(Conflict):
        group.close()
    group.close()
    assert keeper.fetch(ID) == {"count": 3}


def test_checkpoint_saves_what_is_dirty_now(keeper, eventually):
    with words(keeper, trigger=Every(events=1000)) as group:
        for key in (b"a", b"b", b"c"):
            count(group, key)
        tickets = group.checkpoint()
        for ticket in tickets:
            ticket.result()
        assert len(tickets) == 3
        eventually(lambda: group.checkpoint() == [])  # a ticket completes before its callback has been called


def test_the_tickets_of_a_checkpoint_cover_saves_under_way(store, keeper):
    """Whoever waits for them may tell upstream that everything up to here is stored."""
    with words(keeper) as group:
        with store.hold("write") as gate:
            saved = count(group, b"under way").ticket
            gate.wait_for(1)
            queued = count(group, b"queued").ticket
            assert group.checkpoint() == [saved, queued]
        keeper.flush()
        assert all(ticket.done() for ticket in (saved, queued))


def test_a_state_may_be_replaced(keeper):
    with Checkpointed(keeper, "numbers", lambda: 0) as group:
        for _ in range(3):
            with group.event(KEY) as element:
                element.state += 1
    assert keeper.fetch(CheckpointId("numbers", KEY)) == 3


def test_postponed_saves_are_made_up_for_when_the_queue_is_empty_again(store, eventually):
    keeper = SafeKeeper(store, storage_queue=Bounds(count=10))
    with keeper, words(keeper, calibrate=Calibrate(keeper)) as group:
        with store.hold("write") as gate:
            count(group, b"first")
            gate.wait_for(1)
            for n in range(50):
                count(group, b"%d" % n)
            assert keeper.metrics().saves < 15, "the rest was postponed"
        eventually(lambda: len(list(store.keys("words"))) == 51)


@pytest.mark.crash
def test_events_of_many_threads_with_evictions_lose_nothing(store, long_form):
    """Evictions, lazy recovery and saves run against each other; every event must be counted."""
    each = 20_000 if long_form else 500
    keys = [b"%d" % n for n in range(10)]
    with SafeKeeper(store, storage_workers=2) as keeper:
        with Checkpointed(keeper, "words", lambda: 0, trigger=Every(events=2), ttl=0.0005, tick=0.0005) as group:

            def handle(thread: int) -> None:
                for n in range(each):
                    with group.event(keys[(n * 7 + thread) % len(keys)]) as element:
                        element.state += 1
                    if n % 20 == 0:
                        time.sleep(0.002)

            threads = [threading.Thread(target=handle, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            recovered = keeper.metrics().fetches
        assert sum(state for _, state in keeper.recover("words")) == 4 * each
        assert recovered > len(keys), "elements were evicted and came back"


def test_a_keeper_that_closes_first_ends_the_sweeper(store):
    keeper = SafeKeeper(store)
    group = words(keeper, trigger=Every(seconds=0.01))
    count(group)
    sweeper = group._sweeper.thread
    keeper.close()
    count(group)  # now there is something due
    sweeper.join(60)
    assert not sweeper.is_alive()
    with pytest.raises(Closed):
        count(group, b"unknown")


def test_without_an_owner_two_that_share_a_key_lose_events(store):
    """What the docs warn of, so that they stay true. `test_owner.py` has what happens by default."""
    with SafeKeeper(store) as first, SafeKeeper(store) as second:
        with words(first, owner=None) as here, words(second, owner=None) as there:
            for _ in range(5):
                count(here).ticket.result()
                count(there).ticket.result()
        assert first.fetch(ID) == {"count": 6}, "ten events were acknowledged"


def test_an_element_that_could_not_be_made_is_not_kept(keeper):
    def new():
        raise ZeroDivisionError

    with Checkpointed(keeper, "words", new) as group:
        with pytest.raises(ZeroDivisionError):
            group.event(KEY).__enter__()
        assert len(group) == 0


def test_a_key_may_be_a_str_wherever_there_is_one(keeper):
    with words(keeper, trigger=None) as group:
        count(group, "früh")
        (ticket,) = group.checkpoint("früh")
        assert ticket.id == CheckpointId("words", "früh".encode())
        ticket.result()
        with group.look("früh".encode()) as state:
            assert state == {"count": 1}
        with group.look("früh") as state:
            assert state == {"count": 1}
        assert len(group) == 1
        group.forget("früh").result()
        assert list(keeper.keys("words")) == []
        with pytest.raises(BadId, match="has no UTF-8 form"), group.event("\ud800"):
            pass
