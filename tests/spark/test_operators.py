"""Every stateful operator on Spark's RocksDB with its whole checkpoint in the store: as on a local file system.

What our own provider can do is in `test_queries.py`, what Spark does not let it in `test_refused.py`. `docs/spark.md`
has the table of ways by minor version.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from safekeeper.spark.build import spark_home, spark_version

from .sessions import sessions, sessions_in_pandas

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
MINOR = spark_version(spark_home())
STATE = "spark.sql.streaming.stateStore."
FORMAT = STATE + "checkpointFormatVersion"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
IMPATIENT = "Python worker failed to connect back"
"""What Spark says if an interpreter takes more than ten seconds to start, which no setting changes."""
SIDES = ({"joinSide": "left"}, {"joinSide": "right"})
NO_EMPTY_BATCHES = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}
V4 = {JOIN_FORMAT: "4", "spark.sql.streaming.join.stateFormatV4.enabled": "true"}
EVERYDAY = ("initial_state", "schema_evolution")
"""What the everyday run tries; some others are in `test_checkpoints.py`."""

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers do not import this module


@dataclass(frozen=True)
class Operator:
    query: Callable[..., Any]
    inputs: tuple[str, ...] = ("left",)
    settings: Mapping[str, str] = field(default_factory=dict)
    minors: tuple[str, ...] = ("4.0", "4.1", "4.2", "4.3")
    mode: str = "append"
    reads: tuple[Mapping[str, str], ...] = ({},)
    """The options with which Spark's reader shows the state; none where it has times of the clock in it."""
    after: Callable[..., Any] | None = None
    """The query as it is after the restart, if it is another one then."""
    repartitions: bool = False
    """Whether its state is repartitioned, too."""


OPERATORS: dict[str, Operator] = {}


def operator(**details):
    """Enters the query below it into the table, where Spark has it."""

    def enter(query):
        if MINOR in (found := Operator(query, **details)).minors:
            OPERATORS[query.__name__] = found
        return query

    return enter


def variables(*names):
    return tuple({"stateVarName": name} for name in names)


def rows_of(pandas_chunks):
    return [number for chunk in pandas_chunks for number in chunk["number"].tolist()]


def frame(**columns):
    import pandas

    return pandas.DataFrame(columns)


@operator(reads=variables("seen", "numbers", "times"))
def value_list_and_map_state_with_timers(left):
    return sessions_in_pandas(left)


@operator(minors=("4.1", "4.2", "4.3"), reads=variables("seen", "numbers", "times"))
def the_same_by_rows(left):
    processor = sessions(
        lambda rows: [row.number for row in rows],
        lambda key, told: Row(key=key, told=told),
    )
    return left.withWatermark("time", "2 minutes").groupBy("key").transformWithState(*processor)


def with_time_to_live(short, long):
    """A value, a list and a map that live for *short* milliseconds, and a value that lives for *long*."""
    from pyspark.sql.streaming import StatefulProcessor

    class Expiring(StatefulProcessor):
        def init(self, handle):
            self.value = handle.getValueState("value", "rows int", ttlDurationMs=short)
            self.list = handle.getListState("list", "number int", ttlDurationMs=short)
            self.map = handle.getMapState("map", "number int", "rows int", ttlDurationMs=short)
            self.kept = handle.getValueState("kept", "rows int", ttlDurationMs=long)

        def handleInputRows(self, key, rows, timerValues):
            numbers = rows_of(rows)
            before = [self.value.exists(), self.list.exists(), self.map.exists(), self.kept.exists()]
            seen = len(numbers) + (self.kept.get()[0] if self.kept.exists() else 0)
            for state in (self.value, self.kept):
                state.update((seen,))
            self.list.put([(number,) for number in numbers])
            for number in numbers:
                self.map.updateValue((number,), (seen,))
            yield frame(key=[key[0]], told=[f"{before} {seen}"])

        def close(self):
            pass

    return Expiring()


def expiring(left, processor):
    return left.groupBy("key").transformWithStateInPandas(
        processor, "key string, told string", "update", "processingTime"
    )


@operator(settings=NO_EMPTY_BATCHES, mode="update", reads=())
def time_to_live_that_is_over_in_the_next_batch(left):
    return expiring(left, with_time_to_live(1, 3_600_000))


@operator(settings=NO_EMPTY_BATCHES, mode="update", reads=())
def time_to_live_that_is_not_over(left):
    return expiring(left, with_time_to_live(3_600_000, 3_600_000))


