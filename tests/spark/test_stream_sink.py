"""Streams as the sink of a query: a batch becomes elements once, whoever repeats it."""

from __future__ import annotations

import io
import json
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import CaseInsensitiveDict

import safekeeper
from safekeeper.dev.redis import RedisServer
from safekeeper.errors import BadState, BadUrl, Gone, Unavailable
from safekeeper.spark import register
from safekeeper.spark.stream import StreamDataSource, to_stream
from safekeeper.spark.stream_bodies import PIECE_BYTES, ElementBodies
from safekeeper.spark.stream_writer import PiecesWritten, StagedStream
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.streams.batched import BatchPieceWriter
from safekeeper.streams.batches import decode_piece, encode_piece

from .schemas import schema as schema_of


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly="yes", appendfsync="always") as server:
        yield server


def elements(url, after=None):
    with closing(open_inlet(url, after=after)) as inlet:
        found = []
        while some := inlet.read(timeout=0):
            found += some
        return found


def send(url, start, upto):
    with closing(open_outlet(url)) as outlet:
        outlet.send([StreamElement(number, b"%d" % number, b"k%d" % (number % 3)) for number in range(start, upto)])


class StreamQuery:
    """A query from a stream to a stream that can be run again, as if its last batch had not been logged as done."""

    def __init__(self, spark, folder, url, add):
        register(spark)
        self._spark, self._url, self._add = spark, url, add
        self.words = f"store:log://{folder}/words?stream=words"
        self._checkpoint = folder / "checkpoint"

    def run(self):
        options = {"url": self.words, "maxElementsPerBatch": "500"}
        source = self._spark.readStream.format("safekeeper-stream").options(**options).load()
        writer = self._add(source).option("checkpointLocation", str(self._checkpoint))
        self._spark.createDataFrame([], "nothing int")  # Spark looks for sinks in the session that was used last
        writer.trigger(availableNow=True).start().awaitTermination()
        return [(element.number, element.key, element.body) for element in elements(self._url)]

    def forget_commit(self):
        """The Spark driver dies after the sink's commit, before its own log says so."""
        logged = (file for file in (self._checkpoint / "commits").iterdir() if file.name.isdecimal())
        newest = max(logged, key=lambda file: int(file.name))
        newest.unlink()
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)


def test_rows_become_elements_once_also_if_a_batch_is_repeated(spark, tmp_path):
    url = f"store:log://{tmp_path}/store?stream=counts"

    def add(words):
        rows = words.select("key", F.concat(F.lit("w"), "number").alias("body"))
        return rows.writeStream.format("safekeeper-stream").option("url", url).option("readers", "dashboard")

    query = StreamQuery(spark, tmp_path, url, add)
    send(query.words, 1, 1201)
    first = query.run()
    assert [number for number, *_ in first] == [*range(1, len(first) + 1)]
    written = [(key, body) for _, key, body in first]
    assert sorted(written) == sorted((b"k%d" % (at % 3), b"w%d" % at) for at in range(1, len(first) + 1))
    query.forget_commit()
    assert query.run()[: len(first)] == first
    send(query.words, 1201, 1204)
    found = []
    while len(found) < 1203:  # before 4.2 this trigger takes one batch only
        before, found = found, query.run()
        assert len(before) < len(found)
    assert found[: len(first)] == first
    assert len(found) == 1203


def test_updates_of_a_state_become_elements_of_a_redis_stream_once(spark, redis, tmp_path):
    url = f"{redis.url}?stream={tmp_path.name}"

    def add(words):
        counts = words.groupBy("key").count().select("key", F.col("count").cast("string").alias("body"))
        return counts.writeStream.outputMode("update").foreachBatch(to_stream(url, readers="dashboard"))

    query = StreamQuery(spark, tmp_path, url, add)
    send(query.words, 1, 501)
    first = query.run()
    assert [number for number, *_ in first] == [1, 2, 3]
    assert {key: int(body) for _, key, body in first} == {b"k0": 166, b"k1": 167, b"k2": 167}
    query.forget_commit()
    assert query.run() == first
    send(query.words, 501, 504)
    assert sorted(body for _, _, body in query.run()[3:]) == [b"167", b"168", b"168"]


