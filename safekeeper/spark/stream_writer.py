"""The writing side: tasks write pieces, and the commit of a batch makes them a part of the stream, once.

Spark repeats a batch that was not committed to its log, with the same number and perhaps with rows in another order;
two drivers may do that at once, if one was taken for dead. So a batch is known by the id of its query and its number,
which tasks find in what Spark tells them, and the stream takes it once (`safekeeper.streams.batched`). A stream that is
not in a store gets the elements after that, by their numbers, from the store where they are staged: what it has it
drops.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from safekeeper.backend import Backend, Scope
from safekeeper.errors import BadState, BadUrl, Gone
from safekeeper.spark.stream_bodies import ElementBodies
from safekeeper.spark.stream_reader import patiently
from safekeeper.streams import Outlet, open_inlet, open_outlet
from safekeeper.streams.batched import BatchOutlet, BatchPieceWriter, ListedPiece
from safekeeper.streams.store import StoreStreamOptions, open_store
from safekeeper.url import show_url

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Where Spark tells a task which query and batch it belongs to."""

# From Spark 4.1 on there is a class whose `write` gets Arrow's batches; 4.0 looks for the one of batch queries.
_ARROW: type = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceArrowWriter)


@dataclass(frozen=True, slots=True)
class StagedStream:
    """Where the elements go: into a store, and from there to another carrier, if *target* is one."""

    staging: str = field(repr=False)  # it may hold a password
    target: str | None = field(repr=False)
    readers: tuple[str, ...]

    @classmethod
    def of(cls, url: str, staging: str | None, readers: Sequence[str]) -> StagedStream:
        """The stream at *url*. Elements for a carrier that is not a store wait in a store at *staging*."""
        if url.startswith("store:"):
            if staging is not None:
                raise BadUrl(f"{show_url(url)} is in a store: leave the option staging out")
            return cls(url, None, tuple(readers))
        if url.startswith("tcp:"):
            raise BadUrl(f"{show_url(url)}: who sends over TCP has to stay, and a commit is over at once: take another")
        if staging is not None and not staging.startswith("store:"):
            raise BadUrl("staging takes the URL of a stream in a store: store:log:///var/lib/app?stream=counts")
        return cls(staging or f"store:{url}", url, tuple(readers))

    def open(self) -> tuple[Backend, StoreStreamOptions]:
        """The store of the pieces."""
        store, options = open_store(self.staging)
        if store.scope is Scope.PROCESS:
            store.close()
            raise BadUrl(f"{show_url(self.staging)} is seen by one process only, and a query has several")
        return store, options

    def commit(self, producer: str, batch: int, pieces: Sequence[ListedPiece]) -> None:
        """Make *pieces* a part of the stream, unless that was done; and let go of what nobody needs."""
        store, options = self.open()
        with store:
            if self.target is None:
                outlet = BatchOutlet(store, options.stream, self.readers, options.retention)
                outlet.commit(producer, batch, pieces)
                outlet.tidy()
                return
            with closing(open_outlet(self.target, readers=self.readers)) as target:
                staged = BatchOutlet(store, options.stream, (), floor=target.last)
                staged.commit(producer, batch, pieces)
                if (last := staged.last) < target.last:
                    raise Gone(
                        f"{show_url(self.target)} ends at {target.last}, and {show_url(self.staging)} at {last}: "
                        f"somebody else sends to the stream, or the store has lost elements"
                    )
                self._forward(target, last)
                acknowledged = min(target.acknowledged().values(), default=0)
                staged.tidy(last if target.retains else acknowledged)

    def _forward(self, target: Outlet, last: int) -> None:
        """Send what is staged and not yet in *target*. Whoever else does that sends the same."""
        if target.last >= last:
            return
        with closing(open_inlet(self.staging, after=target.last)) as staged:
            while target.last < last:
                elements = staged.read(timeout=0)
                if not elements:
                    raise Gone(f"{show_url(self.staging)} has no element {target.last + 1}, which it had just before")
                patiently(functools.partial(target.send, elements))


@dataclass(frozen=True, slots=True)
class PiecesWritten(WriterCommitMessage):
    """What a task tells the commit."""

    producer: str
    batch: int
    pieces: tuple[ListedPiece, ...]


class _TaskWriter:
    """Spark asks it to write in tasks, and to commit in a process beside the Spark driver."""

    def __init__(self, stream: StagedStream, bodies: ElementBodies) -> None:
        self._stream, self._bodies = stream, bodies

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PiecesWritten:
        """Write the rows of one task."""
        producer, batch = _batch_of_task()
        store, options = self._stream.open()
        with store:
            writer = BatchPieceWriter(store, options.stream, producer, batch)
            pieces = [
                patiently(functools.partial(writer.write_columns, *columns))
                for columns in self._bodies.pieces(iterator)
            ]
        return PiecesWritten(producer, batch, tuple(pieces))

    def commit(self, messages: list[WriterCommitMessage | None], *_: int) -> None:
        """Make the rows of all tasks a part of the stream, in the order of the tasks."""
        told = [message for message in messages if isinstance(message, PiecesWritten)]
        pieces = [piece for message in told for piece in message.pieces]
        if told:
            patiently(lambda: self._stream.commit(told[0].producer, told[0].batch, pieces))

    def abort(self, messages: list[WriterCommitMessage | None], *_: int) -> None:
        """Nothing to do: when the batch is done, the pieces that its attempts have left behind are deleted."""


class StreamWriter(_TaskWriter, _ARROW, DataSourceStreamWriter):  # type: ignore[misc]
    """For `writeStream.format("safekeeper-stream")`."""


class ForeachBatchWriter(_TaskWriter, DataSourceArrowWriter):
    """For `write.format("safekeeper-stream")` in a `foreachBatch`: whatever the output mode of the query is."""


def _batch_of_task() -> tuple[str, int]:
    """The id of the query and the number of the batch that this task works for."""
    task = TaskContext.get()
    query, batch = ((task and task.getLocalProperty(name)) or "" for name in (_QUERY, _BATCH))
    producer = query.replace("-", "").lower()
    if not re.fullmatch("[0-9a-f]{32}", producer) or not batch.isdecimal():
        raise BadState("rows become elements of a stream in a streaming query, or in its foreachBatch: this is neither")
    return producer, int(batch)


def bodies_for(stream: StagedStream, schema: StructType, body: str, key: str | None) -> ElementBodies:
    """How rows of *schema* become elements of *stream*."""
    return ElementBodies(schema, body, key, show_url(stream.target or stream.staging))
