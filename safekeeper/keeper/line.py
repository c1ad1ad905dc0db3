"""Saves of callers that must not wait: an event loop's."""

from __future__ import annotations

from collections import deque
from threading import Lock, Thread

from safekeeper.keeper.interrupts import start_thread
from safekeeper.keeper.pipeline import Pipeline
from safekeeper.keeper.ticket import Callback, Entry


class WaitingLine:
    """Where saves stand that find no room. One thread waits for all of them and lets them in as they came, so that a
    later save of an id never overtakes an earlier one; it is there while anybody stands in the line.

    What stands here is under way: its deadline is watched, `flush` and `close` wait for it.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lock = Lock()
        self._entries: deque[Entry] = deque()
        self._usher: Thread | None = None

    def submit(self, entry: Entry, callback: Callback) -> None:
        """As `Pipeline.submit`, without ever waiting."""
        self._pipeline.check_open()  # before the lock, which nobody would give back in a forked child
        try:
            with self._lock:
                self._pipeline.begin(entry, callback)
                if self._entries or not self._pipeline.enter(entry, wait=False):
                    self._entries.append(entry)
                    self._call_usher()
        except BaseException:
            entry.abandoned = self._pipeline.completions.torn = True
            raise
        finally:
            self._pipeline.completions.report()

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
            self._pipeline.enter(self._entries[0], wait=True)
            self._pipeline.completions.report()
            with self._lock:
                self._entries.popleft()
                if not self._entries:
                    anybody, self._usher = False, None
