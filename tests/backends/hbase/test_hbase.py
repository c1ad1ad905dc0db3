"""What `hbase:` puts on the server, how it asks, and what it does with connections."""

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Corruption, Survives, Unavailable
from safekeeper.backends.hbase.connections import Connections
from safekeeper.backends.hbase.layout import locate
from safekeeper.backends.hbase.options import HBaseOptions, TableAddress

A = CheckpointId("g", b"a")


@pytest.fixture
def store(hbase_url):
    with safekeeper.open(hbase_url) as store:
        yield store


@pytest.fixture
def table(hbase, store):
    """The driver's own view of the store's table."""
    with closing(hbase.client()) as client:
        yield client.table(store._table._name)


@pytest.fixture
def count(store):
    """Runs a function and gives the calls to the server that the store made meanwhile."""

    def run(function):
        calls = Counter()
        connections = store._table._connections
        real = connections.run

        class Counting:
            def __init__(self, client):
                self._client = client

            def __getattr__(self, name):
                calls[name] += 1
                return getattr(self._client, name)

        connections.run = lambda ask: real(lambda client: ask(Counting(client)))
        try:
            function()
        finally:
            connections.run = real
        return calls

    return run


class TestLayout:
    def test_an_id_is_one_row_with_one_version(self, store, table):
        for value in (b"1", b"2", b"3"):
            store.write(Batch({A: value}))
        assert table.families()[b"data"]["max_versions"] == 1
        (row,) = [row for row, _ in table.scan(row_start=b"\0\0\1")]
        assert row == locate("g").row(b"a")
        assert [cell[9:] for cell in table.cells(row, "data:checkpoint", versions=10)] == [b"3"]

    def test_a_long_key_stands_beside_its_value(self, store, table):
        key = b"k" * 32_768
        store.write(Batch({CheckpointId("g", key): b"value"}))
        assert table.row(locate("g").row(key))[b"data:key"] == key
        assert list(store.keys("g")) == [key]

    def test_a_table_that_is_there_is_used(self, hbase, hbase_url):
        name = hbase_url.rpartition("/")[2]
        with closing(hbase.client()) as client:
            client.create_table(name, {"other": {}, "data": {"max_versions": 1}})
        with safekeeper.open(f"{hbase_url}?create=no") as store:
            store.write(Batch({A: b"value"}))
            assert store.read([A]) == [b"value"]

    def test_a_changed_cell_is_corruption(self, store, table):
        store.write(Batch({A: b"value"}))
        cell, timestamp = table.row(locate("g").row(b"a"), include_timestamp=True)[b"data:checkpoint"]
        table.put(locate("g").row(b"a"), {b"data:checkpoint": cell[:-1] + b"?"}, timestamp=timestamp + 1)
        with pytest.raises(Corruption, match=r"g/a in row .* the checksum does not match"):
            store.read([A])

    def test_it_declares_what_the_write_ahead_log_gives_and_no_more(self, store, hbase_url):
        assert store.survives == Survives.PROCESS
        with safekeeper.open(f"{hbase_url}?assert=os,power,host") as asserted:
            assert asserted.write(Batch({A: b""})).survives == ~Survives.NOTHING
            assert asserted.asserted == Survives.OS | Survives.POWER | Survives.HOST


class TestCalls:
    def test_a_save_is_one_call(self, store, count):
        store.write(Batch({A: b"1"}))
        assert count(lambda: store.write(Batch({A: b"2"}))) == {"mutateRowTs": 1}
        many = Batch({CheckpointId("g", b"%d" % n): bytes(500) for n in range(1000)})
        assert count(lambda: store.write(many)) == {"mutateRowsTs": 1}

    def test_a_delete_of_many_is_few_calls_and_reads_nothing_where_no_value_is_large(self, store, count):
        ids = [CheckpointId("g", b"%d" % n) for n in range(500)]
        store.write(Batch(dict.fromkeys(ids, bytes(500))))
        batch = Batch()
        for id in ids:
            batch.delete(id)
        looking = {"scannerOpenWithScan": 1, "scannerGetList": 1, "scannerClose": 1}
        assert count(lambda: store.write(batch)) == {**looking, "mutateRowsTs": 1}

    def test_many_ids_are_read_in_few_calls(self, store, count):
        ids = [CheckpointId(f"g{n % 7}", b"%d" % n) for n in range(1000)]
        store.write(Batch({id: id.key for id in ids}))
        assert count(lambda: store.read(ids[:30])) == {"getRowsWithColumns": 1}
        assert count(lambda: store.read(ids))["getRowsWithColumns"] <= 5

    def test_an_answer_has_a_bounded_size(self, store, count):
        ids = [CheckpointId("g", b"%d" % n) for n in range(64)]
        store.write(Batch(dict.fromkeys(ids, bytes(1_000_000))))
        assert count(lambda: store.read(ids))["getRowsWithColumns"] >= 5

    def test_listing_one_group_among_many_costs_as_much_as_the_group(self, store, count):
        store.write(Batch({CheckpointId(f"group{n}", b"%d" % k): b"" for n in range(20) for k in range(150)}))
        store.write(Batch({CheckpointId("mine", b"%d" % n): bytes(20_000) for n in range(100)}))
        assert count(lambda: list(store.keys("mine")))["scannerGetList"] == 1
        assert 20 <= count(lambda: list(store.groups()))["scannerGetList"] <= 25

    def test_small_groups_are_listed_many_at_a_time(self, store, count):
        store.write(Batch({CheckpointId(f"group{n}", b""): b"" for n in range(500)}))
        assert count(lambda: list(store.groups()))["scannerGetList"] <= 7

    def test_nothing_stays_open_on_the_server(self, store, count):
        store.write(Batch({CheckpointId("g", b"%d" % n): b"" for n in range(2500)}))
        calls = count(lambda: next(store.keys("g")))
        assert calls == {"scannerOpenWithScan": 1, "scannerGetList": 1, "scannerClose": 1}


