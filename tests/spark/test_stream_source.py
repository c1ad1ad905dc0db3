"""Streams as the source of a query: what a batch has, what is acknowledged when, what a body may be."""

from __future__ import annotations

import io
import json
import threading
import time
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import msgpack
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.datasource import CaseInsensitiveDict

from safekeeper.dev.process import free_port
from safekeeper.dev.redis import RedisServer
from safekeeper.errors import BadState, BadUrl, Gone, Unavailable
from safekeeper.operators import Operator
from safekeeper.policy import Sweep
from safekeeper.spark import register
from safekeeper.spark.stream import StreamDataSource
from safekeeper.spark.stream_columns import BYTES_SCHEMA, ElementColumns
from safekeeper.spark.stream_reader import CountingReader, StreamSlice, StreamTasks, patiently, slice_elements
from safekeeper.streams import StreamElement, open_outlet
from safekeeper.streams.batches import column, decode_piece, encode_piece
from safekeeper.streams.registry import carrier_of
from safekeeper.streams.tables import ElementTable
from safekeeper.testing.sending import numbered

from .schemas import schema as schema_of


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture(params=["redis", "store"])
def url(request, tmp_path):
    if request.param == "store":
        return f"store:log://{tmp_path}/store?stream=words"
    return f"{request.getfixturevalue('redis').url}?stream={tmp_path.name}"


class Query:
    """A query that collects the rows of its batches, and fails when it is told to."""

    def __init__(self, spark, folder, url, schema=None, **options):
        register(spark)
        self._spark, self._options, self._schema = spark, {"url": url, **options}, schema
        self._checkpoint = str(folder / "checkpoint")
        self.batches = {}
        self.fail_in = None

    def run(self, count=0):
        """Run it until nothing is left; before 4.2, where this trigger takes one batch, until there are so many."""
        before = len(self.rows)
        self._run()
        while len(self.rows) < count:
            assert before < len(self.rows)
            assert self._spark.version < "4.2"
            before = len(self.rows)
            self._run()
        return self

    def _run(self):
        reader = self._spark.readStream.format("safekeeper-stream").options(**self._options)
        if self._schema is not None:
            reader = reader.schema(self._schema)
        writer = reader.load().writeStream.option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).foreachBatch(self._collect).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _collect(self, rows, batch):
        self.batches[batch] = sorted(map(tuple, rows.collect()))
        if batch == self.fail_in:
            self.fail_in = None
            raise RuntimeError("as asked")

    @property
    def rows(self):
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def send(url, upto, start=1, readers=("spark",)):
    with closing(open_outlet(url, readers=readers)) as outlet:
        outlet.send(
            [StreamElement(number, b"body %d" % number, b"k%d" % (number % 3)) for number in range(start, upto)]
        )


def expected(upto):
    return [(number, b"k%d" % (number % 3), b"body %d" % number) for number in range(1, upto)]


def status(url):
    (found,) = carrier_of(url).survey(url)
    return found


def trim(url):
    """What the producer does now and then."""
    with closing(open_outlet(url, readers=["spark"])) as outlet:
        outlet.acknowledged()


def test_a_query_reads_every_element_once_goes_on_after_a_restart_and_acknowledges(spark, tmp_path, url):
    send(url, 2501)
    query = Query(spark, tmp_path, url, maxElementsPerBatch="1000").run(2500)
    assert query.rows == expected(2501)
    if spark.version >= "4.2":
        assert list(map(len, query.batches.values())) == [1000, 1000, 500]

    send(url, 3001, start=2501)
    query.fail_in = len(query.batches)
    with pytest.raises(StreamingQueryException, match="as asked"):
        query.run()
    failed = dict(query.batches)
    query.run(3000)
    assert query.rows == expected(3001)
    assert query.batches.items() >= failed.items()  # a batch that is repeated has the same elements

    # The last batch may still be asked for; all before it are acknowledged, and the producer lets go of them.
    before_last = query.rows[-1][0] - len(query.batches[max(query.batches)])
    assert status(url).readers == {"spark": before_last}
    trim(url)
    first = status(url).first
    assert first is None or first <= before_last + 1


def test_a_query_reads_what_an_operator_sends_over_tcp(spark, tmp_path):
    url = f"tcp://127.0.0.1:{free_port()}/words"
    with closing(open_outlet(url, readers=["spark"])) as outlet:
        outlet.send([StreamElement(number, b"body %d" % number, b"k%d" % (number % 3)) for number in range(1, 31)])
        assert Query(spark, tmp_path, url, after="0").run(30).rows == expected(31)


