"""The register of everything that is under way in a keeper. Each entry leaves it once: that is its completion.

An entry is settled under the keeper's lock by whoever comes first: the worker that wrote it, the newcomer that pushed
it out of a full queue, the watch over deadlines, close, or the child of a fork. Callbacks and log lines come after the
lock was given back, in `report`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from math import inf
from threading import TIMEOUT_MAX, Condition, Lock, Thread

from safekeeper.backend import CheckpointId
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.keeper.metrics import Metrics
from safekeeper.keeper.notices import Notices, log_safely
from safekeeper.keeper.ticket import Callback, Entry, Outcome, Ticket

_log = logging.getLogger("safekeeper")

_FINEST_LOOK = 0.01  # seconds: deadlines that are closer together are looked at together


class Completions:
    """What is under way. Methods that say so are called with `lock` held, the others without."""

    def __init__(self, last_progress: Callable[[Entry], float]) -> None:
        self._last_progress = last_progress
        self.lock = Lock()
        """The one lock of a keeper. It is not held while a serializer, a backend, a callback or a log handler runs."""
        self.metrics = Metrics()
        self.notices = Notices()
        self.trouble: Unavailable | None = None
        """What the store said last, while it does not answer."""
        self._open: set[Entry] = set()
        self._empty = Condition(self.lock)
        self._heard: list[Ticket] = []  # they have completed and their callbacks are still to be called
        self._own = threading.local()
        self._watcher: Thread | None = None
        self._watch = Condition(self.lock)
        self._next_look = inf

    def __len__(self) -> int:
        """How many entries are under way."""
        return len(self._open)

    def open(self, entry: Entry, callback: Callback | None) -> Ticket:
        """Begin with *entry*. With the lock held."""
        self.metrics.saves += 1
        if entry.serializing:
            self.metrics.serialize.record(entry.serializing)
        entry.newest = self.metrics.saves
        ticket = Ticket(self, entry, callback)
        if callback is not None:
            entry.listeners = [ticket]
        self._open.add(entry)
        if entry.deadline < self._next_look:
            self._look_at(entry.deadline)
        return ticket

    def supersede(self, entry: Entry) -> None:
        """Another entry answers for *entry* from now on. With the lock held."""
        self.metrics.superseded += 1
        self._open.discard(entry)

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """Complete *entry*, which has no outcome yet. With the lock held; the caller counts it and reports."""
        entry.outcome = outcome
        self._open.discard(entry)
        if entry.queue is not None:
            entry.queue.remove(entry)
            entry.drop_state()
        if entry.listeners is not None:
            self._heard += entry.listeners
            entry.listeners = None
        if entry.waiters is not None:
            entry.wake()
        if not self._open:
            self._empty.notify_all()

    def fail(self, entry: Entry, error: SafekeeperError) -> None:
        """Complete *entry* with *error* unless it has completed. With the lock held."""
        if entry.outcome is None:
            self.metrics.failed += 1
            self.notices.note("%s: not stored: %s", entry.id, error)
            self.settle(entry, error)

    def abandon(self, error: SafekeeperError) -> int:
        """Complete everything with *error*; how much that was. With the lock held."""
        entries = list(self._open)
        self.metrics.closed += len(entries)
        for entry in entries:
            self.settle(entry, error)
        return len(entries)

    def abandon_in_child(self, error: SafekeeperError) -> None:
        """As `abandon`, in the child of a fork, where nobody calls back and nobody watches."""
        self._watcher = None
        for entry in self._open:
            entry.listeners = None
        self.abandon(error)
        self._heard.clear()

    def wait_until_empty(self, until: float) -> None:
        """Wait until nothing is under way or the time has come. With the lock held; it is given back meanwhile."""
        while self._open and (remaining := until - time.monotonic()) > 0:
            self._empty.wait(min(remaining, TIMEOUT_MAX))

    def tickets(self) -> list[Ticket]:
        """A ticket for each entry that is under way now."""
        with self.lock:
            return [Ticket(self, entry) for entry in self._open]

    # Callbacks

    def report(self) -> None:
        """Log and call back what has come up; after anything that may have settled an entry."""
        if self.notices.lines:
            with self.lock:
                lines = self.notices.take()
            for line in lines:
                log_safely(_log.warning, line)
        if self._heard and not self.in_callback:
            self._call_back()

    def _call_back(self) -> None:
        with self.lock:
            heard, self._heard = self._heard[::-1], []
        self._own.in_callback = True
        try:
            while heard:
                self._tell(heard.pop())
        finally:
            self._own.in_callback = False
            with self.lock:
                # Who is left after Ctrl-C, and whoever completed at once because a callback saved, is told by the
                # watch: here it might never end.
                self._heard += heard[::-1]
                if self._heard:
                    self._look_at(time.monotonic())

    def _tell(self, ticket: Ticket) -> None:
        try:
            ticket.call_back()
        except BaseException as error:
            # Ctrl-C comes to the main thread. Raised anywhere else it would end one of ours.
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            with self.lock:
                self.metrics.callback_errors += 1
            log_safely(_log.exception, "%s: the callback of a save raised", ticket.id)

    @property
    def in_callback(self) -> bool:
        """Whether this thread is running a callback."""
        return getattr(self._own, "in_callback", False)

    def refuse_in_callback(self, what: str) -> None:
        """Raise `RuntimeError` if this thread runs a callback: what it would wait for may be waiting for it."""
        if self.in_callback:
            raise RuntimeError(f"{what} in the callback of a save would wait for itself: do it in another thread")

    # Deadlines

    def expire(self, ticket: Ticket) -> None:
        """Complete *ticket*, whose deadline is over, unless it has completed or there was progress."""
        with self.lock:
            if ticket.late is None and ticket.carrier.outcome is None and self.is_late(ticket, ticket.carrier):
                self._expire_ticket(ticket)
        self.report()

    def is_late(self, waiting: Entry | Ticket, carrier: Entry) -> bool:
        """Whether the deadline of *waiting*, which *carrier* carries, is over. If there was progress it is put off:
        slow is not failed. With the lock held."""
        now = time.monotonic()
        if waiting.deadline <= now:
            waiting.deadline = max(waiting.deadline, self._last_progress(carrier) + waiting.patience)
        return waiting.deadline <= now

    def expire_entry(self, entry: Entry) -> None:
        """Complete *entry*, whose deadline is over. With the lock held."""
        self.metrics.expired += 1
        error = self._too_late(entry.id)
        self.notices.note("%s", error)
        self.settle(entry, error)

    def _expire_ticket(self, ticket: Ticket) -> None:
        entry = ticket.carrier
        if not ticket.superseded:
            self.expire_entry(entry)
            return
        ticket.late = self._too_late(entry.id)
        if entry.listeners is not None and ticket in entry.listeners:
            entry.listeners.remove(ticket)
            self._heard.append(ticket)

    def _too_late(self, id: CheckpointId) -> Unavailable:
        reason = f"the store does not answer: {self.trouble}" if self.trouble else "nothing was stored in that time"
        error = Unavailable(f"{id}: not stored within its deadline: {reason}")
        error.__cause__ = self.trouble
        return error

    def stop_watch(self) -> Thread | None:
        """Nothing is left to watch: let the thread end that did so. With the lock held."""
        if self._watcher is not None:
            self._look_at(time.monotonic())
        return self._watcher

    def _look_at(self, when: float) -> None:
        """Let the watch look at the deadlines at that time."""
        self._next_look = when
        if self._watcher is not None:
            self._watch.notify()
            return
        self._watcher = Thread(target=self._keep_watch, name="safekeeper-watch", daemon=True)
        try:
            self._watcher.start()
        except RuntimeError:  # tickets still expire when somebody looks at them
            self._watcher, self._next_look = None, inf

    def _keep_watch(self) -> None:
        """Complete what is too late, until there is nothing to watch."""
        watching = True
        while watching:
            with self.lock:
                self._watch.wait(min(max(self._next_look - time.monotonic(), _FINEST_LOOK), TIMEOUT_MAX))
                if self._next_look > time.monotonic():
                    continue
                self._next_look = self._look()
                if self._next_look == inf:
                    watching, self._watcher = False, None
            self.report()

    def _look(self) -> float:
        """Expire what is late; the time of the next deadline."""
        soonest = inf
        for entry in list(self._open):
            for ticket in list(entry.listeners or ()):
                if ticket.superseded and self.is_late(ticket, entry):
                    self._expire_ticket(ticket)
                elif ticket.superseded:
                    soonest = min(soonest, ticket.deadline)
            if self.is_late(entry, entry):
                self.expire_entry(entry)
            else:
                soonest = min(soonest, entry.deadline)
        return soonest
