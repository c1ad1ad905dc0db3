"""What the conformance suite does not ask of a saver: sharing, few reads, encryption, delta channels, odd names."""

import asyncio
import operator
import sqlite3
from typing import Annotated, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
from langgraph.types import Command, interrupt

from safekeeper import BadState, Batch, CheckpointId
from safekeeper.integrations.langgraph import layout
from safekeeper.integrations.langgraph.recent import RecentParts
from safekeeper.langgraph import SafeKeeperSaver
from safekeeper.testing import Faulty

from ..conftest import KINDS
from .checkpoints import chat_graph, config, put, say, values_of


class Counting(Faulty):
    """Counts calls and bytes."""

    def __init__(self, store):
        super().__init__(store)
        self.reads = self.listings = self.written = self.ids = 0

    def read(self, ids):
        self.reads += 1
        self.ids += len(ids)
        return super().read(ids)

    def keys(self, group):
        self.listings += 1
        return super().keys(group)

    def write(self, batch):
        self.written += batch.nbytes
        return super().write(batch)


def parts_of(saver, thread):
    return set(saver._store.keys(layout.parts_group(layout.thread_group(thread))))


def test_what_was_read_or_written_lately_is_not_read_again(make_saver):
    counting = Counting(make_saver()._store)
    messages = [f"{n}".ljust(1500, "m") for n in range(200)]
    writer, reader = make_saver(counting), make_saver(counting)
    put(writer, "t", {"messages": messages})
    for saver, ids in ((writer, 4), (reader, 200), (reader, 4)):
        counting.ids = 0
        assert values_of(saver, "t") == {"messages": messages}
        assert counting.ids <= ids
    assert len(parts_of(writer, "t")) > 10


def test_memory_for_parts_is_bounded():
    recent = RecentParts(1000)
    for number in range(30):
        recent.add("g", "t", b"%d" % number, ["msgpack", [100], bytes(100)])
        recent.find("g", [("t", b"0")])
    recent.add("g", "t", b"0", ["msgpack", [50], bytes(50)])
    recent.add("g", "t", b"large", ["msgpack", [900], bytes(900)])
    found = recent.find("g", [("t", name) for name in (*(b"%d" % number for number in range(30)), b"large")])
    assert set(found) == {("t", b"%d" % number) for number in (0, *range(21, 30))}, "those that were used last"
    assert recent._nbytes == 950
    assert recent.find("another", [("t", b"0")]) == recent.find("g", [("another", b"0")]) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_says_the_same_as_with_the_saver_in_memory(make_saver, kind):
    ours, theirs = chat_graph(make_saver(kind)), chat_graph(InMemorySaver())
    for turn in range(4):
        said = [[m.content for m in say(graph, "t", str(turn))["messages"]] for graph in (ours, theirs)]
        assert said[0] == said[1]
    states = [[state.values for state in graph.get_state_history(config("t"))] for graph in (ours, theirs)]
    contents = [[[m.content for m in values["messages"]] for values in some] for some in states]
    assert contents[0] == contents[1]


def test_what_checkpoints_share_is_stored_once(make_saver, tmp_path):
    saver = make_saver("log")
    say(graph := chat_graph(saver), "t", "0")
    for turn in range(1, 40):
        say(graph, "t", str(turn))
    ours = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    with sqlite3.connect(tmp_path / "theirs.sqlite", check_same_thread=False) as connection:
        theirs_graph = chat_graph(SqliteSaver(connection))
        for turn in range(40):
            say(theirs_graph, "t", str(turn))
        connection.commit()
        (pages,) = connection.execute("pragma page_count").fetchone()
    connection.close()
    assert ours < pages * 4096 / 5  # with 200 turns it is 1/50: see the study


def test_the_latest_state_is_one_listing_and_a_few_reads(make_saver):
    saver = make_saver("log")
    graph = chat_graph(saver, 100)
    for turn in range(150):
        say(graph, "t", str(turn), 100)
    saver._store = counting = Counting(saver._store)
    assert len(values_of(saver, "t")["messages"]) == 300
    assert counting.listings == 1
    assert counting.reads <= 4


