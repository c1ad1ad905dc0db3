"""A state comes back exactly as it was, or its save is refused with a sentence that says what to do."""

from __future__ import annotations

import array
import bisect
import collections
import dataclasses
import datetime
import enum
import importlib
import math
import zoneinfo
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper import BadState, CheckpointId, SafeKeeper
from safekeeper.keeper.serializers import Codec, serializer_named

ID = CheckpointId("group", b"key")


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    pass


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Account:
    balance: int


class Rows(list):
    pass


def numpy(make: str) -> Any:
    return eval(make, {"np": importlib.import_module("numpy")})


UTC, ZONE = datetime.UTC, zoneinfo.ZoneInfo("Europe/Berlin")

REFUSED_BY_BOTH = {
    "tuple": ((1, 2), "make it a list"),
    "named tuple": (Point(1, 2), "make it a list"),
    "Counter": (collections.Counter("aab"), "make it a dict"),
    "defaultdict": (collections.defaultdict(int), "make it a dict"),
    "OrderedDict": (collections.OrderedDict(a=1), "make it a dict"),
    "IntEnum": (Level.LOW, "make it an int"),
    "str of another class": (Name("a"), "make it a str"),
    "list of another class": (Rows([1]), "make it a list"),
    "set": ({1}, "make it a list"),
    "frozenset": (frozenset({1}), "make it a list"),
    "bytearray": (bytearray(b"x"), "make it bytes"),
    "memoryview": (memoryview(b"x"), "make it bytes"),
    "array": (array.array("i", [1]), "'pickle'"),
    "dataclass": (Account(1), "'pickle'"),
    "complex": (1j, "'pickle'"),
    "Timestamp of msgpack": (msgpack.Timestamp(1, 2), "'pickle'"),
    "ExtType of msgpack": (msgpack.ExtType(1, b"x"), "'pickle'"),
    "naive time": (datetime.datetime(2026, 1, 2), "datetime"),
    "time elsewhere": (datetime.datetime(2026, 1, 2, tzinfo=ZONE), "datetime"),
    "date": (datetime.date(2026, 1, 2), "'pickle'"),
    "lone surrogate": ("\ud800", "surrogate"),
    "np.float64": ("np.float64(1.5)", r"item\(\)"),
    "np.int64": ("np.int64(1)", r"item\(\)"),
    "np.bool_": ("np.bool_(True)", r"item\(\)"),
    "np.str_": ("np.str_('a')", r"item\(\)"),
    "ndarray": ("np.arange(3)", r"tolist\(\)"),
    "its own member": (None, "contains itself"),
}


@pytest.mark.parametrize("depth", (0, 1, 3))
@pytest.mark.parametrize("name", REFUSED_BY_BOTH)
@pytest.mark.parametrize("serializer", ("msgpack", "json"))
def test_what_would_come_back_as_something_else_is_refused(serializer, name, depth):
    state, advice = REFUSED_BY_BOTH[name]
    if isinstance(state, str) and state.startswith("np."):
        state = numpy(state)
    if name == "its own member":
        state = []
        state.append(state)
    where = "state"
    if depth:
        state, where = {"a": [0, state]}, "state['a'][1]"
    if depth == 3:
        state, where = [state], "state[0]['a'][1]"
    with pytest.raises(BadState) as refusal:
        Codec(serializer_named(serializer)).encode(state)
    assert refusal.match("'pickle'" if serializer == "json" and "bytes" in advice else advice)
    assert where in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("serializer", "state", "sentence"),
    (
        ("msgpack", {("a", "b"): 1}, r"the key \('a', 'b'\) of state is a tuple"),
        ("msgpack", {"a": {Level.LOW: 1}}, r"the key <Level.LOW: 1> of state\['a'\] is a Level: make it an int"),
        ("msgpack", 2**64, "state is an int of more than 64 bits"),
        ("msgpack", [1, -(2**63) - 1], r"state\[1\] is an int of more than 64 bits"),
        ("json", {1: "a"}, "the key 1 of state is an int: JSON has only str as keys"),
        ("json", [{True: "a"}], r"the key True of state\[0\] is a bool"),
        ("json", {"a": {None: 1}}, "the key None"),
        ("json", b"x", "state is bytes"),
        ("json", datetime.datetime(2026, 1, 2, tzinfo=UTC), "state is a datetime"),
        ("raw", bytearray(b"x"), r"raw takes bytes, not bytearray: save bytes\(state\)"),
        ("raw", memoryview(b"x"), "raw takes bytes, not memoryview"),
        ("raw", "x", "raw takes bytes, not str"),
    ),
)
def test_the_sentence_names_the_place(serializer, state, sentence):
    with pytest.raises(BadState, match=sentence):
        Codec(serializer_named(serializer)).encode(state)