class TestScan:
    def test_a_group_is_scanned_in_few_calls(self, store, count):
        ids = {b"%d" % n: b"%d" % n for n in range(2500)} | {b"k" * 2000: b"long key"}
        store.write(Batch({CheckpointId("g", key): value for key, value in ids.items()}))
        found = {}
        calls = count(lambda: found.update(pair for page in store.scan("g") for pair in page))
        assert found == ids
        assert calls["scannerOpenWithScan"] == calls["scannerClose"] == 1
        assert set(calls) == {"scannerOpenWithScan", "scannerGetList", "scannerClose"}
        assert calls["scannerGetList"] <= 9

    def test_nothing_stays_open_on_the_server_between_two_pages(self, store, count):
        store.write(Batch({CheckpointId("g", b"%d" % n): bytes(1_000_000) for n in range(30)}))
        pages = store.scan("g")
        for _ in range(2):
            calls = count(lambda: next(pages))
            assert calls["scannerOpenWithScan"] == calls["scannerClose"]

    def test_large_values_come_beside_small_ones(self, store):
        values = {b"%d" % n: b"%d" % n * (300_000 if n % 10 == 0 else 1) for n in range(10, 50)}
        store.write(Batch({CheckpointId("g", key): value for key, value in values.items()}))
        assert dict(pair for page in store.scan("g") for pair in page) == values

    def test_a_changed_cell_is_corruption(self, store, table):
        store.write(Batch({CheckpointId("g", b"a"): b"value", CheckpointId("g", b"b"): b"value"}))
        cell, timestamp = table.row(locate("g").row(b"a"), include_timestamp=True)[b"data:checkpoint"]
        table.put(locate("g").row(b"a"), {b"data:checkpoint": cell[:-1] + b"?"}, timestamp=timestamp + 1)
        with pytest.raises(Corruption, match="g/a in row"):
            list(store.scan("g"))


class TestCreate:
    @pytest.fixture
    def begun(self, store):
        """Begins to create ids, and dies before the end."""

        def begun(ids):
            store._table.check_and_put = lambda *_: (_ for _ in ()).throw(Unavailable("died"))
            for id in ids:
                with pytest.raises(Unavailable, match="died"):
                    store.create(id, b"value", b"0123456789abcdef")
            del store._table.check_and_put

        return begun

    def test_what_is_only_begun_is_not_there(self, store, begun):
        ids = [CheckpointId("g", b"%03d" % n) for n in range(120)] + [CheckpointId("g", b"k" * 2000)]
        begun(ids)
        assert list(store.keys("g")) == list(store.groups()) == list(store.scan("g")) == []
        assert set(store.read(ids)) == {None}
        last = CheckpointId("g", b"x")
        store.write(Batch({last: b"value"}))
        store.create(ids[-1], b"created", b"another token...")
        assert sorted(store.keys("g")) == [ids[-1].key, b"x"]
        assert list(store.groups()) == ["g"]
        assert dict(pair for page in store.scan("g") for pair in page) == {b"x": b"value", ids[-1].key: b"created"}

    def test_whoever_sets_the_gate_last_creates(self, store, hbase_url):
        """Whoever set it before goes through it no more, however late its request comes."""
        id = CheckpointId("g", b"a")
        with safekeeper.open(hbase_url) as other:
            real = store._table.check_and_put
            other_created = []

            def late(*arguments):
                if not other_created:
                    other_created.append(other.create(id, b"theirs", b"another token..."))
                return real(*arguments)

            store._table.check_and_put = late
            assert not store.create(id, b"mine", b"0123456789abcdef")
            assert other_created == [True]
            assert store.read([id]) == [b"theirs"]

    def test_a_write_in_between_counts(self, store, hbase_url):
        id = CheckpointId("g", b"a")
        with safekeeper.open(hbase_url) as other:
            real = store._table.check_and_put
            store._table.check_and_put = lambda *arguments: (other.write(Batch({id: b"written"})), real(*arguments))[1]
            assert store.create(id, b"created", b"0123456789abcdef")
            assert store.read([id]) == [b"written"]
            assert dict(pair for page in store.scan("g") for pair in page) == {b"a": b"written"}
            del store._table.check_and_put
            assert not store.create(id, b"created", b"0123456789abcdef")

    def test_a_delete_in_between_takes_the_gate_away(self, store, hbase_url):
        id, times = CheckpointId("g", b"a"), []
        with safekeeper.open(hbase_url) as other:
            real = store._table.check_and_put

            def after_delete(*arguments):
                if not times:
                    batch = Batch({id: b"written"})
                    other.write(batch)
                    batch.delete(id)
                    other.write(batch)
                times.append(real(*arguments))
                return times[-1]

            store._table.check_and_put = after_delete
            assert store.create(id, b"created", b"0123456789abcdef")
            assert times == [False, True]
            assert store.read([id]) == [b"created"]


