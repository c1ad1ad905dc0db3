"""A state comes back exactly as it was, or its save is refused with a sentence that says what to do."""

from __future__ import annotations

import array
import bisect
import collections
import dataclasses
import datetime
import enum
import http
import importlib
import math
import re
import subprocess
import sys
import uuid
import zoneinfo
from decimal import Decimal
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


class Plain(enum.Enum):
    A = (1, 2)
    B = 3


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Outer:
    class Inner(enum.StrEnum):
        A = "a"


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


class Odd(datetime.tzinfo):
    pass


def local() -> type[enum.Enum]:
    class Local(enum.Enum):
        HERE = 1

    return Local


Local: Any = local()


def numpy(make: str) -> Any:
    return eval(make, {"np": importlib.import_module("numpy")})


UTC, ZONE = datetime.UTC, zoneinfo.ZoneInfo("Europe/Berlin")

REFUSED_BY_BOTH = {
    "named tuple": (Point(1, 2), "make it a (list|tuple)"),
    "Counter": (collections.Counter("aab"), "make it a dict"),
    "defaultdict": (collections.defaultdict(int), "make it a dict"),
    "OrderedDict": (collections.OrderedDict(a=1), "make it a dict"),
    "str of another class": (Name("a"), "make it a str"),
    "list of another class": (Rows([1]), "make it a list"),
    "bytearray": (bytearray(b"x"), "make it bytes"),
    "memoryview": (memoryview(b"x"), "make it bytes"),
    "array": (array.array("i", [1]), "'pickle'"),
    "dataclass": (Account(1), "give the keeper state=Account"),
    "complex": (1j, "'pickle'"),
    "Timestamp of msgpack": (msgpack.Timestamp(1, 2), "'pickle'"),
    "ExtType of msgpack": (msgpack.ExtType(1, b"x"), "'pickle'"),
    "lone surrogate": ("\ud800", "surrogate"),
    "array of objects": ("np.array([object()])", r"tolist\(\)"),
    "its own member": (None, "contains itself"),
}
REFUSED_BY_JSON = {
    "tuple": ((1, 2), "make it a list"),
    "set": ({1}, "make it a list"),
    "frozenset": (frozenset({1}), "make it a list"),
    "IntEnum": (Level.LOW, "save value.name"),
    "naive time": (datetime.datetime(2026, 1, 2), r"isoformat\(\)"),
    "date": (datetime.date(2026, 1, 2), "'pickle'"),
    "np.float64": ("np.float64(1.5)", r"item\(\)"),
    "ndarray": ("np.arange(3)", r"tolist\(\)"),
}
REFUSED = [
    *(("msgpack", name, *REFUSED_BY_BOTH[name]) for name in REFUSED_BY_BOTH),
    *(("json", name, *(REFUSED_BY_BOTH | REFUSED_BY_JSON)[name]) for name in REFUSED_BY_BOTH | REFUSED_BY_JSON),
]


