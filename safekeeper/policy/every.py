"""The triggers of Apache S4: a checkpoint every so many events, or every so many seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Trigger(Protocol):
    """Decides when an element of state is saved."""

    def due(self, events: float, seconds: float) -> bool:
        """Whether to save now, after so many events that are not saved yet, the first of them so many seconds ago.

        What is due stays due when both grow.
        """


@dataclass(frozen=True, slots=True)
class Every:
    """Due after *events* events, or when the first event that is not saved is *seconds* old, whichever comes first."""

    events: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.events is None and self.seconds is None:
            raise ValueError("every how many events, or seconds?")
        if (self.events is not None and self.events < 1) or (self.seconds is not None and self.seconds <= 0):
            raise ValueError(f"a trigger counts to 1 event or more, and more than 0 s: {self}")

    def due(self, events: float, seconds: float) -> bool:
        """As `Trigger.due`."""
        return (self.events is not None and events >= self.events) or (
            self.seconds is not None and seconds >= self.seconds
        )
