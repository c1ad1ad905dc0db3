from __future__ import annotations

import datetime
from dataclasses import dataclass, field

import pytest

from safekeeper.elements.size import is_small


@dataclass
class Session:
    user: str = "somebody"
    seen: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    "state", (0, None, "text", b"bytes", {"count": 1}, [[1, 2], ("a", {3})], Session()), ids=lambda s: type(s).__name__
)
def test_what_is_small_is_known(state):
    assert is_small(state)


def endless():
    state = []
    state.append(state)
    return state


@pytest.mark.parametrize(
    "state",
    (bytes(100_000), {"a": [0] * 100_000}, [[0]] * 1000, Session(seen=[0] * 10_000), endless(), datetime.date.min),
    ids=("bytes", "deep inside", "many", "in an attribute", "endless", "not known"),
)
def test_what_is_not_surely_small_is_not_small(state):
    assert not is_small(state)
