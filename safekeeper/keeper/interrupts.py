"""How a keeper stays whole when Ctrl-C comes in the middle of `save`.

Python raises KeyboardInterrupt in the main thread where a function begins, a call returns or a loop goes round;
statements without any of these are done together. `with lock` is safe if it is a plain `threading.Lock`. What is not:

- `Condition.wait` may come back without its lock, so whoever calls a keeper waits on a lock of its own, outside of the
  keeper's lock: `join` and `wake`. The keeper's own threads, which no interrupt reaches, may use conditions.
- A handler of `logging` may keep its lock: the main thread leaves what is to be logged to another one.
- `Thread.start` may leave a thread behind that never runs: `start_thread`.
- A change of the queues may stop half-way. Then the keeper is marked as torn before its lock is given back, and
  whoever takes the lock next mends it (`Pipeline.mend`): from the few facts that change in one step, everything else
  follows.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import MutableSequence
from threading import Lock, Thread
from typing import Protocol


class Waiter(Protocol):
    """Whoever waits for news: a lock that a thread wants to acquire, or a `LoopWaiter`."""

    def locked(self) -> bool:
        """Whether there is still to be told."""

    def release(self) -> object:
        """Tell it."""


def join(waiters: MutableSequence[Waiter]) -> Lock:
    """Add one to *waiters*: a lock that can be acquired when there is news."""
    waiter = Lock()
    waiter.acquire()
    waiters.append(waiter)
    return waiter


def wake(waiters: MutableSequence[Waiter]) -> None:
    """Let all *waiters* look again. To do it twice does no harm."""
    for waiter in waiters:
        if waiter.locked():
            waiter.release()
    waiters.clear()


def start_thread(thread: Thread) -> None:
    """As `thread.start()`, in a thread that no interrupt reaches. An interrupt of the caller does not keep it from
    being started."""
    if threading.current_thread() is not threading.main_thread():
        thread.start()
        return
    errors: list[RuntimeError] = []
    done = Lock()
    done.acquire()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(start, ())
    done.acquire()
    if errors:
        raise errors[0]