def test_rows_are_not_written_outside_of_a_streaming_query():
    source = StreamDataSource(CaseInsensitiveDict({"url": "store:log:///x?stream=a"}))
    with pytest.raises(BadState, match="in a streaming query, or in its foreachBatch"):
        source.writer(schema_of("body binary"), False).write(iter([]))


def test_what_replaces_is_refused():
    source = StreamDataSource(CaseInsensitiveDict({"url": "store:log:///x?stream=a"}))
    for writer in (source.streamWriter, source.writer):
        with pytest.raises(BadUrl, match="a stream is appended to"):
            writer(schema_of("body binary"), True)


QUERY = "0123456789abcdef" * 2


def stage(stream, batch, *bodies):
    store, options = stream.open()
    with store:
        return [BatchPieceWriter(store, options.stream, QUERY, batch).write([b""] * len(bodies), bodies)]


def test_a_driver_that_dies_while_it_forwards_is_followed_by_one_that_sends_the_rest(redis, tmp_path, monkeypatch):
    url = f"{redis.url}?stream={tmp_path.name}"
    stream = StagedStream.of(url, None, ["dashboard"])
    stream.commit(QUERY, 0, stage(stream, 0, b"a", b"b"))

    def die(self, target, last):
        target.send([StreamElement(3, b"c")])
        raise Unavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(StagedStream, "_forward", die)
        with pytest.raises(Unavailable):
            stream.commit(QUERY, 1, stage(stream, 1, b"c", b"d"))
    stream.commit(QUERY, 1, stage(stream, 1, b"d", b"c"))  # the rows came in another order, and that does not count
    assert [element.body for element in elements(url)] == [b"a", b"b", b"c", b"d"]
    with safekeeper.open(redis.url) as store:
        assert len(set(store.keys(f"{tmp_path.name}.pieces"))) == 1


def test_a_stream_that_somebody_else_began_goes_on_with_its_numbers(redis, tmp_path):
    url = f"{redis.url}?stream={tmp_path.name}"
    with closing(open_outlet(url)) as outlet:
        outlet.send([StreamElement(number, b"old") for number in (1, 2, 3)])
    stream = StagedStream.of(url, f"store:log://{tmp_path}/staging?stream=counts", [])
    stream.commit(QUERY, 0, stage(stream, 0, b"a"))
    assert [(e.number, e.body) for e in elements(url)][3:] == [(4, b"a")]
    with closing(open_outlet(url)) as outlet:
        outlet.send([StreamElement(5, b"foreign")])
    with pytest.raises(Gone, match=r"ends at 5, and .* at 4: somebody else sends to the stream"):
        stream.commit(QUERY, 0, [])


def test_nobody_else_reads_a_commit_message_wrongly(tmp_path):
    stream = StagedStream.of(f"store:log://{tmp_path}/store?stream=counts", None, [])
    writer = StreamDataSource(CaseInsensitiveDict({"url": stream.staging})).streamWriter(
        schema_of("body binary"), False
    )
    writer.commit([None], 0)
    writer.commit([PiecesWritten(QUERY, 0, tuple(stage(stream, 0, b"a"))), None], 0)
    writer.abort([None], 1)
    assert [element.body for element in elements(stream.staging)] == [b"a"]


def made(bodies, *batches):
    pieces = [decode_piece("here", b"x", encode_piece(*columns)) for columns in bodies.pieces(iter(batches))]
    return [(element.key, element.body) for piece in pieces for element in piece.elements()], len(pieces)


def bodies(schema, body="bytes", key=None):
    return ElementBodies(schema_of(schema), body, key, "counts")


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def test_columns_of_bytes_become_elements_as_they_are():
    one = batch(body=[b"a", b"", b"\0\xff"], key=["k", None, "ü"])
    two = batch(body=[b"x", b"y", b"z"], key=["1", "2", "3"]).slice(1, 1)
    expected = [(b"k", b"a"), (b"", b""), ("ü".encode(), b"\0\xff"), (b"2", b"y")]
    assert made(bodies("body binary, key string"), one, two) == (expected, 1)
    assert made(bodies("body string"), batch(body=["a", "ü"])) == ([(b"", b"a"), (b"", "ü".encode())], 1)
    assert made(bodies("body string")) == ([], 0)
    assert made(bodies("body string"), batch(body=pa.array([], pa.string()))) == ([], 0)


