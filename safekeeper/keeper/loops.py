"""What a keeper needs to know of asyncio, without importing it: whoever has a loop has imported it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio

acting_for: ContextVar[object] = ContextVar("acting_for")
"""The task on whose behalf this thread works, and which waits for it."""

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, which must not be kept waiting; None if there is none."""
    events = sys.modules.get("asyncio.events")
    if events is None:
        return None
    loop: asyncio.AbstractEventLoop | None = events._get_running_loop()
    return loop


class LoopWaiter:
    """Somebody in an event loop who waits for news. To those who tell the news it looks like a lock that is held."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def locked(self) -> bool:
        """Whether there is still to be told."""
        return True

    def release(self) -> bool:
        """Tell it, from any thread; whether anybody will hear it."""
        try:
            self._loop.call_soon_threadsafe(self.tell)
        except RuntimeError:  # the loop was closed, and whoever waited is gone with it
            return False
        return True

    def tell(self) -> None:
        """Tell it, in the loop's thread."""
        if not self.future.done():
            self.future.set_result(None)


async def in_thread(call: Callable[[], T]) -> T:
    """What *call* returns, which may wait for whatever it likes: it has a thread of its own.

    Not one of the loop's own few threads: all of those may be waiting for something that one of them is to do. When the
    awaiting task is cancelled the call goes on.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (call(), None)
        except BaseException as error:
            outcome = (None, error)
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(tell, *outcome)

    Thread(target=run, name="safekeeper-await", daemon=True).start()
    return await done


def awaited(
    method: Callable[Concatenate[Owner, P], T],
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """The same method for event loops: it is run in another thread, and awaited."""

    @functools.wraps(method)
    async def run(self: Owner, /, *args: P.args, **named: P.kwargs) -> T:
        import asyncio

        context = copy_context()
        context.run(acting_for.set, asyncio.current_task())
        return await in_thread(functools.partial(context.run, functools.partial(method, self, *args, **named)))

    run.__doc__ = f"As `{method.__name__}`, awaited: the loop goes on meanwhile. A cancelled one goes on, too."
    return run
