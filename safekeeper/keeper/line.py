"""Saves of callers that must not wait: an event loop's.

Whoever may wait comes behind them while any of them stand in the line: a save that is made after another one never
overtakes it, whichever threads they are made in.
"""

from __future__ import annotations

from collections import deque
from threading import Lock, Thread

from safekeeper.keeper.interrupts import Waiter, join, start_thread, wake
from safekeeper.keeper.pipeline import Pipeline
from safekeeper.keeper.ticket import Callback, Entry, Ticket

_LOOK = 1.0  # seconds between two looks whether a save has completed that stands in the line


class WaitingLine:
    """Where saves stand that find no room. One thread waits for all of them and lets them in as they came, so that a
    later save of an id never overtakes an earlier one; it is there while anybody stands in the line.

    What stands here is under way: its deadline is watched, `flush` and `close` wait for it.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = Lock()
        self.entries: deque[Entry] = deque()
        """Who stands in it, as they came."""
        self._waiting: list[Waiter] = []  # threads that may wait, and stand in it only to keep the order
        self._usher: Thread | None = None

    def __bool__(self) -> bool:
        """Whether anybody stands in it."""
        return bool(self.entries)

    def submit(self, entry: Entry, callback: Callback | None, *, wait: bool = False) -> Ticket:
        """As `Pipeline.submit`, without ever waiting, or with *wait* until it has left the line."""
        self._pipeline.check_open()  # before the lock, which nobody would give back in a forked child
        has_left: Lock | None = None
        try:
            with self._lock:
                ticket = self._pipeline.begin(entry, callback)
                if self.entries or not self._pipeline.enter(entry, wait=False):
                    self.entries.append(entry)
                    self._call_usher()
                    has_left = join(self._waiting) if wait else None
        except BaseException:
            self._pipeline.abandon(entry.members)
            raise
        finally:
            self._pipeline.completions.report()
        self._wait_for(entry, has_left)
        return ticket

    def wait(self) -> None:
        """Wait until everybody who stands in it now has been let in."""
        with self._lock:
            last = self.entries[-1] if self.entries else None
            has_left = None if last is None else join(self._waiting)
        if last is not None:
            self._wait_for(last, has_left)

    def _wait_for(self, entry: Entry, has_left: Lock | None) -> None:
        while has_left is not None and entry.outcome is None:
            has_left.acquire(timeout=_LOOK)
            with self._lock:
                has_left = join(self._waiting) if entry in self.entries else None

    def _call_usher(self) -> None:
        if self._usher is not None:
            return
        self._usher = Thread(target=self._let_in, name="safekeeper-line", daemon=True)
        try:
            start_thread(self._usher)
        except RuntimeError:  # no more threads just now: the next save tries again
            self._usher = None

    def _let_in(self) -> None:
        anybody = True
        while anybody:
            self._pipeline.enter(self.entries[0], wait=True)
            self._pipeline.completions.report()
            with self._lock:
                self.entries.popleft()
                wake(self._waiting)
                if not self.entries:
                    anybody, self._usher = False, None