def test_pieces_are_closed_at_a_size_and_large_batches_are_cut():
    sizes = [100, PIECE_BYTES // 2, PIECE_BYTES // 2, PIECE_BYTES + 5, 1, 1, 1]
    values = [bytes([index]) * size for index, size in enumerate(sizes)]
    found, pieces = made(bodies("body binary"), batch(body=values), batch(body=values))
    assert [value for _, value in found] == values * 2
    assert pieces > 4


def test_rows_become_json_msgpack_and_arrow():
    at = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    rows = batch(k=["a"], n=[1], at=[at], day=[date(2024, 1, 2)], price=[Decimal("1.50")], text=["ü"])
    schema = "k string, n bigint, at timestamp, day date, price decimal, text string"
    (((key, value),), _) = made(bodies(schema, "json", "k"), rows)
    assert key == b"a"
    texts = {"at": "2024-01-02 03:04:05+00:00", "day": "2024-01-02", "price": "1.50", "text": "ü"}
    assert json.loads(value) == {"n": 1, **texts}
    (((key, value),), _) = made(bodies(schema, "msgpack", "k"), rows)
    assert (key, msgpack.unpackb(value, timestamp=3)) == (b"a", {"n": 1, **texts, "at": at})
    (((key, value),), _) = made(bodies(schema, "arrow"), rows)
    with pa.ipc.open_stream(io.BytesIO(value)) as stream:
        assert (key, stream.read_all().to_pylist()) == (b"", rows.to_pylist())


def test_a_json_body_is_what_json_dumps_makes_of_the_row():
    rows = {"n": [1, None], "text": ['"ü"\n', ""], "raw": [b"\0\xff", b""]}
    found, _ = made(bodies("n bigint, text string, raw binary", "json"), batch(**rows))
    expected = ['{"n": 1, "text": "\\"ü\\"\\n", "raw": "00ff"}', '{"n": null, "text": "", "raw": ""}']
    assert [body.decode() for _, body in found] == expected


def test_a_null_body_is_refused():
    with pytest.raises(BadState, match="counts: a row has no body"):
        made(bodies("body binary"), batch(body=[b"a", None]))


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        ({}, "body binary", "no stream is named"),
        ({"reader": "x"}, "body binary", "did you mean 'readers'"),
        ({"url": "store:log:///x?stream=a"}, "word string", "takes no column word string: take body and key"),
        ({"url": "store:log:///x?stream=a"}, "key string", "there is no column body"),
        (
            {"url": "store:log:///x?stream=a", "body": "json", "key": "n"},
            "n int",
            "no column n that is binary or string",
        ),
        ({"url": "store:log:///x?stream=a", "body": "arrow", "key": "n"}, "n string", "leave key out"),
        ({"url": "store:log:///x?stream=a", "staging": "log:///x"}, "body binary", "leave the option staging out"),
        (
            {"url": "tcp://127.0.0.1:7001/a", "staging": "store:log:///x?stream=a"},
            "body binary",
            "a commit is over at once: take another",
        ),
        ({"url": "redis://h?stream=a", "staging": "log:///x"}, "body binary", "staging takes the URL of a stream in a"),
    ],
)
def test_what_is_wrong_is_said(options, schema, said):
    source = StreamDataSource(CaseInsensitiveDict(options))
    with pytest.raises(BadUrl, match=said) as caught:
        source.streamWriter(schema_of(schema), False)
    assert "\n" not in str(caught.value)


def test_a_store_that_only_one_process_sees_is_refused():
    with pytest.raises(BadUrl, match="is seen by one process only"):
        StagedStream.of("store:memory:?stream=a", None, []).open()
