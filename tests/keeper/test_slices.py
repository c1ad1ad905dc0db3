"""Large states are serialized in slices: the same bytes, of one moment, and the other threads get on."""

from __future__ import annotations

import datetime
import inspect
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from safekeeper import BadState, Checkpointed, CheckpointId, SafeKeeper
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper import slices
from safekeeper.keeper.serializers import Codec, SlicedSerializer, serializer_named
from safekeeper.keeper.slices import MsgpackSlices
from tests.keeper.test_exact_states import awkward

ID = CheckpointId("group", b"key")
MSGPACK = serializer_named("msgpack")
assert isinstance(MSGPACK, SlicedSerializer)
UTC = datetime.UTC


def nothing() -> None:
    pass


def sliced(state: Any) -> bytes:
    return b"".join(MSGPACK.slices(state, nothing))


def nested(depth: int, item: Any) -> Any:
    for _ in range(depth):
        item = [item, "x"]
    return item


LARGE: dict[str, Any] = {
    "a dict": {f"key {n}": {"n": n, "half": n / 2} for n in range(60_000)},
    "a list": list(range(300_000)),
    "a dict in a dict in a list": [{"a": {"b": {n: [n, str(n)] for n in range(50_000)}}}, "end"],
    "large ones in a list": [["x" * 600_000, {"y": b"y" * 700_000}], *range(40), list(range(50_000))],
    "text": "x" * 2_000_000,
    "text in UTF-8": "xä€😀" * 500_000,
    "bytes": b"\xc1\xc4\x01x" * 500_000,
    "many bytes": dict.fromkeys(range(3000), b"\xc4" * 1000),
    "as keys": {"k" * 700_000: 1, b"k" * 700_000: 2},
    "times": [datetime.datetime(2026, 1, 2, 3, 4, n % 60, n, UTC) for n in range(20_000)],
    "deep": nested(200, list(range(100_000))),
    "a long head": [None] * 70_000,
    "a short head": [list(range(9_000))] * 15,
}


@pytest.mark.parametrize("name", LARGE)
def test_the_bytes_are_those_of_one_call(name):
    state = LARGE[name]
    assert slices.is_large(state)
    assert sliced(state) == MSGPACK.dumps(state)


@pytest.mark.parametrize("name", [name for name in LARGE if name != "deep"])
def test_no_slice_is_much_larger_than_it_should_be_and_none_is_without_a_rest(name):
    rests: list[int] = []
    pieces = MSGPACK.slices(LARGE[name], lambda: rests.append(1))
    assert max(map(len, pieces)) <= 2 * slices.SLICE_BYTES
    assert len(rests) >= sum(map(len, pieces)) // (2 * slices.SLICE_BYTES)


@settings(deadline=None, max_examples=100)
@given(state=awkward)
def test_a_state_is_refused_in_slices_where_it_is_refused_at_once_and_for_the_same_reason(state):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SLICE_BYTES", 256), ("_MOST", 4), ("_TEXT", 3)):
            patch.setattr(slices, name, value)
        assert outcome(sliced, state) == outcome(MSGPACK.dumps, state)


def outcome(dumps: Callable[[Any], bytes], state: Any) -> bytes | str:
    try:
        return dumps(state)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("place", ("at the beginning", "at the end", "deep inside"))
def test_what_is_refused_is_refused_in_slices_with_its_place(place):
    state = [{"n": n} for n in range(50_000)]
    where, at = {
        "at the beginning": (state[0], "state[0]['n']"),
        "at the end": (state[-1], "state[49999]['n']"),
        "deep inside": (state[40_000].setdefault("in", {}), "state[40000]['in']['n']"),
    }[place]
    where["n"] = bytearray(b"x")
    with pytest.raises(BadState) as refusal:
        Codec(MSGPACK).encode(state, nothing)
    assert f"{at} is a bytearray: make it bytes" in str(refusal.value)


@pytest.mark.parametrize("around", (0, 1, 5, 30))
def test_what_is_nested_too_deep_is_refused_in_slices_too(around):
    """A slice by itself is not as deep as what it is cut from."""
    for depth in (1021, 1022, 1023, 1024):
        state = nested(around, [*range(20_000), nested(depth - around, 0)])
        found = outcome(sliced, state)
        assert found == outcome(MSGPACK.dumps, state)
        assert isinstance(found, str) is (depth > 1022)
        if isinstance(found, bytes):
            assert sliced(MSGPACK.loads(found)) == found


def test_a_mark_before_the_bytes_of_a_slice_stands_before_everything_once():
    def dumps(value: Any) -> bytes:
        return b"\xc1\x02" + MSGPACK.dumps(value)

    state = LARGE["a dict in a dict in a list"]
    assert b"".join(MsgpackSlices(dumps, nothing).pieces(state)) == dumps(state)


@pytest.mark.parametrize("kind", ("dict", "list"))
@pytest.mark.parametrize("how", ("more", "less"))
def test_a_state_that_grows_or_shrinks_while_it_is_serialized_is_refused(kind, how):
    """Nobody may do that, but who does shall not get a mixture back."""
    inner: Any = {n: n for n in range(100_000)} if kind == "dict" else list(range(100_000))
    state = {"before": 1, "inner": inner}

    def change() -> None:
        if how == "less":
            inner.pop(*(() if kind == "list" else (99_999, None)))
        elif kind == "dict":
            inner["new"] = 1
        else:
            inner.append(1)

    with pytest.raises(BadState, match=r"somebody changed it meanwhile \(.*\): change it under the lock= of its save"):
        Codec(MSGPACK).encode(state, change)


