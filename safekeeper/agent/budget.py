"""Memory that is reserved before it is used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import Condition


class Budget:
    """A number of bytes that threads share. Whoever comes first is served first, so large requests do not starve.

    Owners are fair to each other: whoever of those that wait has the owner that holds least comes first, and one owner
    holds no more than three quarters, so that there is room when another one comes. Without an owner there is no share.
    """

    def __init__(self, limit: int) -> None:
        self.moved = time.monotonic()
        """When room was last taken or given back."""
        self._limit = limit
        self._used = 0
        self._slow = 0  # held by rooms that nobody waits for
        self._waiting: list[tuple[Room, int]] = []  # and how much each wants, the first to come first
        self._held: set[Room] = set()
        self._changed = Condition()

    @contextmanager
    def room(self, size: int, owner: bytes = b"") -> Iterator[Room]:
        """Hold *size* bytes inside the block, once they are free. What is over the limit is admitted alone."""
        room = Room(self, owner)
        with self._changed:
            self._waiting.append((room, size))
            self._changed.wait_for(lambda: self._next() is room and self._fits(size))
            self._waiting.remove((room, size))
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

    def _next(self) -> Room | None:
        """Who of those that wait is the next to be admitted, once there is room. With the lock held."""
        held = Counter({room.owner: 0 for room, _ in self._waiting})
        for room in self._held:
            held[room.owner] += 0 if room.slow else room.size
        allowed = [room for room, size in self._waiting if self._is_in_its_share(held[room.owner], size, room.owner)]
        return min(allowed, key=lambda room: held[room.owner] if room.owner else 0, default=None)

    def _is_in_its_share(self, held: int, size: int, owner: bytes) -> bool:
        return not owner or not held or held + size <= self._limit * 3 // 4

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

    __slots__ = ("_budget", "owner", "since", "size", "slow")

    def __init__(self, budget: Budget, owner: bytes) -> None:
        self._budget = budget
        self.owner = owner
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
