"""How elements get to the keeper, and what happens if they do not get through."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Generic, NoReturn, TypeVar

from safekeeper.backend import Receipt
from safekeeper.elements.element import Element
from safekeeper.elements.holding import Call, Waits
from safekeeper.elements.memory import Memory
from safekeeper.elements.one_by_one import OneByOne
from safekeeper.elements.size import is_small
from safekeeper.errors import HalfDone, QueueFull, SafekeeperError
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.notices import Notices, log_safely
from safekeeper.keeper.pending import PendingState
from safekeeper.keeper.ticket import Ticket

_log = logging.getLogger("safekeeper")
_FULL = Backoff(first=0.001, most=0.1)  # between two looks at a queue that others keep full

S = TypeVar("S")


class Saver(Generic[S]):
    """Saves the elements of *memory*. A save that fails leaves its element dirty."""

    def __init__(self, keeper: SafeKeeper, memory: Memory[S], backoff: Backoff, is_over: Callable[[], bool]) -> None:
        self._keeper = keeper
        self._memory = memory
        self._backoff = backoff
        self._notices = Notices()
        self._one_by_one = OneByOne(keeper, is_over)

    def has_room(self) -> bool:
        """Whether the keeper's queues have."""
        return self._keeper.fill < 1

    def save_after_event(self, element: Element[S]) -> Waits[None]:
        """Save an element at the end of its block.

        A large one is left to the keeper's worker. While an earlier state of it waits for the worker it is serialized
        here, so that its bytes are within the bounds of the queue: however often an element is saved, one state of it
        at most is not.
        """
        if is_small(element.state):
            self.save(element)
            return
        pending = PendingState(element.state, self._keeper._encode)
        left_to_worker = element.pending is None or element.pending.done
        if not left_to_worker:
            yield Call(pending.serialize)
        self.save(element, pending, left_to_worker=left_to_worker)

    def save(self, element: Element[S], pending: PendingState | None = None, *, left_to_worker: bool = True) -> Ticket:
        """Save an element that is held; *pending* is its state, if that is serialized already or later."""
        memory = self._memory
        with memory.lock:
            before, element.submitted = element.submitted, element.version
            element.attempt += 1
            for elements in (memory.dirty, memory.postponed, memory.failed):
                elements.pop(element.key, None)
            memory.saving[element.key] = element
            memory.metrics.saves += 1
        told = partial(self._saved, element, element.version, element.attempt, pending)
        try:
            if pending is None:
                element.ticket = self._keeper.save(element.id, element.state, callback=told)
            else:
                if left_to_worker:
                    element.pending = pending
                element.ticket = self._keeper.save(element.id, pending, frozen=left_to_worker, callback=told)
        except BaseException:
            self._not_saved(element, before, None)
            raise
        return element.ticket

    def save_idle(self, element: Element[S]) -> None:
        """Save an element that has something to be saved, unless an event has it just now, the queues are full, or it
        has failed too often."""
        self._one_by_one.wait()
        if not self.has_room() or element.retry_at > time.monotonic():
            return
        with element.held_if_free() as free:
            if not free or element.version == element.submitted or element.gone or element.half_done is not None:
                return
            pending = None
            if element.failures:
                # Whether it has bytes by now is found out here: a save that fails is told about each time.
                pending = PendingState(element.state, self._keeper._encode)
                pending.serialize()
                if pending.error is not None:
                    self._not_saved(element, element.submitted, pending.error)
                    return
            self.save(element, pending or self._left_to_worker(element))
            self._one_by_one.took(element)

    def save_all(self, elements: Sequence[Element[S]]) -> list[Ticket]:
        """Save *elements*, with no more of them under way than the queues take."""
        under_way: deque[Ticket] = deque()
        saves: list[tuple[Element[S], Ticket]] = []
        for element in elements:
            while under_way and not self.has_room():
                under_way.popleft().outcome()
            self._one_by_one.wait()
            if (ticket := self._save_now(element)) is not None:
                self._one_by_one.took(element)
                under_way.append(ticket)
                saves.append((element, ticket))
        tickets, in_vain = [], False
        for element, ticket in saves:
            if isinstance(_failure(ticket), QueueFull) and not in_vain:
                ticket = self._insist(element, ticket)
                in_vain = isinstance(_failure(ticket), QueueFull)
            tickets.append(ticket)
        return tickets

    def _insist(self, element: Element[S], ticket: Ticket) -> Ticket:
        """Save an element, whose save others have pushed out, until it is stored or a deadline is over."""
        tries, until = 0, inf
        while isinstance(_failure(ticket), QueueFull) and time.monotonic() < until:
            if tries:
                time.sleep(_FULL.delay(tries))
            ticket = self._save_now(element) or ticket
            ticket.outcome()
            tries, until = tries + 1, min(until, ticket.deadline)
        return ticket

    def _save_now(self, element: Element[S]) -> Ticket | None:
        """Save what is not saved of an element; the ticket of its newest save, None if it is not in memory any more."""
        if element.is_held_here() and element.version == element.submitted:
            return element.ticket
        with element.held():
            return self.save_if_dirty(element)

    def save_if_dirty(self, element: Element[S]) -> Ticket | None:
        """As `_save_now`, for an element that is held."""
        if element.gone:
            return None
        if element.version == element.submitted and _failure(element.ticket) is None:
            return element.ticket
        if element.half_done is not None:
            return self._keeper.save(element.id, PendingState(element, refuse_half_done))
        return self.save(element, self._left_to_worker(element))

    def _left_to_worker(self, element: Element[S]) -> PendingState | None:
        """The state of an element to be saved, if a worker is to serialize it; None if that is better done here."""
        earlier = element.pending
        if is_small(element.state) or (earlier is not None and not earlier.done):
            return None
        return PendingState(element.state, self._keeper._encode)

    def _saved(
        self, element: Element[S], version: int, attempt: int, pending: PendingState | None, ticket: Ticket
    ) -> None:
        """The keeper calls back. Not with the element's lock: its holder may be waiting for the keeper."""
        if pending is not None:
            pending.done = True  # also if no worker ever came to it
        outcome = ticket.outcome()
        memory = self._memory
        if isinstance(outcome, Receipt):
            with memory.lock:
                memory.metrics.stored += 1
                element.stored = max(element.stored, version)
                element.failures, element.retry_at = 0, 0.0
                if element.stored == element.submitted and not element.gone:
                    memory.saving.pop(element.key, None)
        else:
            with memory.lock:
                memory.metrics.not_stored += 1
            if element.attempt == attempt:
                self._not_saved(element, element.stored, outcome)

    def _not_saved(self, element: Element[S], submitted: int, error: SafekeeperError | None) -> None:
        now = time.monotonic()
        memory = self._memory
        with memory.lock:
            if element.gone:
                return
            element.submitted, element.since = submitted, now
            memory.saving.pop(element.key, None)
            if element.half_done is None:
                memory.dirty.pop(element.key, None)
                memory.failed[element.key] = element
            if error is None or isinstance(error, QueueFull):
                return  # there is nothing wrong with it: it is saved when there is room
            element.failures += 1
            element.retry_at = now + self._backoff.delay(element.failures)
            if isinstance(error, ValueError) and element.failures == 1:
                self._notices.note(
                    "%s: its state cannot be stored: %s: it stays in memory and is tried again, less and less often:"
                    " change it, or forget it",
                    *(element.id, error),
                )
            lines = self._notices.take()
        for line, _ in lines:
            log_safely(_log.warning, "%s", line)


def refuse_half_done(element: Element[Any]) -> NoReturn:
    """Raise `HalfDone`."""
    raise HalfDone(
        f"{element.id}: an event raised half-way ({element.half_done}) and was not undone:"
        " checkpoint(key) stores the state as it is, forget(key) removes it"
    )


def _failure(ticket: Ticket | None) -> SafekeeperError | None:
    """Why a save has failed; None if it has not."""
    if ticket is None or not ticket.done() or isinstance(outcome := ticket.outcome(), Receipt):
        return None
    return outcome
