"""Streams as source and sink of Spark: rows a second beside Spark's own files, and beside redis-py in a `foreachBatch`.

    python -m safekeeper.bench.studies.spark_streams [--quick] [--only reading] [--body json] [--profile]

Every arm is a query with the trigger `availableNow` over the same rows, about 100 bytes each, in as many batches. What
counts is the time of its batches by the clock, as Spark tells it: neither the start of the JVM nor that of the query.
There is no `--processor` here: PySpark's daemon does not wait for its workers, so the time of one that ends is lost.
Arms that read end in Spark's sink `noop`; arms that write read the same Parquet files. "bytes" are elements as they
are, "json" are the three columns of their bodies. It needs Spark 4.2: before, this trigger takes one batch of a source
in Python.

"PySpark alone" is a source in Python whose rows are in memory, and a sink in Python that drops them: no data source in
Python can do better. The loops by redis-py are not exact: a batch that Spark repeats is in the stream twice.

Where our part of the time goes is measured without Spark, in this process, by processor. `--profile` shows its
functions.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import redis
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

import safekeeper.spark
from safekeeper.bench.harness.interleave import Interleaved, Spread, interleave
from safekeeper.bench.harness.machine import Machine
from safekeeper.dev.redis import RedisServer
from safekeeper.spark.stream_bodies import ElementBodies
from safekeeper.spark.stream_columns import BYTES_SCHEMA, ElementColumns
from safekeeper.spark.stream_reader import StreamOffset, StreamSlice, slice_elements
from safekeeper.spark.stream_writer import StagedStream
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.streams.batched import BatchPieceWriter
from safekeeper.streams.registry import carrier_of
from safekeeper.streams.tables import ElementTable, SupportsTables

BATCHES, FILES = 2, 4
"""Batches of a query, and files of a batch; as many tasks read a batch of a stream."""
FRAMES, PIECES, REDIS = "store:log:, from an operator", "store:log:, from Spark", "redis:"
STORE, TO_JSON = "store:log:", "store:log:, to_json"
ALONE, PARQUET = "PySpark alone", "Parquet files"
BY_BATCH, BY_PARTITION = "redis-py, foreachBatch", "redis-py, foreachPartition"
SCHEMAS = {"bytes": BYTES_SCHEMA, "json": "word string, n bigint, about string"}
TEXTS = {"bytes": "text files", "json": "JSON files"}
KINDS = {"bytes": "elements", "json": "columns"}
"""The Parquet files of a form."""

GOALS = {
    "reading": {FRAMES: (0.5, PARQUET), PIECES: (0.5, PARQUET)},
    "writing": {STORE: (0.5, PARQUET), REDIS: (1.0, BY_BATCH)},
}
"""What our arms are to reach, as a part of whose rate."""

_CORES = 2
_SETTINGS = {
    "spark.driver.memory": "3g",
    "spark.log.level": "ERROR",
    "spark.sql.files.openCostInBytes": "0",  # or one core would read a small file alone
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_TOGETHER = 1000
"""Commands in a pipeline of redis-py."""
_BATCH_ROWS = 10_000
"""Of an Arrow batch that Spark gives to Python."""

Sink = Callable[[DataStreamWriter], DataStreamWriter]


def word(number: int) -> dict[str, object]:
    """What the row *number* says."""
    return {"word": f"word-{number}", "n": number, "about": f"{number:x}".rjust(50, "x")}


def elements(numbers: Iterable[int]) -> list[StreamElement]:
    """Rows as the elements of a stream."""
    return [StreamElement(n, json.dumps(word(n)).encode(), b"key-%05d" % (n % 10_000)) for n in numbers]


@dataclass(frozen=True, slots=True)
class SameRows:
    """The same rows as files of all kinds."""

    folder: Path
    of_file: int
    """How many rows a file has."""

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.of_file * FILES * BATCHES

    def write(self) -> None:
        """Make the files."""
        for kind in (*KINDS.values(), "lines"):
            (self.folder / kind).mkdir(parents=True)
        for file in range(FILES * BATCHES):
            numbers = range(file * self.of_file + 1, (file + 1) * self.of_file + 1)
            some = elements(numbers)
            table = {name: [getattr(one, name) for one in some] for name in ("number", "key", "body")}
            pq.write_table(pa.table(table), self.folder / f"elements/{file}.parquet")
            pq.write_table(pa.Table.from_pylist([*map(word, numbers)]), self.folder / f"columns/{file}.parquet")
            (self.folder / f"lines/{file}").write_bytes(b"".join(one.body + b"\n" for one in some))

    def send(self, url: str) -> None:
        """Make a stream of them, as an operator does."""
        with closing(open_outlet(url)) as outlet:
            for start in range(1, self.count + 1, _TOGETHER):
                outlet.send(elements(range(start, min(start + _TOGETHER, self.count + 1))))

    def for_sink(self, form: str) -> list[pa.RecordBatch]:
        """The rows as Spark gives them to a sink."""
        table = pq.read_table(self.folder / KINDS[form])
        names = [name for name in table.column_names if name != "number"]
        return [*table.select(names).to_batches(_BATCH_ROWS)]


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives so many times the same row, without any work for each."""

    def __init__(self, form: str, rows: int) -> None:
        self._form, self._rows = form, rows

    def initialOffset(self) -> StreamOffset:
        return {"number": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._rows // BATCHES)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        assert isinstance(limit, ReadMaxRows)
        return {"number": min(self._rows, start["number"] + limit.max_rows)}

    def prepareForTriggerAvailableNow(self) -> None:
        """All of it is there."""

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[StreamSlice]:
        return slice_elements(start["number"], end["number"], FILES)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamSlice)
        (one,) = elements([partition.upto])
        row = {"number": partition.upto, "key": one.key, "body": one.body} if self._form == "bytes" else word(1)
        left = partition.upto - partition.after
        rows = pa.RecordBatch.from_pydict({name: [value] * min(left, _BATCH_ROWS) for name, value in row.items()})
        while left > 0:
            yield rows.slice(0, left)
            left -= rows.num_rows