@pytest.mark.parametrize("depth", (0, 1, 3))
@pytest.mark.parametrize(("serializer", "name", "state", "advice"), REFUSED, ids=[f"{s} {n}" for s, n, *_ in REFUSED])
def test_what_would_come_back_as_something_else_is_refused(serializer, name, state, advice, depth):
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
        ("msgpack", {Point(1, 2): 1}, r"the key Point\(x=1, y=2\) of state is a Point: make it a (list|tuple)"),
        ("msgpack", {("a", 1j): 1}, r"the key \('a', 1j\) of state\[1\] is a complex"),
        ("msgpack", [{1, 1j}], r"the member 1j of state\[0\] is a complex"),
        ("msgpack", ({"a": b"x"}, bytearray(b"x")), r"state\[1\] is a bytearray"),
        ("msgpack", (1, {2, (3, msgpack.ExtType(1, b"x"))}), "is an ExtType"),
        ("msgpack", {"a": Local.HERE}, r"state\['a'\] is Local.HERE, an Enum that is not in a module or class"),
        (
            "msgpack",
            [datetime.datetime(2026, 1, 2, tzinfo=Odd())],
            r"state\[0\] is a datetime whose zone is Odd: use zone",
        ),
        ("json", {("a", "b"): 1}, r"the key \('a', 'b'\) of state is a tuple"),
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
        2**64,
        [1, -(2**63) - 1, 10**400],
        (),
        ((1, (2, [3, (4,)])), {"a": ({5},)}),
        {(1, "a"): frozenset({(2,)}), Level.LOW: {3}},
        datetime.date(1, 1, 1),
        datetime.date(9999, 12, 31),
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZONE),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3, microseconds=7), "there")),
        datetime.datetime(2026, 1, 2, tzinfo=UTC, fold=1),
        datetime.time(1, 2, 3, 4, tzinfo=UTC, fold=1),
        datetime.timedelta(-1, 2, 3),
        Decimal("1.50"),
        Decimal("-0E-9"),
        Decimal("sNaN12"),
        Decimal("-Infinity"),
        uuid.UUID(int=2**127 + 1),
        Level.LOW,
        Plain.B,
        Rights.READ | Rights.WRITE,
        Outer.Inner.A,
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
    | st.datetimes(timezones=st.sampled_from([None, UTC, ZONE, datetime.timezone(datetime.timedelta(hours=1))]))
    | st.dates()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.sampled_from(Plain),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text()) | st.just(Level.LOW) | st.binary(), inner)
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
        | st.sets(st.text() | st.integers() | st.tuples(st.dates()))
        | st.frozensets(st.text() | st.binary(max_size=3))
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, one, other)) and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, datetime.datetime):
        return one == other and one.tzinfo == other.tzinfo and one.fold == other.fold
    if isinstance(one, set | frozenset):
        return one == other and {type(member) for member in one} == {type(member) for member in other}
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
            keeper.save(ID, {"a": Rows()}, frozen=how == "by a worker").result()
        assert dict(keeper.recover("group")) == {b"key": {"count": 1}}
    with SafeKeeper(store, serializer="pickle") as keeper:
        keeper.save(ID, {"a": Rows()}).result()
        assert type(keeper.fetch(ID)["a"]) is Rows


@pytest.mark.parametrize(
    "make",
    (
        "np.arange(6.0).reshape(2, 3)",
        "np.asfortranarray(np.arange(6).reshape(2, 3))",
        "np.arange(10)[::2]",
        "np.array(3)",
        "np.array([], dtype='U3')",
        "np.array(['2026-01-01'], dtype='M8[ns]')",
        "np.zeros(2, dtype=[('a', '>i4'), ('b', 'S3')])",
        "np.array([1 + 2j, np.nan])",
        "np.float32(1.5)",
        "np.float64(0.1)",
        "np.int8(-3)",
        "np.bool_(True)",
        "np.str_('a')",
        "np.datetime64('2026-01-01')",
    ),
)
def test_arrays_and_scalars_of_numpy_come_back(make):
    codec, value = Codec(serializer_named("msgpack")), numpy(make)
    back = codec.decode(codec.encode({"a": [value]}))["a"][0]
    assert type(back) is type(value)
    assert (back.dtype, back.shape, back.tobytes()) == (value.dtype, value.shape, value.tobytes())
    if value.ndim:
        assert back.flags.writeable
        assert back.flags.f_contiguous == value.flags.f_contiguous or not value.flags.contiguous


