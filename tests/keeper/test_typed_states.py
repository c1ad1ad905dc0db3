"""`state=`: states of a declared type come back as that type, or their save is refused."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import math
import uuid
import zoneinfo
from decimal import Decimal
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safekeeper import BadState, Checkpointed, CheckpointId, SafeKeeper
from safekeeper.keeper.serializers import Codec, serializer_named

ID = CheckpointId("sessions", b"ada")
ZONE = zoneinfo.ZoneInfo("Europe/Berlin")


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass
class Item:
    name: str
    price: Decimal


@dataclasses.dataclass
class Session:
    user: str
    since: datetime.datetime
    level: Level = Level.LOW
    items: list[Item] = dataclasses.field(default_factory=list)
    tags: set[str] = dataclasses.field(default_factory=set)
    spot: tuple[int, float] = (0, 0.0)
    by_day: dict[datetime.date, int] = dataclasses.field(default_factory=dict)
    token: uuid.UUID | None = None
    blob: bytes = b""
    total: float = 0.0
    anything: Any = None


class Struct(msgspec.Struct):
    user: str
    items: list[Item] = []
    wait: datetime.timedelta = datetime.timedelta()


class Tagged(msgspec.Struct, tag=True, array_like=True):
    n: int


class Other(msgspec.Struct, tag=True, array_like=True):
    s: str


class Words(TypedDict):
    count: int
    seen: NotRequired[list[str]]


class Model(pydantic.BaseModel):
    user: str
    since: datetime.datetime
    level: Level = Level.LOW
    items: list[Item] = []
    spot: tuple[int, ...] = ()
    home: pydantic.HttpUrl | None = None
    under: int = pydantic.Field(default=1, alias="underAnotherName")


@dataclasses.dataclass
class Nested:
    model: Model


@dataclasses.dataclass(eq=False)
class Weights:
    layers: list[np.ndarray]
    loss: float


def session(**changes: Any) -> Session:
    since = datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZONE)
    return dataclasses.replace(Session("ada", since), **changes)


FULL = session(
    level=Level.HIGH,
    items=[Item("tea", Decimal("1.50"))],
    tags={"a"},
    spot=(1, 2.5),
    by_day={datetime.date(2026, 1, 2): 3},
    token=uuid.UUID(int=7),
    blob=b"\x00\xff",
    total=math.inf,
    anything={"a": (1, None, [2.5])},
)
MODEL = Model(user="ada", since=datetime.datetime(2026, 1, 2), items=[Item("tea", Decimal(1))], spot=(1, 2))

GOOD = {
    "dataclass": (Session, FULL),
    "dataclass with nothing in it": (Session, session()),
    "struct": (Struct, Struct("ada", [Item("tea", Decimal("0.10"))], datetime.timedelta(1, 2, 3))),
    "struct with tags": (Tagged | Other, Other("x")),
    "TypedDict": (Words, {"count": 1}),
    "all of a TypedDict": (Words, {"count": 1, "seen": ["a"]}),
    "model": (Model, MODEL),
    "model with a type of pydantic": (Model, MODEL.model_copy(update={"home": pydantic.HttpUrl("http://a.b/c")})),
    "model in a dataclass": (Nested, Nested(MODEL)),
    "model in a dict": (dict[str, Model], {"a": MODEL}),
    "list": (list[int], [1, 2]),
}


@pytest.mark.parametrize("serializer", ("msgpack", "json"))
@pytest.mark.parametrize("name", GOOD)
def test_a_state_comes_back_as_its_type(name, serializer):
    declared, state = GOOD[name]
    if serializer == "json" and state is FULL:  # its `anything` and the zone's name have no JSON
        state = dataclasses.replace(FULL, anything=None, total=1.5, since=FULL.since.astimezone(datetime.UTC))
    if serializer == "json" and name.startswith("dataclass with"):
        state = session(since=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC))
    codec = Codec(serializer_named(serializer), state=declared)
    back = codec.decode(codec.encode(state))
    assert type(back) is type(state)
    assert back == state
    assert repr(back) == repr(state)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "wrong type of a field": (Session, session(user=5), "Expected `str`, got `int`"),
    "tuple for a list": (Session, session(items=()), r"state\.items is a tuple and would come back as a list"),
    "Counter for a dict": (Session, session(by_day=collections.Counter()), r"state\.by_day is a Counter"),
    "set in Any": (Session, session(anything=[{1}]), r"state\.anything\[0\] is a set and would come back as a list"),
    "frozenset for a set": (Session, session(tags=frozenset()), r"state\.tags is a frozenset"),
    "dataclass in Any": (Session, session(anything=Item("a", Decimal(1))), r"state\.anything is an Item"),
    "a dict instead": (Session, {"user": "ada"}, "missing required field `since`"),
    "another dataclass": (Session, Item("a", Decimal(1)), "missing required field"),
    "bytearray for bytes": (Session, session(blob=bytearray(b"x")), "blob"),
    "None": (Session, session(user=None), "Expected `str`, got `null`"),
    "undeclared key": (Words, {"count": 1, "more": 2}, r"state\['more'\] would not come back: it is not declared"),
    "missing key": (Words, {}, "missing required field `count`"),
    "not validated": (Model, Model.model_construct(user=1, since=MODEL.since), "Expected `str`"),
    "deep": (list[Struct], [Struct("a"), Struct("a", ["x"])], "Expected `object`, got `str` - at `"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_when_it_is_saved(name, store):
    declared, state, sentence = REFUSED[name]
    with SafeKeeper(store, state=declared) as keeper:
        with pytest.raises(BadState, match=sentence) as refusal:
            keeper.save(ID, state).result()
        assert "\n" not in str(refusal.value)
        assert "declared to be" in str(refusal.value)
        assert keeper.fetch(ID) is None


class Hidden(pydantic.BaseModel):
    n: int
    _secret: int = 0


class Upper(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def one_more(cls, n: int) -> int:
        return n + 1


def test_what_pydantic_would_not_give_back_is_refused():
    hidden = Hidden(n=1)
    codec = Codec(serializer_named("msgpack"), state=Hidden)
    assert codec.decode(codec.encode(hidden)) == hidden
    hidden._secret = 5
    with pytest.raises(BadState, match="would not come back: declare a field for it"):
        codec.encode(hidden)
    with pytest.raises(BadState, match=r"state\.n: 2 would come back as 3"):
        Codec(serializer_named("msgpack"), state=Upper).encode(Upper(n=1))


def test_arrays_without_equality_and_not_a_number_come_back():
    codec = Codec(serializer_named("msgpack"), state=Weights)
    state = Weights([np.arange(6.0).reshape(2, 3), np.array([math.nan])], math.nan)
    back = codec.decode(codec.encode(state))
    assert type(back) is Weights
    assert math.isnan(back.loss)
    assert [layer.tobytes() for layer in back.layers] == [layer.tobytes() for layer in state.layers]


def test_an_int_may_stand_where_a_float_is_declared():
    codec = Codec(serializer_named("msgpack"), state=Session)
    back = codec.decode(codec.encode(session(total=3)))
    assert type(back.total) is float
    assert back.total == 3


class Odd:
    pass


@dataclasses.dataclass
class WithOdd:
    odd: Odd


@pytest.mark.parametrize(
    ("options", "sentence"),
    (
        ({"state": WithOdd}, "state=WithOdd cannot be used: msgspec does not know .*Odd"),
        ({"state": Odd}, "declare a dataclass, a TypedDict"),
        ({"state": Item | Session}, "cannot be used: Type unions may not contain more than one"),
        ({"state": Session, "serializer": "raw"}, "state= needs the serializer 'msgpack' or 'json', not 'raw'"),
        ({"state": Session, "serializer": "pickle"}, "not 'pickle'"),
        ({"state": Session, "serializer": None}, "state= needs a serializer"),
        ({"state": Weights, "serializer": "json"}, "JSON has no arrays of numpy"),
    ),
)
def test_a_type_that_cannot_be_used_is_refused_when_the_keeper_is_made(options, sentence, store):
    with pytest.raises(ValueError, match=sentence):
        SafeKeeper(store, **options)


sessions = st.builds(
    Session,
    user=st.text(),
    since=st.datetimes(timezones=st.sampled_from([None, datetime.UTC, ZONE])),
    level=st.sampled_from(Level),
    items=st.lists(st.builds(Item, name=st.text(), price=st.decimals(allow_nan=False)), max_size=3),
    tags=st.sets(st.text(), max_size=3),
    spot=st.tuples(st.integers(), st.floats(allow_nan=False)),
    by_day=st.dictionaries(st.dates(), st.integers(), max_size=3),
    token=st.none() | st.uuids(),
    blob=st.binary(max_size=5),
    total=st.floats(allow_nan=False),
    anything=st.none() | st.lists(st.integers() | st.text() | st.tuples(st.booleans()), max_size=3),
)


@settings(deadline=None, max_examples=150)
@given(state=sessions)
def test_every_state_of_the_type_comes_back(state):
    codec = Codec(serializer_named("msgpack"), state=Session)
    back = codec.decode(codec.encode(state))
    assert back == state
    assert back.since.tzinfo is state.since.tzinfo


def test_states_saved_without_a_type_are_read_with_one_and_the_other_way_round(store):
    with SafeKeeper(store) as keeper:
        keeper.save(ID, {"count": 41}).result()
    with SafeKeeper(store, state=Words) as typed:
        assert typed.fetch(ID) == {"count": 41}
        typed.save(ID, {"count": 42, "seen": ["a"]}).result()
    with SafeKeeper(store) as keeper:
        assert keeper.fetch(ID) == {"count": 42, "seen": ["a"]}


def test_what_no_longer_fits_says_what_to_do_and_ends_no_recovery(store):
    with SafeKeeper(store) as keeper:
        keeper.save(ID, {"n": 41}).result()
        keeper.save(CheckpointId("sessions", b"bob"), {"count": 1}).result()
    with SafeKeeper(store, state=Words) as typed:
        with pytest.raises(BadState, match=r"ada: it does not fit Words: .*`count`: raise schema= and .* migrate="):
            typed.fetch(ID)
        bad: list[str] = []
        states = dict(typed.recover("sessions", on_error=lambda id, error: bad.append(str(id))))
        assert (states, bad) == ({b"bob": {"count": 1}}, ["sessions/ada"])


@pytest.mark.parametrize("gives", ("parts", "a state"))
def test_migrate_gets_the_parts_of_an_older_state_and_gives_parts_or_a_state(store, gives):
    with SafeKeeper(store, schema=1) as keeper:
        keeper.save(ID, {"name": "ada", "since": datetime.datetime(2026, 1, 2)}).result()

    def migrate(state: Any, version: int) -> Any:
        assert (state, version) == ({"name": "ada", "since": datetime.datetime(2026, 1, 2)}, 1)
        if gives == "a state":
            return Session(state["name"], state["since"])
        return {"user": state["name"], "since": state["since"]}

    with SafeKeeper(store, state=Session, schema=2, migrate=migrate) as keeper:
        assert keeper.fetch(ID) == Session("ada", datetime.datetime(2026, 1, 2))
        assert dict(keeper.recover("sessions")) == {b"ada": Session("ada", datetime.datetime(2026, 1, 2))}


@pytest.mark.parametrize("frozen", (False, True))
def test_elements_may_have_a_type_of_their_own_in_a_keeper_without_one(store, frozen):
    with SafeKeeper(store) as keeper:
        with Checkpointed(keeper, "sessions", new=session, state=Session) as sessions:
            with sessions.event(b"ada") as element:
                element.state.items.append(Item("tea", Decimal(1)))
            with sessions.event(b"large") as element:  # left to a worker
                element.state.blob = bytes(100_000)
            with pytest.raises(ZeroDivisionError), sessions.event(b"ada", undo=True) as element:
                element.state.items.append(Item("more", Decimal(1 / 0)))
            with sessions.event(b"ada") as element:
                assert element.state.items == [Item("tea", Decimal(1))]
        keeper.save(ID, {"plain": 1}, frozen=frozen)
        with Checkpointed(keeper, "sessions", new=session, state=Session) as sessions:
            with sessions.look(b"large") as state:
                assert state == session(blob=bytes(100_000))
            with pytest.raises(BadState, match="it does not fit Session"), sessions.event(b"ada"):
                pass


def test_elements_have_the_type_of_their_keeper(store):
    with SafeKeeper(store, state=Session) as keeper:
        with Checkpointed(keeper, "sessions", new=session) as sessions, sessions.event(b"ada") as element:
            element.state.total += 1
        assert keeper.fetch(ID) == session(total=1)


def test_a_keeper_without_a_serializer_has_no_typed_elements(store):
    with SafeKeeper(store, serializer=None) as keeper, pytest.raises(ValueError, match="this keeper has none"):
        Checkpointed(keeper, "sessions", new=session, state=Session)
