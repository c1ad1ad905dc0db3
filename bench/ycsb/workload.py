"""YCSB's core workload: which operations come in which order, on which records, with which content.

`Workload` is what the threads of a run share, `Source` is one thread's own stream of choices. A record has the number
*n*, the id `usertable/user<hash of n>` and, since the contract knows no fields, all its fields in one value.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from safekeeper.backend import MAX_VALUE_BYTES, CheckpointId
from safekeeper.bench.ycsb.generators import (
    Chooser,
    ExponentialChooser,
    HotspotChooser,
    LatestChooser,
    Lengths,
    ScrambledZipfianChooser,
    SequentialChooser,
    UniformChooser,
    fnv64_of,
)
from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings

READ, UPDATE, INSERT, SCAN, READ_MODIFY_WRITE = range(5)
"""The kinds of operations, in YCSB's order."""

_AT_ONCE = 256  # drawn together: enough that numpy's overhead is small, few enough that little is drawn in vain
_CACHED_IDS = 2_000_000
_OFFSETS = 1 << 20


def _stream(draw: Callable[[int], NDArray[Any]]) -> Iterator[int]:
    while True:
        yield from draw(_AT_ONCE).tolist()


class Ids(dict[int, CheckpointId]):
    """The id of each record by its number, made when first asked for."""

    def __init__(self, settings: YcsbSettings) -> None:
        super().__init__()
        self._group = settings.table
        self._hashed = settings.insertorder == "hashed"
        self._digits = settings.zeropadding

    def __missing__(self, number: int) -> CheckpointId:
        name = fnv64_of(number) if self._hashed else number
        id = CheckpointId(self._group, b"user" + str(name).zfill(self._digits).encode())
        if len(self) < _CACHED_IDS:
            self[number] = id
        return id


class Inserted:
    """Counts the records: gives out the next number and knows the newest record before which all are there."""

    def __init__(self, records: int) -> None:
        self.newest = records - 1
        """Every record up to this number has been written."""
        self._next = itertools.count(records)
        self._early: set[int] = set()
        self._lock = Lock()

    def next(self) -> int:
        """The number for a new record."""
        return next(self._next)

    def acknowledge(self, number: int) -> None:
        """Record *number* has been written, or never will be."""
        with self._lock:
            self._early.add(number)
            while self.newest + 1 in self._early:
                self.newest += 1
                self._early.remove(self.newest)


class ScanOrder:
    """All records in the order of their keys: the contract has no ordered scan, so the runner remembers the order."""

    def __init__(self, ids: Ids, first: int, count: int) -> None:
        self._ids = sorted((ids[number] for number in range(first, first + count)), key=lambda id: id.key)
        self._keys = [id.key for id in self._ids]
        self._lock = Lock()

    def add(self, id: CheckpointId) -> None:
        """A record has been inserted."""
        with self._lock:
            at = bisect_left(self._keys, id.key)
            self._keys.insert(at, id.key)
            self._ids.insert(at, id)

    def after(self, id: CheckpointId, count: int) -> list[CheckpointId]:
        """*id* and the records behind it, *count* together if there are so many."""
        with self._lock:
            at = bisect_left(self._keys, id.key)
            return self._ids[at : at + count]