class TestConnections:
    def test_a_connection_that_was_dropped_while_idle_is_replaced_before_it_is_used(self, store, hbase_behind):
        store.write(Batch({A: b"1"}))
        proxy, url = hbase_behind()
        with safekeeper.open(url) as behind:
            for value in (b"2", b"3"):
                proxy.cut()
                behind.write(Batch({A: value}))
                proxy.cut()
                assert behind.read([A]) == [value]

    def test_a_call_whose_connection_breaks_is_made_again(self, store, hbase_behind):
        store.write(Batch({A: b"1"}))
        proxy, url = hbase_behind(timeout=60)
        with safekeeper.open(url) as behind:
            behind.write(Batch({A: b"2"}))
            for call in (lambda: behind.write(Batch({A: b"3"})), lambda: behind.read([A])):
                proxy.hold()
                breaking = threading.Thread(target=lambda: (proxy.wait_for_held(), proxy.cut(), proxy.release()))
                breaking.start()
                call()
                breaking.join()
        assert store.read([A]) == [b"3"]

    def test_after_a_time_out_idle_connections_are_not_tried_one_by_one(self, store, hbase_behind):
        """A network that forgets connections in silence forgets all that were idle."""
        store.write(Batch({A: b"1"}))
        proxy, url = hbase_behind(timeout=4)
        with safekeeper.open(url) as behind:
            with ExitStack() as busy:
                for _ in range(4):
                    busy.enter_context(behind._table._connections._connection())
            proxy.hold()
            with pytest.raises(Unavailable, match="did not answer in time"):
                behind.read([A])
            proxy.let_others_through()
            assert behind.read([A]) == [b"1"]

    def test_there_are_never_more_connections_than_were_given(self, store, hbase_behind):
        store.write(Batch({A: b""}))  # while the table is missing, every answer is an error, and ends its connection
        proxy, url = hbase_behind(connections=2, timeout=60)
        with safekeeper.open(url) as behind, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: behind.write(Batch({CheckpointId("g", b"%d" % n): b""})), range(80)))
        assert len(proxy._sockets) == 2

    def test_waiting_for_a_connection_lasts_while_others_get_their_answers(self):
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(6) as pool:
            address = TableAddress("127.0.0.1", listener.getsockname()[1], "t")
            connections = Connections(address, HBaseOptions(timeout=0.6, connections=1))
            calls = [pool.submit(connections.run, lambda _: time.sleep(0.3)) for _ in range(6)]
            assert [call.exception() for call in calls] == [None] * 6
            connections.close()

    def test_waiting_for_a_connection_has_an_end(self, hbase_behind):
        proxy, url = hbase_behind(connections=1, timeout=1)
        with safekeeper.open(url) as behind, ThreadPoolExecutor(2) as pool:
            behind.write(Batch({A: b""}))
            proxy.hold()
            failed = [pool.submit(behind.read, [A]) for _ in range(2)]
            errors = [str(future.exception()) for future in failed]
            assert any("did not answer in time" in error for error in errors)
            assert all("did not answer in time" in error or "all connections were busy" in error for error in errors)
            proxy.release()
            assert behind.read([A]) == [b""]

    def test_trouble_shows_soon(self, hbase_behind):
        proxy, url = hbase_behind(timeout=0.5)
        with safekeeper.open(url) as behind:
            proxy.hold()
            started = time.monotonic()
            with pytest.raises(Unavailable, match="did not answer in time"):
                behind.read([A])
            assert time.monotonic() - started < 30
