"""What a worker does with what waits in the storage queue: one batch, one write, and everybody is told.

    entries -> refuse what somebody else has taken (guards) -> one batch -> Backend.write -> settle
                                                 Unavailable:  put back, and again with what has come meanwhile

A thread that waits for its save does the worker's part itself where it can (`BatchWriter.write_for`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, current_thread, main_thread
from typing import TypeAlias

from safekeeper import large
from safekeeper.backend import Backend, Batch, CheckpointId, Receipt, Scope, SupportsSomeAtomicBatches
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.completions import Completions
from safekeeper.keeper.guards import Guard, Guards
from safekeeper.keeper.stage import Stage
from safekeeper.keeper.ticket import Entry, Outcome, Tray
from safekeeper.large import fits

_PATIENT = 60.0  # seconds: whoever set no shorter deadline may wait for the disk itself

Again: TypeAlias = Callable[[list[Entry], Unavailable], list[Entry]]
"""What is done with entries that the store could not take now; what to write next."""


class BatchWriter:
    """Writes what a keeper's storage queue has: the work of that stage."""

    def __init__(self, backend: Backend, completions: Completions, backoff: Backoff) -> None:
        self._backend = backend
        self._apart_together = isinstance(backend, SupportsSomeAtomicBatches)
        """Whether what is saved together goes in a batch of its own."""
        self._is_near = backend.scope < Scope.NETWORK
        self._backoff = backoff
        self._completions = completions
        self._lock = completions.lock
        self._metrics = completions.metrics
        self.guards = Guards()
        self.in_parts: set[CheckpointId] = set()
        """The ids whose values in the store are in parts, as far as this keeper knows."""
        self.stage: Stage
        """The stage whose work this is."""
        self._failures = 0  # writes in a row that found the store unavailable
        self._stopped = False
        self._stopping = Condition(self._lock)

    def stop(self) -> None:
        """Do not wait before the next try any more. With the lock held."""
        self._stopped = True
        self._stopping.notify_all()

    def store(self, entries: list[Entry]) -> None:
        """Write *entries*, of different ids, and whatever comes while the store cannot take them. In a worker."""
        while entries:
            entries = self._write(entries, self._try_again)
            self._completions.report()

    def write_for(self, entry: Entry) -> None:
        """Let this thread, which waits for *entry*, write it, if it is all there is: that saves two changes of threads.

        Nothing else is different: there is one writer at a time, and what comes meanwhile is the worker's. But a thread
        that writes does not come back before the store does. So it is done only if nobody has asked for less patience,
        and the store is of this host; and not in the main thread, where a signal may interrupt a write.
        """
        if type(entry) is not Tray or entry.patience < _PATIENT or not self._is_near:
            return
        if current_thread() is main_thread() or self._completions.in_callback:
            return
        with self._lock:
            self._completions.check()
            if not self.stage.lend(entry):
                return
        try:
            self._write([entry], self._leave_to_worker)
        finally:
            with self._lock:
                taken = self.stage.queue.taken
                if left := [one for one in (entry.moved or {entry.id: entry}).values() if one in taken]:
                    self._put_back(left)  # another thread has raised something in this one: the worker does it again
                self.stage.take_back()
                self._completions.let_watch_report()  # no callback here: this thread may hold what it waits for

    def _write(self, entries: list[Entry], again: Again) -> list[Entry]:
        """Write *entries* as one batch, but for those in parts; what to write next. The caller reports."""
        if self.guards and not (entries := self._refuse(entries)):
            return []
        if self.in_parts and not (entries := [one for entry in entries for one in self._without_parts(entry)]):
            return []
        if len(entries) > 1 and len(now := self._in_one_batch(entries)) < len(entries):
            return self._write(now, again) + [entry for entry in entries if entry not in now]
        started = time.monotonic()
        nbytes = 0
        outcome: Outcome
        guards = self.guards.of([entry.id for entry in entries]) if self.guards else set[Guard]()
        ids = [id for entry in entries for id in entry.ids] if guards else []
        try:
            for entry in entries:
                entry.taken = entry.taken or started
            for guard in guards:
                guard.unsure.update(ids)
            if len(entries) == 1 and self._goes_in_parts(entries[0]):
                outcome, nbytes = self._write_in_parts(entries[0])
            else:
                nbytes = sum([entry.size for entry in entries])
                outcome = self._backend.write(Batch.of_different(_operations(entries), nbytes))
            if not isinstance(outcome, Receipt):
                raise TypeError(f"it returned {outcome!r} instead of a Receipt")
            for guard in guards:  # not before the write has returned
                guard.unsure.difference_update(ids)
                guard.check()
        except Unavailable as error:
            return again(entries, error)
        except BaseException as error:
            outcome = as_outcome(error, "the backend")
        with self._lock:
            self._completions.check()
            self._count_batch(nbytes, outcome, time.monotonic() - started)
            for entry in entries:
                self._metrics.storage_wait.record(started - entry.since, entry.saves)
                if type(entry) is Tray:
                    self._metrics.serialize.record_all(entry.times)
            stored = [entry for entry in entries if not self._fail_if_lost(entry, guards)] if guards else entries
            if isinstance(outcome, Receipt):
                self._completions.store_all(stored, outcome)
            else:
                for entry in stored:
                    entry.value = None
                    self._completions.fail(entry, outcome)
            self.stage.queue.release_all(entries)
        return []

    def _refuse(self, entries: list[Entry]) -> list[Entry]:
        """Complete those of *entries* whose groups somebody else has taken; the others."""
        lost = {guard for guard in self.guards.of(entry.id for entry in entries) if guard.lost is not None}
        if not lost:
            return entries
        with self._lock:
            self._completions.check()
            refused = {entry for entry in entries if self._fail_if_lost(entry, lost)}
            refused |= {entry for entry in entries if entry.together and not refused.isdisjoint(entry.members)}
            self.stage.queue.release_all(list(refused))
            self._completions.let_watch_report()  # not after the write of the others, which may take long
        return [entry for entry in entries if entry not in refused]

    def _fail_if_lost(self, entry: Entry, guards: Iterable[Guard]) -> bool:
        """With the lock held: let *entry* fail if one of *guards* over it has lost; whether that is so."""
        for guard in guards:
            if guard.lost is not None and entry.id.group in guard.groups:
                entry.value = None
                self._completions.fail(entry, guard.lost)
                return True
        return False

    def _in_one_batch(self, entries: list[Entry]) -> list[Entry]:
        """Those of *entries* that may be written together first."""
        if self._apart_together and (first := next((entry for entry in entries if entry.together), None)):
            return [entry for entry in entries if entry.together is first.together]
        if apart := self._apart(entries):
            return [entry for entry in entries if entry not in apart] or apart[:1]
        return entries

    def _without_parts(self, entry: Entry) -> Sequence[Entry]:
        """*entry*; if it is a tray and takes the place of something in parts, its saves, since that goes alone; nothing
        if such a tray was given up meanwhile."""
        if type(entry) is not Tray or self.in_parts.isdisjoint(entry.values):
            return (entry,)
        with self._lock:
            self._completions.check()
            if entry.outcome is not None:
                self.stage.queue.release(entry)
                return ()
            entries = self.stage.queue.take_apart(entry)
            self._completions.take_apart(entry, entries)
        return entries

    def _apart(self, entries: list[Entry]) -> list[Entry]:
        """Those of *entries* that go in parts."""
        if self.in_parts:
            return [entry for entry in entries if self._goes_in_parts(entry)]
        return [entry for entry in entries if (value := entry.value) is not None and not fits(value)]

    def _goes_in_parts(self, entry: Entry) -> bool:
        """Whether *entry* is larger than one value, or takes the place of one that was."""
        if entry.together is not None:
            return False
        if self.in_parts and entry.id in self.in_parts:
            return True
        return entry.value is not None and not fits(entry.value)

    def _write_in_parts(self, entry: Entry) -> tuple[Receipt, int]:
        """Write *entry* alone; what the store says, and how many bytes that were."""
        if entry.value is None:
            receipt = large.delete(self._backend, entry.id)
            self.in_parts.discard(entry.id)
            return receipt, 0
        if entry.in_parts is None:
            entry.in_parts = large.LargeWrite(self._backend, entry.id, on_part=entry.get_on)
        receipt = entry.in_parts.write(entry.value)
        if fits(entry.value):
            self.in_parts.discard(entry.id)
        else:
            self.in_parts.add(entry.id)
        return receipt, len(entry.value)

    def _count_batch(self, nbytes: int, outcome: Outcome, seconds: float) -> None:
        self._metrics.store.record(seconds)
        if not isinstance(outcome, Receipt):
            return
        self.stage.last_progress = time.monotonic()
        self._metrics.sync.record(outcome.sync_seconds)
        self._metrics.batches += 1
        self._metrics.bytes_written += nbytes
        if self._failures:
            self._completions.notices.note("the store answers again, after %d failed tries", self._failures)
            self._failures, self._completions.trouble = 0, None

    def _try_again(self, entries: list[Entry], error: Unavailable) -> list[Entry]:
        """Wait a while; then *entries*, together with what has come meanwhile."""
        self._note_failure(error)
        self._completions.report()
        with self._lock:
            if not self._stopped:
                self._stopping.wait(self._backoff.delay(self._failures or 1))
            self._put_back(entries)
            # Under the same lock: a newcomer would find the queue overfull, and drop what was in hand.
            return self.stage.take()

    def _leave_to_worker(self, entries: list[Entry], error: Unavailable) -> list[Entry]:
        """Nothing: the worker tries again, and has the patience for it."""
        self._note_failure(error)
        with self._lock:
            self._put_back(entries)
        return []

    def _note_failure(self, error: Unavailable) -> None:
        with self._lock:
            self._failures += 1
            self._completions.trouble = error
            self._metrics.retries += 1
            self._completions.notices.note("the store does not answer, saves wait until their deadlines: %s", error)

    def _put_back(self, entries: list[Entry]) -> None:
        """Let *entries* wait again, but for those that have completed meanwhile. With the lock held."""
        self._completions.check()
        for entry in reversed(entries):
            if entry.outcome is None:
                self.stage.queue.put_back(entry)
            else:
                entry.drop_state()
                self.stage.queue.release(entry)


def _operations(entries: list[Entry]) -> dict[CheckpointId, bytes | None]:
    """What *entries* write."""
    if len(entries) == 1 and type(entries[0]) is Tray:
        return {**entries[0].values}
    operations: dict[CheckpointId, bytes | None] = {}
    for entry in entries:
        if type(entry) is Tray:
            operations.update(entry.values)
        else:
            operations[entry.id] = entry.value
    return operations


def as_outcome(error: BaseException, who: str) -> SafekeeperError:
    """What a save completes with when *who* raised *error*."""
    if isinstance(error, SafekeeperError):
        return error
    try:
        reason = repr(error)
    except Exception:
        reason = f"{type(error).__name__}, which cannot be shown"
    outcome = SafekeeperError(f"{who} failed: {reason}")
    outcome.__cause__ = error
    return outcome
