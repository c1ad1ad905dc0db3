"""The same keeper for asyncio: nothing here blocks the event loop.

async with AsyncKeeper(SafeKeeper("log:///var/lib/app")) as keeper:
    await keeper.save(CheckpointId("WordCounter", b"foo"), {"count": 41})        # durable when it returns

There is no second implementation behind it. In an event loop `SafeKeeper.save` and `forget` never wait, and their
tickets can be awaited; what reads or waits is run in another thread. So each method here is made of the keeper's own.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self

from safekeeper.backend import CheckpointId, Receipt
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.ticket import Ticket

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)
    T = TypeVar("T")
else:
    from typing import TypeVar

    S, T = TypeVar("S"), TypeVar("T")

P = ParamSpec("P")


def _completed(
    method: Callable[Concatenate[SafeKeeper[Any], P], Ticket],
) -> Callable[Concatenate[AsyncKeeper[Any], P], Coroutine[Any, Any, Receipt]]:
    """A method of the keeper whose ticket is awaited. When the awaiting task is cancelled the save goes on."""

    @functools.wraps(method)
    async def complete(self: AsyncKeeper[Any], /, *args: P.args, **named: P.kwargs) -> Receipt:
        return await method(self.keeper, *args, **named)

    return complete


def _in_thread(
    method: Callable[Concatenate[SafeKeeper[Any], P], T],
) -> Callable[Concatenate[AsyncKeeper[Any], P], Coroutine[Any, Any, T]]:
    """A method of the keeper that is run in another thread."""

    @functools.wraps(method)
    async def run(self: AsyncKeeper[Any], /, *args: P.args, **named: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.keeper, *args, **named)

    return run


class AsyncKeeper(Generic[S]):
    """A `SafeKeeper` whose methods are awaited. For the settings, make the keeper first."""

    def __init__(self, keeper: SafeKeeper[S]) -> None:
        if not isinstance(keeper, SafeKeeper):
            raise TypeError(f"an AsyncKeeper takes a keeper, not {keeper!r:.80}: write AsyncKeeper(SafeKeeper(...))")
        self.keeper = keeper
        """The keeper inside, for everything that does not wait: `metrics`, `fill`."""

    save = _completed(SafeKeeper.save)
    save_bytes = _completed(SafeKeeper.save_bytes)
    forget = _completed(SafeKeeper.forget)
    save_together = _completed(SafeKeeper.save_together)
    save_many = _in_thread(SafeKeeper.save_many)
    forget_group = _in_thread(SafeKeeper.forget_group)
    whole = _in_thread(SafeKeeper.whole)
    ping = _in_thread(SafeKeeper.ping)
    flush = _in_thread(SafeKeeper.flush)
    close = _in_thread(SafeKeeper.close)

    async def fetch(self, id: CheckpointId, *, timeout: float | None = None) -> S | None:
        """As `SafeKeeper.fetch`."""
        return await asyncio.to_thread(self.keeper.fetch, id, timeout=timeout)

    async def save_at_turn(
        self, id: CheckpointId, snapshot: Callable[[], S], *, nbytes: int, deadline: float | None = None
    ) -> Receipt:
        """As `SafeKeeper.save_at_turn`; *snapshot* is called in the event loop, so nothing changes while it works. What
        it returns is serialized afterwards: return a copy. When the awaiting task is cancelled the save goes on."""
        loop = asyncio.get_running_loop()

        async def take() -> S:
            return snapshot()

        def in_loop() -> S:
            return asyncio.run_coroutine_threadsafe(take(), loop).result()

        return await asyncio.to_thread(self.keeper.save_at_turn, id, in_loop, nbytes=nbytes, deadline=deadline)

    async def recover(self, group: str, *, batch: int = 256, **named: Any) -> AsyncIterator[tuple[bytes, S]]:
        """As `SafeKeeper.recover`; *progress* and *on_error* are called in another thread."""
        states = self.keeper.recover(group, batch=batch, **named)
        while some := await asyncio.to_thread(list, islice(states, batch)):
            for item in some:
                yield item

    def __repr__(self) -> str:
        return f"<AsyncKeeper of {self.keeper!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
