"""Who waits for whose element: threads and asyncio tasks in one line, and no wait that would never end.

An element has one holder. Whoever finds it taken stands in its line, and who lets it go hands it to the first in the
line. A thread that waits is stopped, and all the tasks of its loop with it; a task that waits stops only itself.

From a wanted element one can follow: to its holder, to what that one waits for, to its holder. If that comes back to
who asks, all of them would wait for ever; whoever closes the circle notices it, since the others have told what they
want before, and gets `RuntimeError`.
"""

from __future__ import annotations

import os
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from safekeeper.keeper.loops import LoopWaiter, acting_for, running_loop

if TYPE_CHECKING:
    from safekeeper.elements.element import Element

_lock = Lock()
_wanted: dict[object, Element[Any]] = {}  # by thread that is stopped and by task; of all groups, as circles may be


class InLine:
    """Somebody who stands in the line of an element."""

    __slots__ = ("has_it", "stopped", "task", "thread", "waiter")

    def __init__(self, waiter: Lock | LoopWaiter, *, stopped: bool) -> None:
        self.thread = get_ident()
        self.task = current_task()
        self.waiter = waiter
        self.stopped = stopped
        """Whether its thread is."""
        self.has_it = False
        """Whether the element was handed over."""

    def is_holder_of(self, element: Element[Any]) -> bool:
        """Whether *element* is not let go before this wait is over."""
        if self.task is not None and element.task is self.task:
            return True
        return element.holder == self.thread and (self.stopped or element.task is None)

    def want(self, element: Element[Any]) -> None:
        """Tell others what is waited for. With the lock held."""
        if self.stopped:
            _wanted[self.thread] = element
        if self.task is not None:
            _wanted[self.task] = element

    def have(self) -> None:
        """Nothing is waited for any more. With the lock held."""
        if self.stopped:
            _wanted.pop(self.thread, None)
        _wanted.pop(self.task, None)


def wait_for(element: Element[Any]) -> None:
    """Take *element*, which somebody has. Raise `RuntimeError` if this thread would wait for itself."""
    lock = Lock()
    lock.acquire()
    me = InLine(lock, stopped=True)
    if _take_or_stand_in_line(element, me):
        return
    try:
        lock.acquire()
    except BaseException:
        _leave(element, me)
        raise


async def wait_in_loop(element: Element[Any]) -> None:
    """As `wait_for`, for a task: the loop goes on meanwhile. A task that is cancelled does not have the element."""
    loop = running_loop()
    assert loop is not None
    me = InLine(waiter := LoopWaiter(loop), stopped=False)
    if _take_or_stand_in_line(element, me):
        return
    try:
        await waiter.future
    except BaseException:
        _leave(element, me)
        raise


def hand_over(element: Element[Any]) -> None:
    """Give *element*, which was let go, to the first in its line, unless somebody else has taken it."""
    with _lock:
        while element.line and element.lock.acquire(blocking=False):
            first = element.line.popleft()
            first.have()
            element.holder, element.task = first.thread, first.task
            first.has_it = True
            if first.waiter.release() is not False:
                return
            first.has_it = False
            element.holder = element.task = None  # its loop is gone
            element.lock.release()


def current_task() -> object:
    """The asyncio task that runs in this thread or that it works for; None if there is none."""
    loop = running_loop()
    if loop is None:
        return acting_for.get(None)
    import asyncio

    return asyncio.current_task(loop)


def _take_or_stand_in_line(element: Element[Any], me: InLine) -> bool:
    """Whether it could be taken after all."""
    with _lock:  # nobody begins or ends to wait meanwhile: what is found below holds
        if (mine := _held_in_circle(element, me)) is not None:
            raise RuntimeError(_explanation(element, mine, me))
        element.line.append(me)
        # In this order: who lets it go looks at the line after that.
        if not element.lock.acquire(blocking=False):
            me.want(element)
            return False
        element.line.remove(me)
        element.holder, element.task = me.thread, me.task
        return True


def _leave(element: Element[Any], me: InLine) -> None:
    """Wait no more; if the element was handed over meanwhile, let it go."""
    with _lock:
        me.have()
        if me in element.line:
            element.line.remove(me)
    if me.has_it:
        element.let_go()


def _held_in_circle(wanted: Element[Any], me: InLine) -> Element[Any] | None:
    """The element of *me* that the holder of *wanted* waits for in the end; None if there is none."""
    seen: set[Element[Any]] = set()
    to_follow = [wanted]
    while to_follow:
        element = to_follow.pop()
        if element in seen or element.holder is None:
            continue
        seen.add(element)
        if me.is_holder_of(element):
            return element
        to_follow += [_wanted[who] for who in (element.task, element.holder) if who in _wanted]
    return None


def _explanation(wanted: Element[Any], mine: Element[Any], me: InLine) -> str:
    if wanted is not mine:
        return (
            f"{wanted.id} would be waited for for ever: this thread is inside a block of {mine.id}, which the one that"
            f" has {wanted.id} waits for: enter the blocks of several keys in one order everywhere, such as sorted"
        )
    if wanted.task is not me.task:
        return (
            f"{wanted.id}: another asyncio task of this thread is inside a block of this key, which would be waited for"
            " for ever: use `async with`, and the awaited methods (aforget, acheckpoint)"
        )
    return f"{wanted.id}: this thread is inside a block of this key already: use the element that it has there"


def _forget_threads() -> None:
    """In the child of a fork: its parent's threads are not here, and one of them may have had the lock."""
    global _lock
    _lock = Lock()
    _wanted.clear()


os.register_at_fork(after_in_child=_forget_threads)
