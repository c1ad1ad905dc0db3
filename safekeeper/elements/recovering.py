"""Everything in the store is brought into memory while the service is already at work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from safekeeper.backend import CheckpointId
from safekeeper.errors import Closed, Conflict, SafekeeperError, Unavailable
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.notices import log_safely
from safekeeper.keeper.reader import OnError

_log = logging.getLogger("safekeeper")


class BackgroundRecovery:
    """Calls *recover* in a thread, again while the store is unavailable, until it is through or `stop`."""

    def __init__(self, group: str, recover: Callable[[OnError], int], backoff: Backoff) -> None:
        self._group = group
        self._recover = recover
        self._backoff = backoff
        self._stopping = Event()
        self._thread: Thread | None = None
        self.done = False
        """Whether everything that can be read is in memory, or was since the start."""

    def start(self) -> None:
        """Begin, once."""
        self._thread = Thread(target=self._run, name=f"safekeeper-recover-{self._group}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """For *recover*, between two elements: raise `Closed` if it is to stop."""
        if self._stopping.is_set():
            raise Closed(f"the elements of {self._group} were closed while they were recovered")

    def stop(self) -> None:
        """End it, and wait for that."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                self._recover(self._tell)
                self.done = True
                return
            except Unavailable as error:
                failures += 1
                log_safely(_log.warning, "%s: it is recovered as soon as the store answers: %s", self._group, error)
                self._stopping.wait(self._backoff.delay(failures))
            except (Closed, Conflict):
                return
            except Exception:
                log_safely(_log.exception, "%s: it is not recovered, but by its events", self._group)
                return

    def _tell(self, id: CheckpointId, error: SafekeeperError) -> None:
        log_safely(_log.warning, "%s: not recovered, its events fail: %s", id, error)
