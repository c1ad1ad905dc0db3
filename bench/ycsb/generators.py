"""YCSB's random numbers, drawn many at a time.

A `Chooser` gives the numbers of the records that operations go to. There are two kinds, because records may be inserted
while they are chosen: the ones of an `Absolute` chooser are record numbers, to be drawn again where that record is not
there yet; those of a `Relative` one are distances back from the newest record.

The formulas and constants are YCSB's, so the distributions are the same; the random bits are not.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

THETA = 0.99
"""YCSB's zipfian constant."""

SCRAMBLED_ITEMS = 10_000_000_001
"""Over how many items YCSB's scrambled zipfian generator draws, whatever the number of records."""

SCRAMBLED_ZETA = 26.46902820178302
"""The zeta of that many items, as YCSB has it."""

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 1099511628211


def fnv64(numbers: Numbers) -> Numbers:
    """YCSB's hash of numbers: FNV-1a over the eight bytes of each, lowest first, without the sign."""
    rest = numbers.astype(np.uint64)
    hashes = np.full(len(rest), _FNV_OFFSET, np.uint64)
    for _ in range(8):
        hashes = (hashes ^ (rest & np.uint64(0xFF))) * np.uint64(_FNV_PRIME)
        rest >>= np.uint64(8)
    return np.abs(hashes.astype(np.int64))


def fnv64_of(number: int) -> int:
    """The same hash of one number, for which numpy would take ten times as long."""
    hash = _FNV_OFFSET
    for byte in number.to_bytes(8, "little"):
        hash = (hash ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return hash if hash < 1 << 63 else (1 << 64) - hash


class Zeta:
    """The sum of 1/i^theta for i from 1 to n, for an n that grows: what was summed is kept."""

    def __init__(self, theta: float = THETA) -> None:
        self._theta = theta
        self._items = 0
        self._sum = 0.0

    def of(self, items: int) -> float:
        """The zeta of *items*."""
        if items < self._items:
            self._items, self._sum = 0, 0.0
        while self._items < items:
            upto = min(items, self._items + 1_000_000)
            self._sum += float((1.0 / np.arange(self._items + 1, upto + 1) ** self._theta).sum())
            self._items = upto
        return self._sum


class Zipfian:
    """Ranks from 0 on, the lower the more often, by Gray's approximation as YCSB has it."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._zeta = Zeta()

    def draw(self, count: int, items: int, zeta: float | None = None, began_with: int | None = None) -> Numbers:
        """*count* ranks below *items*, whose zeta may be given where it would take long to sum.

        Where items are added, YCSB goes on with an eta of those that it *began_with*, so the middle ranks come a little
        more or less often than Gray's formula says. It is the same here.
        """
        zeta = self._zeta.of(items) if zeta is None else zeta
        zeta_2 = 1.0 + 0.5**THETA
        began_with = began_with or items
        eta = (1.0 - (2.0 / began_with) ** (1.0 - THETA)) / (1.0 - zeta_2 / zeta) if items > 2 else 0.0
        u = self._random.random(count)
        ranks = (items * np.maximum(eta * u - eta + 1.0, 0.0) ** (1.0 / (1.0 - THETA))).astype(np.int64)
        ranks[u * zeta < zeta_2] = 1
        ranks[u * zeta < 1.0] = 0
        return np.minimum(ranks, items - 1)


class Chooser(ABC):
    """Chooses records."""

    relative: bool
    """Whether the numbers are distances back from the newest record."""

    @abstractmethod
    def draw(self, count: int, newest: int) -> Numbers:
        """*count* numbers, while *newest* is the number of the newest record."""


class Absolute(Chooser):
    """Chooses record numbers, perhaps of records that are not there yet."""

    relative = False


class Relative(Chooser):
    """Chooses distances back from the newest record, perhaps to before the first."""

    relative = True


class UniformChooser(Absolute):
    """Every record equally often."""

    def __init__(self, random: np.random.Generator, first: int, count: int) -> None:
        self._random, self._first, self._count = random, first, count

    def draw(self, count: int, newest: int) -> Numbers:
        return self._random.integers(self._first, self._first + self._count, count)


class ScrambledZipfianChooser(Absolute):
    """Some records much more often than others, and these scattered over all of them."""

    def __init__(self, random: np.random.Generator, first: int, count: int) -> None:
        self._zipfian, self._first, self._count = Zipfian(random), first, count

    def draw(self, count: int, newest: int) -> Numbers:
        ranks = self._zipfian.draw(count, SCRAMBLED_ITEMS, SCRAMBLED_ZETA)
        return self._first + fnv64(ranks) % self._count


class HotspotChooser(Absolute):
    """The first *hot_share* of the records gets *hot_operations* of the operations; uniform inside both parts."""

    def __init__(
        self, random: np.random.Generator, first: int, count: int, hot_share: float, hot_operations: float
    ) -> None:
        self._random, self._first, self._count = random, first, count
        self._hot = int(count * hot_share)
        # A part without records gets no operations.
        self._hot_operations = hot_operations if 0 < self._hot < count else float(self._hot > 0)

    def draw(self, count: int, newest: int) -> Numbers:
        u = self._random.random(count)
        hot = self._random.random(count) < self._hot_operations
        return self._first + np.where(hot, u * self._hot, self._hot + u * (self._count - self._hot)).astype(np.int64)


class SequentialChooser(Absolute):
    """One record after the other, again from the first after the last; threads that share it take turns."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count
        self._turns = itertools.count()

    def draw(self, count: int, newest: int) -> Numbers:
        turns = np.fromiter(itertools.islice(self._turns, count), np.int64, count)
        return self._first + turns % self._count


class LatestChooser(Relative):
    """The newest records most often."""

    def __init__(self, random: np.random.Generator) -> None:
        self._zipfian = Zipfian(random)
        self._began_with = 0

    def draw(self, count: int, newest: int) -> Numbers:
        items = max(newest, 1)
        self._began_with = self._began_with or items
        return self._zipfian.draw(count, items, began_with=self._began_with)


class ExponentialChooser(Relative):
    """Exponentially falling with age: *percentile* per cent of the operations go to the newest *span* records."""

    def __init__(self, random: np.random.Generator, percentile: float, span: float) -> None:
        self._random = random
        self._scale = span / -math.log(1.0 - percentile / 100.0)

    def draw(self, count: int, newest: int) -> Numbers:
        return self._random.exponential(self._scale, count).astype(np.int64)


class Lengths:
    """Lengths from *least* to *most*: of fields and of scans."""

    def __init__(self, random: np.random.Generator, distribution: str, least: int, most: int) -> None:
        self._random, self._distribution = random, distribution
        self._least, self._most = least, most
        self._zipfian = Zipfian(random)

    def draw(self, count: int) -> Numbers:
        """*count* lengths."""
        if self._distribution == "constant":
            return np.full(count, self._most)
        if self._distribution == "uniform":
            return self._random.integers(self._least, self._most + 1, count)
        return self._least + self._zipfian.draw(count, self._most - self._least + 1)
