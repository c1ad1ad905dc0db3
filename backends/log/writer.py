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
from safekeeper.backends.local import os_errors_as_unavailable
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.blocks import Prepared
from safekeeper.errors import SafekeeperError, Unavailable

_MOST_BYTES: Final = 16 << 20  # of batches in one write; a larger batch goes alone


class _Ticket:
    """One caller's batch on its way."""

    __slots__ = ("batch", "error", "gate", "leads", "nbytes", "seconds")

    def __init__(self, batch: Batch) -> None:
        self.batch = Prepared(batch)
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
        """Append a batch; how many seconds its sync took."""
        ticket = _Ticket(batch)
        if not ticket.batch:
            return 0.0
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
                self._hand_over()
            raise
        return ticket.leads

    def _lead(self, ticket: _Ticket) -> None:
        """Append the queue, *ticket* first, then hand over and wake the others."""
        group: list[_Ticket] = []
        try:
            with self._turn:
                group = self._take()
                with os_errors_as_unavailable(self._appender.folder):
                    seconds = self._appender.append([ticket.batch for ticket in group])
            for other in group:
                other.seconds = seconds
        except BaseException as error:
            for other in group or [ticket]:
                other.error = error
            if not group:  # a signal came before the queue was taken
                with self._mutex:
                    self._queue.remove(ticket)
        finally:
            self._hand_over()
            for other in group:
                if other.gate is not None and other is not ticket:
                    other.gate.release()

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
