"""Servers of HDFS are killed amid a stream of saves: what was acknowledged is there, and the handle goes on."""

import os
import random
import threading
import time
from contextlib import closing

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafekeeperError
from safekeeper.backends.hdfs.client import Client

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
WRITERS = 3
LARGE = 8 << 20


class Writer:
    """Writes 1, 2, 3, ... to an id of its own, now and then as a value in chunks, until it is told to stop."""

    def __init__(self, number):
        self.id = CheckpointId(f"group{number % 2}", b"%d" % number)
        self.tried = self.acknowledged = self.failed = 0

    def write(self, store, stopping):
        while not stopping.is_set():
            self.tried += 1
            size = LARGE if self.tried % 50 == 0 else 1000
            try:
                store.write(Batch({self.id: b"%d".ljust(size) % self.tried}))
                self.acknowledged = self.tried
            except SafekeeperError:
                self.failed += 1
                time.sleep(0.1)


class Writers:
    """Several of them, at work from entering to leaving."""

    def __init__(self, store):
        self.all = [Writer(number) for number in range(WRITERS)]
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=writer.write, args=[store, self._stopping]) for writer in self.all]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count=20):
        """Return when each of them has had so many further writes acknowledged."""
        wanted = [writer.acknowledged + count for writer in self.all]
        give_up = time.monotonic() + 240
        while any(writer.acknowledged < number for writer, number in zip(self.all, wanted, strict=True)):
            assert time.monotonic() < give_up, "the handle does not go on"
            time.sleep(0.01)

    def check(self, store):
        """Each id holds what its writer wrote last, or tried to write after that."""
        values = store.read([writer.id for writer in self.all])
        for writer, value in zip(self.all, values, strict=True):
            assert writer.acknowledged <= int(value or b"0") <= writer.tried, "an acknowledged save is gone"


def check_everywhere(writers, store, url):
    writers.check(store)
    with safekeeper.open(f"{url}?workers=3") as other:
        writers.check(other)


@pytest.mark.crash
@pytest.mark.timeout(3600 if LONG else 600)
def test_a_data_node_killed_amid_writes_loses_nothing_and_stops_nobody(hdfs, hdfs_url):
    with safekeeper.open(f"{hdfs_url}?timeout=10") as store:
        for _ in range(20 if LONG else 1):
            with Writers(store) as writers:
                writers.wait_for_more()
                writer, _ = store._shared.writing()
                hit = set(writer._open._out.pipeline())
                node = next(node for node in hdfs.data_nodes if node.address in hit)
                time.sleep(random.uniform(0, 0.2))
                node.kill()
                writers.wait_for_more()
            try:
                check_everywhere(writers, store, hdfs_url)
            finally:
                node.start()
            print(
                f"{sum(each.tried for each in writers.all)} writes, {sum(each.failed for each in writers.all)} refused"
            )


@pytest.mark.crash
@pytest.mark.timeout(3600 if LONG else 600)
def test_a_restart_of_the_name_node_is_survived(hdfs, hdfs_url):
    with safekeeper.open(f"{hdfs_url}?timeout=60") as store:
        for _ in range(10 if LONG else 1):
            with Writers(store) as writers:
                writers.wait_for_more()
                time.sleep(random.uniform(0, 0.2))
                hdfs.name_node.kill()
                time.sleep(random.uniform(0, 1))
                hdfs.name_node.start()
                hdfs.wait_until_ready()
                writers.wait_for_more()
            check_everywhere(writers, store, hdfs_url)


@pytest.mark.crash
def test_a_connection_from_before_a_restart_of_the_name_node_is_no_trouble(hdfs):
    """It is kept longer than usual, or it might be closed before the NameNode is back."""
    settings = {"ipc.client.connection.maxidletime": "600000"}
    with closing(Client(f"hdfs://{hdfs.name_node.address}", settings)) as client:
        assert client.status("/") is not None
        hdfs.name_node.kill()
        hdfs.name_node.start()
        hdfs.wait_until_ready()
        assert client.status("/") is not None
