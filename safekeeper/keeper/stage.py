"""A queue and the threads that empty it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf
from threading import TIMEOUT_MAX, Condition, Lock, Thread, current_thread
from time import monotonic

from safekeeper.keeper.interrupts import start_thread
from safekeeper.keeper.lanes import Bounds, LaneQueue
from safekeeper.keeper.ticket import Entry

_LENT_AGAIN = 1.0  # seconds for which one who was lent our work is expected to come again
_LOOK = 0.005  # seconds between two looks at the queue meanwhile: nobody need wake us for what is written without us


class Stage:
    """Threads that take entries from a queue and work on them: started when there is work and none is idle, and gone
    when there was none for *keep_alive* seconds. They are daemons: a store that never answers holds up nobody's exit.

    *work* gets at most *at_once* entries, all of different ids, and releases each of them in the queue. While anything
    is in this stage, the stage *then* keeps a thread for it: at the end of the process Python may not start any.
    *check* is called whenever a thread has taken the lock.
    """

    def __init__(
        self,
        name: str,
        lock: Lock,
        bounds: Bounds,
        work: Callable[[list[Entry]], None],
        workers: int,
        at_once: int,
        keep_alive: float,
        check: Callable[[], None],
        then: Stage | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"{name}: at least one worker is needed, not {workers}")
        self.queue = LaneQueue(bounds)
        self._check = check
        self.threads: set[Thread] = set()
        self.last_progress = -inf
        """When something last left this stage as it should; its *work* notes it."""
        self._name = name
        self._lock = lock
        self._work = work
        self._workers = workers
        self._at_once = at_once
        self._keep_alive = min(keep_alive, TIMEOUT_MAX)
        self.then = then
        self._awaited: LaneQueue | None = None  # the queue of the stage before this one
        if then is not None:
            then._awaited = self.queue
        self._news = Condition(lock)
        self._idle = 0
        self._woken = False  # an idle thread was notified and has not looked yet: no need to notify again
        self._stopped = False
        self.guest = False
        """Whether a thread that is none of ours does our work just now."""
        self._expected_until = -inf  # until then somebody may come who does our work
        self.looks = False
        """Whether our thread looks at the queue by itself all the time: `wake` is not needed, only quicker."""

    def wake(self) -> None:
        """See to it that somebody takes what is ready. Called with the lock held. Raise `RuntimeError` if no thread can
        be started and there is none."""
        if self.guest and self.threads:
            return  # it wakes one of us when it is done
        if self._idle:
            if not self._woken:
                self._woken = True
                self._news.notify()
        elif len(self.threads) < self._workers:
            self._start()

    def prepare(self) -> None:
        """See to it that there is a thread for what is to come. Called with the lock held; raises as `wake` does."""
        if not self.threads:
            self._start()

    def _is_awaited(self) -> bool:
        """Whether this is the last thread and something is still to come."""
        return self._awaited is not None and self._awaited.busy and len(self.threads) == 1

    def _start(self) -> None:
        thread = Thread(target=self._run, name=f"safekeeper-{self._name}", daemon=True)
        self.threads.add(thread)
        try:
            start_thread(thread)
        except RuntimeError:
            self.threads.discard(thread)
            if not self.threads:
                raise

    def stop(self) -> None:
        """Let all threads end after what they have in hand, and those who wait for room look again. Called with the
        lock held."""
        self._stopped = True
        self._news.notify_all()
        self.queue.tell_blocked()

    def mend(self) -> None:
        """See to it that somebody takes what is ready, whatever an interrupt has kept from happening. Called with the
        lock held."""
        self.threads = {thread for thread in self.threads if thread.ident is not None}  # who runs is in it, or comes
        self._woken = False
        with suppress(RuntimeError):
            if self.queue:
                self.wake()
            if self.then is not None and self.queue.busy:
                self.then.prepare()

    def take(self) -> list[Entry]:
        """What is ready, for the thread that calls; another one is woken for the rest. Called with the lock held."""
        entries = self.queue.take(self._at_once)
        if self.queue:
            self.wake()
        return entries

    def lend(self, entry: Entry) -> bool:
        """Let the thread that calls work on *entry* in place of our one thread, if that is all there is to do; whether
        it shall. `take_back` afterwards. Called with the lock held."""
        queue = self.queue
        alone = entry.queue is queue and queue.count == 1 and not queue.taken and not queue.line
        if not alone or self._workers > 1 or self._stopped:
            return False
        self.guest = True
        self._expected_until = monotonic() + _LENT_AGAIN
        queue.take(1)
        return True

    def take_back(self) -> None:
        """Whoever was lent our work is done with it. Called with the lock held."""
        self.guest = False
        if self._stopped:
            self._news.notify_all()
        elif self.queue:
            self.wake()

    def wait_for_guest(self) -> None:
        """Wait until nobody else does our work. In a thread of the keeper's own."""
        with self._lock:
            while self.guest:
                self._news.wait()

    def _run(self) -> None:
        with self._lock:
            self.threads.add(current_thread())
        while entries := self._next():
            self._work(entries)

    def _next(self) -> list[Entry]:
        """What to work on next; nothing if this thread is to end."""
        with self._lock:
            while not self._stopped:
                self._check()
                if not self.guest and (entries := self.take()):
                    return entries
                if self._wait() or self.queue or self._is_awaited():
                    continue
                break
            # Under the same lock as the last look at the queue: whoever adds to it now starts another thread.
            self.threads.discard(current_thread())
            return []

    def _wait(self) -> bool:
        """Wait for something to do; False if there was nothing for *keep_alive* seconds. With the lock held."""
        self.looks = looks = monotonic() < self._expected_until
        self._idle += 1
        notified = self._news.wait(_LOOK if looks else self._keep_alive)
        self._idle -= 1
        self.looks = self._woken = False
        if looks and not notified and self.queue and not self.guest:
            self._expected_until = -inf  # somebody saved, and nobody waits for it: next time we are to be woken
        return notified or looks
