"""HBase's two servers are killed in the middle of a stream of saves: what was acknowledged is there again."""

import os

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId

from ..killing import Writer, kill_in_the_middle, numbers, when_it_works

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
WRITERS = 4


@pytest.mark.crash
@pytest.mark.timeout(7200 if LONG else 600)
@pytest.mark.parametrize(("name", "kills"), (("thrift", 10 if LONG else 2), ("master", 10 if LONG else 1)))
@pytest.mark.parametrize("part", range(5 if LONG else 1))
def test_what_was_acknowledged_survives_the_server(hbase, hbase_url, name, kills, part):
    writers = [Writer(number, large_bytes=1_500_000, large_every=10) for number in range(WRITERS)]
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
