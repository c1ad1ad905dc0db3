"""One element of state, as `Checkpointed` holds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Generic, TypeVar

from safekeeper.keeper.ticket import Ticket

S = TypeVar("S")


class Element(Generic[S]):
    """One element of state. Inside `Checkpointed.event` it belongs to that block alone."""

    __slots__ = (
        "attempt",
        "gone",
        "key",
        "known",
        "loaded",
        "lock",
        "since",
        "state",
        "stored",
        "submitted",
        "ticket",
        "version",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.state: S
        """What is saved; change it, or set it to something new."""
        self.ticket: Ticket | None = None
        """The newest save of this element, None if there was none since it came into memory."""
        self.lock = RLock()
        self.loaded = False  # whether `state` is set
        self.known = False  # whether it was in the store or had an event
        self.gone = False  # from memory: whoever still has it looks the key up again
        # Events are counted: all, those in the newest save that was begun, and those in the newest that is stored.
        self.version = self.submitted = self.stored = 0
        self.attempt = 0  # the number of the newest save
        self.since = 0.0  # when the first event after `submitted` came

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the lock inside the block if nobody else has it; whether that is so."""
        free = self.lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self.lock.release()
