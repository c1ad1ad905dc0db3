"""Elements as columns, for those who have no use for an object for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from safekeeper.streams.carrier import StreamElement
from safekeeper.streams.retained import number_of


@dataclass(frozen=True, slots=True)
class PackedBytes:
    """Many values, one after the other."""

    offsets: np.ndarray[Any, Any]
    """int32: where each value begins, and where the last one ends."""
    data: bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, part: slice) -> PackedBytes:
        start, stop, _ = part.indices(len(self))
        return PackedBytes(self.offsets[start : max(start, stop) + 1], self.data)

    def values(self) -> list[bytes]:
        """Each by itself."""
        offsets, data = self.offsets.tolist(), self.data
        return [data[begin:end] for begin, end in itertools.pairwise(offsets)]


BytesColumn: TypeAlias = list[bytes] | PackedBytes


@dataclass(frozen=True, slots=True)
class ElementTable:
    """Elements whose numbers follow one another."""

    first: int
    keys: BytesColumn
    bodies: BytesColumn

    @classmethod
    def of(cls, elements: Sequence[StreamElement]) -> ElementTable:
        """The table of *elements*, of which there are some."""
        return cls(number_of(elements[0]), [e.key for e in elements], [e.body for e in elements])

    @property
    def last(self) -> int:
        """The number of the last one."""
        return self.first + len(self.bodies) - 1

    def between(self, after: int, upto: int | None = None) -> ElementTable:
        """Those after *after*, up to *upto*."""
        start = max(0, after + 1 - self.first)
        part = slice(start, None if upto is None else max(0, upto + 1 - self.first))
        if not start and (upto is None or upto >= self.last):
            return self
        return ElementTable(self.first + start, self.keys[part], self.bodies[part])

    def elements(self) -> list[StreamElement]:
        """An object for each."""
        columns = (
            column.values() if isinstance(column, PackedBytes) else column for column in (self.keys, self.bodies)
        )
        return [
            StreamElement(number, body, key)
            for number, (key, body) in enumerate(zip(*columns, strict=True), self.first)
        ]


@runtime_checkable
class SupportsTables(Protocol):
    """An inlet that can give elements as columns."""

    def read_tables(self, timeout: float | None = None) -> Sequence[ElementTable]:
        """As `Inlet.read`; none of the tables is empty."""
