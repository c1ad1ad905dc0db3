"""Large values of `hdfs:` are written together: what is asked for, what is under way, what a failure leaves behind."""

import os
import threading
from contextlib import closing, contextmanager

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backends.hdfs import backend, chunks
from safekeeper.backends.hdfs.client import Client, OutputStream
from safekeeper.backends.hdfs.layout import HdfsLargeValue
from safekeeper.backends.hdfs.placement import StockPlacement, Turn
from safekeeper.keeper import SafeKeeper
from safekeeper.url import Url

pytestmark = pytest.mark.timeout(900)  # the first one starts the cluster

MIB = 1 << 20
SMALL = "large=1M&chunk=1M&replication=1"


class Observed(StockPlacement):
    """Notes the requests. The first turns are given only when so many are wanted at once."""

    def __init__(self, at_once=1):
        super().__init__()
        self.requests = []
        self._barrier = threading.Barrier(at_once)
        self._first = at_once
        self._lock = threading.Lock()

    def chunks(self, count, replicas, checkpoint):
        self.requests.append((count, checkpoint))
        return self

    def take(self) -> Turn:
        with self._lock:
            is_first, self._first = self._first > 0, self._first - 1
        if is_first:
            self._barrier.wait(120)
        return super().take()


@pytest.fixture
def observed(monkeypatch):
    """Lets a store be opened with a placement."""

    def use(placement):
        monkeypatch.setattr(backend, "open_placement", lambda folder, options: placement)
        return placement

    return use


def ids(count, group="g"):
    return [CheckpointId(group, b"%d" % n) for n in range(count)]


def test_eight_values_of_16_mib_are_one_request_and_all_are_under_way_at_once(hdfs_url, observed):
    placement = observed(Observed(at_once=8))
    values = {id: os.urandom(MIB) * 16 for id in ids(8)}
    with safekeeper.open(f"{hdfs_url}?replication=1") as store:
        store.write(Batch({**values, CheckpointId("g", b"small"): b"1"}))
        assert placement.requests == [(8, "g")]
        assert dict(zip(values, store.read(list(values)), strict=True)) == values
        pages = [dict(page) for page in store.scan("g")]
    assert {key: value for page in pages for key, value in page.items()} == {
        **{id.key: value for id, value in values.items()},
        b"small": b"1",
    }
    assert [len(page) for page in pages] == [1, 4, 4]  # several large values at once, 64 MiB at the most


def test_no_more_chunks_are_under_way_than_there_are_workers(hdfs_url, observed):
    under_way, most, lock = 0, 0, threading.Lock()

    class Counting(Observed):
        def take(self):
            nonlocal under_way, most
            with lock:
                under_way += 1
                most = max(most, under_way)
            return CountedTurn(self._tally)

    class CountedTurn(Turn):
        def __exit__(self, *error):
            nonlocal under_way
            with lock:
                under_way -= 1
            super().__exit__(*error)

    observed(Counting())
    with safekeeper.open(f"{hdfs_url}?{SMALL}&workers=3") as store:
        store.write(Batch({id: bytes(MIB) for id in ids(9)}))
    assert most == 3


def test_more_chunks_than_a_request_may_have_are_several_requests(hdfs_url, observed, monkeypatch):
    monkeypatch.setattr(chunks, "MOST_CHUNKS", 4)
    placement = observed(Observed())
    values = {id: os.urandom(2 * MIB) for id in ids(5)}
    with safekeeper.open(f"{hdfs_url}?{SMALL}") as store:
        store.write(Batch(values))
        assert [count for count, _ in placement.requests] == [4, 4, 2]
        assert dict(zip(values, store.read(list(values)), strict=True)) == values


def test_the_commits_of_four_partitions_overlap(hdfs_url, observed):
    """As the agent saves them: through a keeper with as many workers as the backend gains by."""
    placement = observed(Observed(at_once=4))
    with SafeKeeper(f"{hdfs_url}?{SMALL}", serializer=None, overflow="block", storage_workers=None) as keeper:
        tickets = [keeper.save(CheckpointId(f"partition {n}", b"commit"), bytes(MIB)) for n in range(4)]
        for ticket in tickets:
            ticket.result(120)
    assert sum(count for count, _ in placement.requests) == 4


def test_a_state_of_many_parts_asks_for_several_at_once(hdfs_url, observed):
    placement = observed(Observed(at_once=4))
    id, state = CheckpointId("g", b"large"), os.urandom(MIB) * 80
    with safekeeper.open(f"{hdfs_url}?replication=1") as store:
        safekeeper.large.write(store, id, state)
        assert safekeeper.large.read(store, id) == state
    assert [count for count, _ in placement.requests] == [4, 1]  # five parts


@contextmanager
def nth_chunk_fails(monkeypatch, failing):
    """Let the chunk with that number, from 0, fail when it is synced; how many were begun."""
    begun, lock, hsync = [], threading.Lock(), OutputStream.hsync

    def fail(self):
        if "/chunks/" in self.path:
            with lock:
                begun.append(self.path)
            if len(begun) == failing + 1:
                raise Unavailable(f"{self.path}: a DataNode is gone")
        hsync(self)

    with monkeypatch.context() as patch:
        patch.setattr(OutputStream, "hsync", fail)
        yield begun


@pytest.mark.parametrize("failing", [0, 3])
def test_a_chunk_that_fails_leaves_nothing_behind_and_no_other_is_begun(hdfs, hdfs_url, monkeypatch, failing):
    values = {id: os.urandom(MIB) for id in ids(12)}
    with (
        closing(Client(f"hdfs://{hdfs.name_node.address}", {})) as client,
        safekeeper.open(f"{hdfs_url}?{SMALL}&workers=2") as store,
    ):
        with nth_chunk_fails(monkeypatch, failing) as begun, pytest.raises(Unavailable, match="a DataNode is gone"):
            store.write(Batch({**values, CheckpointId("g", b"small"): b"1"}))
        assert len(begun) <= failing + 3  # what the other worker had begun, and perhaps one more
        assert client.listing(f"{Url.parse(hdfs_url).path}/chunks") == []
        assert store.read([*values, CheckpointId("g", b"small")]) == [None] * 13
        store.write(Batch(values))
        assert dict(zip(values, store.read(list(values)), strict=True)) == values


def test_a_name_node_that_is_away_is_waited_for_once_not_for_each_value():
    """Each call takes as long as `timeout=`; whoever writes a batch of many is told in time."""
    asked = []

    class Away:
        def delete(self, path):
            asked.append(path)
            raise Unavailable("no NameNode answers")

    heads = [HdfsLargeValue(3 * MIB, 0, MIB, 7, number) for number in range(64)]
    chunks.remove_chunks(Away(), "/chunks", heads)
    assert asked == [f"/chunks/{heads[0].names()[0]}"]
