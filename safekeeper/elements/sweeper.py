"""The thread that looks after what no event looks after: what is due by time, postponed, failed or idle."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread

from safekeeper.errors import Closed
from safekeeper.keeper.notices import log_safely

_log = logging.getLogger("safekeeper")


class ElementSweeper:
    """Calls *sweep* every *tick* seconds, from the first `start` until `stop`, or until there is nothing more to do it
    with: it raises `Closed`."""

    def __init__(self, name: str, tick: float, sweep: Callable[[], None]) -> None:
        self._name = name
        self._tick = tick
        self._sweep = sweep
        self._lock = Lock()
        self._stopping = Event()
        self.thread: Thread | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._stopping.is_set()

    def start(self) -> None:
        """See to it that there is a thread."""
        if self.thread is not None or self._stopping.is_set():
            return
        with self._lock, suppress(RuntimeError):  # no more threads just now: the next event tries again
            if self.thread is None:
                thread = Thread(target=self._run, name=f"safekeeper-{self._name}", daemon=True)
                thread.start()
                self.thread = thread

    def stop(self) -> None:
        """End it, and wait for that."""
        self._stopping.set()
        with self._lock:
            thread, self.thread = self.thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._tick):
            try:
                self._sweep()
            except Closed:  # the keeper was closed first: nothing can be saved any more
                return
            except Exception:
                log_safely(_log.exception, "%s: its elements could not be looked after, it is tried again", self._name)
