"""The reading side: which elements a batch has, who reads them, and what Spark's commit says to the stream's producer.

An offset is {"number": N}: after the element N. Spark writes the offsets of a batch to its log before the batch runs,
so a batch that is repeated has the same elements. When the next batch is logged, Spark calls `commit` with the end of
the one before: that is the reader's acknowledgement, after which the producer lets go of the elements. A query that was
killed between the two never calls it, so where its first batch begins is acknowledged too: that is in the log. Before
that batch Spark tells the reader where the log ends: it asks for the partitions from there to there.

From Spark 4.2 on `latestOffset` is told where the batch begins and how much it may have. Before that, the reader counts
by itself: see `CountingReader`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from safekeeper.errors import BadUrl, Gone, Unavailable
from safekeeper.keeper.backoff import Backoff
from safekeeper.spark.stream_columns import ElementColumns
from safekeeper.streams import Inlet, Position, SupportsSurvey, open_inlet
from safekeeper.streams.registry import carrier_of
from safekeeper.streams.tables import ElementTable, SupportsTables
from safekeeper.url import show_url

_LEAST_ELEMENTS = 1000
"""A task has at least so many elements, if the batch has."""
_PATIENCE = 60.0
"""Seconds for which a carrier is asked again that does not answer."""
_T = TypeVar("_T")

StreamOffset = dict[str, int]


def patiently(ask: Callable[[], _T], seconds: float = _PATIENCE) -> _T:
    """What *ask* gives, which is asked again for so many seconds while it is `Unavailable`."""
    give_up = time.monotonic() + seconds
    backoff, failures = Backoff(), 0
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > give_up:
                raise
            failures += 1
            time.sleep(backoff.delay(failures))


@dataclass(frozen=True, slots=True)
class StreamSlice(InputPartition):
    """What one task reads: the elements after *after*, up to *upto*."""

    after: int
    upto: int


def slice_elements(after: int, upto: int, most: int) -> list[StreamSlice]:
    """The elements after *after* up to *upto* in equal slices, *most* of them, none of them very small."""
    count = upto - after
    if count <= 0:
        return []
    slices = min(most, max(1, count // _LEAST_ELEMENTS))
    bounds = [after + count * index // slices for index in range(slices + 1)]
    return [StreamSlice(first, last) for first, last in itertools.pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class StreamTasks:
    """What the tasks of a batch do. It goes to executors, so it holds nothing open."""

    url: str = field(repr=False)  # it may hold a password
    most: int
    """How many tasks a batch has at most."""
    columns: ElementColumns

    def plan(self, after: int, upto: int) -> list[StreamSlice]:
        """The tasks of a batch."""
        return slice_elements(after, upto, self.most)

    def read(self, part: StreamSlice) -> Iterator[pa.RecordBatch]:
        """The rows of one task. Raise `Gone` if not all of its elements are there."""
        with closing(patiently(lambda: open_inlet(self.url, after=part.after))) as inlet:
            position = part.after
            while position < part.upto:
                tables = patiently(lambda: _read(inlet))
                if not tables:
                    raise Gone(f"{show_url(self.url)} has no element {position + 1}, which it had just before")
                position = tables[-1].last
                for table in tables:
                    yield from self.columns.batches(table.between(part.after, part.upto))


def _read(inlet: Inlet) -> Sequence[ElementTable]:
    """The next elements of *inlet*."""
    if isinstance(inlet, SupportsTables):
        return inlet.read_tables(_PATIENCE)
    elements = inlet.read(_PATIENCE)
    return [ElementTable.of(elements)] if elements else []


class _Reader(DataSourceStreamReader):
    """What is the same for all versions of Spark. It lives in a process beside the Spark driver, as long as a query."""

    def __init__(self, tasks: StreamTasks, reader: str, after: int | None, most: int | None) -> None:
        self._tasks, self._name, self._begin, self._most = tasks, reader, after, most
        self._look: Inlet | None = None
        self._inlet: Inlet | None = None
        self._target: int | None = None
        self._resumed = False

    def initialOffset(self) -> StreamOffset:
        return {"number": patiently(self._first_position)}

    def _first_position(self) -> int:
        if self._begin is not None:
            return self._begin
        self._last()  # which finds out whether there can be such a stream
        url = self._tasks.url
        carrier = carrier_of(url)
        if not isinstance(carrier, SupportsSurvey):
            raise BadUrl(f"{show_url(url)}: its carrier does not tell where a stream begins: add option after")
        (status,) = carrier.survey(url)
        position = status.readers.get(self._name) or (None if status.first is None else _int(url, status.first) - 1)
        return 0 if position is None else _int(url, position)

    def _last(self) -> int:
        """The last element that the stream has."""
        url = self._tasks.url
        if self._look is None:
            self._look = patiently(lambda: open_inlet(url))
        last = patiently(self._look.last)
        if last is not None and self._inlet is None:
            self._inlet = patiently(lambda: open_inlet(url, reader=self._name, after=last))
            patiently(lambda: self._inlet and self._inlet.read(timeout=0))  # raises if nothing is retained for us
        return 0 if last is None else _int(url, last)

    def _end(self, start: int, most: int | None) -> int:
        """Where a batch ends that begins at *start*."""
        last = self._last()
        if last < start:
            raise Gone(
                f"{show_url(self._tasks.url)} ends at {last}, before the position {start} of this query: it was made "
                f"anew, or has lost elements"
            )
        end = last if self._target is None else max(start, min(last, self._target))
        return end if most is None else min(end, start + most)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[StreamSlice]:
        if start == end:
            return []  # what comes after this, of which we are told by it, may be a batch that ends here
        if not self._resumed and start["number"]:
            self.commit(start)  # later batches may begin where Spark's log does not: it can be written asynchronously
        self._resumed = True
        return self._tasks.plan(start["number"], end["number"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamSlice)
        return self._tasks.read(partition)

    def commit(self, end: StreamOffset) -> None:
        self._last()  # which opens it
        if (inlet := self._inlet) is not None:
            patiently(lambda: inlet.acknowledge(end["number"]))

    def stop(self) -> None:
        for inlet in filter(None, (self._look, self._inlet)):
            inlet.close()


class CountingReader(_Reader):
    """For Spark 4.0 and 4.1, whose `latestOffset` is not told where the batch begins.

    What it returns is either the end of the next batch, or the position where the query is already, and then there is
    no batch. So it goes on by as many elements as a batch may have: from where a new query begins, or from the end of
    Spark's log, of which the reader of a restarted query is told before it is asked.
    """

    _told: int | None = None

    def latestOffset(self) -> StreamOffset:  # type: ignore[override]
        if self._most is None:
            return {"number": self._last()}
        if self._told is None:
            self._told = patiently(self._first_position)
        self._told = self._end(self._told, self._most)
        return {"number": self._told}

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[StreamSlice]:
        self._told = max(self._told or 0, end["number"])
        return super().partitions(start, end)


def _int(url: str, position: Position) -> int:
    if isinstance(position, int):
        return position
    raise BadUrl(f"{show_url(url)} has no numbers of ours: what others write is not read by Spark")


def stream_reader(tasks: StreamTasks, reader: str, after: int | None, most: int | None) -> _Reader:
    """The reader for the Spark at hand."""
    try:
        import pyspark.sql.streaming.datasource as limits
    except ModuleNotFoundError:  # before 4.2
        return CountingReader(tasks, reader, after, most)

    class AdmittingReader(_Reader, limits.SupportsTriggerAvailableNow):
        """From Spark 4.2 on."""

        def getDefaultReadLimit(self) -> limits.ReadLimit:
            return limits.ReadAllAvailable() if self._most is None else limits.ReadMaxRows(self._most)

        def latestOffset(self, start: StreamOffset, limit: Any) -> StreamOffset:
            return {"number": self._end(start["number"], getattr(limit, "max_rows", None))}

        def reportLatestOffset(self) -> StreamOffset:
            return {"number": self._last()}

        def prepareForTriggerAvailableNow(self) -> None:
            self._target = self._last()

    return AdmittingReader(tasks, reader, after, most)