class Looking(MemoryBackend):
    """Looks at every state that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.right = self.wrong = 0

    def write(self, batch):
        for id, value in batch.items():
            if id.group == "group":
                state = Codec(MSGPACK).decode(value)
                whole = state["first"] == state["middle"][0] == state["last"]
                self.right, self.wrong = self.right + whole, self.wrong + (not whole)
        return super().write(batch)


def account() -> dict[str, Any]:
    """A state of many slices that is changed at its beginning, in the middle and at its end."""
    some = {f"key {n}": n for n in range(20_000)}
    return {"first": 0, "some": some, "middle": [0], "more": dict(some), "last": 0}


def change(state: dict[str, Any]) -> None:
    state["first"] += 1
    state["middle"][0] += 1
    state["last"] += 1


def test_a_large_state_that_is_changed_under_its_lock_is_saved_as_it_once_was():
    state, lock, stop = account(), threading.Lock(), threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            with lock:
                change(state)
            stop.wait(0.0001)

    thread = threading.Thread(target=go_on)
    thread.start()
    store = Looking()
    try:
        with SafeKeeper(store, overflow="block", lock_timeout=100.0) as keeper:
            for n in range(30):
                if n % 3:
                    keeper.save(ID, state, lock=lock)
                else:
                    with lock:
                        keeper.save(ID, state)
    finally:
        stop.set()
        thread.join()
    assert (store.right, store.wrong) == (30, 0)


def test_a_large_element_is_saved_as_an_event_left_it_and_events_of_others_do_not_wait():
    store = Looking()
    with SafeKeeper(store, overflow="block") as keeper, Checkpointed(keeper, "group", account) as elements:

        def handle() -> None:
            for n in range(30):
                with elements.event(b"%d" % (n % 3)) as element:
                    change(element.state)

        threads = [threading.Thread(target=handle) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert store.right >= 3
    assert store.wrong == 0
    with SafeKeeper(store) as keeper:
        assert sum(state["last"] for _, state in keeper.recover("group")) == 90


class Slowly:
    """Takes a second, and gets on all the time."""

    name = "slowly"

    def dumps(self, state):
        return state

    def slices(self, state, rest):
        for _ in range(20):
            time.sleep(0.05)
            rest()
        return [state]

    def loads(self, data):
        return data


def test_a_serialization_that_gets_on_is_not_late(store):
    """A deadline counts the time without progress."""
    with SafeKeeper(store, serializer=Slowly()) as keeper:
        keeper.save(ID, b"x" * slices.SLICE_BYTES, frozen=True, deadline=0.4).result()


@pytest.mark.parametrize("seen_by", ("a save", "a fetch", "nobody"))
def test_in_the_callers_thread_large_states_are_looked_for_once_there_was_one(seen_by):
    """Small ones would pay for it otherwise. What is large at first sight is always noticed."""
    calls: list[str] = []

    class Noting:
        name = "noting"

        def dumps(self, state):
            calls.append("dumps")
            return MSGPACK.dumps(state)

        def slices(self, state, rest):
            calls.append("slices")
            return [MSGPACK.dumps(state)]

        def loads(self, data):
            return MSGPACK.loads(data)

    hidden = {"inside": {"of it": list(range(300_000))}}
    codec, other = Codec(Noting()), Codec(Noting())
    if seen_by == "a save":
        codec.encode(hidden)
    elif seen_by == "a fetch":
        codec.decode(other.encode(hidden))
    calls.clear()
    codec.encode(hidden)
    codec.encode(hidden["inside"]["of it"])
    codec.encode({"small": 1})
    assert calls == [*(["dumps"] if seen_by == "nobody" else ["slices"]), "slices", "dumps"]


def test_a_worker_always_looks(store):
    with SafeKeeper(store) as keeper:
        codec = keeper._codec
        assert codec is not None
        keeper.save(ID, {"inside": {"of it": list(range(300_000))}}, frozen=True).result()
        assert codec._met_large


def test_deep_inside_a_program_a_large_state_is_serialized_at_once():
    state = LARGE["a dict in a dict in a list"]
    frames = sys.getrecursionlimit() - len(inspect.stack())

    def call(depth: int) -> list[bytes]:
        return call(depth - 1) if depth else MSGPACK.slices(state, nothing)

    found = [call(frames - left) for left in (100, 24, 20, 16)]
    assert {b"".join(pieces) for pieces in found} == {MSGPACK.dumps(state)}
    assert len(found[0]) > 1
    assert 1 in map(len, found)


def test_what_is_not_known_counts_with_the_size_it_says_it_has():
    class Heavy:
        def __sizeof__(self) -> int:
            return slices.SLICE_BYTES

    assert slices.is_large([1, {"a": Heavy()}])
    assert not slices.is_large([1, {"a": object()}])


class Clock:
    """Time that passes as it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests: list[float] = []
        self.others = 0.0
        """What others do while we rest."""

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests.append(self.now)
        self.now += seconds + self.others


def test_a_rest_comes_after_some_work_and_the_longer_it_was_the_later_the_next(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(slices, "time", clock)
    got_on: list[float] = []
    rest = slices.Rest(lambda: got_on.append(clock.now))

    def work(milliseconds: int) -> int:
        """How many rests there were meanwhile."""
        before = len(clock.rests)
        for _ in range(10 * milliseconds):
            clock.now += 0.0001
            rest()
        return len(clock.rests) - before

    assert 15 <= work(10) <= 20, "one each half a millisecond"
    clock.others = 0.005
    assert 3 <= work(10) <= 6, "others need the interpreter as well, and give it back after 5 ms"
    clock.others = 10.0
    assert 3 <= work(10) <= 6, "but they never wait for much longer"
    clock.others = 0.0
    work(10)
    assert 15 <= work(10) <= 20
    assert len(got_on) == len(clock.rests)
