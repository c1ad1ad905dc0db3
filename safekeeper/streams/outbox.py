"""For sinks that are not streams: a database, an HTTP service, a printer.

    emails = Outbox()
    with Operator("orders", store, inputs={...}, outputs={"emails": emails}) as operator:
        start(send_emails)                       in a thread or a task of its own
        for event in operator: ...

    def send_emails():
        for output in emails:                    durable by now; it comes again until it is done
            post(output.body, headers={"Idempotency-Key": f"orders/emails/{output.number}"})
            emails.done(output.number)

An output is kept in the operator's journal until it is done. So a process that is killed gives it again, under the same
number: a sink that remembers the numbers it has seen, or the highest, does each output once. One that ignores them sees
some of them twice.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Condition

from safekeeper.errors import Closed
from safekeeper.streams.carrier import Position, StreamElement
from safekeeper.streams.retained import Retained, check_numbers, number_of

_READER = "outbox"


class Outbox:
    """The outputs that are not done yet. It is an outlet: give it to an operator as one of its outputs.

    Iterating gives what is waiting, in the order of the numbers, and waits for more until `close`. What was given and
    is not `done` after *again* seconds is given again, each time after twice as long, at most 60 times *again*;
    meanwhile others come. Several threads or tasks may share the work.
    """

    retains = False

    def __init__(self, *, again: float = 1.0) -> None:
        if not again > 0:
            raise ValueError("again= takes more than 0 seconds")
        self._again = again
        self._changed = Condition()
        self._retained: Retained | None = None
        self._waiting: list[tuple[float, int, int]] = []  # when it is due, its number, how often it was given
        self._done: set[int] = set()  # above the first one that is not done
        self._is_open = True
        self._bells: list[Callable[[], object]] = []

    # As an outlet

    @property
    def last(self) -> int:
        return self._retained.last if self._retained is not None else 0

    def send(self, elements: Sequence[StreamElement]) -> None:
        check_numbers(elements)
        with self._changed:
            if not self._is_open:
                raise Closed("this outbox was closed: make a new one")
            if not elements:
                return
            if self._retained is None:  # whoever recovers begins with the first one that was not done
                self._retained = Retained([_READER], floor=number_of(elements[0]) - 1)
            before = self._retained.last
            self._retained.append(elements, "of an outbox")
            for number in range(before + 1, self._retained.last + 1):
                heapq.heappush(self._waiting, (0.0, number, 0))
            self._changed.notify_all()
        self._ring()

    def acknowledged(self) -> Mapping[str, int]:
        with self._changed:
            if not self._is_open:
                raise Closed("this outbox was closed: make a new one")
            return {_READER: 0 if self._retained is None else self._retained.floor}

    def close(self) -> None:
        """End the iterations. What is not done comes again when the operator is started again."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        self._ring()

    # For the sink

    def done(self, number: Position) -> None:
        """The output *number* has had its effect: it is not given again. Any order; twice is not an error."""
        with self._changed:
            if not isinstance(number, int) or self._retained is None or number > self._retained.last:
                raise ValueError(f"the output {number} was never given")
            floor = self._retained.floor
            if number <= floor:
                return
            self._done.add(number)
            while floor + 1 in self._done:
                floor += 1
                self._done.remove(floor)
            self._retained.acknowledge(_READER, floor)

    def __len__(self) -> int:
        """How many are not done."""
        with self._changed:
            return 0 if self._retained is None else len(self._retained) - len(self._done)

    def __bool__(self) -> bool:
        """True, also while it is empty: `if outlet` asks whether there is one."""
        return True

    def take(self, timeout: float | None = None) -> StreamElement | None:
        """The next output; None if none is due within *timeout* seconds, or the outbox was closed."""
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while self._is_open:
                found, due = self._next()
                if found is not None:
                    return found
                ends = [moment for moment in (due, give_up) if moment is not None]
                left = min(ends) - time.monotonic() if ends else None
                if left is not None and left <= 0 and due != min(ends):
                    return None
                self._changed.wait(left)
        return None

    def _next(self) -> tuple[StreamElement | None, float | None]:
        """The next output that is due; if there is none, when there will be one."""
        while self._waiting:
            due, number, times = self._waiting[0]
            assert self._retained is not None
            if number <= self._retained.floor or number in self._done:
                heapq.heappop(self._waiting)
                continue
            now = time.monotonic()
            if due > now:
                return None, due
            again = now + self._again * min(2**times, 60)
            heapq.heapreplace(self._waiting, (again, number, times + 1))
            return self._retained.after(number - 1, 1)[0], None
        return None, None

    def __iter__(self) -> Iterator[StreamElement]:
        while (output := self.take()) is not None:
            yield output

    async def __aiter__(self) -> AsyncIterator[StreamElement]:
        import asyncio  # for those who use it

        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(bell.set)

        self._bells.append(ring)
        try:
            while True:
                bell.clear()
                with self._changed:
                    if not self._is_open:
                        return
                    found, due = self._next()
                if found is not None:
                    yield found
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                        await bell.wait()
        finally:
            self._bells.remove(ring)

    def _ring(self) -> None:
        for bell in list(self._bells):
            bell()
