"""Memory that is reserved before it is used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import Condition


class Budget:
    """A number of bytes that threads share. Whoever comes first is served first, so large requests do not starve."""

    def __init__(self, limit: int) -> None:
        self.moved = time.monotonic()
        """When room was last taken or given back."""
        self._limit = limit
        self._used = 0
        self._slow = 0  # held by rooms that nobody waits for
        self._waiting: deque[Room] = deque()
        self._held: set[Room] = set()
        self._changed = Condition()

    @contextmanager
    def room(self, size: int) -> Iterator[Room]:
        """Hold *size* bytes inside the block, once they are free. What is over the limit is admitted alone."""
        room = Room(self)
        with self._changed:
            self._waiting.append(room)
            self._changed.wait_for(lambda: self._waiting[0] is room and self._fits(size))
            self._waiting.popleft()
            self._held.add(room)
            self._set(room, size)
        try:
            yield room
        finally:
            room.resize(0)
            self._held.discard(room)

    def pass_over(self, seconds: float) -> None:
        """Let nobody wait any more for rooms that were resized longer ago than that: what is in them is not taken."""
        with self._changed:
            for room in self._held.copy():
                if not room.slow and time.monotonic() - room.since > seconds:
                    self._set(room, room.size, slow=True)

    def _fits(self, size: int) -> bool:
        return not self._used or self._used + self._slow + size <= self._limit

    def _set(self, room: Room, size: int, *, slow: bool = False) -> None:
        """Let *room* hold so much, instead of what it held. With the lock held."""
        if room.slow:
            self._slow -= room.size
        else:
            self._used -= room.size
        room.size, room.slow = size, slow
        if slow:
            self._slow += size
        else:
            self._used += size
        self.moved = time.monotonic()
        self._changed.notify_all()


class Room:
    """What one block holds of a budget."""

    __slots__ = ("_budget", "since", "size", "slow")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.size = 0
        self.slow = False
        self.since = inf

    def resize(self, size: int, *, slow: bool = False) -> None:
        """Hold *size* bytes from now on. More than before is taken at once, over the limit: the bytes are there.

        Room that is *slow* is held by somebody who may never come to an end. It counts, but nobody waits for it: with
        nothing else under way the next is admitted, over the limit if it must be.
        """
        with self._budget._changed:
            self._budget._set(self, size, slow=slow)
            self.since = time.monotonic()
