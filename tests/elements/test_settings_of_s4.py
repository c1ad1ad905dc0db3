"""Eager recovery in the background, blank rather than late, and what is counted."""

from __future__ import annotations

import pytest

from safekeeper import Backoff, Batch, Checkpointed, CheckpointId, Every, Fuse, SafeKeeper, Unavailable

KEY = b"foo"
ID = CheckpointId("words", KEY)


@pytest.fixture
def keeper(store):
    with SafeKeeper(store) as keeper:
        yield keeper


def words(keeper, **settings):
    return Checkpointed(keeper, "words", lambda: {"count": 0}, tick=0.01, **settings)


def count(group, key=KEY):
    with group.event(key) as element:
        element.state["count"] += 1
    return element


class TestEager:
    @pytest.fixture
    def filled(self, store, keeper):
        for n in range(300):
            keeper.save(CheckpointId("words", b"%d" % n), {"count": n})
        keeper.flush()

    @pytest.mark.parametrize("owner", ("fail", None))
    def test_everything_comes_back_while_events_are_handled(self, keeper, filled, eventually, owner):
        with words(keeper, recovery="eager", owner=owner) as group:
            assert count(group, b"7").state == {"count": 8}
            eventually(lambda: group.metrics().recovered == 1)
            assert len(group) == 300
            assert count(group, b"8").state == {"count": 9}
        assert dict(keeper.recover("words"))[b"7"] == {"count": 8}

    def test_what_it_has_read_never_takes_the_place_of_what_events_have_done_since(self, store, keeper, eventually):
        """Read, then changed by an event and evicted, then brought back: the event would be lost."""
        keeper.save(ID, {"count": 41}).result()
        with words(keeper, owner=None) as group:
            read = keeper.recover("words")

            def recover(place, **_):
                state = next(read)
                count(group)
                element = group._memory.elements[KEY]
                element.ticket.result()
                eventually(lambda: element.stored == element.version)
                group._evict(element)
                yield state

            keeper.recover, original = recover, keeper.recover
            assert group.recover() == 1
            keeper.recover = original
            assert len(group) == 0
            assert count(group).state == {"count": 43}

    def test_an_unavailable_store_is_asked_again_and_a_bad_state_is_told(
        self, store, keeper, filled, eventually, caplog
    ):
        store.write(Batch({ID: b"not a state"}))
        store.fail("read", times=2)
        with words(keeper, recovery="eager", owner=None, backoff=Backoff(0.001, most=0.001)) as group:
            eventually(lambda: group.metrics().recovered == 1)
            assert len(group) == 300
        lines = [record.getMessage() for record in caplog.records]
        assert any("words/foo: not recovered" in line for line in lines)
        assert any("as soon as the store answers" in line for line in lines)

    def test_closing_does_not_wait_for_all_of_it(self, store, keeper, filled, eventually):
        group = words(keeper, recovery="eager", owner=None)
        eventually(lambda: len(group) > 0)
        group.close()


class TestBlank:
    def test_blank_rather_than_late_has_to_be_asked_for_and_is_told(self, store, keeper, caplog):
        keeper.save(ID, {"count": 41}).result()
        with words(keeper, unavailable="blank") as group:
            store.fail("read")
            element = count(group)
            element.ticket.result()
            assert element.blank
            assert element.state == {"count": 1}
            assert group.metrics().blank == 1
        assert keeper.fetch(ID) == {"count": 1}
        assert any("words/foo: it begins blank" in record.getMessage() for record in caplog.records)

    def test_late_is_what_the_keeper_calls_late(self, store):
        with SafeKeeper(store, fetch_timeout=0.05, fuse=Fuse(failures=1000)) as keeper:
            keeper.save(ID, {"count": 41}).result()
            with words(keeper, unavailable="blank", owner=None) as group:
                with store.hold("read"):
                    assert count(group).state == {"count": 1}
                with words(keeper, owner=None) as other, store.hold("read"), pytest.raises(Unavailable):
                    count(other)

    def test_damage_is_never_blank(self, store, keeper):
        store.write(Batch({ID: b"not a state"}))
        with words(keeper, unavailable="blank") as group, pytest.raises(ValueError, match="words/foo"):
            count(group)

    def test_bad_settings_are_refused(self, keeper):
        with pytest.raises(ValueError, match="unavailable= is 'raise' or 'blank', not 'late'"):
            words(keeper, unavailable="late")
        with pytest.raises(ValueError, match="recovery= is 'lazy' or 'eager', not 'none'"):
            words(keeper, recovery="none")


def test_the_listener_of_a_keeper_gets_every_ticket_once_and_disturbs_nobody(store):
    heard, own = [], []

    def listen(ticket):
        heard.append((ticket.id.key, type(ticket.outcome()).__name__))
        if ticket.id.key == b"b":
            raise ZeroDivisionError

    with SafeKeeper(store, listener=listen) as keeper:
        keeper.save(CheckpointId("group", b"a"), 1).result()
        keeper.save(CheckpointId("group", b"b"), 1, callback=own.append).result()
        keeper.save(CheckpointId("group", b"c"), {1: object()})
        keeper.forget(CheckpointId("group", b"a")).result()
        with words(keeper) as group:
            count(group)
    assert heard == [(b"a", "Receipt"), (b"b", "Receipt"), (b"c", "BadState"), (b"a", "Receipt"), (KEY, "Receipt")]
    assert len(own) == 1
    assert keeper.metrics().callback_errors == 1


def test_what_happens_to_elements_is_counted(store, keeper, eventually):
    keeper.save(ID, {"count": 41}).result()
    with words(keeper, trigger=Every(events=2), ttl=1000) as group:
        count(group)
        count(group, b"new")
        with pytest.raises(ZeroDivisionError), group.event(b"new", undo=True) as element:
            element.state["count"] = 1 / 0
        with pytest.raises(ZeroDivisionError), group.event(b"new") as element:
            element.state["count"] = 1 / 0
        store.fail("read")
        with pytest.raises(Unavailable):
            count(group, b"unread")
        metrics = group.metrics()
        assert (metrics.events, metrics.raised, metrics.undone) == (2, 2, 1)
        assert (metrics.loaded, metrics.began, metrics.load_errors, metrics.blank) == (1, 1, 1, 0)
        assert (metrics.in_memory, metrics.dirty, metrics.half_done, metrics.owned) == (2, 1, 1, 1)
        assert metrics.load.count == 2
        group.forget(b"new").result()
        count(group).ticket.result()
        eventually(lambda: group.metrics().stored == 1)
        assert (group.metrics().saves, group.metrics().forgotten, group.metrics().dirty) == (1, 1, 0)
        text = group.metrics().prometheus(group="words")
    assert 'safekeeper_elements_events_total{group="words"} 3\n' in text
    assert "# TYPE safekeeper_elements_in_memory gauge" in text
    assert 'safekeeper_elements_load_seconds_count{group="words"} 2' in text
    assert group.metrics().owned == 0