@pytest.fixture
def reader(url):
    """What Spark has beside its driver, without Spark."""
    made = []

    def reader(**options):
        source = StreamDataSource(CaseInsensitiveDict({"url": url, **options}))
        made.append(source.streamReader(schema_of(source.schema())))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def test_a_reader_acknowledges_what_is_committed_and_nothing_else(reader, url):
    send(url, 31)
    spark = reader()
    assert spark.initialOffset() == {"number": 0}
    (part,) = spark.partitions({"number": 0}, {"number": 20})
    rows = [row for batch in spark.read(part) for row in batch.to_pylist()]
    assert [(row["number"], row["key"], row["body"]) for row in rows] == expected(21)
    assert status(url).readers == {"spark": 0}
    spark.commit({"number": 20})
    assert status(url).readers == {"spark": 20}
    trim(url)
    assert status(url).first == (21 if url.startswith("redis") else 1)  # one frame has them all
    assert reader().initialOffset() == {"number": 20}
    assert reader(after="25").initialOffset() == {"number": 25}


def test_a_query_that_was_killed_before_it_acknowledged_does_so_with_its_first_batch(reader, url):
    send(url, 61)
    spark = reader()
    spark.partitions({"number": 0}, {"number": 20})
    assert status(url).readers == {"spark": 0}  # the next batch is logged, to 40, and Spark is killed before its commit
    spark = reader()
    assert spark.partitions({"number": 40}, {"number": 40}) == []  # Spark says where its log ends
    assert status(url).readers == {"spark": 0}
    spark.partitions({"number": 20}, {"number": 40})
    assert status(url).readers == {"spark": 20}
    spark.partitions({"number": 40}, {"number": 60})
    assert status(url).readers == {"spark": 20}  # only where a restart begins is surely in the log


def test_sparks_commit_makes_the_operator_before_it_append_a_block(tmp_path):
    lines = f"store:log://{tmp_path}/lines?stream=lines"
    words = f"tcp://127.0.0.1:{free_port()}/words"
    send(lines, 31, readers=["tidy"])

    def tidy():
        with Operator(
            "tidy",
            f"log://{tmp_path}/journal",
            inputs={"lines": lines},
            outputs={"words": words},
            readers={"words": ["spark"]},
            kind="deterministic",
            release="at-once",
            capture=Sweep(at_least=1000.0),
        ) as operator:
            running.append(operator)
            for event in operator:
                event.emit("words", body=event.body.upper())

    running = []
    thread = threading.Thread(target=tidy)
    thread.start()
    spark = StreamDataSource(CaseInsensitiveDict({"url": words, "after": "0"})).streamReader(schema_of(BYTES_SCHEMA))
    try:
        assert eventually(lambda: spark._last() == 30)
        (part,) = spark.partitions({"number": 0}, {"number": 30})
        rows = [row["body"] for batch in spark.read(part) for row in batch.to_pylist()]
        assert rows == [body.upper() for _, _, body in expected(31)]
        assert status(lines).readers == {"tidy": 0}  # it has appended no block since, and so acknowledged nothing
        spark.commit({"number": 20})
        assert eventually(lambda: status(lines).readers["tidy"] > 0)
    finally:
        spark.stop()
        for operator in running:
            operator.stop()
        thread.join()


def eventually(holds):
    give_up = time.monotonic() + 60
    while not holds() and time.monotonic() < give_up:
        time.sleep(0.02)
    return holds()


def test_elements_that_are_gone_are_named(reader, url):
    send(url, 11)
    send(url, 21, start=11)
    send(url, 22, start=21)
    carrier_of(url).trim(url, 20)
    with pytest.raises(Gone, match=r"elements .* not there any more"):
        list(reader().read(StreamSlice(5, 21)))
    with pytest.raises(Gone, match="ends at 21, before the position 100"):
        reader()._end(100, None)


def test_a_reader_that_the_producer_does_not_know_is_told(reader, url):
    send(url, 11, readers=["somebody"])
    with pytest.raises(Gone, match=r"nothing of .* is retained for the reader spark"):
        reader().initialOffset()
    assert reader(reader="somebody").initialOffset() == {"number": 0}


def test_a_stream_that_is_not_there_yet_has_nothing(reader, url):
    spark = reader()
    assert spark.initialOffset() == {"number": 0}
    assert spark.partitions({"number": 0}, {"number": 0}) == []
    send(url, 3)
    assert spark._last() == 2


