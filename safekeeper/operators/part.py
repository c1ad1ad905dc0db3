"""One part of an operator's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safekeeper.operators.changes import PieceWriter

if TYPE_CHECKING:
    from safekeeper.operators.core import Core


class Part:
    """The state under one key. Change `state`, or set it, inside an event."""

    __slots__ = ("_core", "key", "opened", "since", "state", "writer")

    def __init__(self, core: Core, key: bytes, state: Any, writer: PieceWriter | None, *, opened: bool) -> None:
        self._core = core
        self.key = key
        self.state = state
        self.opened = opened
        """Whether it is not in any block yet."""
        self.since = 0
        """The first event, counted from the operator's first, that is not in a record of it; 0 if all are."""
        self.writer = writer
        """Writes its records, if its state knows its changes."""

    def close(self) -> None:
        """Remove it. The next event of its key opens a new one."""
        self._core.close_part(self)

    def __repr__(self) -> str:
        return f"<Part {self.key!r:.80} {self.state!r:.80}>"
