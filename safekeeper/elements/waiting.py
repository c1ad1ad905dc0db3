"""Who waits for whose element, so that a wait that would never end is an error.

A thread waits for one element at a time, and an element has one holder. So from a wanted element there is one way to
follow: to its holder, to what that one waits for, to its holder. If it comes back to the thread that asks, all of them
would wait for ever; whoever closes the circle notices it, since the others have told what they want before.
"""

from __future__ import annotations

import os
import sys
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safekeeper.elements.element import Element

_lock = Lock()
_wanted: dict[int, Element[Any]] = {}  # by thread; elements of all groups, as a circle may go through several


def wait_for(element: Element[Any]) -> None:
    """Take the lock of *element*, which somebody has. Raise `RuntimeError` if this thread would wait for itself."""
    me = get_ident()
    with _lock:  # nobody begins or ends to wait meanwhile: what is found below holds
        if (mine := _held_in_circle(element, me)) is not None:
            raise RuntimeError(_explanation(element, mine))
        _wanted[me] = element
    try:
        element.lock.acquire()
    finally:
        with _lock:
            del _wanted[me]


def current_task() -> object:
    """The asyncio task that runs in this thread; None if there is none."""
    asyncio = sys.modules.get("asyncio")  # it takes its time to import, and who has tasks has imported it
    if asyncio is None or (running := getattr(asyncio, "_get_running_loop", None)) is None:
        return None
    loop = running()
    return None if loop is None else sys.modules["asyncio.tasks"].current_task(loop)


def _held_in_circle(element: Element[Any], me: int) -> Element[Any] | None:
    """The element of thread *me* that the holder of *element* waits for in the end; None if there is none."""
    following: Element[Any] | None = element
    while following is not None and (holder := following.holder) is not None:
        if holder == me:
            return following
        following = _wanted.get(holder)
    return None


def _explanation(wanted: Element[Any], mine: Element[Any]) -> str:
    if wanted is not mine:
        return (
            f"{wanted.id} would be waited for for ever: this thread is inside a block of {mine.id}, which the one that"
            f" has {wanted.id} waits for: enter the blocks of several keys in one order everywhere, such as sorted"
        )
    if wanted.task is not current_task():
        return (
            f"{wanted.id}: another asyncio task of this thread is inside a block of this key, which would be waited for"
            " for ever: await nothing inside the block, or handle events in other threads (asyncio.to_thread)"
        )
    return f"{wanted.id}: this thread is inside a block of this key already: use the element that it has there"


def _forget_threads() -> None:
    """In the child of a fork: its parent's threads are not here, and one of them may have had the lock."""
    global _lock
    _lock = Lock()
    _wanted.clear()


os.register_at_fork(after_in_child=_forget_threads)