def test_what_others_write_to_redis_is_refused(redis, tmp_path):
    url = f"{redis.url}?stream={tmp_path.name}&foreign=yes"
    with redis.client() as client:
        client.xadd(tmp_path.name, {"a": "b"})
    with pytest.raises(BadUrl, match="has no numbers of ours"):
        StreamDataSource(CaseInsensitiveDict({"url": url})).streamReader(schema_of(BYTES_SCHEMA)).initialOffset()


JSON = "word string, n int, at timestamp, day date, price decimal"
ROW = ("be", 3, datetime(2024, 1, 2, 3, 4, 5), date(2024, 1, 2), Decimal("1.50"))


def arrow_body(*rows):
    batch = pa.RecordBatch.from_pylist(list(rows))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


BODIES = {
    "json": (
        JSON,
        b'{"word": "be", "n": 3, "at": "2024-01-02 03:04:05", "day": "2024-01-02", "price": "1.50",\n'
        b' "inner": {"a": [1, 2]}, "more": 1}',
        [ROW],
    ),
    "msgpack": ("word string, n int", msgpack.packb({"word": "be", "n": 3, "more": 1}), [("be", 3)]),
    "arrow": (
        "word string, n int",
        arrow_body({"word": "to", "n": 1, "x": 0}, {"word": "be", "n": 2, "x": 0}),
        [("to", 1), ("be", 2)],
    ),
}


def test_bodies_become_columns_in_spark(spark, tmp_path):
    _, value, rows = BODIES["json"]
    schema = "word string, n int, at timestamp_ntz, day date, price decimal(10,2), inner struct<a:array<int>>"
    url = f"store:log://{tmp_path}/store?stream=words"
    with closing(open_outlet(url)) as outlet:
        outlet.send([StreamElement(1, value, b"to"), StreamElement(2, value, b"be")])
    query = Query(spark, tmp_path, url, f"{schema}, k string, i bigint", body="json", key="k", number="i").run()
    found = [(*row[:-3], (list(row[-3].a),), *row[-2:]) for row in query.rows]
    assert sorted(found, key=repr) == sorted([(*rows[0], ([1, 2],), "to", 1), (*rows[0], ([1, 2],), "be", 2)], key=repr)


@pytest.mark.parametrize("body", BODIES)
def test_bodies_become_columns_beside_key_and_number(body):
    schema, value, rows = BODIES[body]
    table = ElementTable.of([StreamElement(7, value, b"to"), StreamElement(8, value, b"be")])
    found = [
        row
        for batch in columns(body, f"{schema}, k string, i bigint", key="k", number="i").batches(table)
        for row in batch.to_pylist()
    ]
    assert [(row["word"], row["n"], row["k"], row["i"]) for row in found] == [
        (*row[:2], *pair) for pair in (("to", 7), ("be", 8)) for row in rows
    ]


@pytest.mark.parametrize("body", ["bytes", "json"])
def test_values_that_are_packed_are_the_same(body):
    bodies = [b'{"word": "a",\n"n": 1}', b'{"word": "b", "n": 2}', b'{"word": "c", "n": 3}']
    packed = decode_piece("here", b"x", encode_piece(3, column([b"k", b"", b"l"]), column(bodies)), 7)
    plain = ElementTable(7, [b"k", b"", b"l"], bodies)
    assert packed.elements() == plain.elements()
    schema = BYTES_SCHEMA if body == "bytes" else "word string, n int"
    for after, upto in ((0, None), (7, None), (7, 8), (8, 9)):
        cut = [table.between(after, upto) for table in (packed, plain)]
        assert cut[0].elements() == cut[1].elements()
        one, two = (list(columns(body, schema).batches(each)) for each in cut)
        assert one == two


def columns(body, schema, **names):
    parsed = schema_of(schema)
    return ElementColumns(parsed, body, names.get("key"), names.get("number"), "words")


@pytest.mark.parametrize(
    ("body", "value", "says"),
    [
        ("json", b"7", "the element 2 is not a JSON object"),
        ("json", b"", "the element 2 is not a JSON object"),
        ("json", b'{"word"', "the element 2 is not a JSON object"),
        ("json", b'{"word": "a", "n": "x"}', "elements 1 to 2"),
        ("msgpack", b"\xc1", "the element 2 is not such a row"),
        ("msgpack", msgpack.packb(["a"]), "the element 2 is not such a row: it has 1 values, the schema 2 columns"),
        ("msgpack", msgpack.packb(7), "the element 2 is not such a row"),
        ("msgpack", msgpack.packb(["a", "b"]), "elements 1 to 2"),
        ("arrow", b"nothing", "the element 2 is not an Arrow stream"),
        ("arrow", arrow_body({"word": "a"}), "the element 2 has no column n"),
    ],
)
def test_a_body_that_is_something_else_is_named(body, value, says):
    good = {
        "json": json.dumps({"word": "a", "n": 1}).encode(),
        "msgpack": msgpack.packb({"word": "a", "n": 1}),
        "arrow": arrow_body({"word": "a", "n": 1}),
    }[body]
    with pytest.raises(BadState, match=f"words: {says}") as caught:
        list(columns(body, "word string, n int").batches(ElementTable.of(numbered(1, good, value))))
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf_8_is_named():
    with pytest.raises(BadState, match="words: column body"):
        list(columns("bytes", "body string").batches(ElementTable.of(numbered(1, b"\xff"))))