def test_a_put_writes_only_what_is_new(make_saver):
    saver = make_saver("log")
    messages = [f"{n} ".ljust(2000, "x") for n in range(300)]
    at = put(saver, "t", {"messages": messages})
    saver._store = counting = Counting(saver._store)
    put(saver, "t", {"messages": [*messages[5:], "one more".ljust(2000, "y")]}, at["configurable"]["checkpoint_id"])
    assert counting.written < 300_000  # of 600,000: the parts at both ends, not those between them
    put(saver, "t", {"messages": [*messages[5:], "one more".ljust(2000, "y")], "n": 1})
    assert counting.written < 310_000


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        [1, "two", b"three", None, [4], {"five": [6]}],
        {"a": [1], "b": b"x" * 5000},
        {1: "a key that is no text"},
        "x" * 100_000,
        b"y" * 3_000_000,
        list(range(50_000)),
        ["same"] * 20_000,
        {f"file-{n}": "z" * 3000 for n in range(100)},
        [{"role": "user", "content": "é" * 900}] * 90,
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}",
)
def test_any_value_comes_back(make_saver, value):
    saver = make_saver("log")
    at = put(saver, "t", {"channel": value})
    assert values_of(saver, "t") == {"channel": value}
    saver.put_writes(at, [("channel", value)], "task")
    assert saver.get_tuple(at).pending_writes == [("task", "channel", value)]
    saver.copy_thread("t", "u")
    assert values_of(saver, "u") == {"channel": value}
    assert saver.get_tuple(config("u")).pending_writes == [("task", "channel", value)]


def test_a_value_over_the_contracts_limit_comes_back_and_goes(make_saver):
    saver = make_saver("log")
    value = ["start", "v" * (70 << 20)]
    at = put(saver, "t", {"channel": value})
    saver.put_writes(at, [("channel", value)], "task")
    found = saver.get_tuple(config("t"))
    assert found.checkpoint["channel_values"] == {"channel": value}
    assert found.pending_writes == [("task", "channel", value)]
    saver.delete_thread("t")
    assert list(saver._store.groups()) == []


@pytest.mark.parametrize("thread", ["a.b", "a/b%", "ü\x00\n", "", "x" * 5000, 7, "t.parts"], ids=range(7))
def test_threads_and_namespaces_may_have_any_name(make_saver, thread):
    saver = make_saver("log")
    for name in (thread, "other"):
        at = put(saver, name, {"a": [str(name)]}, ns="ns|x:1/%", id="id/%1")
        saver.put_writes(at, [("a", 1)], "task/%")
    assert values_of(saver, thread, ns="ns|x:1/%") == {"a": [str(thread)]}
    assert len(list(saver.list(config(thread)))) == 0
    assert len(list(saver.list({"configurable": {"thread_id": thread}}))) == 1
    assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {str(thread), "other"}
    saver.delete_thread(thread)
    assert {one.config["configurable"]["thread_id"] for one in saver.list(None)} == {"other"}


