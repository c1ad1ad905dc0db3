"""The register of everything that is under way in a keeper. Each entry leaves it once: that is its completion.

An entry is settled under the keeper's lock by whoever comes first: the worker that wrote it, the newcomer that pushed
it out of a full queue, the watch over deadlines, close, or the child of a fork. Callbacks and log lines come after the
lock was given back, in `report`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from threading import TIMEOUT_MAX, Condition, Lock, Thread, current_thread, main_thread
from typing import Literal, TypeAlias, get_args

from safekeeper.backend import CheckpointId, Receipt
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.keeper.interrupts import Waiter, join, start_thread, wake
from safekeeper.keeper.metrics import Metrics
from safekeeper.keeper.notices import Notices, log_safely
from safekeeper.keeper.ticket import Callback, Entry, Outcome, Ticket, Tray

_log = logging.getLogger("safekeeper")

Fate: TypeAlias = Literal["stored", "superseded", "dropped", "rejected", "expired", "failed", "closed"]
"""The seven ways to complete, as `Metrics` names them."""

_FINEST_LOOK = 0.01  # seconds: deadlines that are closer together are looked at together


class Completions:
    """What is under way. Methods that say so are called with `lock` held, the others without."""

    def __init__(
        self,
        last_progress: Callable[[Entry], float],
        mend: Callable[[], None],
        write_for: Callable[[Entry], None],
        hurry: Callable[[], None],
    ) -> None:
        self._last_progress = last_progress
        self._mend = mend
        self.write_for = write_for
        """Let the thread that waits for an entry write it, where that can be."""
        self.hurry = hurry
        """Somebody waits and does not write himself. With the lock held."""
        self.torn = False
        """Whether an interrupt came in the middle of a change. Set before the lock is given back."""
        self.counts: dict[Fate, int] = dict.fromkeys(get_args(Fate), 0)
        """How many have completed in which way."""
        self.lock = Lock()
        """The one lock of a keeper. It is not held while a serializer, a backend, a callback or a log handler runs."""
        self.metrics = Metrics()
        self.notices = Notices()
        self.trouble: Unavailable | None = None
        """What the store said last, while it does not answer."""
        self._open: set[Entry] = set()
        self._emptied: list[Waiter] = []  # who waits until nothing is under way
        self.heard: deque[Ticket] = deque()
        """They have completed, and their callbacks are still to be called."""
        self._own = threading.local()
        self._watcher: Thread | None = None
        self._watch = Condition(self.lock)
        self._next_look = inf

    def __len__(self) -> int:
        """How many saves are under way, without those that are superseded."""
        return sum([entry.saves for entry in list(self._open)])

    def open(self, entry: Entry, callback: Callback | None) -> Ticket:
        """Begin with *entry*. With the lock held."""
        metrics = self.metrics
        if entry.serializing:
            metrics.serialize.record(entry.serializing)
        entry.newest = metrics.saves + 1
        ticket = Ticket(self, entry, entry.id, entry.newest, callback)
        if callback is not None:
            entry.listeners = [ticket]
        metrics.saves += 1
        self._open.add(entry)  # together with the line before: no interrupt comes between them
        if entry.deadline < self._next_look:
            self._look_at(entry.deadline)
        return ticket

    def open_quietly(self, entry: Entry) -> None:
        """As `open`, without a ticket. With the lock held."""
        if entry.serializing:
            self.metrics.serialize.record(entry.serializing)
        entry.newest = self.metrics.saves + 1
        self.metrics.saves += entry.saves
        self._open.add(entry)  # together with the line before: no interrupt comes between them
        if entry.deadline < self._next_look:
            self._look_at(entry.deadline)

    def take_apart(self, tray: Entry, entries: list[Entry]) -> None:
        """*entries* are in the place of *tray* from now on. With the lock held."""
        self._open.update(entries)
        self._open.discard(tray)
        if type(tray) is Tray:
            times, tray.times = tray.times, []
            self.metrics.serialize.record_all(times)

    def supersede(self, entry: Entry) -> None:
        """Another entry answers for *entry* from now on. With the lock held."""
        entry.drop_state()
        if entry.waiters is not None:
            entry.wake()
        self.counts["superseded"] += 1
        self._open.discard(entry)  # together with the line before

    def store_all(self, entries: Sequence[Entry], receipt: Receipt) -> None:
        """As `settle` for each of *entries* that has no outcome yet; a worker has them all in hand, and no interrupt
        reaches it. With the lock held; the caller reports."""
        stored = 0
        for entry in entries:
            entry.value = None
            if entry.outcome is None:
                entry.outcome, entry.fate = receipt, "stored"
                stored += entry.saves
                if entry.listeners is not None:
                    self.heard += entry.listeners
                    entry.listeners = None
                if entry.waiters is not None:
                    entry.wake()
        self.counts["stored"] += stored
        self._open.difference_update(entries)
        if not self._open:
            wake(self._emptied)

    def settle(self, entry: Entry, outcome: Outcome, fate: Fate) -> None:
        """Complete *entry*, which has no outcome yet. With the lock held; the caller reports."""
        entry.outcome, entry.fate = outcome, fate
        self._finish(entry)
        if entry.together is not None:
            self._settle_rest(entry)

    def _settle_rest(self, entry: Entry) -> None:
        """What is saved together with *entry* has its outcome."""
        assert entry.together is not None
        for member in entry.together.members:
            if member.outcome is None and member in self._open:
                member.outcome, member.fate = entry.outcome, entry.fate
                self._finish(member)

    def _finish(self, entry: Entry) -> None:
        """What has to follow when *entry* has got its outcome; from any step on it can be done again."""
        assert entry.fate is not None
        if entry.queue is not None:
            entry.drop_state()
            entry.queue.remove(entry)
        if entry.listeners is not None:
            self.heard += entry.listeners
            entry.listeners = None
        if entry.waiters is not None:
            entry.wake()
        self.counts[entry.fate] += entry.saves
        self._open.discard(entry)  # together with the line before
        if not self._open:
            wake(self._emptied)

    def check(self) -> None:
        """Mend what an interrupt has left half done. First of all when the lock was taken."""
        if self.torn:
            self._mend()

    def mend(self) -> None:
        """Complete what has an outcome or an heir, and what nobody will put on a queue any more. With the lock held,
        after the queues."""
        for entry in list(self._open):
            if entry.moved is not None:
                self.take_apart(entry, list(entry.moved.values()))
            if entry not in self._open:  # finished together with another
                continue
            if entry.together is not None and entry.outcome is None:
                done = next((member for member in entry.together.members if member.outcome is not None), entry)
                entry.outcome, entry.fate = done.outcome, done.fate
            if entry.outcome is not None:
                self._finish(entry)
            elif entry.heir is not None:
                self.supersede(entry)
            elif entry.abandoned and not entry.entered:
                self.fail(entry, Unavailable(f"{entry}: its save was interrupted"))
        if not self._open:
            wake(self._emptied)
        if self._watcher is not None and self._watcher.ident is None:
            self._watcher = None
        self._look_at(time.monotonic())

    def fail(self, entry: Entry, error: SafekeeperError) -> None:
        """Complete *entry* with *error* unless it has completed. With the lock held."""
        if entry.outcome is None:
            self.notices.note("%s: not stored: %s", entry, error)
            self.settle(entry, error, "failed")

    def abandon(self, error: SafekeeperError) -> int:
        """Complete everything with *error*; how much that was. With the lock held."""
        left = len(self)
        for entry in list(self._open):
            if entry.outcome is None:
                self.settle(entry, error, "closed")
        return left

    def abandon_in_child(self, error: SafekeeperError) -> None:
        """As `abandon`, in the child of a fork, where nobody calls back and nobody watches."""
        self._watcher = None
        for entry in self._open:
            entry.listeners = None
        self.abandon(error)
        self.heard.clear()

    def wait_until_empty(self, until: float) -> None:
        """Wait until nothing is under way or the time has come."""
        while (remaining := until - time.monotonic()) > 0:
            with self.lock:
                self.check()
                if not self._open:
                    return
                waiter = join(self._emptied)
            waiter.acquire(timeout=min(remaining, TIMEOUT_MAX))

    def entries(self) -> list[Entry]:
        """What is under way now."""
        with self.lock:
            self.check()
            return list(self._open)

    # Callbacks

    def report(self) -> None:
        """Log and call back what has come up; after anything that may have settled an entry."""
        if self.torn:
            with self.lock:
                self.check()
        if self.notices.lines and not self._leave_logging_to_watch():
            with self.lock:
                lines = self.notices.take()
            for line, error in lines:
                if error is None:
                    log_safely(_log.warning, "%s", line)
                else:
                    log_safely(_log.error, "%s", line, exc_info=error)
        if self.heard and not self.in_callback:
            self._call_back()

    def let_watch_report(self) -> None:
        """Let another thread do what `report` would do here. With the lock held."""
        if self.heard or self.notices.lines:
            self._look_at(time.monotonic())

    def _leave_logging_to_watch(self) -> bool:
        """Whether the watch logs what is to be logged, because this thread may be interrupted: a handler of `logging`
        would keep its lock, and everybody who logs would hang."""
        if current_thread() is not main_thread():
            return False
        with self.lock:
            try:
                self._look_at(time.monotonic())
            except BaseException:
                self.torn = True
                raise
            return self._watcher is not None

    def _call_back(self) -> None:
        self._own.in_callback = True
        try:
            for _ in range(len(self.heard)):
                with self.lock:
                    ticket = self.heard[0] if self.heard else None
                if ticket is None:
                    break
                self._tell(ticket)  # it calls back once, if another thread has come here, too
                with self.lock:
                    # Not before: after an interrupt it is still there.
                    if self.heard and self.heard[0] is ticket:
                        self.heard.popleft()
        finally:
            self._own.in_callback = False
            with self.lock:
                # Who is left after Ctrl-C, and whoever completed at once because a callback saved, is told by the
                # watch: here it might never end.
                try:
                    if self.heard:
                        self._look_at(time.monotonic())
                except BaseException:
                    self.torn = True
                    raise

    def _tell(self, ticket: Ticket) -> None:
        try:
            ticket.call_back()
        except BaseException as error:
            # Ctrl-C comes to the main thread. Raised anywhere else it would end one of ours.
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            with self.lock:
                self.metrics.callback_errors += 1
                self.notices.lines.append((f"{ticket.id}: the callback of a save raised", error))
            self.report()

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
            try:
                self.check()
                if ticket.late is None and ticket.carrier.outcome is None and self.is_late(ticket, ticket.carrier):
                    self._expire_ticket(ticket)
            except BaseException:
                self.torn = True
                raise
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
        error = self._too_late(entry)
        self.notices.note("%s", error)
        self.settle(entry, error, "expired")

    def _expire_ticket(self, ticket: Ticket) -> None:
        entry = ticket.carrier
        if not ticket.superseded:
            self.expire_entry(entry)
            return
        ticket.late = self._too_late(ticket.id)
        if entry.listeners is not None and ticket in entry.listeners:
            entry.listeners.remove(ticket)
            self.heard.append(ticket)

    def _too_late(self, what: Entry | CheckpointId) -> Unavailable:
        reason = f"the store does not answer: {self.trouble}" if self.trouble else "nothing was stored in that time"
        error = Unavailable(f"{what}: not stored within its deadline: {reason}")
        error.__cause__ = self.trouble
        return error

    def stop_watch(self) -> Thread | None:
        """Nothing is left to watch: let the thread end that did so. With the lock held."""
        if self._watcher is not None:
            self._look_at(time.monotonic())
        self._watch.notify_all()
        return self._watcher

    def _look_at(self, when: float) -> None:
        """Let the watch look at the deadlines at that time."""
        self._next_look = when
        if self._watcher is not None:
            self._watch.notify_all()
            return
        self._watcher = Thread(target=self._keep_watch, name="safekeeper-watch", daemon=True)
        try:
            start_thread(self._watcher)
        except RuntimeError:  # tickets still expire when somebody looks at them
            self._watcher, self._next_look = None, inf

    def _keep_watch(self) -> None:
        """Complete what is too late, until there is nothing to watch."""
        watching = True
        while watching:
            with self.lock:
                if self._next_look < inf:  # else there is nothing to watch any more, and nobody would notify
                    self._watch.wait(min(max(self._next_look - time.monotonic(), _FINEST_LOOK), TIMEOUT_MAX))
                self.check()
                if self._next_look <= time.monotonic():
                    self._next_look = self._look()
                if self._next_look == inf:
                    watching = False
                    if self._watcher is current_thread():
                        self._watcher = None
                    self._watch.notify_all()  # after an interrupt there may be two
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
            if entry.outcome is not None:  # together with another
                continue
            if self.is_late(entry, entry):
                self.expire_entry(entry)
            else:
                soonest = min(soonest, entry.deadline)
        return soonest