def test_tuples_are_nested_only_so_deep_that_they_can_be_read_from_deep_inside_a_program():
    codec = Codec(serializer_named("msgpack"))
    states: list[Any] = [()]
    for _ in range(200):
        states.append((states[-1],))
    fits = max(depth for depth, state in enumerate(states) if encodes(codec, state))
    assert fits >= 30
    with pytest.raises(BadState, match="tuples and sets are more than"):
        codec.encode(states[fits + 1])
    data = codec.encode(states[fits])

    def deep(frames: int) -> Any:
        return deep(frames - 1) if frames else codec.decode(data)

    assert deep(sys.getrecursionlimit() // 2) == states[fits]


def test_an_enum_that_is_gone_is_named_and_no_module_is_imported_for_it(monkeypatch):
    codec = Codec(serializer_named("msgpack"))
    data = codec.encode([Plain.A])
    monkeypatch.delitem(Plain._member_map_, "A")
    with pytest.raises(BadState, match="has no member A any more: put it back"):
        codec.decode(data)
    monkeypatch.setattr(sys.modules[__name__], "Plain", None)
    with pytest.raises(BadState, match=r"there is no Enum Plain in the module .*: import that first"):
        codec.decode(data)
    forged = b"\xc1\x02\x91" + ext(10, ["antigravity", "x", "y"])
    with pytest.raises(ValueError, match="there is no Enum x in the module antigravity"):
        serializer_named("msgpack").loads(forged)
    assert "antigravity" not in sys.modules


def ext(code: int, parts: Any) -> bytes:
    data = msgpack.packb(parts)
    return bytes([0xC7, len(data), code]) + data


@pytest.mark.parametrize(
    "payload",
    (
        b"\xc1\x03\x01",
        b"\xc1\x02" + ext(99, 1),
        b"\xc1\x02" + ext(12, ["|O", [1], "C", bytes(8)]),
        b"\xc1\x02" + ext(12, ["<i8", [10**9], "C", bytes(8)]),
        b"\xc1\x02" + ext(5, ["2026-01-02T00:00:00", 0, "../../etc/passwd"]),
        b"\xc1\x02" + ext(10, ["os", "path", "join"]),
        b"\xc1",
    ),
    ids=("version", "extension", "objects", "shape", "zone", "no Enum", "nothing"),
)
def test_a_payload_that_nobody_wrote_is_an_error(payload):
    with pytest.raises(Exception, match=r"."):
        serializer_named("msgpack").loads(payload)


VERSION_1 = (
    "88a46e6f6e65c0a4626f6f6cc3a4696e74739400ffcf8000000000000000d38000000000000000a5666c6f6174cb3fe0000000000000a4"
    "74657874a2c3a4a56279746573c401c40182c4016b90c080a47768656ed7ff002961c0695735a5"
)
VERSION_2 = (
    "c1028da57475706c65c706019201d5019102a3736574d5029103a966726f7a656e736574c7030391a161a464617465d604000b4922a369"
    "6e74c7130b2d343030303030303030303030303030303030a56e61697665c71e0593ba323032362d30312d30325430333a30343a30352e"
    "30303030303600c0a47a6f6e65c7240593b3323032362d31302d32355430323a33303a303001ad4575726f70652f4265726c696ea66f66"
    "66736574c7190693a830313a30323a30300094ffce0001275000a57468657265a564656c7461d60793ff0203a7646563696d616cd60831"
    "2e3530a475756964d80900000000000000000000000000000007a4656e756dc7140a93a468747470aa48545450537461747573a24f4ba4"
    "666c6167d80a94a27265a95265676578466c6167c00a"
)
SAMPLE_1 = {
    "none": None,
    "bool": True,
    "ints": [0, -1, 2**63, -(2**63)],
    "float": 0.5,
    "text": "ä",
    "bytes": b"\xc4",
    1: {b"k": [], None: {}},
    "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
}
SAMPLE_2 = {
    "tuple": (1, (2,)), "set": {3}, "frozenset": frozenset({"a"}), "date": datetime.date(2026, 1, 2), "int": -(2**70),
    "naive": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    "zone": datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZONE),
    "offset": datetime.time(1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=-3), "there")),
    "delta": datetime.timedelta(-1, 2, 3), "decimal": Decimal("1.50"), "uuid": uuid.UUID(int=7),
    "enum": http.HTTPStatus.OK, "flag": re.RegexFlag.IGNORECASE | re.RegexFlag.MULTILINE,
}  # fmt: skip


@pytest.mark.parametrize(("sample", "state"), ((VERSION_1, SAMPLE_1), (VERSION_2, SAMPLE_2)), ids=("1", "2"))
def test_samples_of_both_versions_open_for_ever(sample, state):
    back = serializer_named("msgpack").loads(bytes.fromhex(sample))
    assert same(back, state)
    assert serializer_named("msgpack").dumps(state).hex() == sample, "stores hold these bytes"


def test_arrays_in_samples_open_for_ever():
    back = serializer_named("msgpack").loads(bytes.fromhex(ARRAYS))
    expected = [numpy("np.asfortranarray(np.arange(6, dtype='<i2').reshape(2, 3))"), numpy("np.float32(1.5)")]
    for one, other in zip(back, expected, strict=True):
        assert (type(one), one.dtype, one.shape, one.tobytes("A")) == (
            *(type(other), other.dtype, other.shape, other.tobytes("A")),
        )


ARRAYS = "c10292c7180c94a33c6932920203a146c40c000003000100040002000500c70b0d92a33c6634c4040000c03f"


def test_what_is_nested_takes_little_of_the_stack_of_a_thread():
    """With a JVM in the process, as `hdfs:` has, the main thread has 1 MB; with musl all others have 128 KB."""
    code = """
import threading
from safekeeper.keeper.serializers import Codec, serializer_named

def there_and_back():
    assert codec.decode(codec.encode(state)) == state

codec = Codec(serializer_named("msgpack"))
state = ()
there_and_back()  # modules are imported with a large stack
for _ in range(45):
    state = (state,)
threading.stack_size(128 * 1024)
thread = threading.Thread(target=there_and_back)
thread.start()
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
