"""The machinery of a keeper: two queues and their workers.

submit -> [serialization queue] -> encode -> [storage queue] -> one batch -> settle
      \\__________ has its bytes already ___________/
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from threading import TIMEOUT_MAX, Lock, Thread
from typing import Any

from safekeeper.backend import (
    MAX_VALUE_BYTES,
    Backend,
    CheckpointId,
    Receipt,
    SupportsProgress,
)
from safekeeper.errors import Closed, SafekeeperError, Unavailable
from safekeeper.keeper import lifetime
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.completions import Completions
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.metrics import Metrics
from safekeeper.keeper.overflow import Entrance, Overflow
from safekeeper.keeper.stage import Stage
from safekeeper.keeper.ticket import Callback, Entry, Outcome, Ticket, Tray
from safekeeper.keeper.writing import BatchWriter, as_outcome

_GRACE = 1.0  # seconds for idle threads to end at close
_GUEST_LEAVES = 0.001  # seconds between two looks whether a thread that wrote for itself has left


class Pipeline:
    """What is behind `SafeKeeper.save`; the settings are explained there."""

    def __init__(
        self,
        backend: Backend,
        encode: Callable[[Any, Callable[[], object]], bytes],
        *,
        closes_backend: bool,
        overflow: Overflow,
        serialization_queue: Bounds,
        storage_queue: Bounds,
        serialization_workers: int,
        storage_workers: int,
        keep_alive: float,
        lock_timeout: float,
        close_deadline: float,
        backoff: Backoff,
    ) -> None:
        self._backend = backend
        self._encode = encode
        self._closes_backend = closes_backend
        self._lock_timeout = lock_timeout
        self._close_deadline = close_deadline
        self.completions = Completions(self._last_progress, self._mend, self._write_for, self._hurry)
        self._entrance = Entrance(self.completions, overflow)
        self.lock = lock = self.completions.lock
        self.metrics = self.completions.metrics
        self._writer = BatchWriter(backend, self.completions, backoff)
        self.guards, self.in_parts = self._writer.guards, self._writer.in_parts
        self.storage = Stage(
            *("store", lock, storage_queue, self._writer.store, storage_workers, storage_queue.count, keep_alive),
            check=self.completions.check,
        )
        self._writer.stage = self.storage
        self.serialization = Stage(
            *("serialize", lock, serialization_queue, self._serialize, serialization_workers, 1, keep_alive),
            check=self.completions.check,
            then=self.storage,
        )
        self._closed: str | None = None  # why nothing is accepted any more
        lifetime.register(self)

    # In

    def submit_together(self, leader: Entry, callback: Callback | None) -> Ticket:
        """Send *leader*, and what is saved together with it, on its way, as `submit` does."""
        try:
            ticket = self.begin(leader, callback)
            self.enter(leader, wait=True)
        except BaseException:
            self.abandon(leader.members)
            raise
        finally:
            self.completions.report()
        return ticket

    def join(self, id: CheckpointId, value: bytes, begun: float, now: float, patience: float) -> Ticket | None:
        """Save *value*, which was serialized from *begun* to *now*, in a tray. None, and nothing has happened, if it
        has to travel alone. It never waits."""
        # It is on the way of nearly every save: what is mostly not needed is not called.
        completions, storage = self.completions, self.storage
        queue = storage.queue
        tray: Tray | None = None
        with self.lock:
            try:
                if completions.torn:
                    completions.check()
                if self._closed is not None:
                    self.check_open()
                serializing, in_parts = self.serialization.queue.lanes, self.in_parts  # mostly there is nothing
                if (serializing and id in serializing) or (in_parts and id in in_parts):
                    return None
                if queue.line or len(value) > MAX_VALUE_BYTES:
                    return None
                tray = queue.join(id, value, now, completions, self._entrance.coalesces)
                if tray is None:
                    tray = Tray(id, now, patience)
                    tray.fill({id: value}, len(id.key) + len(value))
                    if not self._push_tray(tray, leave=storage.looks):
                        return None
                    queue.trays[id.group] = tray
                elif storage.looks:  # several are saved before anybody waits
                    storage.wake()
                tray.times.append(now - begun)
                number = tray.newest_of(id) if tray.newer else tray.newest
            except BaseException:  # before the lock is given back
                self.abandon(() if tray is None else (tray,))
                raise
        return Ticket(completions, tray, id, number)

    def submit_tray(self, tray: Tray) -> list[Entry]:
        """Send *tray* on its way, if need be as an entry for each of its saves: wait for room
        as `submit` does. What was sent."""
        try:
            with self.lock:
                try:
                    self.completions.check()
                    self.check_open()
                    serializing = self.serialization.queue.lanes.keys()
                    free = self.in_parts.isdisjoint(tray.values) and serializing.isdisjoint(tray.values)
                    if free and tray.size <= MAX_VALUE_BYTES and not self.storage.queue.line and self._push_tray(tray):
                        return [tray]
                except BaseException:  # before the lock is given back
                    self.abandon((tray,))
                    raise
            entries = list(tray.singly().values())
            self.submit_all(entries)
            return entries
        finally:
            self.completions.report()

    def _push_tray(self, tray: Tray, *, leave: bool = False) -> bool:
        """Begin with *tray* and put it on the storage queue, if that is free for it; whether it was. *leave* it to
        whoever waits for it, and wakes the worker if need be. With the lock held."""
        if not self.storage.queue.is_free_for(tray):
            return False
        self.completions.open_quietly(tray)
        self.storage.queue.push_tray(tray)
        if not leave:
            self._entrance.wake(self.storage, (tray,))
        return True

    def submit(self, entry: Entry, callback: Callback | None) -> Ticket:
        """Send *entry* on its way; wait for room if the overflow policy says so."""
        # It is on the way of every save: what is mostly not needed is not called.
        completions = self.completions
        waiter = None
        try:
            with self.lock:
                try:
                    if completions.torn:
                        completions.check()
                    if self._closed is not None:
                        self.check_open()
                    ticket = completions.open(entry, callback)
                    if entry.refused is not None:
                        completions.fail(entry, entry.refused)
                    stage = self._first_stage(entry)
                    if not self._entrance.enter(stage, entry):
                        waiter = self._entrance.stand_in_line(stage.queue, entry)
                except BaseException:  # before the lock is given back
                    entry.abandoned = completions.torn = True
                    raise
            if waiter is not None:
                self._wait_for_room(stage, entry, waiter)
        except BaseException:
            entry.abandoned = completions.torn = True
            raise
        finally:
            if completions.torn or completions.heard or completions.notices.lines:
                completions.report()
        return ticket

    def submit_all(self, entries: list[Entry], callback: Callback | None = None) -> None:
        """Send all of *entries* on their way; wait for room as `submit` does. Only *callback* gets their tickets."""
        if callback is not None:
            for entry in entries:
                self.submit(entry, callback)
            return
        begun = 0
        try:
            while begun < len(entries):
                waiter = None
                with self.lock:
                    try:
                        self.completions.check()
                        self.check_open()
                        begun = self._enter_freely(entries, begun)
                        entry = entries[begun - 1]
                        if not entry.entered:  # it has begun, and could not simply enter
                            if entry.refused is not None:
                                self.completions.fail(entry, entry.refused)
                            stage = self._first_stage(entry)
                            waiter = self._enter(stage, entry)
                    except BaseException:  # before the lock is given back
                        self.abandon(entries)
                        raise
                if waiter is not None:
                    self._wait_for_room(stage, entry, waiter)
        except BaseException:
            self.abandon(entries)
            raise
        finally:
            self.completions.report()

    def _enter_freely(self, entries: list[Entry], begun: int) -> int:
        """Begin with *entries*, from number *begun* on, and let them in, up to the first that cannot simply enter; how
        many have begun then. With the lock held."""
        queue, start = self.storage.queue, begun
        simply = not self.serialization.queue.lanes and not queue.line
        for entry in entries[start:]:
            self.completions.open_quietly(entry)
            begun += 1
            if not (simply and entry.encoded and entry.refused is None and queue.push_if_free(entry)):
                break
        if entered := [entry for entry in entries[start:begun] if entry.entered]:
            self._entrance.wake(self.storage, entered)
        return begun

    def abandon(self, entries: Iterable[Entry]) -> None:
        """The caller was interrupted: what has not entered will not enter any more."""
        for entry in entries:
            entry.abandoned = True
        self.completions.torn = True

    def _being_serialized(self, entries: Sequence[Entry]) -> Ticket | None:
        """A ticket of an earlier save of one of these ids that has no bytes yet. With the lock held."""
        lanes = self.serialization.queue.lanes
        earlier = next((lanes[entry.id] for entry in entries if entry.id in lanes), None) if lanes else None
        return None if earlier is None else Ticket(self.completions, earlier, earlier.id, earlier.newest)

    def begin(self, entry: Entry, callback: Callback | None) -> Ticket:
        """Count *entry* as under way, with its deadline. It goes no further before `enter`; `report` afterwards."""
        with self.lock:
            try:
                return self._begin(entry, callback)
            except BaseException:
                self.abandon(entry.members)
                raise

    def enter(self, entry: Entry, *, wait: bool) -> bool:
        """Put *entry*, with which we have begun, on its queue. False, and nothing has happened, if it would have to
        wait and may not. `report` afterwards."""
        while True:
            with self.lock:
                try:
                    self.completions.check()
                    earlier = self._being_serialized(entry.members) if entry.together is not None else None
                    if earlier is None:
                        stage = self._first_stage(entry)
                        if not wait:
                            return self._entrance.enter(stage, entry)
                        waiter = self._enter(stage, entry)
                except BaseException:
                    self.abandon(entry.members)
                    raise
            if earlier is None:
                break
            if not wait:
                return False
            earlier.outcome()
        if waiter is not None:
            self._wait_for_room(stage, entry, waiter)
        return True

    def _begin(self, entry: Entry, callback: Callback | None) -> Ticket:
        if self.completions.torn:
            self.completions.check()
        if self._closed is not None:
            self.check_open()
        ticket = self.completions.open(entry, callback)
        if entry.together is not None:
            for member in entry.members[1:]:
                self.completions.open(member, entry.together.callback)
        if entry.refused is not None:
            self.completions.fail(entry, entry.refused)
        return ticket

    def _enter(self, stage: Stage, entry: Entry, *, accepted: bool = False) -> Lock | None:
        """Put *entry* on the queue of *stage*. If there is no room it stands in line: what to wait for."""
        if self._entrance.enter(stage, entry, accepted=accepted):
            return None
        return self._entrance.stand_in_line(stage.queue, entry)

    def _wait_for_room(self, stage: Stage, entry: Entry, waiter: Lock | None, *, accepted: bool = False) -> None:
        """Put *entry*, which stands in line, on the queue of *stage* as soon as there is room."""
        while waiter is not None:
            waiter.acquire(timeout=min(max(entry.deadline - time.monotonic(), 0.0), TIMEOUT_MAX))
            with self.lock:
                try:
                    self.completions.check()
                    if entry not in stage.queue.line:  # somebody let it in, or it has completed
                        return
                    if entry.outcome is None and self.completions.is_late(entry, entry):
                        self.completions.expire_entry(entry)
                    waiter = self._enter(stage, entry, accepted=accepted)
                except BaseException:
                    entry.abandoned = self.completions.torn = True
                    raise

    def _mend(self) -> None:
        """Finish or undo the change that an interrupt has left half done (see `interrupts`). With the lock held."""
        self.completions.torn = False  # not at the end: meanwhile another thread may find that it was interrupted
        stages = (self.serialization, self.storage)
        try:
            self.storage.queue.mend(self.serialization.queue)
            self.serialization.queue.mend()
            self.completions.mend()
            for stage in stages:
                stage.mend()
        except BaseException:
            self.completions.torn = True
            raise

    @property
    def is_closed(self) -> bool:
        """Whether nothing is accepted any more."""
        return self._closed is not None

    def check_open(self) -> None:
        """Raise `Closed` if nothing is accepted any more."""
        if self._closed is not None:
            raise Closed(self._closed)

    def _first_stage(self, entry: Entry) -> Stage:
        """Bytes go straight to the storage queue, unless an earlier save of the same id is still being serialized."""
        serializing = self.serialization.queue.lanes  # mostly there is nothing
        direct = entry.encoded and not (serializing and entry.id in serializing)
        return self.storage if direct else self.serialization

    def _last_progress(self, entry: Entry) -> float:
        """When what *entry* waits for last got on. With the lock held."""
        write = self._backend.last_progress if isinstance(self._backend, SupportsProgress) else -inf
        if entry.queue is None and entry.taken:  # a worker has it: that others get on does not help it
            return max(entry.taken, write) if entry.encoded else entry.taken
        if entry.preceding is not None and entry.preceding.outcome is not None:
            return -inf  # the one before it is stuck with a worker, and has been given up
        queue = entry.queue or self._first_stage(entry).queue
        if queue is self.storage.queue or self.storage.queue.line:  # in the second case the serializers wait, too
            return max(self.storage.last_progress, write)
        return self.serialization.last_progress

    # Through

    def _serialize(self, entries: list[Entry]) -> None:
        (entry,) = entries
        entry.taken = started = time.monotonic()
        failure: SafekeeperError | None = None
        value = entry.value
        if not entry.encoded:
            try:
                value = self._encoded(entry)
            except BaseException as error:
                failure = as_outcome(error, "the serializer")
        ended = time.monotonic()
        waiter = None
        with self.lock:
            self.completions.check()
            self.metrics.serialization_wait.record(started - entry.since)
            if not entry.encoded:
                self.metrics.serialize.record(ended - started)
            entry.drop_state()
            self.serialization.last_progress, entry.taken = ended, 0.0
            # It leaves when it is in the other queue: until then nothing else of its id may be serialized.
            entry.leaving = self.serialization.queue
            if failure is not None:
                self.completions.fail(entry, failure)
            else:
                entry.set_value(value)
                entry.since = ended
                waiter = self._enter(self.storage, entry, accepted=True)
            if waiter is None:
                self._leave_serialization(entry)
        if waiter is not None:
            self._wait_for_room(self.storage, entry, waiter, accepted=True)
            with self.lock:
                self.completions.check()
                self._leave_serialization(entry)
        self.completions.report()

    def _leave_serialization(self, entry: Entry) -> None:
        """Let the next of its id be serialized, unless *entry* has come into the next queue, which did so."""
        if entry.leaving is not None:
            entry.leaving = None
            self.serialization.queue.release(entry)

    def _encoded(self, entry: Entry) -> bytes:
        """The bytes of an entry's state, read while nobody can change it."""
        lock = entry.lock
        if lock is None:
            return self._encode(entry.state, entry.get_on)
        if not lock.acquire(timeout=self._lock_timeout):
            raise Unavailable(
                f"{entry.id}: its lock was not free for {self._lock_timeout} s: call save after giving the lock back,"
                " or without lock= while holding it"
            )
        try:
            return self._encode(entry.state, entry.get_on)
        finally:
            lock.release()

    # Looking, waiting and closing

    def measured(self) -> Metrics:
        """A copy of the numbers, with the present state of the queues."""
        with self.lock:
            self.completions.check()
            metrics = self.metrics.copy()
            metrics.pending = len(self.completions)
            for fate, count in self.completions.counts.items():
                setattr(metrics, fate, count)
            for name, queue in (("serialization", self.serialization.queue), ("storage", self.storage.queue)):
                setattr(metrics, f"{name}_queue_entries", queue.count)
                setattr(metrics, f"{name}_queue_bytes", queue.nbytes)
        return metrics

    def count_fetches(self, answered: int, seconds: float) -> None:
        """Count one read with so many answers; none if it failed."""
        with self.lock:
            self.metrics.fetches += answered
            self.metrics.failed_fetches += not answered
            self.metrics.fetch.record(seconds)

    def pending(self, id: CheckpointId) -> Ticket | None:
        """A ticket for the newest save of *id* that is under way; None if there is none."""
        if id not in self.serialization.queue and id not in self.storage.queue:
            return None
        with self.lock:
            self.completions.check()
            entry = self.serialization.queue.last(id) or self.storage.queue.last(id)
            return None if entry is None else Ticket(self.completions, entry, id, entry.newest_of(id))

    def outcome(self, entry: Entry, until: float = inf) -> Outcome:
        """Wait for the completion of *entry*, or of what has taken its place; how it was, or that of the first save
        of a tray that was not stored. Raise `TimeoutError` if that time comes first."""
        outcome = entry.outcome
        if outcome is None and entry.moved is None:
            ticket = Ticket(self.completions, entry, entry.id, entry.newest)
            outcome = ticket.outcome(None if until == inf else max(until - time.monotonic(), 0.0))
        for one in (entry.moved or {}).values():
            outcome = self.outcome(one, until)
            if not isinstance(outcome, Receipt):
                break
        assert outcome is not None
        return outcome

    def _write_for(self, entry: Entry) -> None:
        self._writer.write_for(entry)

    def _hurry(self) -> None:
        if self.storage.looks:
            self.storage.wake()

    def flush(self, timeout: float | None) -> None:
        """Wait until everything submitted before has completed."""
        self.completions.refuse_in_callback("flush")
        until = inf if timeout is None else time.monotonic() + timeout
        for entry in self.completions.entries():
            self.outcome(entry, until)

    def close(self, seconds: float | None = None) -> int:
        """Accept nothing more, wait for what is under way, and complete what is left after that time with `Closed`; how
        much that was."""
        self.completions.refuse_in_callback("close")
        until = time.monotonic() + (self._close_deadline if seconds is None else seconds)
        self._closed = self._closed or "this keeper was closed: open a new one"
        self.completions.wait_until_empty(until)
        with self.lock:
            self.completions.check()
            left = self.completions.abandon(Closed("the keeper was closed before the store had answered"))
            threads = self._stop()
        self.completions.report()
        until = time.monotonic() + _GRACE
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
        while self.storage.guest and time.monotonic() < until:  # it has told everybody, and is about to leave
            time.sleep(_GUEST_LEAVES)
        self._close_backend(threads)
        return left

    def _stop(self) -> list[Thread]:
        """Let all threads end; which ones these are. With the lock held."""
        threads = [*self.serialization.threads, *self.storage.threads]
        self._writer.stop()
        self.serialization.stop()
        self.storage.stop()
        watcher = self.completions.stop_watch()
        return [*threads, watcher] if watcher else threads

    def _close_backend(self, threads: list[Thread]) -> None:
        """Close the backend, if that is for us to do; while a thread is stuck in it, in the background."""

        def close_after_them() -> None:
            for thread in threads:
                thread.join()
            self.storage.wait_for_guest()
            self._backend.close()

        if not self._closes_backend:
            return
        if self.storage.guest or any(thread.is_alive() for thread in threads):
            with suppress(RuntimeError):  # at the end of the process Python may not start any: that closes it, too
                Thread(target=close_after_them, name="safekeeper-close", daemon=True).start()
        else:
            self._backend.close()

    # Forks and the end of the process (see lifetime)

    def before_fork(self) -> None:
        """Let no other thread be in the middle of a change."""
        self.lock.acquire()
        self.completions.check()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self.lock.release()

    def after_fork_in_child(self) -> None:
        """Complete everything with `Closed`. No callbacks: the saves are the parent's, and it will call them."""
        self._closed = f"this keeper belongs to process {os.getppid()}: open a new one after a fork"
        self.completions.abandon_in_child(Closed(self._closed))
        self.serialization.threads.clear()
        self.storage.threads.clear()
        self.storage.guest = False
        self._stop()
        self.lock.release()

    def at_exit(self) -> None:
        """Store what is queued."""
        if left := self.close():
            raise Unavailable(f"{left} saves were not stored")