class DroppingWriter(DataSourceStreamArrowWriter):
    """Takes rows and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class MemoryDataSource(DataSource):
    """What every data source in Python costs."""

    @classmethod
    def name(cls) -> str:
        return "pyspark-alone"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return MemoryReader(self.options["form"], int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return DroppingWriter()


def add_rows(port: int, stream: str, rows: Iterable[Row]) -> None:
    """Append *rows* to a Redis stream as one does by hand."""
    with redis.Redis("127.0.0.1", port, db=1) as client, client.pipeline(transaction=False) as pipeline:
        for number, row in enumerate(rows, 1):
            if "body" in row:
                pipeline.xadd(stream, {"key": row["key"], "body": row["body"]})
            else:
                pipeline.xadd(stream, {"body": json.dumps(row.asDict())})
            if number % _TOGETHER == 0:
                pipeline.execute()
        pipeline.execute()


class SparkStreams:
    """The arms: queries over the same rows."""

    def __init__(self, spark: SparkSession, rows: SameRows, server: RedisServer, folder: Path) -> None:
        self._spark, self._rows, self._server, self._folder = spark, rows, server, folder
        self._turns = count()
        self.streams = {
            FRAMES: f"store:log://{folder}/frames?stream=words",
            PIECES: f"store:log://{folder}/pieces?stream=words",
            REDIS: f"{server.url}?stream=words",
        }
        self._written = f"{server.url.removesuffix('0')}1?stream=written"
        self.rows = rows.count
        safekeeper.spark.register(spark)
        spark.dataSource.register(MemoryDataSource)

    def fill(self) -> None:
        """Make the streams that are read."""
        for arm in (FRAMES, REDIS):
            self._rows.send(self.streams[arm])
        self._run(self._parquet("bytes").drop("number"), self._to(self.streams[PIECES], "bytes"))

    def reading(self, form: str) -> dict[str, Callable[[], float]]:
        """The arms that read."""
        arms: dict[str, Callable[[], DataFrame]] = {
            **{arm: partial(self._stream, url, form) for arm, url in self.streams.items()},
            ALONE: partial(self._alone, form),
            PARQUET: partial(self._parquet, form),
            TEXTS[form]: partial(self._text, form),
        }
        return {arm: lambda rows=rows: self._run(rows(), _to_nothing) for arm, rows in arms.items()}  # type: ignore[misc]

    def writing(self, form: str) -> dict[str, Callable[[], float]]:
        """The arms that write."""
        port = self._server.port

        def by_batch(rows: DataFrame, batch: int) -> None:
            add_rows(port, "written", rows.collect())

        def by_partition(rows: DataFrame, batch: int) -> None:
            rows.foreachPartition(partial(add_rows, port, "written"))

        return {
            STORE: partial(self._write_store, form),
            **({TO_JSON: self._write_texts} if form == "json" else {}),
            REDIS: partial(self._write_redis, form, self._to(self._written, form)),
            ALONE: partial(self._write, form, lambda sink: sink.format(MemoryDataSource.name())),
            PARQUET: partial(self._write_files, form),
            BY_BATCH: partial(self._write_redis, form, lambda sink: sink.foreachBatch(by_batch)),
            BY_PARTITION: partial(self._write_redis, form, lambda sink: sink.foreachBatch(by_partition)),
        }

    def read_apart(self, form: str) -> dict[str, Callable[[], StepTimes]]:
        """The parts of reading that are ours."""
        columns = ElementColumns(self._parquet(form).schema, form, None, None, "words")
        return {arm: partial(read_apart, url, columns, self._rows.count) for arm, url in self.streams.items()}

    def write_apart(self, form: str) -> dict[str, Callable[[], StepTimes]]:
        """The parts of writing that are ours."""
        bodies = ElementBodies(self._parquet(form).drop("number").schema, form, None, "written")
        batches = self._rows.for_sink(form)

        def to_store() -> StepTimes:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                return write_apart(f"store:log://{folder}/store?stream=written", bodies, batches)

        def to_redis() -> StepTimes:
            with redis.Redis("127.0.0.1", self._server.port, db=1) as client:
                times = write_apart(self._written, bodies, batches)
                client.flushdb()
            return times

        return {STORE: to_store, REDIS: to_redis}

    def _run(self, rows: DataFrame, sink: Sink) -> float:
        """Rows a second in the batches of a query over all rows."""
        with tempfile.TemporaryDirectory(dir=self._folder) as checkpoint:
            query = sink(rows.writeStream.option("checkpointLocation", checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination()
            batches = [progress for progress in query.recentProgress if progress.numInputRows]
        found = sum(progress.numInputRows for progress in batches)
        if (found, len(batches)) != (self._rows.count, BATCHES):
            raise AssertionError(f"{found} of {self._rows.count} rows came, in {len(batches)} batches")
        return found * 1000 / sum(progress.durationMs["triggerExecution"] for progress in batches)

    def _stream(self, url: str, form: str) -> DataFrame:
        # Each query has a name of its own, or only the first one would have to acknowledge anything.
        options = {"url": url, "reader": f"spark{next(self._turns)}", "after": "0", "body": form}
        reader = self._spark.readStream.format("safekeeper-stream").schema(SCHEMAS[form]).options(**options)
        return reader.option("maxElementsPerBatch", self._rows.count // BATCHES).load()

    def _alone(self, form: str) -> DataFrame:
        reader = self._spark.readStream.format(MemoryDataSource.name()).schema(SCHEMAS[form])
        return reader.options(form=form, rows=self._rows.count).load()

    def _parquet(self, form: str) -> DataFrame:
        reader = self._spark.readStream.schema(SCHEMAS[form]).option("maxFilesPerTrigger", FILES)
        return reader.parquet(str(self._rows.folder / KINDS[form]))

    def _text(self, form: str) -> DataFrame:
        reader, lines = self._spark.readStream.option("maxFilesPerTrigger", FILES), str(self._rows.folder / "lines")
        return reader.text(lines) if form == "bytes" else reader.schema(SCHEMAS[form]).json(lines)

    def _write(self, form: str, sink: Sink) -> float:
        return self._run(self._parquet(form).drop("number"), sink)

    def _write_store(self, form: str) -> float:
        return self._into_store(self._parquet(form).drop("number"), form)

    def _write_texts(self) -> float:
        return self._into_store(self._parquet("json").select(F.to_json(F.struct("*")).alias("body")), "bytes")

    def _into_store(self, rows: DataFrame, body: str) -> float:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            url = f"store:log://{folder}/store?stream=written"
            rate = self._run(rows, self._to(url, body))
            (status,) = carrier_of(url).survey(url)  # type: ignore[attr-defined]
            self._check(status.last)
        return rate

    def _write_redis(self, form: str, sink: Sink) -> float:
        with redis.Redis("127.0.0.1", self._server.port, db=1) as client:
            rate = self._write(form, sink)
            self._check(client.xlen("written"))
            client.flushdb()
        return rate

    def _write_files(self, form: str) -> float:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            return self._write(form, lambda sink: sink.format("parquet").option("path", folder))

    def _check(self, found: object) -> None:
        """What is fast and wrong does not count."""
        if found != self._rows.count:
            raise AssertionError(f"{found} of {self._rows.count} rows were written")

    @staticmethod
    def _to(url: str, form: str) -> Sink:
        return lambda sink: sink.format("safekeeper-stream").options(url=url, body=form)


def _to_nothing(sink: DataStreamWriter) -> DataStreamWriter:
    return sink.format("noop")


class StepTimes(dict[str, float]):
    """Seconds of the processor that the steps of something took in this process."""

    def time(self, step: str, does: Callable[[], Any]) -> Any:
        """What *does* gives; its time is added to that of *step*."""
        started = time.process_time()
        found = does()
        self[step] = self.get(step, 0.0) + time.process_time() - started
        return found


def read_apart(url: str, columns: ElementColumns, rows: int) -> StepTimes:
    """What tasks do with the elements of a stream, without Spark."""
    times = StepTimes()
    with closing(open_inlet(url, after=0)) as inlet:

        def fetch() -> Sequence[ElementTable]:
            return inlet.read_tables(0) if isinstance(inlet, SupportsTables) else [ElementTable.of(inlet.read(0))]

        while rows:
            for table in times.time("from the carrier", fetch):
                rows -= sum(batch.num_rows for batch in times.time("to Arrow", partial(_all, columns, table)))
    return times


def _all(columns: ElementColumns, table: ElementTable) -> list[pa.RecordBatch]:
    return [*columns.batches(table)]


def write_apart(url: str, bodies: ElementBodies, batches: Sequence[pa.RecordBatch]) -> StepTimes:
    """What the tasks and the commit of a batch do, without Spark."""
    pieces = bodies.pieces(iter(batches))
    stream, producer, listed, times = StagedStream.of(url, None, ()), os.urandom(16).hex(), [], StepTimes()
    store, options = stream.open()
    with store:
        writer = BatchPieceWriter(store, options.stream, producer, 0)
        while piece := times.time("from Arrow", lambda: next(pieces, None)):
            listed.append(times.time("to the store", partial(writer.write_columns, *piece)))
    times.time("commit", lambda: stream.commit(producer, 0, listed))
    return times


def table_of(result: Interleaved, peers: Sequence[str]) -> Table:
    """The rates of all arms, and as parts of those of the peers."""
    table = Table(title=result.title, title_justify="left")
    for heading in ("arm", result.unit, *(f"of {peer}" for peer in peers)):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm in result.rates:
        table.add_row(arm, str(result.rate(arm)), *(str(result.ratio(arm, peer)) for peer in peers))
    return table


def table_of_steps(title: str, rows: int, found: Mapping[str, Sequence[StepTimes]]) -> Table:
    """What the steps of each arm take for a row."""
    table = Table(title=f"{title}, without Spark: µs of the processor a row", title_justify="left")
    steps = [*next(iter(found.values()))[0]]
    for heading in ("arm", *steps):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, times in found.items():
        table.add_row(arm, *(str(Spread.of(1e6 * one[step] / rows for one in times)) for step in steps))
    return table


def own_steps(streams: SparkStreams, what: str, forms: Sequence[str]) -> dict[str, Callable[[], StepTimes]]:
    """Our own part of what the queries do."""
    return {
        f"{arm}, {form}": does
        for form in forms
        for arm, does in (streams.read_apart(form) if what == "reading" else streams.write_apart(form)).items()
    }


def profile(what: str, arms: Mapping[str, Callable[[], StepTimes]]) -> None:
    """Print the functions in which our own steps spend their time."""
    for arm, does in arms.items():
        print(f"{what}, {arm}")
        profiler = cProfile.Profile()
        profiler.runcall(does)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(12)


def measure(streams: SparkStreams, what: str, forms: Sequence[str], rounds: int, quick: bool) -> None:
    """Run the queries that read, or those that write, and print what was found."""
    console = Console()
    for form in forms:
        arms = streams.reading(form) if what == "reading" else streams.writing(form)
        title = f"{what} {streams.rows:,} rows, {form}"
        result = interleave(arms, rounds, title, "rows/s", warm_up=not quick)
        console.print(table_of(result, (PARQUET, TEXTS[form] if what == "reading" else BY_BATCH, ALONE)))
        for arm, (wanted, peer) in GOALS[what].items():
            goal = result.at_least(wanted, arm, peer)
            print(replace(goal, met=None) if quick else goal)
    steps = own_steps(streams, what, forms)
    turns = [{arm: does() for arm, does in steps.items()} for _ in range(rounds)]
    console.print(table_of_steps(what, streams.rows, {arm: [turn[arm] for turn in turns] for arm in steps}))


def start_spark(folder: Path) -> SparkSession:
    """A Spark of its own in this process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.Builder().master(f"local[{_CORES}]").appName("safekeeper bench")
    places = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    for name, value in {**_SETTINGS, **places}.items():
        builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--only", default="", help="reading or writing")
    parser.add_argument("--body", default="", help="bytes or json")
    parser.add_argument("--rows", type=int, help="how many rows a query has")
    parser.add_argument("--rounds", type=int, help="how often each arm runs")
    parser.add_argument("--profile", action="store_true", help="show in which functions our part of the time is")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    options = parser.parse_args()
    count = options.rows or (50_000 if options.quick else 400_000)
    forms = [form for form in SCHEMAS if options.body in form]
    rounds = options.rounds or (1 if options.quick else 5)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        rows = SameRows(folder / "rows", -(-count // (FILES * BATCHES)))
        rows.write()
        server = stack.enter_context(RedisServer(folder, appendonly="yes", auto_aof_rewrite_percentage="0"))
        streams = SparkStreams(stack.enter_context(start_spark(folder)), rows, server, folder)
        streams.fill()
        for what in ("reading", "writing"):
            if options.only not in what:
                continue
            if options.profile:
                profile(what, own_steps(streams, what, forms))
            else:
                measure(streams, what, forms, rounds, options.quick)
        print(Machine.here(folder).sentence())


if __name__ == "__main__":
    main()
