"""Concurrent callers share one write and one sync, without a thread for writing.

Whoever finds nobody writing leads: takes all that is queued, appends it and wakes those it belongs to. The first of
those who came meanwhile leads next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from safekeeper.backend import Batch
from safekeeper.backends.local import unavailable
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.blocks import entries_of
from safekeeper.errors import SafekeeperError, Unavailable

_MOST_BYTES: Final = 16 << 20  # of batches in one write; a larger batch goes alone


class _Ticket:
    """One caller's batch on its way."""

    __slots__ = ("columns", "entries", "error", "gate", "leads", "nbytes", "seconds")

    def __init__(self, batch: Batch) -> None:
        self.columns = batch.columns
        self.entries = [] if batch.columns else entries_of(batch)
        self.nbytes = batch.nbytes
        self.gate: Lock | None = None  # locked until the caller has an answer or must lead
        self.leads = False
        self.error: BaseException | None = None
        self.seconds = 0.0


class Writer:
    """Turns the writes of many threads into few appends."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._turn = Lock()  # held by whoever uses the appender
        self._mutex = Lock()  # guards the queue and who leads
        self._queue: list[_Ticket] = []
        self._led = False

    def write(self, batch: Batch) -> float:
        """Append a batch that is not empty; how many seconds its sync took."""
        ticket = _Ticket(batch)
        with self._mutex:
            self._queue.append(ticket)
            if self._led:
                ticket.gate = Lock()
                ticket.gate.acquire()
            self._led = True
        if ticket.gate is None or self._wait(ticket.gate, ticket):
            self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error if ticket.gate is None or ticket.leads else _for_follower(ticket.error)
        return ticket.seconds

    @contextmanager
    def exclusive(self) -> Iterator[Appender]:
        """The appender, with nobody else appending meanwhile."""
        with self._turn:
            yield self._appender

    def _wait(self, gate: Lock, ticket: _Ticket) -> bool:
        """Wait for an answer; True if the caller must lead instead."""
        try:
            gate.acquire()
        except BaseException:  # a signal: leave the queue without leaving it leaderless
            with self._mutex:
                if ticket in self._queue and not ticket.leads:
                    self._queue.remove(ticket)
            if ticket.leads:
                self._resign(ticket)
            raise
        return ticket.leads

    def _resign(self, ticket: _Ticket) -> None:
        """Leave the queue as its leader."""
        with self._mutex:
            self._queue.remove(ticket)
        self._hand_over()

    def _lead(self, ticket: _Ticket) -> None:
        """Append the queue, *ticket* first, then hand over and wake the others."""
        try:
            self._turn.acquire()
        except BaseException:
            self._resign(ticket)
            raise
        group = self._take()
        try:
            ticket.seconds = self._append(group)
        except BaseException as error:
            for other in group:
                other.error = error
        finally:
            self._turn.release()
            self._hand_over()
            for other in group:
                if other is not ticket and other.gate is not None:
                    other.seconds = ticket.seconds
                    other.gate.release()

    def _append(self, group: list[_Ticket]) -> float:
        columns = [ticket.columns for ticket in group if ticket.columns]
        entries = group[0].entries if len(group) == 1 else [entry for ticket in group for entry in ticket.entries]
        try:
            return self._appender.append(entries, columns)
        except OSError as error:
            raise unavailable(self._appender.folder, error) from error

    def _take(self) -> list[_Ticket]:
        """The tickets for the next append, taken from the queue."""
        with self._mutex:
            size = count = 0
            for ticket in self._queue:
                size += ticket.nbytes
                if count and size > _MOST_BYTES:
                    break
                count += 1
            group, self._queue = self._queue[:count], self._queue[count:]
            return group

    def _hand_over(self) -> None:
        """Let the next one in the queue lead, if there is one."""
        with self._mutex:
            if not self._queue:
                self._led = False
                return
            leader = self._queue[0]
            leader.leads = True
        assert leader.gate is not None
        leader.gate.release()


def _for_follower(error: BaseException) -> SafekeeperError:
    """What a caller gets whose batch failed in another caller's thread: an exception object belongs to one thread."""
    copy = type(error)(*error.args) if isinstance(error, SafekeeperError) else Unavailable(f"interrupted: {error!r}")
    copy.__cause__ = error
    return copy
