"""Ten ways in which the driver corrupts data, each shown on the driver itself, and none of them with us."""

from contextlib import closing, suppress

import happybase
import pytest
from Hbase_thrift import IllegalArgument, Mutation
from Hbase_thrift import IOError as HBaseError
from thriftpy2.thrift import TApplicationException

import safekeeper
from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backends.hbase.errors import explain
from safekeeper.backends.hbase.options import TableAddress

A, B = CheckpointId("g", b"a"), CheckpointId("g", b"b")
COLUMN = b"data:checkpoint"
TOO_LARGE = bytes(11 * 1024 * 1024)


@pytest.fixture
def store(hbase_url):
    with safekeeper.open(hbase_url) as store:
        store.write(Batch({A: b"value of a", B: b"value of b"}))
        yield store


@pytest.fixture
def table(hbase, store):
    """The driver's table, in which rows a and b have been put by the driver."""
    with closing(hbase.client()) as client:
        table = client.table(store._table._name)
        table.put(b"a", {COLUMN: b"value of a"})
        table.put(b"b", {COLUMN: b"value of b"})
        yield table
        table.delete(b"a")
        table.delete(b"b")


@pytest.fixture
def naive(hbase_behind, table):
    """The driver's table behind a proxy, and that proxy."""
    proxy, _ = hbase_behind()
    with closing(happybase.Connection("127.0.0.1", proxy.port, timeout=1000)) as connection:
        yield connection.table(table.name), proxy


@pytest.fixture
def ours(hbase_behind, store):
    """The store behind a proxy, and that proxy."""
    proxy, url = hbase_behind(timeout=1)
    with safekeeper.open(url) as behind:
        behind.write(Batch({A: b"value of a"}))
        yield behind, proxy


def value(table, row):
    return table.row(row).get(COLUMN)


class TestTheAnswerToAnotherQuestion:
    def test_driver(self, naive):
        table, proxy = naive
        value(table, b"a")
        proxy.hold()
        with pytest.raises(TimeoutError):
            table.row(b"a")
        proxy.release()
        assert value(table, b"b") == b"value of a"

    def test_ours(self, ours):
        store, proxy = ours
        proxy.hold()
        with pytest.raises(Unavailable):
            store.read([A])
        proxy.release()
        assert store.read([B]) == [b"value of b"]


class TestOldBytesSentAgain:
    def test_driver(self, naive, table):
        broken, proxy = naive
        value(broken, b"a")
        proxy.cut()
        for attempt in (b"old", b"older"):  # the first one may still go into the socket
            with suppress(Exception):
                broken.put(b"a", {COLUMN: attempt})
        table.put(b"a", {COLUMN: b"newer"})
        broken.connection.close()
        broken.connection.open()
        with suppress(Exception):
            broken.row(b"b")
        assert value(table, b"a") != b"newer"

    def test_ours(self, ours, store):
        behind, proxy = ours
        proxy.cut()
        with suppress(Unavailable):
            behind.write(Batch({A: b"old"}))
        store.write(Batch({A: b"newer"}))
        assert behind.read([B]) == [b"value of b"]
        behind.write(Batch({B: b"more"}))
        assert store.read([A]) == [b"newer"]


class TestALatePut:
    def test_driver(self, naive, table):
        slow, proxy = naive
        value(slow, b"a")
        proxy.hold()
        with pytest.raises(TimeoutError):
            slow.put(b"a", {COLUMN: b"late"})
        table.put(b"a", {COLUMN: b"newer"})
        proxy.release_and_wait()
        assert value(table, b"a") == b"late"

    @pytest.mark.parametrize("newer", (b"newer", None), ids=("put", "deleted"))
    def test_ours(self, ours, store, newer):
        behind, proxy = ours
        proxy.hold()
        with pytest.raises(Unavailable, match="did not answer in time"):
            behind.write(Batch({A: b"late"}))
        batch = Batch() if newer is None else Batch({A: newer})
        if newer is None:
            batch.delete(A)
        store.write(batch)
        proxy.release_and_wait()
        assert store.read([A]) == [newer]
        assert set(store.keys("g")) == {B.key} | ({A.key} if newer else set())


