"""One element of state, as `Checkpointed` holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Generic, TypeVar

from safekeeper.backend import CheckpointId
from safekeeper.elements import waiting
from safekeeper.keeper.pending import PendingState
from safekeeper.keeper.ticket import Ticket

S = TypeVar("S")


class Element(Generic[S]):
    """One element of state. Inside `Checkpointed.event` it belongs to that block alone."""

    __slots__ = (
        "attempt",
        "blank",
        "failures",
        "gone",
        "half_done",
        "holder",
        "id",
        "known",
        "line",
        "loaded",
        "lock",
        "pending",
        "retry_at",
        "since",
        "state",
        "stored",
        "submitted",
        "task",
        "ticket",
        "version",
    )

    def __init__(self, id: CheckpointId) -> None:
        self.id = id
        self.state: S
        """What is saved; change it, or set it to something new."""
        self.ticket: Ticket | None = None
        """The newest save of this element, None if there was none since it came into memory."""
        self.pending: PendingState | None = None  # the newest state that was left to a worker to serialize
        self.blank = False
        """Whether it began blank because the store did not answer, so that something else may be stored: see
        `Checkpointed`'s *unavailable*."""
        self.lock = Lock()
        self.line: deque[waiting.InLine] = deque()  # who waits for the lock
        self.holder: int | None = None  # the thread that has the lock, and its asyncio task
        self.task: object = None
        self.loaded = False  # whether `state` is set
        self.known = False  # whether it was in the store or had an event
        self.half_done: str | None = None  # what an event raised that has left the state changed
        self.gone = False  # from memory: whoever still has it looks the key up again
        # Events are counted: all, those in the newest save that was begun, and those in the newest that is stored.
        self.version = self.submitted = self.stored = 0
        self.attempt = 0  # the number of the newest save
        self.failures = 0  # saves in a row that failed by its own fault or the store's
        self.retry_at = 0.0  # when the sweeper may try again
        self.since = 0.0  # when the first event after `submitted` came

    def __repr__(self) -> str:
        return f"<Element {self.id}>"

    @property
    def key(self) -> bytes:
        """The key of its id."""
        return self.id.key

    def hold(self) -> None:
        """Wait until nobody else has the element, and have it until `let_go`. Raise `RuntimeError` instead of waiting
        for oneself."""
        if self.lock.acquire(blocking=False):
            self.holder, self.task = get_ident(), waiting.current_task()
        else:
            waiting.wait_for(self)

    async def hold_in_loop(self) -> None:
        """As `hold`, for a task."""
        if self.lock.acquire(blocking=False):
            self.holder, self.task = get_ident(), waiting.current_task()
        else:
            await waiting.wait_in_loop(self)

    def hold_if_free(self) -> bool:
        """As `hold`, if nobody else has it just now; whether that is so."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.holder, self.task = get_ident(), waiting.current_task()
        return free

    def let_go(self) -> None:
        """Let others have it."""
        # The lock last: a holder is never one who has let go.
        self.holder = self.task = None
        self.lock.release()
        if self.line:
            waiting.hand_over(self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it inside the block."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    @contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Hold it inside the block if nobody else has it; whether that is so."""
        free = self.hold_if_free()
        try:
            yield free
        finally:
            if free:
                self.let_go()

    def is_held_here(self) -> bool:
        """Whether the caller is inside a block of this element: the same task, or without one the same thread."""
        task = waiting.current_task()
        return self.holder is not None and self.task is task and (task is not None or self.holder == get_ident())
