"""Concurrent callers share one write and one sync, without a thread for writing.

A batch joins the group that is forming; whoever finds none begins one and leads it. The leader waits for its turn,
closes its group, appends it and wakes the members in a chain: each wakes two more. Woken all at once, they would fight
for Python's lock with each other and, worse, with the next leader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Final

from safekeeper.backend import Batch, Receipt, Survives
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.blocks import entries_of
from safekeeper.backends.shared.local_files import unavailable
from safekeeper.backends.shared.records import NewRecord
from safekeeper.columns import Columns
from safekeeper.errors import SafekeeperError, Unavailable

_MOST_BYTES: Final = 16 << 20  # of batches in one write; a larger batch goes alone


class _Group:
    """Batches that are appended together. Its first member leads it."""

    __slots__ = ("columns", "entries", "gates", "nbytes", "outcome")

    def __init__(self) -> None:
        self.entries: list[NewRecord] = []
        self.columns: list[Columns] = []
        self.nbytes = 0
        self.gates: list[Lock] = []  # one a member, locked until the group is appended; the leader's is not used
        self.outcome: Receipt | BaseException | None = None

    def after(self, number: int) -> list[Lock]:
        """The gates that member *number* has to open: the members form a binary tree, laid out like a heap."""
        return self.gates[2 * number + 1 : 2 * number + 3]


class LogWriter:
    """Turns the writes of many threads into few appends."""

    def __init__(self, appender: Appender, survives: Survives) -> None:
        self._appender = appender
        self._survives = survives
        self._turn = Lock()  # held by whoever uses the appender
        self._mutex = Lock()  # guards the group that is forming
        self._forming: _Group | None = None

    def write(self, batch: Batch) -> Receipt:
        """Append a batch that is not empty."""
        entries = entries_of(batch)
        gate = Lock()
        gate.acquire()
        group: _Group | None = None
        try:
            with self._mutex:
                group = self._forming
                if group is None or group.nbytes + batch.nbytes > _MOST_BYTES:
                    group = self._forming = _Group()
                number = len(group.gates)
                group.nbytes += batch.nbytes
                group.entries += entries
                if batch.columns is not None:
                    group.columns.append(batch.columns)
                group.gates.append(gate)
            if number:
                gate.acquire()
            else:
                self._lead(group)
            for other in group.after(number):
                other.release()
        except BaseException:  # a signal, at any point of the above
            if group is not None and gate in group.gates:
                self._see_through(group, number)
            raise
        outcome = group.outcome
        if isinstance(outcome, Receipt):
            return outcome
        assert outcome is not None
        raise _for_follower(outcome) if number else outcome

    @contextmanager
    def exclusive(self) -> Iterator[Appender]:
        """The appender, with nobody else appending meanwhile."""
        with self._turn:
            yield self._appender

    def _lead(self, group: _Group) -> None:
        """Append *group*, with all who join it until its turn has come."""
        with self._turn:
            with self._mutex:
                if self._forming is group:
                    self._forming = None
            try:
                group.outcome = Receipt(self._survives, self._appender.append(group.entries, group.columns))
            except OSError as error:
                group.outcome = unavailable(self._appender.folder.path, error)
                group.outcome.__cause__ = error
            except BaseException as error:
                group.outcome = error

    def _see_through(self, group: _Group, number: int) -> None:
        """Do for *group* what is still to be done by member *number*, whom a signal interrupted: it counts on each."""
        while group.outcome is None:
            with suppress(BaseException):
                if number:
                    time.sleep(0.01)
                else:
                    self._lead(group)
        for gate in group.after(number):
            if gate.locked():
                gate.release()


def _for_follower(error: BaseException) -> SafekeeperError:
    """What a caller gets whose batch failed in another caller's thread: an exception object belongs to one thread."""
    copy = type(error)(*error.args) if isinstance(error, SafekeeperError) else Unavailable(f"interrupted: {error!r}")
    copy.__cause__ = error
    return copy
