"""What people look for: keys, forgetting a group, a health check, and objects that say what they are."""

from __future__ import annotations

import asyncio

import pytest

import safekeeper
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
    Every,
    Fuse,
    Histogram,
    SafeKeeper,
    Unavailable,
    large,
)
from safekeeper.aio import AsyncKeeper

IDS = [CheckpointId("group", key) for key in ("ada", "adam", "bob", "ä")]


def test_keys_are_listed_by_prefix_each_once(store):
    with SafeKeeper(store) as keeper:
        keeper.save_many((id, 1) for id in IDS)
        keeper.save(CheckpointId("other", "ada"), 1).result()
        assert sorted(keeper.keys("group")) == sorted(id.key for id in IDS)
        assert sorted(keeper.keys("group", prefix="ada")) == [b"ada", b"adam"]
        assert list(keeper.keys("group", prefix="ä".encode()[:1])) == ["ä".encode()]
        assert list(keeper.keys("nothing")) == []
        with pytest.raises(BadId, match="a group is a str"):
            keeper.keys(b"group")
        with pytest.raises(BadId, match="has no UTF-8 form"):
            keeper.keys("group", prefix="\ud800")


def test_a_key_that_the_store_lists_twice_is_given_once(store):
    with SafeKeeper(store) as keeper:
        keeper.save(IDS[0], 1).result()
        store.keys = lambda group: iter([b"ada", b"ada"])
        assert list(keeper.keys("group")) == [b"ada"]


def test_a_str_is_a_key_everywhere(store):
    with SafeKeeper(store) as keeper:
        keeper.save(CheckpointId("group", "ada"), 1).result()
        assert keeper.fetch(CheckpointId("group", b"ada")) == 1
        keeper.forget(CheckpointId("group", "ada")).result()
        assert keeper.fetch(CheckpointId("group", "ada")) is None


def test_bytes_are_stored_as_they_are_in_the_batches_of_the_states(store):
    heard = []
    with SafeKeeper(store, listener=heard.append) as keeper:
        with store.hold("write") as gate:
            keeper.save(IDS[2], 0)
            gate.wait_for(1)
            tickets = [keeper.save_bytes(IDS[0], b"as it is"), keeper.save(IDS[1], {"n": 1})]
        assert len({id(ticket.result()) for ticket in tickets}) == 1, "one batch, one receipt"
        assert store.read([IDS[0]]) == [b"as it is"]
        keeper.save_bytes(IDS[0], b"another", callback=heard.append).result()
        with pytest.raises(BadState, match="takes bytes, not str"):
            keeper.save_bytes(IDS[0], "text").result()
        keeper.flush()
        assert store.read([IDS[0]]) == [b"another"]
    assert [ticket.id for ticket in heard] == [IDS[2], IDS[0], IDS[1], IDS[0], IDS[0], IDS[0]], "the listener, too"


def test_a_group_is_forgotten_with_all_its_parts_and_no_other_is(store, monkeypatch):
    monkeypatch.setattr(large, "MAX_VALUE_BYTES", 1000)
    made = large.LargeWrite.__init__
    monkeypatch.setattr(made, "__kwdefaults__", {**made.__kwdefaults__, "part_bytes": 400})
    with SafeKeeper(store) as keeper:
        keeper.save_many((CheckpointId("group", b"%d" % n), n) for n in range(2100))
        keeper.save(CheckpointId("other", "ada"), "stays")
        keeper.save(CheckpointId("group", "large"), bytes(3000)).result()
    with SafeKeeper(store) as keeper:  # it does not know what is in parts
        assert set(store.groups()) == {"group", "group.parts", "other"}
        keeper.save(CheckpointId("group", "queued"), 1)
        assert keeper.forget_group("group") == 2102
        assert set(store.groups()) == {"other"}
        assert keeper.forget_group("group") == 0
        assert keeper.fetch(CheckpointId("other", "ada")) == "stays"
        with pytest.raises(BadId):
            keeper.forget_group("")


def test_ping_asks_the_store_whatever_the_fuse_says(store):
    with SafeKeeper(store, fuse=Fuse(failures=1)) as keeper:
        assert 0 <= keeper.ping() < 60
        assert 0 <= keeper.ping(timeout=60) < 60
        store.fail("read", times=2)
        with pytest.raises(Unavailable):
            keeper.fetch(IDS[0])
        with pytest.raises(Unavailable, match="a fault was injected"):
            keeper.ping()
        assert keeper.ping() >= 0
        with store.hold("read"), pytest.raises(Unavailable, match="did not answer"):
            keeper.ping(timeout=0.02)
    with pytest.raises(Closed):
        keeper.ping()


def test_what_is_public_shows_what_it_is(store, tmp_path):
    with SafeKeeper(store) as keeper, Checkpointed(keeper, "Words", new=dict) as words:
        with store.hold("write") as gate:
            ticket = keeper.save(IDS[0], 1)
            gate.wait_for(1)
            assert repr(ticket) == "<Ticket of group/ada, under way>"
            assert "1 saves under way" in repr(keeper)
            first, second = keeper.save(IDS[1], 1), keeper.save(IDS[1], 2)
        second.result()
        assert repr(ticket) == "<Ticket of group/ada, stored>"
        assert repr(first) == "<Ticket of group/adam, superseded, stored>"
        assert repr(keeper.save(IDS[0], 1j)).startswith("<Ticket of group/ada, BadState: msgpack cannot")
        with words.event(b"foo") as element:
            pass
        assert repr(words) == "<Checkpointed 'Words', 1 elements in memory>"
        assert repr(element) == "<Element Words/foo>"
        shown = [
            keeper,
            ticket,
            words,
            element,
            keeper.metrics(),
            Histogram(),
            Fuse(),
            Calibrate(keeper),
            Every(events=1),
        ]
        shown += [Bounds(), Backoff(), Batch(), store, IDS[0], AsyncKeeper(keeper), ticket.result()]
        for one in shown:
            assert " object at 0x" not in repr(one)
            assert "\n" not in repr(one)
    assert repr(keeper).endswith(", closed>")
    with safekeeper.open(f"log://{tmp_path}/store") as backend:
        assert repr(backend) == f"<LogBackend log://{tmp_path}/store>"
    assert repr(backend).endswith(", closed>")


def test_no_password_is_shown():
    with SafeKeeper("memory://ada:secret@there/x") as keeper:
        assert "there/x" in repr(keeper)
        assert "secret" not in repr(keeper)


def test_the_asyncio_keeper_gives_what_the_keeper_has(store):
    async def use() -> None:
        async with AsyncKeeper(SafeKeeper(store)) as keeper:
            await keeper.save(IDS[0], 1)
            assert list(keeper.keeper.keys("group")) == [b"ada"]

    asyncio.run(use())