def test_timestamps_without_and_with_a_zone():
    (batch,) = columns("json", "at timestamp, naive timestamp_ntz").batches(
        ElementTable.of(numbered(1, b'{"at": "2024-01-02T03:04:05Z", "naive": "2024-01-02 03:04:05"}'))
    )
    at = datetime(2024, 1, 2, 3, 4, 5)
    assert batch.to_pylist() == [{"at": at.replace(tzinfo=UTC), "naive": at}]


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({}, None, "no stream is named"),
        ({"url": "rdis://x?stream=a"}, None, "no carrier for rdis"),
        ({"url": "store:memory:"}, None, "names no stream"),
        ({"url": "store:memory:?stream=a", "max": "1"}, None, "there is no option 'max'"),
        ({"url": "store:memory:?stream=a", "body": "xml"}, None, "a body is one of bytes, json, msgpack, arrow"),
        ({"url": "store:memory:?stream=a", "body": "json"}, None, "name the columns of a body that is json"),
        ({"url": "store:memory:?stream=a", "partitions": "0"}, None, "it takes a number from 1 on"),
        ({"url": "store:memory:?stream=a", "key": "k"}, None, "key and number name columns beside"),
        ({"url": "store:memory:?stream=a"}, "word string", f"no column word string: take {BYTES_SCHEMA}"),
        ({"url": "store:memory:?stream=a", "body": "json", "key": "k"}, "word string", "no column k"),
    ],
)
def test_what_is_wrong_is_said(options, schema, said):
    source = StreamDataSource(CaseInsensitiveDict(options))
    with pytest.raises(BadUrl, match=said) as caught:
        source.streamReader(schema_of(schema or source.schema())).initialOffset()
    assert "\n" not in str(caught.value)


def test_spark_shows_what_is_wrong(spark):
    register(spark)
    with pytest.raises(AnalysisException, match="no stream is named"):
        spark.readStream.format("safekeeper-stream").load()


@pytest.mark.parametrize(
    ("after", "upto", "most", "bounds"),
    [
        (0, 0, 4, []),
        (5, 5, 4, []),
        (0, 10, 4, [(0, 10)]),
        (0, 1999, 4, [(0, 1999)]),
        (100, 2100, 4, [(100, 1100), (1100, 2100)]),
        (0, 10000, 3, [(0, 3333), (3333, 6666), (6666, 10000)]),
    ],
)
def test_a_batch_is_cut_into_slices_that_are_worth_a_task(after, upto, most, bounds):
    assert [(part.after, part.upto) for part in slice_elements(after, upto, most)] == bounds


def test_before_4_2_the_reader_counts_by_itself_from_where_spark_says(tmp_path):
    url = f"store:log://{tmp_path}/store?stream=words"
    send(url, 1001)
    tasks = StreamTasks(url, 4, columns("bytes", BYTES_SCHEMA))
    first = CountingReader(tasks, "spark", 50, 100)
    assert first.initialOffset() == {"number": 50}
    assert first.latestOffset() == {"number": 150}
    first.partitions({"number": 50}, {"number": 150})
    assert first.latestOffset() == {"number": 250}
    first.partitions({"number": 150}, {"number": 250})
    first.commit({"number": 150})
    first.stop()

    # Spark's log ends at 250, and that batch was done; or it was not, then it comes first, without a question
    for begun in ([], [({"number": 150}, {"number": 250})]):
        again = CountingReader(tasks, "spark", 50, 10)
        for start, end in [({"number": 250}, {"number": 250}), *begun]:
            again.partitions(start, end)
        assert again.latestOffset() == {"number": 260}
        again.stop()


def test_a_carrier_that_does_not_answer_is_asked_again():
    answers = [Unavailable("away"), Unavailable("away"), 7]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask) == 7
    with pytest.raises(Unavailable):
        patiently(lambda: (_ for _ in ()).throw(Unavailable("away")), seconds=0)
