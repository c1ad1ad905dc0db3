"""States that can say what has changed, so that a block has that and not all of them.

A part with such a state is recorded whole when it is opened, and now and then; in between a record has only the changes
since the one before. Its value are pieces, and what is in several records of it is one value after the other:

    value:   piece...
    piece:   0xC1 | length u32, little endian | bytes of the serializer        frozen; msgpack and JSON never begin with
                                                                               0xC1. The first piece is `everything`,
                                                                               the others are `changes`
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from safekeeper.errors import Corruption

_MARK = 0xC1
_HEAD = struct.Struct("<BI")


class SupportsChanges(Protocol):
    """A state that knows what has changed in it. What it gives is data that the operator's serializer takes."""

    def changes(self) -> Any:
        """What has changed since the last call of this or of `everything`."""

    def everything(self) -> Any:
        """All of it; what has changed counts from now on."""

    def paste(self, data: Any) -> None:
        """Apply what `changes` gave; or what `everything` gave, if it is new. Then nothing has changed in it."""


_METHODS = ("changes", "everything", "paste")


def has_changes(state: object) -> bool:
    """Whether *state* can say what has changed."""
    kind = type(state)
    return all(callable(getattr(kind, name, None)) for name in _METHODS) if hasattr(kind, "paste") else False


def is_pieces(value: bytes) -> bool:
    """Whether *value* begins as pieces do."""
    return value[:1] == b"\xc1"


def piece(data: bytes) -> bytes:
    """*data* as a piece of a value."""
    return _HEAD.pack(_MARK, len(data)) + data


def pieces(value: bytes) -> Iterator[bytes]:
    """What the pieces of *value* have. Raise `Corruption` if it does not consist of pieces."""
    at = 0
    while at < len(value):
        begin = at + _HEAD.size
        mark, length = _HEAD.unpack_from(value, at) if begin <= len(value) else (0, 0)
        at = begin + length
        if mark != _MARK or at > len(value):
            raise Corruption("these are not pieces of a state that knows its changes")
        yield value[begin:at]


class PieceWriter:
    """How one part with changes is recorded. Its changes are written as long as they take less than all of it."""

    __slots__ = ("_added", "_state", "_whole", "delta")

    def __init__(self) -> None:
        self.delta = False
        """Whether the last record has changes only."""
        self._state: object = None  # what it is a record of: changes of another one would not fit
        self._whole = 0  # bytes of the last whole record
        self._added = 0  # bytes of the changes since

    def dump(self, state: SupportsChanges, dumps: Callable[[Any], bytes], *, whole: bool) -> bytes:
        """The next record of *state*. Raise `TypeError` if it does not know its changes."""
        if not has_changes(state):
            raise TypeError(f"new= gave a state that knows its changes, and a {type(state).__name__} took its place")
        if state is self._state and not whole:
            value = piece(dumps(state.changes()))
            if self._added + len(value) < self._whole:
                self._added += len(value)
                self.delta = True
                return value
        value = piece(dumps(state.everything()))
        self._whole, self._added, self.delta = len(value), 0, False
        self._state = state
        return value

    def load(self, state: SupportsChanges, loads: Callable[[bytes], Any], value: bytes) -> None:
        """Let *state*, a new one, be what the records in *value* say."""
        for number, data in enumerate(pieces(value)):
            state.paste(loads(data))
            if number == 0:
                self._whole = _HEAD.size + len(data)
        self._added = len(value) - self._whole
        self._state = state
