"""Memory that is reserved before it is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Budget:
    """A number of bytes that threads share. Whoever comes first is served first, so large requests do not starve."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[Room] = deque()
        self._changed = Condition()

    @contextmanager
    def room(self, size: int) -> Iterator[Room]:
        """Hold *size* bytes inside the block, once they are free. What is over the limit is admitted alone."""
        room = Room(self, size)
        with self._changed:
            self._waiting.append(room)
            self._changed.wait_for(lambda: self._waiting[0] is room and self._fits(size))
            self._waiting.popleft()
            self._used += size
            self._changed.notify_all()
        try:
            yield room
        finally:
            self._give_back(room.size)

    def _fits(self, size: int) -> bool:
        return not self._used or self._used + size <= self._limit

    def _give_back(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class Room:
    """What one block holds of a budget."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: Budget, size: int) -> None:
        self._budget = budget
        self.size = size

    def resize(self, size: int) -> None:
        """Hold *size* bytes from now on. More than before is taken at once, over the limit: the bytes are there."""
        surplus, self.size = self.size - size, size
        self._budget._give_back(surplus)
