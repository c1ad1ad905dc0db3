"""States of a declared type: dataclasses, TypedDicts, structs of msgspec, models of pydantic.

    SafeKeeper("log:///var/lib/app", state=Session)

A library takes a state apart into dicts, lists and what they hold (a *plain* state), which is what the serializer gets,
and makes it again from that: msgspec, or pydantic where its models are declared. A state is put together again before
it is stored, too: one that does not fit its declaration would be found out only after a restart.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter, is_
from typing import Any
from uuid import UUID

from safekeeper.keeper.exact import article

_KEPT = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)  # msgpack gives them back as they are


class StateType:
    """What a keeper's `state=` declares."""

    def __init__(self, declared: Any, serializer: str) -> None:
        if serializer not in ("msgpack", "json"):
            raise ValueError(f"state= needs the serializer 'msgpack' or 'json', not {serializer!r}")
        self.declared = declared
        self.name = getattr(declared, "__name__", str(declared))
        if _needs_pydantic(declared):
            self._ways, self._made = _pydantic_ways(declared, serializer)
        else:
            self._ways, self._made = _msgspec_ways(declared, serializer)

    def dumps(self, state: Any, dumps: Callable[[Any], bytes]) -> bytes:
        """The bytes of *state*, made by *dumps* from a plain one. Raise `TypeError` if it would not come back as it
        is."""
        for number, way in enumerate(self._ways, 1):
            try:
                plain = way(state)
                back = self._made(plain)
                if not _is_same(state, back) and (found := difference(state, back, "state")):
                    raise TypeError(found)
                return dumps(plain)
            except Exception as error:
                if number < len(self._ways):
                    continue
                raise TypeError(f"{_one_line(error)} (it is declared to be {article_of(self.name)})") from error
        raise AssertionError

    def made(self, plain: Any) -> Any:
        """The state with these plain parts, or *plain* itself if it is one already, as a `migrate` may make it. Raise
        `TypeError` if they do not fit."""
        if isinstance(self.declared, type) and type(plain) is self.declared:
            return plain
        try:
            return self._made(plain)
        except Exception as error:
            raise TypeError(
                f"it does not fit {self.name}: {_one_line(error)}: raise schema= and give the keeper a migrate="
            ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def article_of(name: str) -> str:
    """*name* in a sentence."""
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def _needs_pydantic(declared: Any) -> bool:
    return any(hasattr(part, "__pydantic_validator__") for part in _parts(declared))


def _parts(declared: Any) -> Iterator[Any]:
    """*declared* and every type in it, each once."""
    seen: list[Any] = []
    stack = [declared]
    while stack:
        part = stack.pop()
        if any(part is other for other in seen):
            continue
        seen.append(part)
        yield part
        stack.extend(typing.get_args(part))
        is_class = isinstance(part, type) and part.__module__ != "builtins"
        if is_class and not hasattr(part, "__pydantic_validator__"):
            try:
                stack.extend(typing.get_type_hints(part).values())
            except Exception:  # what cannot be resolved is the library's to complain about
                continue


def _msgspec_ways(declared: Any, serializer: str) -> tuple[list[Callable[[Any], Any]], Callable[[Any], Any]]:
    import msgspec

    text = serializer == "json"
    kept = () if text else _KEPT
    customs = [part for part in _parts(declared) if _is_array(part)]
    if text and customs:
        raise ValueError(f"JSON has no arrays of numpy: use the serializer 'msgpack' for {declared!r}")
    try:
        info = msgspec.inspect.type_info(declared)
    except Exception as error:
        raise ValueError(f"state={declared!r} cannot be used: {error}") from error
    unknown = next((part.cls for part in _infos(info) if isinstance(part, msgspec.inspect.CustomType)), None)
    if unknown is not None and not _is_array(unknown):
        raise ValueError(
            f"state={getattr(declared, '__name__', declared)} cannot be used: msgspec does not know {unknown!r} in it:"
            " declare a dataclass, a TypedDict, a struct of msgspec or a model of pydantic"
        )

    def taken_apart(state: Any) -> Any:
        if text:
            return msgspec.json.decode(msgspec.json.encode(state))
        return msgspec.to_builtins(state, builtin_types=(*kept, *customs))

    def made(plain: Any) -> Any:
        return msgspec.convert(plain, declared, builtin_types=kept, str_keys=text)

    return [taken_apart], made


def _infos(info: Any) -> Iterable[Any]:
    """*info* of msgspec and all that it is made of."""
    seen: list[Any] = []
    stack = [info]
    while stack:
        one = stack.pop()
        if isinstance(one, tuple | list):
            stack.extend(one)
        elif hasattr(one, "__struct_fields__") and not any(one is other for other in seen):
            seen.append(one)
            yield one
            stack.extend(getattr(one, name) for name in one.__struct_fields__)


def _is_array(part: Any) -> bool:
    origin = typing.get_origin(part) or part
    return getattr(origin, "__module__", "") == "numpy" and getattr(origin, "__name__", "") == "ndarray"


def _pydantic_ways(declared: Any, serializer: str) -> tuple[list[Callable[[Any], Any]], Callable[[Any], Any]]:
    import pydantic

    try:
        adapter: Any = pydantic.TypeAdapter(declared)
    except Exception as error:
        raise ValueError(f"state={declared!r} cannot be used: {_one_line(error)}") from error

    def as_python(state: Any) -> Any:
        return adapter.dump_python(state, round_trip=True, warnings="error", by_alias=False)

    def as_json(state: Any) -> Any:  # for types of pydantic, such as a URL
        return adapter.dump_python(state, mode="json", round_trip=True, warnings="error", by_alias=False)

    def made(plain: Any) -> Any:
        return adapter.validate_python(plain, by_alias=False, by_name=True)

    return [as_json] if serializer == "json" else [as_python, as_json], made


# What a state is and what it would come back as. Most parts are the same objects, as those that cannot change are not
# copied: that is seen at the speed of C.


def _is_same(one: Any, other: Any) -> bool:
    """Whether *other* surely is as *one*, which is mostly so; if not, `difference` tells."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return _are_same(one, other) and _are_same(one.values(), other.values())
    if kind is list or kind is tuple:
        return _are_same(one, other)
    parts = _attributes(kind)
    return parts is not None and _are_same(parts[1](one), parts[1](other)) and not _of_hidden(one, other, "")


def _are_same(ones: Any, others: Any) -> bool:
    return len(ones) == len(others) and (all(map(is_, ones, others)) or all(map(_is_same, ones, others)))


_LEAVES = (int, float, str, bytes, bool, datetime, date, time, timedelta, Decimal, UUID)


def difference(one: Any, other: Any, place: str) -> str | None:
    """The first place where *other*, which *one* would come back as, is not the same; None if there is none."""
    if one is other:
        return None
    kind = type(one)
    if kind is not type(other):
        if kind is int and type(other) is float and one == other:
            return None  # where a float is declared an int may stand
        return f"{place} is {article(kind)} and would come back as {article(type(other))}"
    if kind in _LEAVES:
        return None if one == other or (one != one and other != other) else _changed(one, other, place)
    parts = _attributes(kind)
    if parts is not None:
        names, get = parts
        ours, theirs = get(one), get(other)
        return _difference_of_all(ours, theirs, lambda at: f"{place}.{names[at]}") or _of_hidden(one, other, place)
    if kind is list or kind is tuple:
        if len(one) != len(other):
            return _changed(one, other, place)
        return _difference_of_all(one, other, lambda at: f"{place}[{at}]")
    if kind is dict:
        return _of_dicts(one, other, place)
    if _is_array(kind):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return None if same else _changed(one, other, place)
    if kind is set or kind is frozenset:
        same = one == other and set(map(type, one)) == set(map(type, other))
        return None if same else _changed(one, other, place)
    return None if one == other else _changed(one, other, place)


def _difference_of_all(ones: Any, others: Any, place: Callable[[int], str]) -> str | None:
    if all(map(is_, ones, others)):
        return None
    found = (difference(one, other, place(at)) for at, (one, other) in enumerate(zip(ones, others, strict=True)))
    return next(filter(None, found), None)


def _of_dicts(one: dict[Any, Any], other: dict[Any, Any], place: str) -> str | None:
    if len(one) != len(other):
        gone = next((key for key in one if key not in other), None)
        return f"{place}[{gone!r:.100}] would not come back: it is not declared"
    keys = _difference_of_all(list(one), list(other), lambda at: f"a key of {place}")
    return keys or _difference_of_all(
        list(one.values()), list(other.values()), lambda at: f"{place}[{list(one)[at]!r:.100}]"
    )


def _of_hidden(one: Any, other: Any, place: str) -> str | None:
    """What a model of pydantic has besides its fields."""
    for name in ("__pydantic_extra__", "__pydantic_private__"):
        if getattr(one, name, None) != getattr(other, name, None):
            return f"{place}.{name} would not come back: declare a field for it"
    return None


_known_attributes: dict[type, tuple[list[str], Callable[[Any], Any]] | None] = {}


def _attributes(kind: type) -> tuple[list[str], Callable[[Any], Any]] | None:
    """The fields of a dataclass, a struct or a model, and what gets them all; None if *kind* is none of these."""
    if kind not in _known_attributes:
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
        else:
            names = [*getattr(kind, "__struct_fields__", getattr(kind, "model_fields", ()))]
        if not names:
            _known_attributes[kind] = None
        elif len(names) == 1:
            (name,) = names
            _known_attributes[kind] = names, lambda value: (getattr(value, name),)
        else:
            _known_attributes[kind] = names, attrgetter(*names)
    return _known_attributes[kind]


def _changed(one: Any, other: Any, place: str) -> str:
    return f"{place}: {one!r:.60} would come back as {other!r:.60}"
