"""The elements of several inlets, each read by a thread of its own, a little ahead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Event as Signal
from threading import Semaphore, Thread

from safekeeper.errors import Closed, SafekeeperError, Unavailable
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.notices import log_safely
from safekeeper.streams.carrier import Inlet, StreamElement

_log = logging.getLogger("safekeeper")

_AHEAD = 2  # batches
_LOOK = 0.5  # seconds until a reader looks whether it is to end
_BACKOFF = Backoff()


class Feed:
    """Batches of elements from *inlets*. *news* is called, in other threads, when there is one, or an error."""

    def __init__(self, inlets: Mapping[str, Inlet], news: Callable[[], object]) -> None:
        self.inlets = inlets
        self.failure: SafekeeperError | None = None
        """Why an input gives nothing more."""
        self._news = news
        self._batches: dict[str, deque[Sequence[StreamElement]]] = {name: deque() for name in inlets}
        self._room = {name: Semaphore(_AHEAD) for name in inlets}
        self._arrivals: deque[str] = deque()
        self._ending = Signal()
        self._threads = [
            Thread(target=self._read, args=(name, inlet), name=f"safekeeper-input-{name}", daemon=True)
            for name, inlet in inlets.items()
        ]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def take(self, source: str | None = None) -> tuple[str, Sequence[StreamElement]] | None:
        """The next batch of *source*, or of the input whose batch has waited longest; None if there is none."""
        if source is None:
            if not self._arrivals:
                return None
            source = self._arrivals.popleft()
        elif source in self._arrivals:
            self._arrivals.remove(source)
        else:
            return None
        batch = self._batches[source].popleft()
        self._room[source].release()
        return source, batch

    def close(self) -> None:
        """End reading and close the inlets."""
        self._ending.set()
        for name, inlet in self.inlets.items():
            self._room[name].release()
            inlet.close()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _read(self, name: str, inlet: Inlet) -> None:
        failures = 0
        while self._room[name].acquire() and not self._ending.is_set():
            try:
                while not (batch := inlet.read(timeout=_LOOK)):
                    if self._ending.is_set():
                        return
            except Unavailable as error:
                failures += 1
                if failures == 1:
                    log_safely(_log.warning, "input %s does not answer, it is tried again: %s", name, error)
                self._room[name].release()
                self._ending.wait(_BACKOFF.delay(failures))
                continue
            except SafekeeperError as error:
                if not (isinstance(error, Closed) and self._ending.is_set()):
                    self._fail(name, error)
                return
            except Exception as error:
                self._fail(name, SafekeeperError(f"it raised {error!r}"))
                return
            failures = 0
            self._batches[name].append(batch)
            self._arrivals.append(name)
            self._news()

    def _fail(self, name: str, error: SafekeeperError) -> None:
        failure = type(error)(f"input {name}: {error}")
        failure.__cause__ = error
        self.failure = failure
        self._news()
