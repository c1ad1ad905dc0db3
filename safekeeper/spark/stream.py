"""Streams and Spark's queries: elements of a stream as rows, and rows as the elements of a stream.

    safekeeper.spark.register(spark)
    words = spark.readStream.format("safekeeper-stream").option("url", "redis://127.0.0.1:6379/0?stream=words").load()

`docs/spark-streams.md` is the manual. The driver and the executors need safekeeper with the driver of the carrier, and
see the stream under the same URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from safekeeper.errors import BadUrl
from safekeeper.spark.stream_bodies import ElementBodies
from safekeeper.spark.stream_columns import BODIES, BYTES_SCHEMA, ElementColumns
from safekeeper.spark.stream_reader import StreamTasks, stream_reader
from safekeeper.spark.stream_writer import ForeachBatchWriter, StagedStream, StreamWriter, bodies_for
from safekeeper.url import guess, show_url


class _Options:
    """The options that were given, checked."""

    def __init__(self, given: Mapping[str, str], known: Sequence[str]) -> None:
        """Raise `BadUrl` for what is missing, unknown or makes no sense."""
        self._given = given
        names = {name.lower() for name in known} | _SPARKS_OWN
        for name in given:
            if name.lower() not in names:
                raise BadUrl(f"there is no option {name!r}{guess(name, list(known))}; there are: {', '.join(known)}")
        if not (url := given.get("url")):
            raise BadUrl("no stream is named: add .option('url', 'redis://127.0.0.1:6379/0?stream=words')")
        self.url, self.shown = url, show_url(url)
        self.body, self.key, self.number = given.get("body", "bytes"), given.get("key"), given.get("number")
        if self.body not in BODIES:
            raise BadUrl(f"body={self.body}: a body is one of {', '.join(BODIES)}")
        if self.body == "bytes" and (self.key or self.number):
            raise BadUrl("key and number name columns beside those of a body that is json, msgpack or arrow")

    def text(self, name: str) -> str | None:
        """The value of an option."""
        return self._given.get(name)

    def names(self, name: str) -> list[str]:
        """Names with commas between them."""
        return [one.strip() for one in self._given.get(name, "").split(",") if one.strip()]

    def count(self, name: str, least: int) -> int | None:
        """The value of an option that is a number."""
        text = self._given.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < least:
            raise BadUrl(f"{name}={text}: it takes a number from {least} on")
        return int(text)


_SOURCE = ("url", "reader", "body", "key", "number", "after", "maxElementsPerBatch", "partitions")
_SINK = ("url", "readers", "body", "key", "staging")
_SPARKS_OWN = {"path", "checkpointlocation", "queryname"}


class StreamDataSource(DataSource):
    """The data source `safekeeper-stream`.

    As a source:

    url                    the stream
    reader                 the name by which the query acknowledges what it has done; "spark"
    body                   what the bytes of an element are: bytes, json, msgpack or arrow; bytes
    key, number            columns that hold the element's key and number, where the body is not bytes
    after                  a new query begins after this number; without it, after what its reader has acknowledged
    maxElementsPerBatch    how many elements a batch has at most; any number
    partitions             how many tasks read a batch at most; 4

    As a sink:

    url                    the stream
    readers                who reads it, names with commas between them; without any, nothing is ever trimmed
    body                   as above
    key                    the column that becomes the element's key, where the body is not bytes
    staging                where elements wait for a stream that is not in a store; `store:` and the stream's own URL
    """

    @classmethod
    def name(cls) -> str:
        return "safekeeper-stream"

    def schema(self) -> str:
        options = _Options(self.options, _SOURCE)
        if options.body == "bytes":
            return BYTES_SCHEMA
        raise BadUrl(f"name the columns of a body that is {options.body}: .schema('word string, n int')")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _Options(self.options, _SOURCE)
        columns = ElementColumns(schema, options.body, options.key, options.number, options.shown)
        tasks = StreamTasks(options.url, options.count("partitions", 1) or 4, columns)
        after, most = options.count("after", 0), options.count("maxElementsPerBatch", 1)
        return stream_reader(tasks, options.text("reader") or "spark", after, most)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(*self._sink(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ForeachBatchWriter(*self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> tuple[StagedStream, ElementBodies]:
        options = _Options(self.options, _SINK)
        if overwrite:
            raise BadUrl("a stream is appended to: neither the output mode complete nor the mode overwrite can be")
        stream = StagedStream.of(options.url, options.text("staging"), options.names("readers"))
        return stream, bodies_for(stream, schema, options.body, options.key)


def to_stream(url: str, **options: str) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch`, which makes each batch a part of the stream at *url*, once.

        counts.writeStream.outputMode("update").foreachBatch(to_stream("redis://...?stream=counts", readers="board"))

    *options* are those of the sink. Spark lets `format("safekeeper-stream")` have the output mode append only.
    """

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.format(StreamDataSource.name()).options(url=url, **options).mode("append").save()

    return write
