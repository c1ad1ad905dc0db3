"""What the blocks of `Checkpointed` enter, with `with` or `async with`: one sequence of steps, two ways to walk it.

A block is a generator. It yields what has to be waited for: an element to hold, a call that may take long. And it
yields `Inside` where the block of the user begins. Who drives it waits as a thread does, or as a task does. So there is
one piece of code for both, and one place where an error, or a cancelled task, comes in: at the `yield`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from safekeeper.elements.element import Element
from safekeeper.keeper.loops import in_thread, running_loop

T = TypeVar("T")
_THREADS = 8


class Pool:
    """Threads for calls that tasks wait for. They wait for the store and for nobody who has an element, so they get on
    whatever the tasks and the loop's own threads wait for. They are there from the first such call to `close`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """What *call* returns. When the task is cancelled the call goes on, and nobody hears of it."""
        loop = running_loop()
        assert loop is not None
        with self._lock:
            self._threads = self._threads or ThreadPoolExecutor(_THREADS, "safekeeper-elements")
        return await loop.run_in_executor(self._threads, call)

    def close(self) -> None:
        """Let the threads end."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


class Step(Protocol):
    """What has to be waited for."""

    def do(self) -> Any:
        """Wait for it."""

    async def do_in_loop(self, pool: Pool) -> Any:
        """Wait for it as a task."""


class Hold:
    """Nobody else has the element."""

    __slots__ = ("do", "element")

    def __init__(self, element: Element[Any]) -> None:
        self.element = element
        self.do = element.hold

    async def do_in_loop(self, pool: Pool) -> None:
        """Wait for it as a task."""
        await self.element.hold_in_loop()


class Call:
    """A call that may take long. It must not wait for an element. With *alone* it may take for ever."""

    __slots__ = ("_alone", "do")

    def __init__(self, call: Callable[[], Any], *, alone: bool = False) -> None:
        self.do = call
        self._alone = alone

    async def do_in_loop(self, pool: Pool) -> Any:
        """Wait for it as a task."""
        return await (in_thread(self.do) if self._alone else pool.run(self.do))


class Inside(Generic[T]):
    """The block of the user begins, and gets the value."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


Steps: TypeAlias = Generator[Step | Inside[T], Any, None]
"""A block: steps, `Inside` once, steps."""
Waits: TypeAlias = Generator[Step | Inside[Any], Any, T]
"""A part of it, which returns something."""


class Holding(AbstractContextManager[T], AbstractAsyncContextManager[T]):
    """An element that one thread or one task has inside a `with` or an `async with` block."""

    def __init__(self, steps: Steps[T], pool: Pool) -> None:
        self._steps = steps
        self._pool = pool

    def __enter__(self) -> T:
        step = self._advance()
        while not isinstance(step, Inside):
            step = self._do(step)
        return step.value

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            step = self._advance(error)
            while step is not None:
                step = self._do(step)
        except BaseException as raised:
            if not _is_the_same(raised, error):
                raise

    async def __aenter__(self) -> T:
        step = self._advance()
        while not isinstance(step, Inside):
            step = await self._do_in_loop(step)
        return step.value

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            step = self._advance(error)
            while step is not None:
                step = await self._do_in_loop(step)
        except BaseException as raised:
            if not _is_the_same(raised, error):
                raise

    def _advance(self, error: BaseException | None = None, value: Any = None) -> Step | Inside[T] | None:
        """Let the steps go on with what came out of the last one; the next one, None if that was the last."""
        try:
            return self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration:
            return None

    def _do(self, step: Step | Inside[T] | None) -> Step | Inside[T] | None:
        assert step is not None
        assert not isinstance(step, Inside)
        try:
            value = step.do()
        except BaseException as error:
            return self._advance(error)
        return self._advance(value=value)

    async def _do_in_loop(self, step: Step | Inside[T] | None) -> Step | Inside[T] | None:
        assert step is not None
        assert not isinstance(step, Inside)
        try:
            value = await step.do_in_loop(self._pool)
        except BaseException as error:
            return self._advance(error)
        return self._advance(value=value)


def _is_the_same(raised: BaseException, error: BaseException | None) -> bool:
    """Whether what came out of the steps is what went in: then `with` goes on with the original."""
    return raised is error or (isinstance(error, StopIteration) and raised.__cause__ is error)
