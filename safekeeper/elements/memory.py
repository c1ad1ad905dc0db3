"""The elements that are in memory, and what is still to be done with each of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Generic, TypeVar

from safekeeper.backend import CheckpointId
from safekeeper.elements.element import Element
from safekeeper.elements.metrics import ElementMetrics
from safekeeper.policy import Ttl

S = TypeVar("S")


class Memory(Generic[S]):
    """Elements by key. Methods that say so are called with `lock` held, the others without.

    An element that is half-done is in none of the others but `saving`.
    """

    def __init__(self, group: str, ttl: float | None) -> None:
        self.group = group
        """Where new elements are stored."""
        self.lock = Lock()
        """Guards everything here, and the counts of the elements. It is never held while anything is waited for."""
        self.elements: dict[bytes, Element[S]] = {}
        self.dirty: OrderedDict[bytes, Element[S]] = OrderedDict()
        """With events after the newest save, the oldest first."""
        self.postponed: OrderedDict[bytes, Element[S]] = OrderedDict()
        """Due, but the queues were too full."""
        self.saving: dict[bytes, Element[S]] = {}
        """Their newest save has not completed."""
        self.failed: dict[bytes, Element[S]] = {}
        """It has failed."""
        self.half_done: dict[bytes, Element[S]] = {}
        """An event raised in the middle."""
        self.left: set[bytes] | None = None
        """The keys that have left memory since `recover` began: what it reads of them may be old."""
        self.metrics = ElementMetrics()
        self._ttl = None if ttl is None else Ttl(ttl)

    def get(self, key: bytes) -> Element[S] | None:
        """The element of *key*, if it is in memory."""
        with self.lock:
            return self.elements.get(key)

    def get_or_add(self, key: bytes) -> Element[S]:
        """The element of *key*; one without a state if it is not in memory."""
        with self.lock:
            element = self.elements.get(key)
            if element is None:
                element = self.elements[key] = Element(CheckpointId(self.group, key))
            return element

    def copy(self, elements: Mapping[bytes, Element[S]]) -> list[Element[S]]:
        """The elements as they are now."""
        with self.lock:
            return list(elements.values())

    def not_stored(self) -> list[Element[S]]:
        """Everything of which something is not known to be stored."""
        with self.lock:
            return list({**self.saving, **self.dirty, **self.failed, **self.half_done}.values())

    def fill(self, element: Element[S], state: S, *, known: bool) -> None:
        """An element that is held has got its state."""
        element.state, element.loaded, element.known = state, True, known
        with self.lock:
            self._touch(element, time.monotonic())

    def count(self, element: Element[S], now: float) -> None:
        """An element that is held had an event."""
        with self.lock:
            if element.version == element.submitted:
                element.since = now
                self.dirty[element.key] = element
            element.version += 1
            element.known = True
            self.metrics.events += 1
            self._touch(element, now)

    def _touch(self, element: Element[S], now: float) -> None:
        if self._ttl is not None:
            self._ttl.touch(element.key, now)

    def drop(self, element: Element[S]) -> bool:
        """Take an element that is held out of memory, unless it is: its key may have another one by now."""
        with self.lock:
            if element.gone:
                return False
            element.gone = True
            for elements in (
                *(self.elements, self.dirty, self.postponed),
                *(self.saving, self.failed, self.half_done),
            ):
                elements.pop(element.key, None)
            if self.left is not None:
                self.left.add(element.key)
            if self._ttl is not None:
                self._ttl.drop(element.key)
            return True

    def set_half_done(self, element: Element[S], error: BaseException) -> None:
        """An event of *element* has raised *error* and left it changed."""
        try:
            reason = repr(error)
        except Exception:
            reason = type(error).__name__
        with self.lock:
            if element.gone:
                return
            element.half_done = reason
            for elements in (self.dirty, self.postponed, self.failed):
                elements.pop(element.key, None)
            self.half_done[element.key] = element
            if self._ttl is not None:
                self._ttl.drop(element.key)  # it stays until somebody has decided

    def take_as_it_is(self, element: Element[S]) -> None:
        """Somebody has decided that *element*, which is held and half-done, is to be stored as it is."""
        with self.lock:
            element.half_done = None
            del self.half_done[element.key]
        self.count(element, time.monotonic())

    def idle(self) -> list[Element[S]]:
        """The elements that need not stay."""
        if self._ttl is None:
            return []
        with self.lock:
            return [self.elements[key] for key in self._ttl.idle(time.monotonic())]

    def measured(self) -> ElementMetrics:
        """A copy of the numbers, with what is in memory now."""
        with self.lock:
            metrics = self.metrics.copy()
            metrics.in_memory = len(self.elements)
            metrics.dirty = len(self.dirty.keys() | self.failed.keys())
            metrics.postponed, metrics.saving = len(self.postponed), len(self.saving)
            metrics.failed, metrics.half_done = len(self.failed), len(self.half_done)
            return metrics