@dataclass(frozen=True)
class Workload:
    """What all threads of a run share."""

    settings: YcsbSettings

    def __post_init__(self) -> None:
        largest = self.settings.fieldcount * self.settings.fieldlength
        if largest > MAX_VALUE_BYTES:
            raise BadProperty(f"fieldcount x fieldlength is {largest}: a record has at most {MAX_VALUE_BYTES} bytes")

    @cached_property
    def ids(self) -> Ids:
        """The ids of the records."""
        return Ids(self.settings)

    @cached_property
    def to_load(self) -> Iterator[int]:
        """The numbers of the records that a load inserts; threads take turns."""
        return iter(range(self.settings.insertstart, self.settings.insertstart + self.settings.inserts))

    @cached_property
    def inserted(self) -> Inserted:
        """What is in the store while a run goes on."""
        settings = self.settings
        if settings.recordcount == 0:
            raise BadProperty("recordcount=0: say how many records were loaded, -p recordcount=1000")
        # YCSB numbers what a run inserts from recordcount on, also where a part of the records was loaded elsewhere.
        if settings.insertstart + settings.inserts > settings.recordcount:
            raise BadProperty(
                f"recordcount={settings.recordcount}: it is below insertstart + insertcount,"
                f" {settings.insertstart + settings.inserts}"
            )
        return Inserted(settings.recordcount)

    @cached_property
    def scan_order(self) -> ScanOrder:
        """The sorted keys; only made for workloads that scan."""
        return ScanOrder(self.ids, self.settings.insertstart, self.settings.inserts)

    @cached_property
    def sequential(self) -> SequentialChooser:
        """The one sequence that all threads follow together."""
        return SequentialChooser(self.settings.insertstart, self.settings.inserts)

    def chooser(self, random: np.random.Generator) -> Chooser:
        """What chooses the records of one thread's operations."""
        settings = self.settings
        first, count = settings.insertstart, settings.inserts
        match settings.requestdistribution:
            case "uniform":
                return UniformChooser(random, first, count)
            case "zipfian":
                # Over the records that the run will add, too: else every insert would move all popular ones.
                growth = int(settings.operationcount * settings.insertproportion * 2)
                return ScrambledZipfianChooser(random, first, count + growth + 1)
            case "latest":
                return LatestChooser(random)
            case "hotspot":
                return HotspotChooser(random, first, count, settings.hotspotdatafraction, settings.hotspotopnfraction)
            case "exponential":
                span = settings.recordcount * settings.exponential_frac
                return ExponentialChooser(random, settings.exponential_percentile, span)
            case "sequential":
                return self.sequential


class Values:
    """The content of records: random bytes, or bytes that follow from the record's key."""

    def __init__(self, settings: YcsbSettings, random: np.random.Generator) -> None:
        fields = settings.fieldcount
        lengths = Lengths(random, settings.fieldlengthdistribution, settings.minfieldlength, settings.fieldlength)
        largest = fields * settings.fieldlength
        # One seed for all: whoever checks a record makes it from the same bytes as the one who wrote it.
        self._pool = np.random.default_rng(0).bytes(largest + _OFFSETS)
        self._offsets = _stream(lambda count: random.integers(0, _OFFSETS, count))
        self._sizes = (
            itertools.repeat(largest)
            if settings.fieldlengthdistribution == "constant"
            else _stream(lambda count: lengths.draw(count * fields).reshape(count, fields).sum(axis=1))
        )
        self._follow_from_key = settings.dataintegrity

    def make(self, id: CheckpointId) -> bytes:
        """A value to write for the record *id*."""
        size = next(self._sizes)
        if self._follow_from_key:
            return self.expected(id, size)
        offset = next(self._offsets)
        return self._pool[offset : offset + size]

    def expected(self, id: CheckpointId, size: int | None = None) -> bytes:
        """The only right value of the record *id* in a run with `dataintegrity`."""
        size = next(self._sizes) if size is None else size
        offset = xxh3_64_intdigest(id.key) % _OFFSETS
        return (id.key + b":" + self._pool[offset : offset + size])[:size]


class Source:
    """One thread's choices, endless."""

    def __init__(self, workload: Workload, random: np.random.Generator) -> None:
        settings = workload.settings
        self.values = Values(settings, random)
        self._first = settings.insertstart
        self._workload = workload
        self._random = random

    @cached_property
    def kinds(self) -> Iterator[int]:
        """The kind of each operation."""
        settings = self._workload.settings
        shares = np.array(
            [
                settings.readproportion,
                settings.updateproportion,
                settings.insertproportion,
                settings.scanproportion,
                settings.readmodifywriteproportion,
            ]
        )
        bounds = (shares / shares.sum()).cumsum()[:-1]
        return _stream(lambda count: np.searchsorted(bounds, self._random.random(count), side="right"))

    @cached_property
    def scan_lengths(self) -> Iterator[int]:
        """How many records each scan reads."""
        settings = self._workload.settings
        lengths = Lengths(self._random, settings.scanlengthdistribution, settings.minscanlength, settings.maxscanlength)
        return _stream(lengths.draw)

    @cached_property
    def pick(self) -> Callable[[], int]:
        """Gives the number of the record that the next operation goes to: one that is there."""
        inserted, first = self._workload.inserted, self._first
        chooser = self._workload.chooser(self._random)
        draws = _stream(lambda count: chooser.draw(count, inserted.newest))
        relative = chooser.relative

        def pick() -> int:
            while True:
                newest = inserted.newest
                number = newest - next(draws) if relative else next(draws)
                if first <= number <= newest:
                    return number

        return pick