def test_arrow_takes_a_table_and_says_how_to_get_one():
    pyarrow = importlib.import_module("pyarrow")
    batch = pyarrow.table({"n": [1]}).to_batches()[0]
    with pytest.raises(BadState, match=r"Table.from_batches\(\[state\]\)"):
        Codec(serializer_named("arrow")).encode(batch)


@pytest.mark.parametrize(
    "state",
    (
        2**64 - 1,
        -(2**63),
        -0.0,
        math.inf,
        b"\xc4\x01x",
        {True: 1, 2: "two", 2.5: [], b"k": {}, None: None},
        datetime.datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC),
        {datetime.datetime(9999, 12, 31, tzinfo=UTC): datetime.datetime(1, 1, 1, tzinfo=UTC)},
    ),
    ids=repr,
)
def test_msgpack_gives_these_back(state):
    codec = Codec(serializer_named("msgpack"))
    assert repr(codec.decode(codec.encode(state))) == repr(state)


@pytest.mark.parametrize("serializer", ("msgpack", "json"))
def test_not_a_number_comes_back(serializer):
    codec = Codec(serializer_named(serializer))
    assert math.isnan(codec.decode(codec.encode({"a": math.nan}))["a"])


def encodes(codec: Codec, state: Any) -> bool:
    try:
        codec.encode(state)
    except BadState:
        return False
    return True


@pytest.mark.parametrize(("serializer", "item"), (("msgpack", "x"), ("msgpack", b"x"), ("json", "x")))
def test_what_is_nested_as_deep_as_it_may_be_comes_back(serializer, item):
    codec = Codec(serializer_named(serializer))
    states: list[Any] = [[]]
    for _ in range(2000):
        states.append([states[-1], item])
    fits = bisect.bisect_left(states, True, key=lambda state: not encodes(codec, state)) - 1
    with pytest.raises(BadState, match="nested too deep, or contains itself"):
        codec.encode(states[fits + 1])
    data = codec.encode(states[fits])
    assert codec.encode(codec.decode(data)) == data


awkward = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text()
    | st.binary(max_size=3)
    | st.builds(bytearray, st.binary(max_size=3))
    | st.builds(memoryview, st.binary(max_size=3))
    | st.just(Level.LOW)
    | st.builds(Name, st.text())
    | st.datetimes(timezones=st.sampled_from([None, UTC, ZONE])),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text()) | st.just(Level.LOW) | st.binary(), inner)
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, one, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, datetime.datetime):
        return one == other and one.tzinfo is other.tzinfo
    return repr(one) == repr(other)


@pytest.mark.parametrize("serializer", ("msgpack", "json"))
@settings(deadline=None, max_examples=300)
@given(state=awkward)
def test_every_state_comes_back_exactly_or_is_refused(serializer, state):
    codec = Codec(serializer_named(serializer))
    if encodes(codec, state):
        assert same(codec.decode(codec.encode(state)), state)
    else:
        with pytest.raises(BadState, match=r"(state|the key).* is "):
            codec.encode(state)


@pytest.mark.parametrize("how", ("at once", "by a worker"))
def test_a_refused_save_stores_nothing_and_recover_of_its_group_goes_on(store, how):
    with SafeKeeper(store) as keeper:
        keeper.save(ID, {"count": 1}).result()
        with pytest.raises(BadState, match="or use the serializer 'pickle'"):
            keeper.save(ID, {("a", "b"): 1}, frozen=how == "by a worker").result()
        assert dict(keeper.recover("group")) == {b"key": {"count": 1}}
    with SafeKeeper(store, serializer="pickle") as keeper:
        keeper.save(ID, {("a", "b"): 1}).result()
        assert keeper.fetch(ID) == {("a", "b"): 1}