def test_nothing_is_left_of_a_deleted_thread(make_saver):
    saver = make_saver("log")
    say(chat_graph(saver), "t", "hello")
    saver.delete_thread("t")
    assert list(saver._store.groups()) == []
    saver.prune(["t"])
    saver.delete_thread("t")
    assert list(saver._store.groups()) == []
    assert len(say(chat_graph(saver), "t", "again")["messages"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_prune_removes_the_parts_that_nobody_needs(make_saver, kind):
    saver = make_saver(kind)
    graph = chat_graph(saver)
    for turn in range(20):
        say(graph, "t", str(turn))
    before = parts_of(saver, "t")
    state = graph.get_state(config("t")).values
    saver.prune(["t"])
    kept = parts_of(saver, "t")
    assert kept < before
    assert graph.get_state(config("t")).values == state
    say(graph, "t", "more")
    assert len(graph.get_state(config("t")).values["messages"]) == 42
    saver.prune(["t"])
    assert not parts_of(saver, "t") & kept


def test_an_unknown_strategy_is_named(make_saver):
    with pytest.raises(ValueError, match="there is no strategy 'old' to prune by: use 'keep_latest' or 'delete'"):
        make_saver().prune(["t"], strategy="old")


def test_the_first_write_counts_and_later_indices_are_added(make_saver):
    saver = make_saver("log")
    at = put(saver, "t", {})
    saver.put_writes(at, [("a", 1), ("b", 2)], "task", "path")
    saver.put_writes(at, [("a", 10), ("b", 20), ("c", 30)], "task", "path")
    saver.put_writes(at, [("a", 100), ("b", 200), ("c", 300), ("d", 400)], "task", "path")
    writes = saver.get_tuple(at).pending_writes
    assert writes == [("task", "a", 1), ("task", "b", 2), ("task", "c", 30), ("task", "d", 400)]
    special = next(iter(WRITES_IDX_MAP))
    for number in (1, 2):
        saver.put_writes(at, [(special, number)], "task")
    assert ("task", special, 2) in saver.get_tuple(at).pending_writes


def test_an_interrupted_graph_goes_on_with_another_saver(make_saver, new_url):
    url = new_url("log")

    class State(TypedDict):
        answer: str

    def ask(state):
        return {"answer": interrupt("well?")}

    def graph():
        builder = StateGraph(State)
        builder.add_node("ask", ask)
        builder.set_entry_point("ask")
        return builder.compile(checkpointer=make_saver(url))

    assert graph().invoke({"answer": ""}, config("t"))["__interrupt__"][0].value == "well?"
    assert graph().invoke(Command(resume="yes"), config("t")) == {"answer": "yes"}


# Encryption


def aes(key=b"0123456789abcdef"):
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


def test_an_encrypted_store_tells_nothing_and_still_shares(make_saver, tmp_path):
    saver = make_saver("log", serde=aes())
    graph = chat_graph(saver)
    for turn in range(15):
        say(graph, "t", f"secret {turn}")
    assert len(graph.get_state(config("t")).values["messages"]) == 30
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secret" not in stored
    assert b"messages" not in stored
    assert len(stored) < 15 * 30 * 2000
    plain = make_saver("log")
    for turn in range(15):
        say(chat_graph(plain), "t", f"secret {turn}")
    assert not {key[17:] for key in parts_of(saver, "t")} & {key[17:] for key in parts_of(plain, "t")}


def test_savers_with_one_key_share_and_others_are_told(make_saver, new_url):
    url = new_url("log")
    messages = ["m" * 3000] * 3
    one = make_saver(url, serde=aes())
    at = put(one, "t", {"messages": messages})
    before = parts_of(one, "t")
    other = make_saver(url, serde=aes())
    put(other, "t", {"messages": messages}, at["configurable"]["checkpoint_id"])
    assert parts_of(other, "t") == before
    with pytest.raises(BadState, match="is encrypted \\(aes\\): give the saver the EncryptedSerializer that wrote it"):
        make_saver(url).get_tuple(config("t"))


def test_what_was_stored_in_plain_is_read_by_a_saver_that_encrypts(make_saver, new_url):
    url = new_url("log")
    put(make_saver(url), "t", {"a": ["x" * 2000]})
    saver = make_saver(url, serde=aes())
    assert values_of(saver, "t") == {"a": ["x" * 2000]}
    put(saver, "t", {"a": ["x" * 2000, 1]})
    assert values_of(saver, "t") == {"a": ["x" * 2000, 1]}


# Delta channels


class Deltas(TypedDict):
    items: Annotated[
        list, DeltaChannel(lambda state, writes: state + [x for w in writes for x in w], snapshot_frequency=7)
    ]
    count: Annotated[int, operator.add]


def delta_graph(saver):
    builder = StateGraph(Deltas)
    builder.add_node("one", lambda state: {"items": [len(state["items"])], "count": 1})
    builder.set_entry_point("one")
    builder.set_finish_point("one")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("kind", KINDS)
def test_delta_channels_are_rebuilt_also_after_prune_and_copy(make_saver, kind):
    saver = make_saver(kind)
    graphs = [delta_graph(saver), delta_graph(InMemorySaver())]
    for turn in range(20):
        ours, theirs = (graph.invoke({"items": [f"in {turn}"]}, config("t")) for graph in graphs)
        assert ours == theirs
    history = [[state.values for state in graph.get_state_history(config("t"))] for graph in graphs]
    assert history[0] == history[1]
    saver.copy_thread("t", "u")
    saver.prune(["t"])
    remaining = len(list(saver.list(config("t"))))
    assert 1 <= remaining < 20
    for thread in ("t", "u"):
        assert graphs[0].get_state(config(thread)).values == ours
    assert graphs[0].invoke({"items": ["x"]}, config("t"))["items"] == [*ours["items"], "x", len(ours["items"]) + 1]


def test_the_history_of_a_delta_channel_is_that_of_the_base_class(make_saver):
    saver = make_saver("log")
    graph = delta_graph(saver)
    for turn in range(11):
        graph.invoke({"items": [turn]}, config("t"))
    for one in [config("t"), *(state.config for state in graph.get_state_history(config("t")))]:
        ours = saver.get_delta_channel_history(config=one, channels=["items", "nothing"])
        theirs = super(SafeKeeperSaver, saver).get_delta_channel_history(config=one, channels=["items", "nothing"])
        assert ours == theirs
    both = asyncio.run(saver.aget_delta_channel_history(config=config("t"), channels=["items"]))
    assert both["items"] == saver.get_delta_channel_history(config=config("t"), channels=["items"])["items"]


# Other things


def test_versions_go_on_from_another_savers(make_saver):
    saver = make_saver()
    assert saver.get_next_version(None, None) == 1
    assert saver.get_next_version(3, None) == 4
    theirs = InMemorySaver().get_next_version(None, None)
    assert theirs < saver.get_next_version(theirs, None) < saver.get_next_version("2" + theirs[1:], None)


def test_a_backend_that_was_given_stays_open(make_saver):
    owner = make_saver("log")
    with SafeKeeperSaver(owner._store) as saver:
        put(saver, "t", {"a": 1})
    assert values_of(owner, "t") == {"a": 1}
    with SafeKeeperSaver.from_conn_string("memory:") as saver:
        put(saver, "t", {"a": 1})


def test_a_config_without_a_thread_is_named(make_saver):
    with pytest.raises(ValueError, match="must have a thread_id"):
        make_saver().get_tuple({"configurable": {}})


def test_the_layout_opens_for_ever(make_saver):
    """Bytes of version 1, as they were first released."""
    saver = make_saver("log")
    key = layout.checkpoint_key("", "1f0")
    assert key == b"c//1f0"
    assert layout.writes_key("a|b:1", "1f0", "t/1", 0) == b"w/a|b:1/1f0/t%2F1/0"
    assert layout.thread_group("a.b") == "langgraph.thread.a%2Eb"
    assert layout.part_key("00ff00ff00ff00ff", bytes(16)) == b"00ff00ff00ff00ff/" + b"0" * 32
    body = ["t", "", "1f0", None, ["msgpack", b"\x82\xa1v\x01\xa2id\xa31f0"], ["msgpack", b"\x81\xa4step\x03"]]
    value = b"\x01\x00" + layout.pack(
        [*body, "0" * 16, {"a": ["l", bytes(16), [["msgpack", "bytes"], [1, 1], b"\x02x"]]}]
    )
    part = b"\x01\x00" + b"\x0b\0\0\0\x92\xa7msgpack\x91\x01" + b"\x01"
    group = layout.thread_group("t")
    stored = {CheckpointId(group, key): value, CheckpointId(group, b"mark"): b"0" * 16}
    stored[CheckpointId(layout.parts_group(group), layout.part_key("0" * 16, bytes(16)))] = part
    saver._store.write(Batch(stored))
    found = saver.get_tuple(config("t"))
    assert found.checkpoint == {"v": 1, "id": "1f0", "channel_values": {"a": [1, 2, b"x"]}}
    assert found.metadata == {"step": 3}