class TestDeletedAndPutInOneBatch:
    def test_driver(self, table):
        with table.batch() as batch:
            batch.delete(b"a")
            batch.put(b"a", {COLUMN: b"newest"})
        assert value(table, b"a") is None

    def test_ours(self, store):
        batch = Batch()
        batch.delete(A)
        batch.put(A, b"newest")
        store.write(batch)
        assert store.read([A]) == [b"newest"]


class TestARowHalfChanged:
    def test_driver(self, table):
        table.put(b"a", {b"data:key": b"old"})
        changes = [Mutation(isDelete=True, column=b"data:key"), Mutation(column=COLUMN, value=TOO_LARGE)]
        with pytest.raises((IllegalArgument, TApplicationException)):
            table.connection.client.mutateRow(table.name, b"a", changes, {})
        assert table.row(b"a") == {COLUMN: b"value of a"}

    def test_ours(self, store, hbase):
        long = CheckpointId("g", b"k" * 5000)
        store.write(Batch({long: b"old"}))
        store.write(Batch({long: TOO_LARGE}))
        assert store.read([long]) == [TOO_LARGE]
        with closing(hbase.client()) as client:
            for _, cells in client.table(store._table._name).scan(include_timestamp=True):
                assert len({timestamp for _, timestamp in cells.values()}) == 1, "a row of several calls"


class TestATransactionHalfDone:
    def test_driver(self, table):
        batch = table.batch(transaction=True)
        batch.put(b"a", {COLUMN: b"new"})
        batch.delete(b"b", [b"no-such-family:x"])
        with pytest.raises(HBaseError):
            batch.send()
        assert value(table, b"a") == b"new"

    def test_ours_does_not_say_that_batches_are_atomic(self, store):
        assert not isinstance(store, safekeeper.backend.SupportsAtomicBatch)


class TestADeleteThatWritesNothing:
    def test_driver(self, table):
        table.connection.client.checkAndPut(
            table.name, b"a", COLUMN, b"value of a", Mutation(isDelete=True, column=COLUMN), {}
        )
        assert value(table, b"a") == b""

    def test_ours(self, store):
        batch = Batch()
        batch.delete(A)
        store.write(batch)
        assert store.read([A]) == [None]
        assert list(store.keys("g")) == [b"b"]


class TestAPutBehindADelete:
    def test_driver(self, table):
        table.put(b"a", {COLUMN: b"put first"}, timestamp=1_000)
        table.delete(b"a", timestamp=2_000_000_000_000_000)  # by a host whose clock is ahead
        table.put(b"a", {COLUMN: b"put afterwards"})
        assert value(table, b"a") is None

    def test_ours(self, store, hbase_url):
        with safekeeper.open(hbase_url) as other:
            for turn in range(30):
                batch = Batch()
                batch.delete(A)
                (store, other)[turn % 2].write(batch)
                (other, store)[turn % 2].write(Batch({A: b"%d" % turn}))
                assert store.read([A]) == [b"%d" % turn]


class TestACheckAndPutBehindADelete:
    """The server gives it a time of its own, so a delete that carried a time hides it. It says that all went well."""

    def test_driver(self, table):
        table.delete(b"a", timestamp=2_000_000_000_000_000)
        client = table.connection.client
        change = Mutation(column=COLUMN, value=b"put afterwards")
        assert client.checkAndPut(table.name, b"a", COLUMN, None, change, {})
        assert value(table, b"a") is None

    def test_ours(self, store):
        for turn in range(10):
            batch = Batch()
            batch.delete(A)
            store.write(batch)
            assert store.create(A, b"%d" % turn, b"%016d" % turn)
            assert store.read([A]) == [b"%d" % turn]
            assert not store.create(A, b"other", b"another token...")
            if turn % 2:
                store.write(Batch({A: b"written"}))
                assert store.read([A]) == [b"written"]


class TestAnErrorThatCannotBePrinted:
    def test_driver_and_ours(self, table):
        with pytest.raises(TApplicationException) as raised:
            table.row(b"")
        with pytest.raises(TypeError):
            str(raised.value)
        explained = explain(TableAddress("host", 9090, "table"), raised.value)
        assert isinstance(explained, Unavailable)
        assert str(explained).startswith("host:9090: the Thrift server failed: ")
        assert "\n" not in str(explained)
