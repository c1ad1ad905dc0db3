"""Numbers and readers, without I/O: what must be kept for whom, and what to do when a reader never comes back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from safekeeper.errors import Gone, QueueFull
from safekeeper.streams.carrier import StreamElement

_log = logging.getLogger("safekeeper")

WhenFull = Literal["stop", "drop-reader"]


@dataclass(frozen=True, slots=True)
class Retention:
    """How far the readers of a stream may be behind, and what happens then."""

    max_elements: int | None = None
    """How many elements may wait for the slowest reader; None for any number."""
    when_full: WhenFull = "stop"
    """`stop`: nothing more is sent until it gets on. `drop-reader`: it is forgotten; its next read raises `Gone`."""

    def __post_init__(self) -> None:
        if self.max_elements is not None and self.max_elements < 1:
            raise ValueError("max-elements= takes a number over 0")
        if self.when_full not in ("stop", "drop-reader"):
            raise ValueError("when-full= takes stop or drop-reader")

    def is_full(self, acknowledged: Mapping[str, int], last: int) -> bool:
        """Whether a stream that ends at *last* would hold too much for some reader."""
        return bool(self.max_elements and acknowledged and last - min(acknowledged.values()) > self.max_elements)

    def drop(self, name: str, acknowledged: Mapping[str, int], last: int) -> list[str]:
        """Who is to be dropped so that the stream *name* can end at *last*. Raise `QueueFull` if nobody may be."""
        if not self.is_full(acknowledged, last):
            return []
        assert self.max_elements is not None
        behind = [reader for reader, upto in acknowledged.items() if last - upto > self.max_elements]
        if self.when_full == "stop":
            slowest = min(behind, key=acknowledged.__getitem__)
            raise QueueFull(
                f"the stream {name} holds {last - acknowledged[slowest]} elements for its reader {slowest}, which has "
                f"acknowledged {acknowledged[slowest]}: start it, or set when-full=drop-reader, or raise max-elements="
            )
        for reader in behind:
            text = "the stream %s drops its reader %s, which has acknowledged %d of %d: it will get Gone"
            _log.warning(text, name, reader, acknowledged[reader], last)
        return behind


def check_numbers(elements: Sequence[StreamElement]) -> None:
    """Raise `ValueError` unless the numbers of *elements* follow one another."""
    for element, number in zip(elements, _counted(elements), strict=True):
        if type(element.number) is not int or element.number != number or number < 1:
            raise ValueError(f"the elements of a stream are numbered without gaps: {element.number} is not {number}")


def check_declared(stream: str, reader: str, declared: Sequence[str] | None) -> None:
    """Raise `Gone` if the producer retains nothing for *reader*. One that declares nobody retains everything."""
    if declared and reader not in declared:
        raise Gone(
            f"nothing of {stream} is retained for the reader {reader}: its producer has {', '.join(declared)}; name it "
            f"in readers= there, unless it was dropped for being too far behind"
        )


def _counted(elements: Sequence[StreamElement]) -> range:
    first = elements[0].number if elements else 1
    start = first if type(first) is int else 1
    return range(start, start + len(elements))


def number_of(element: StreamElement) -> int:
    """The number of an element of a stream of ours."""
    assert type(element.number) is int
    return element.number


class Retained:
    """What was sent and has not been acknowledged by every reader, in memory.

    For carriers that keep nothing themselves. Without readers nothing is kept.
    """

    def __init__(self, readers: Sequence[str], *, floor: int = 0, retention: Retention | None = None) -> None:
        self._elements: deque[StreamElement] = deque()
        self._acknowledged = dict.fromkeys(readers, floor)
        self._retention = retention or Retention()
        self.last = floor
        """The number of the last element that was sent."""
        self.nbytes = 0
        """How many bytes of keys and bodies are retained."""

    @property
    def floor(self) -> int:
        """What every reader has acknowledged; the elements after it are here."""
        return min(self._acknowledged.values(), default=self.last)

    @property
    def acknowledged(self) -> Mapping[str, int]:
        """How far each reader is."""
        return self._acknowledged

    def __len__(self) -> int:
        return len(self._elements)

    def __bool__(self) -> bool:
        """True, also while it is empty: `if outlet` asks whether there is one."""
        return True

    @property
    def first(self) -> int:
        """The number of the oldest element that is retained; the one after `last` if there is none."""
        return min(self.floor + 1, self.first_here) if self._acknowledged else self.first_here

    @property
    def first_here(self) -> int:
        """The number of the oldest one that is in memory."""
        return self.last - len(self._elements) + 1

    def is_spilled(self, number: int) -> bool:
        """Whether the element with this number is retained, and not in memory."""
        return self.first <= number < self.first_here

    def spill(self, upto: int) -> None:
        """Let the elements up to *upto* leave memory: somebody else has them."""
        while self._elements and number_of(self._elements[0]) <= upto:
            self.nbytes -= _size(self._elements.popleft())
        self.last = max(self.last, upto)

    def declare(self, readers: Sequence[str]) -> None:
        """Let these be the readers from now on. One that is new has acknowledged what is not here any more."""
        gone = self.first - 1
        self._acknowledged = {reader: self._acknowledged.get(reader, gone) for reader in readers}
        self._let_go()

    def append(self, elements: Sequence[StreamElement], name: str = "") -> list[str]:
        """Retain *elements*, without those that are here. Return the readers that were dropped for that.

        They begin right after `last`, at the latest; else `Gone`. Raise `QueueFull` if a reader is too far behind: then
        nothing was taken.
        """
        check_numbers(elements)
        new = [element for element in elements if number_of(element) > self.last]
        if not new:
            return []
        if number_of(new[0]) != self.last + 1:
            raise Gone(f"the stream {name} ends at {self.last}, and the next element is {new[0].number}")
        dropped = self._retention.drop(name, self._acknowledged, number_of(new[-1]))
        for reader in dropped:
            del self._acknowledged[reader]
        self._elements += new
        self.nbytes += sum(map(_size, new))
        self.last = number_of(new[-1])
        self._let_go()
        return dropped

    def acknowledge(self, reader: str, upto: int) -> int:
        """Let *reader* have everything up to *upto*. Return how many elements nobody needs any more."""
        if upto > self.last:
            raise ValueError(f"the reader {reader} acknowledges {upto} of a stream that ends at {self.last}")
        if upto <= self._acknowledged.get(reader, upto):  # an older one, or a reader that was dropped
            return 0
        self._acknowledged[reader] = upto
        return self._let_go()

    def after(self, number: int, most: int | None = None) -> list[StreamElement]:
        """The elements after *number*, *most* of them. Raise `Gone` if the first of them is not here any more."""
        if number + 1 < self.first_here:
            gone = self.first_here - 1
            raise Gone(f"the elements {number + 1} to {gone} are not retained any more: begin after {gone}")
        start = number + 1 - self.first_here
        return list(islice(self._elements, start, None if most is None else start + most))

    def _let_go(self) -> int:
        gone, floor = 0, self.floor
        while self._elements and number_of(self._elements[0]) <= floor:
            self.nbytes -= _size(self._elements.popleft())
            gone += 1
        return gone


def _size(element: StreamElement) -> int:
    return len(element.key) + len(element.body)
