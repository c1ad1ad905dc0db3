"""Large elements that are saved together are left to the worker one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safekeeper.elements.element import Element
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.loops import running_loop

_LOOK = 0.1  # seconds between two looks whether it is over


class OneByOne:
    """Lets one large element after the other wait for the keeper's worker.

    An element that waits for the worker must not change before its bytes are made: its next event makes them itself. If
    all were left to the worker at once, all their events would stand still for as long as all of them take.
    """

    def __init__(self, keeper: SafeKeeper, is_over: Callable[[], bool]) -> None:
        """When *is_over* says so nobody waits any more."""
        self._keeper = keeper
        self._is_over = is_over
        self._last: Element[Any] | None = None

    def wait(self) -> None:
        """Before the next is saved: wait until the worker has the bytes of the one before, or its save has failed."""
        last, self._last = self._last, None
        if last is None or (pending := last.pending) is None or self._must_not_wait():
            return
        while not self._is_over() and not pending.wait(_LOOK):
            pass

    def took(self, element: Element[Any]) -> None:
        """*element* was saved just now."""
        self._last = element

    def _must_not_wait(self) -> bool:
        """In a callback the worker may be this thread; in an event loop others would wait as well."""
        return self._keeper._pipeline.completions.in_callback or running_loop() is not None
