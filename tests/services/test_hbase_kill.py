"""HBase's two servers are killed in the middle of a stream of saves: what was acknowledged is there again."""

import os
import random
import threading
import time

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafekeeperError

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
WRITERS = 4


class Writer:
    """Writes 1, 2, 3, ... to an id of its own, now and then as a value in parts."""

    def __init__(self, number):
        self.id = CheckpointId(f"group{number % 2}", b"%d" % number)
        self.tried = self.acknowledged = 0

    def write_until_it_fails(self, store):
        try:
            while True:
                self.tried += 1
                size = 1_500_000 if self.tried % 10 == 0 else 1000
                store.write(Batch({self.id: b"%d".ljust(size) % self.tried}))
                self.acknowledged = self.tried
        except SafekeeperError:
            pass


def kill_in_the_middle(server, store, writers):
    """Let all writers write, kill the server under them, and start it again."""
    threads = [threading.Thread(target=writer.write_until_it_fails, args=[store]) for writer in writers]
    before = sum(writer.acknowledged for writer in writers)
    for thread in threads:
        thread.start()
    while sum(writer.acknowledged for writer in writers) < before + 20 and any(thread.is_alive() for thread in threads):
        time.sleep(0.001)  # on a slow machine they may give up by themselves
    time.sleep(random.uniform(0, 0.3))
    server.kill()
    for thread in threads:
        thread.join()
    server.start()


def numbers(store, writers):
    """What each writer's id holds; 0 if nothing. The listings must agree with that."""
    values = store.read([writer.id for writer in writers])
    there = {writer.id for writer, value in zip(writers, values, strict=True) if value is not None}
    assert {CheckpointId(group, key) for group in store.groups() for key in store.keys(group)} == there
    return [int(value or b"0") for value in values]


def when_it_works(call):
    """What *call* returns, as soon as it does: a handle needs no help to go on."""
    give_up = time.monotonic() + 120
    while True:
        try:
            return call()
        except safekeeper.Unavailable:
            assert time.monotonic() < give_up, "the server is back, but the handle does not go on"


@pytest.mark.crash
@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.parametrize(("name", "kills"), (("thrift", 50 if LONG else 2), ("master", 50 if LONG else 1)))
def test_what_was_acknowledged_survives_the_server(hbase, hbase_url, name, kills):
    writers = [Writer(number) for number in range(WRITERS)]
    with safekeeper.open(f"{hbase_url}?timeout=2") as store:
        store.write(Batch({CheckpointId("group0", b"first"): b"there"}))
        batch = Batch()
        batch.delete(CheckpointId("group0", b"first"))
        store.write(batch)
        for _ in range(kills):
            kill_in_the_middle(getattr(hbase, name), store, writers)
            seen = when_it_works(lambda: numbers(store, writers))
            for writer, number in zip(writers, seen, strict=True):
                assert writer.acknowledged <= number <= writer.tried, "an acknowledged save is gone"
            with safekeeper.open(hbase_url) as witness:
                assert all(late >= number for late, number in zip(numbers(witness, writers), seen, strict=True))
    print(f"{name}: {sum(writer.tried for writer in writers)} saves under {kills} kills, none lost")