@operator(settings=NO_EMPTY_BATCHES, mode="update", reads=variables("seen"))
def timers_of_the_clock(left):
    """A timer that is due at once fires in the next batch."""
    from pyspark.sql.streaming import StatefulProcessor

    class Ringing(StatefulProcessor):
        def init(self, handle):
            self.handle = handle
            self.seen = handle.getValueState("seen", "rows int")

        def handleInputRows(self, key, rows, timerValues):
            seen = len(rows_of(rows)) + (self.seen.get()[0] if self.seen.exists() else 0)
            self.seen.update((seen,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
            yield frame(key=[key[0]], told=[f"seen {seen}"])

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            yield frame(key=[key[0]], told=[f"rang after {self.seen.get()[0]}"])
            self.seen.clear()

        def close(self):
            pass

    return expiring(left, Ringing())


@operator(reads=variables("seen"), settings=NO_EMPTY_BATCHES, mode="update")
def initial_state(left):
    from pyspark.sql.streaming import StatefulProcessor

    class Beginning(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", "rows int")

        def handleInitialState(self, key, initialState, timerValues):
            self.seen.update((int(initialState["rows"].sum()),))

        def handleInputRows(self, key, rows, timerValues):
            seen = len(rows_of(rows)) + (self.seen.get()[0] if self.seen.exists() else 0)
            self.seen.update((seen,))
            yield frame(key=[key[0]], told=[f"{seen}"])

        def close(self):
            pass

    given = [(f"key {number}", 1000 * number) for number in range(30)]  # more keys than the input has
    before = left.sparkSession.createDataFrame(given, "key string, rows int").groupBy("key")
    return left.groupBy("key").transformWithStateInPandas(
        Beginning(), "key string, told string", "update", "none", initialState=before
    )


def counting(schema, values):
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", schema)

        def handleInputRows(self, key, rows, timerValues):
            before = self.seen.get() if self.seen.exists() else None
            self.seen.update(values(len(rows_of(rows)) + (before[0] if before else 0)))
            yield frame(key=[key[0]], told=[f"{before} {self.seen.get()}"])

        def close(self):
            pass

    return Counting()


def counts(left, processor):
    return left.groupBy("key").transformWithStateInPandas(processor, "key string, told string", "update", "none")


def with_one_field_more_and_a_wider_one(left):
    return counts(left, counting("rows bigint, half double", lambda rows: (rows, rows / 2)))


@operator(
    settings={STATE + "encodingFormat": "avro"},
    mode="update",
    reads=variables("seen"),
    after=with_one_field_more_and_a_wider_one,
)
def schema_evolution(left):
    return counts(left, counting("rows int", lambda rows: (rows,)))


def join(left, right):
    left = left.withWatermark("time", "2 minutes").alias("left")
    right = right.withWatermark("time", "3 minutes").alias("right")
    near = F.expr("left.key = right.key and right.time between left.time and left.time + interval 5 minutes")
    return left.join(right, near, "leftOuter")


@operator(
    inputs=("left", "right"),
    settings={JOIN_FORMAT: "3"},
    minors=("4.1", "4.2", "4.3"),
    reads=SIDES,
)
def join_of_format_3(left, right):
    return join(left, right)


@operator(inputs=("left", "right"), settings=V4, minors=("4.2", "4.3"), reads=SIDES)
def join_of_format_4(left, right):
    return join(left, right)


@operator(mode="update", settings={FORMAT: "1"}, repartitions=True)
def aggregation(left):
    return left.groupBy("key").agg(F.count("*"), F.sum("number"), F.max("time"))


def begin(name, make, events, rocksdb):
    """A query that has done its first two batches."""
    found = OPERATORS[name]
    inputs = {input: events(seed) for seed, input in enumerate(found.inputs)}
    query = make(found.query, inputs, {**rocksdb, **found.settings}, found.mode)
    run(query, 0, 1)
    return query


def run(query, *batches):
    """Let these batches stream in; the query goes on once more where Spark did not wait for an interpreter to start."""
    while True:
        try:
            return query.run(*batches)
        except StreamingQueryException as error:
            if IMPATIENT not in str(error):
                raise
            batches = ()


def go_on(name, query):
    query._query = OPERATORS[name].after or query._query
    return run(query, 2)


def filled(rows):
    """What batches have put out, one after the other, but those that put out nothing."""
    return [rows[batch] for batch in sorted(rows) if rows[batch]]


def states(name, query):
    return [query.state(**options) for options in OPERATORS[name].reads]


@pytest.fixture(scope="module")
def expected(runner, events, rocksdb):
    """What an operator gives on RocksDB in a local folder, and the state that it leaves; asked once."""

    @functools.cache
    def expected(name):
        query = begin(name, runner, events, rocksdb)
        return go_on(name, query), states(name, query)

    return expected


@pytest.mark.crash
@pytest.mark.parametrize("name", [name for name in OPERATORS if LONG or name in EVERYDAY])
def test_an_operator_gives_the_same_rows_and_state_in_the_store(name, expected, whole, events, rocksdb):
    query = begin(name, whole, events, rocksdb)
    rows, state = expected(name)
    assert len(filled(rows)) >= 2
    assert go_on(name, query) == rows
    assert states(name, query) == state
    assert not query.unused.exists()
    if JOIN_FORMAT in OPERATORS[name].settings:
        (plan,) = query.session.read.text(f"{query.checkpoint}/offsets/0").where("value like '{%joi%'").collect()
        assert f'"{JOIN_FORMAT}":"{OPERATORS[name].settings[JOIN_FORMAT]}"' in plan.value


@pytest.mark.skipif(MINOR < "4.2", reason="Spark has it from 4.2 on")
@pytest.mark.crash
@pytest.mark.parametrize("name", [name for name, found in OPERATORS.items() if found.repartitions])
def test_state_in_the_store_is_repartitioned_offline(name, expected, runner, whole, events, rocksdb):
    """From two partitions to three: the query goes on with the same rows, on a local file system and in the store."""
    queries = [begin(name, make, events, rocksdb) for make in (runner, whole)]
    for query in queries:
        query.session._streamingCheckpointManager.repartition(query.checkpoint, 3)
        assert filled(go_on(name, query)) == filled(expected(name)[0])
    local, stored = (states(name, query) for query in queries)
    assert stored == local
    assert 2 in {row.partition_id for row in stored[0]}


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="it waits for batches that end by the clock")
@pytest.mark.skipif(MINOR < "4.3", reason="real-time mode has state from 4.3 on")
def test_real_time_mode_keeps_its_state_in_the_store(whole, runner, rocksdb, tmp_path):
    """An aggregation that is stopped and started again puts out one update for each row."""
    settings = {
        **rocksdb,
        FORMAT: "2",  # as real-time mode has it, for the reader of state
        "spark.sql.shuffle.partitions": "1",  # all tasks run at once, one of them reads
        "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    }
    given = [["a", "b", "a"], ["a", "c", "b"]]
    truth = [[("a", 1), ("a", 2), ("b", 1)], [("a", 3), ("b", 2), ("c", 1)]]
    states = []
    for number, make in enumerate((runner, whole)):
        query = make(None, {}, settings)
        words = Words(query.session)
        for part, (some, updates) in enumerate(zip(given, truth, strict=True)):
            words.add(some)
            assert words.counted_in_real_time(query.checkpoint, tmp_path / f"{number}-{part}", len(updates)) == updates
        states.append(query.state())
    assert states[0] == states[1]
    assert [(row.key.value, row.value["count"]) for row in states[1]] == [("a", 3), ("b", 2), ("c", 1)]


class Words:
    """A stream in the memory of Spark's driver, which real-time mode can read."""

    def __init__(self, session):
        self._session, self._jvm = session, session._jvm
        sources = self._jvm.org.apache.spark.sql.execution.streaming.sources
        strings = self._jvm.org.apache.spark.sql.Encoders.STRING()
        self._stream = sources.LowLatencyMemoryStream.singlePartition(session._jsparkSession, strings)

    def add(self, words):
        self._stream.addData(self._jvm.PythonUtils.toSeq(words))

    def counted_in_real_time(self, checkpoint, file, updates):
        """What a query puts out that runs until so many updates are out and the batch they are in is committed."""
        rows = DataFrame(self._stream.toDF(), self._session).groupBy("value").count()
        writer = rows.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        path = str(file)

        def put(row):
            with open(path, "a") as out:
                out.write(f"{row.value} {row['count']}\n")

        query = writer.foreach(put).trigger(realTime="2 seconds").start()
        while query.exception() is None and (not file.exists() or len(file.read_text().splitlines()) < updates):
            time.sleep(0.1)
        committed = query.lastProgress["batchId"] if query.lastProgress else -1
        while query.exception() is None and (not query.lastProgress or query.lastProgress["batchId"] == committed):
            time.sleep(0.1)
        query.stop()
        assert query.exception() is None
        return sorted((word, int(count)) for word, count in map(str.split, file.read_text().splitlines()))
