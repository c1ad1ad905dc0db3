"""Does a state come back exactly as it was? If not: where, and what to do.

What is checked for every state is done at the speed of C; the place and the reason are looked for only in a state that
is refused.
"""

from __future__ import annotations

import dataclasses
import enum
import gc
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import chain
from types import UnionType
from typing import Any, TypeAlias

JSON_TYPES = frozenset({type(None), bool, int, float, str, list, dict})
"""What JSON has."""

DEEPEST = 1024
"""Containers in each other, by msgpack."""

DEEPEST_JSON = 500
"""It recurses in Python, and what is read may be asked for from deep inside a program."""

Problem: TypeAlias = Callable[[Any, bool], str | None]
"""What is wrong with a value, which may be the key of a dict; None if nothing is. What it contains is not looked at."""

_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})


def has_only(state: Any, types: frozenset[type], deepest: int = DEEPEST, *, text_keys: bool = False) -> bool:
    """Whether everything in *state* is of one of *types*, not counting subclasses, and it is not nested too deep. With
    *text_keys* the keys of every dict must be str."""
    leaves = types - _CONTAINERS
    level = [state]
    for _ in range(deepest + 1):
        if leaves.issuperset(map(type, level)):
            return True
        if not types.issuperset(map(type, level)):
            return False
        if text_keys:
            keys = chain.from_iterable([one for one in level if type(one) is dict])
            if not {str}.issuperset(map(type, keys)):
                return False
        # A list that is alone may be very long: there is no need to copy it.
        alone = len(level) == 1 and type(level[0]) is list
        level = level[0] if alone else gc.get_referents(*[one for one in level if type(one) in _CONTAINERS])
    return False


def problem_in(state: Any, problem: Problem, deepest: int = DEEPEST) -> str | None:
    """The first place in *state* that has a problem, what it is and what to do."""
    stack: list[tuple[str, Any, int]] = [("state", state, 0)]
    while stack:
        place, value, depth = stack.pop()
        if found := problem(value, False):
            return f"{place} is {found}"
        if depth >= deepest and type(value) in _CONTAINERS:
            return f"{place[:100]}... is nested too deep, or contains itself: save it in parts, or flat"
        if type(value) is dict:
            for key in value:
                if found := problem(key, True):
                    return f"the key {key!r:.100} of {place} is {found}"
        stack.extend(reversed([(where, item, depth + 1) for where, item in _inside(place, value)]))
    return None


def _inside(place: str, value: Any) -> Iterable[tuple[str, Any]]:
    """What a container holds besides keys, each with its place."""
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is tuple or type(key) is frozenset:
                yield f"the key {key!r:.100} of {place}", key
            yield f"{place}[{key!r:.100}]", item
    elif type(value) is list or type(value) is tuple:
        for at, item in enumerate(value):
            yield f"{place}[{at}]", item
    elif type(value) is set or type(value) is frozenset:
        for item in value:
            yield f"the member {item!r:.100} of {place}", item


def json_problem(value: Any, is_key: bool) -> str | None:
    """What JSON cannot give back."""
    if is_key and type(value) is not str:
        return f"{article(type(value))}: JSON has only str as keys; use the serializer 'msgpack' or 'pickle'"
    return plain_problem(value, JSON_TYPES)


def plain_problem(value: Any, types: frozenset[type]) -> str | None:
    """Why *value*, without what it contains, does not come back, and what to do; None if it does."""
    kind = type(value)
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return "a str with a lone surrogate, which has no UTF-8: save its bytes, or use the serializer 'pickle'"
    if kind in types:
        return None
    instead = _instead(value, types)
    return f"{article(kind)}: {instead}{', or ' if instead else ''}use the serializer 'pickle'"


def _instead(value: Any, types: frozenset[type]) -> str:
    """What to save instead of *value*, if there is something."""
    kind = type(value)
    if kind.__module__ == "numpy":
        return "save value.tolist()" if kind.__name__ == "ndarray" else "save value.item()"
    if kind.__module__.startswith("pandas"):
        return "save value.to_numpy()"
    if isinstance(value, datetime) and datetime not in types:
        return "save value.isoformat()"
    if isinstance(value, enum.Enum):
        return "save value.name"
    if dataclasses.is_dataclass(value) or hasattr(kind, "__struct_fields__") or hasattr(kind, "__pydantic_validator__"):
        return f"give the keeper state={kind.__name__}"
    plain = next((plain for base, plain in _PLAIN if isinstance(value, base) and plain in types), None)
    return f"make it {article(plain)}" if plain else ""


_PLAIN: tuple[tuple[type | UnionType, type], ...] = (
    (tuple | set | frozenset | list, list),
    (bytearray | memoryview | bytes, bytes),
    *((kind, kind) for kind in (dict, str, int, float)),
)
"""What a value may be made of that comes back."""


def article(kind: type) -> str:
    """The name of *kind* in a sentence."""
    name = kind.__name__
    return name if kind is bytes else f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
