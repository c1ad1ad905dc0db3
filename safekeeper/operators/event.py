"""One event of an operator."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from safekeeper.streams.carrier import Position

if TYPE_CHECKING:
    from safekeeper.operators.operator import Operator
    from safekeeper.operators.part import Part


class Event:
    """What an operator takes at one position of an input. It has happened as a whole, or not at all.

    An operator has one at a time and uses the object again for the next one: take out of it what you want to keep.
    """

    __slots__ = ("_operator", "body", "emit", "key", "look", "part", "position", "source")

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.part: Callable[..., Part] = operator.part
        """As `Operator.part`."""
        self.emit: Callable[..., None] = operator.emit
        """As `Operator.emit`."""
        self.look: Callable[[bytes], Any] = operator.look
        """As `Operator.look`."""
        self.source = ""
        """The input that it is from."""
        self.position: Position = 0
        """Where it is in that input."""
        self.key = b""
        self.body = b""

    def __enter__(self) -> Self:
        self._operator._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._operator._leave(self, error)

    def __repr__(self) -> str:
        return f"<Event {self.position} of {self.source} {self.key!r:.40}>"
