"""The same keeper for asyncio: nothing here blocks the event loop.

async with AsyncKeeper(SafeKeeper("log:///var/lib/app")) as keeper:
    await keeper.save(CheckpointId("WordCounter", b"foo"), {"count": 41})        # durable when it returns
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any, Self

from safekeeper.backend import CheckpointId, Receipt
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.line import WaitingLine
from safekeeper.keeper.reader import OnError, Progress
from safekeeper.keeper.ticket import Entry, Ticket


class AsyncKeeper:
    """A `SafeKeeper` whose methods are awaited. For the settings, make the keeper first."""

    def __init__(self, keeper: SafeKeeper) -> None:
        self.keeper = keeper
        """The keeper inside, for everything that does not wait: `metrics`, `fill`."""
        self._line = WaitingLine(keeper._pipeline)

    async def save(
        self, id: CheckpointId, state: Any, *, frozen: bool = False, deadline: float | None = None
    ) -> Receipt:
        """Store *state* under *id*. Return what the store promised, or raise why there is no promise.

        A state that can change is serialized before anything else runs in the loop, and saves of an id take effect in
        the order in which they began, awaited or not, also where they wait for room. When the awaiting task is
        cancelled the save goes on.
        """
        return await self._complete(self.keeper._prepare(id, state, None, frozen, deadline))

    async def forget(self, id: CheckpointId, *, deadline: float | None = None) -> Receipt:
        """Delete *id* from the store, after the saves of it that were made before."""
        return await self._complete(self.keeper._entry(id, deadline))

    async def fetch(self, id: CheckpointId, *, timeout: float | None = None) -> Any:
        """As `SafeKeeper.fetch`."""
        return await asyncio.to_thread(self.keeper.fetch, id, timeout=timeout)

    async def recover(
        self,
        group: str,
        *,
        batch: int = 256,
        progress: Callable[[Progress], object] | None = None,
        on_error: OnError | None = None,
    ) -> AsyncIterator[tuple[bytes, Any]]:
        """As `SafeKeeper.recover`; *progress* and *on_error* are called in another thread."""
        states = self.keeper.recover(group, batch=batch, progress=progress, on_error=on_error)
        while some := await asyncio.to_thread(list, islice(states, batch)):
            for item in some:
                yield item

    async def flush(self, timeout: float | None = None) -> None:
        """As `SafeKeeper.flush`."""
        await asyncio.to_thread(self.keeper.flush, timeout)

    async def close(self, deadline: float | None = None) -> None:
        """As `SafeKeeper.close`."""
        await asyncio.to_thread(self.keeper.close, deadline)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _complete(self, entry: Entry) -> Receipt:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Ticket] = loop.create_future()

        def tell(ticket: Ticket) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set, done, ticket)

        self._line.submit(entry, tell)
        return (await done).result()


def _set(done: asyncio.Future[Ticket], ticket: Ticket) -> None:
    if not done.done():  # else the waiting task was cancelled
        done.set_result(ticket)
