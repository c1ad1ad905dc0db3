"""Connections that wait for their next use. No lock: what is popped belongs to whoever popped it."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Generic, Protocol, TypeVar


class Connection(Protocol):
    """What has to be known of a connection to keep it."""

    def is_good(self) -> bool:
        """Whether it can still be used, as far as can be told without much ado."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Connection)


class Idle(Generic[C]):
    """Keeps at most so many connections, the one that was used last on top."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: deque[C] = deque()
        self._open = True

    def take(self) -> C | None:
        """A good one, for the caller alone; None if there is none.

        When one has gone bad, all are closed: the others have been idle for longer, and to find out that a silent
        network has dropped one can take a time-out for each.
        """
        with suppress(IndexError):
            connection = self._connections.pop()
            if connection.is_good():
                return connection
            connection.close()
            self.clear()
        return None

    def keep(self, connection: C) -> None:
        """Keep *connection* for the next one, or close it if there are enough or `close` was called."""
        if len(self) >= self._most:
            connection.close()
            return
        self._connections.append(connection)
        if not self._open:  # looked at after it was appended: whoever closes sees it, or is seen here
            self.close()

    def __len__(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        """Close all of them, and those that are still to be kept."""
        self._open = False
        self.clear()

    def clear(self) -> None:
        """Close all of them."""
        with suppress(IndexError):
            while True:
                self._connections.pop().close()
