"""What a restart reads, and that it reads it right while old commits are being deleted."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
RETAINED = "spark.sql.streaming.minBatchesToRetain"


def restart(world: Any, version: int, **settings: object) -> Any:
    """A store of that version in an executor that has never seen it."""
    return world.provider(**settings).openForReading(version, None)


@pytest.mark.crash
def test_small_batches_on_a_large_state_do_not_make_a_restart_read_ever_more_commits(world: Any) -> None:
    keys, batches = (1_000_000, 2_400) if LONG else (15_000, 240)
    url = f"log://{world.folder}/store"
    provider = world.provider(url=url)
    read = []
    for version in range(0, batches, batches // 24):
        provider.commitBatches(version, batches // 24, keys, 10)
        restarted = world.provider(url=url)
        store = restarted.openForReading(version + batches // 24, None)
        assert store.numKeys() == keys
        read.append(store.metric("safekeeperCommitsRead"))
        most = 3 * store.metric("safekeeperLiveBytes") / (64 << 10)  # cleanAt is 2: three times the state at most
        assert store.metric("safekeeperExtentBytes") <= 3 * store.metric("safekeeperLiveBytes")
        store.release()
        restarted.provider().close()  # or the states of all of them would be in memory
    assert max(read) < min(most, 0.9 * batches)
    assert max(read[-4:]) - min(read[-4:]) <= 5


def test_what_lies_before_the_oldest_needed_record_is_not_replayed(world: Any, items: Any) -> None:
    """The cleaner is half-way through the first, large commit, which a restart has to read but not to replay whole."""
    small = {"leastCommitBytes": 8 << 10}
    provider = world.provider(**small)
    provider.commitBatches(0, 1, 20_000, 0)
    passed = []
    for version in range(1, 200, 20):
        provider.commitBatches(version, 20, 20_000, 100)
        store, whole = restart(world, version + 20, **small), provider.openForReading(version + 20, None)
        for metric in ("safekeeperExtentBytes", "safekeeperLiveBytes"):
            assert store.metric(metric) == whole.metric(metric)
        passed.append(store.metric("safekeeperExtentBytes") / store.metric("safekeeperLiveBytes"))
        whole.release()
        store.release()
    assert 1.9 < max(passed) < 2.1
    found, expected = restart(world, 201, **small), provider.openForReading(201, None)
    assert items(found.items()) == items(expected.items())


def test_a_state_after_a_restart_is_cleaned_and_committed_like_one_before(world: Any, items: Any) -> None:
    expected: dict[str, str] = {}
    for version in range(40):
        store = world.provider(cleanAt=1.2, leastCommitBytes=1024).open(version, None)
        assert items(store.items()) == expected
        store.putMany(60 + version % 30, 30, version).put(1, version, "cold")
        if version % 5 == 4:
            store.remove(1, version - 3)
        expected = items(store.items())
        store.commit()


def test_an_executor_that_catches_up_makes_commits_that_need_no_deleted_ones(world: Any, items: Any) -> None:
    """It still has an older version in memory, and with it the place where the cleaner was then."""
    world.settings[RETAINED] = "2"
    small = {"leastCommitBytes": 1}
    late, other = world.provider(**small), world.provider(**small)
    late.commitBatches(0, 60, 2000, 100)
    other.commitBatches(60, 8, 2000, 100)
    other.provider().doCleanupMaintenance()
    store = late.open(68, None)
    assert store.metric("safekeeperCommitsRead") == 8  # the rest is in memory
    there = other.openForReading(68, None)
    for metric in ("safekeeperExtentBytes", "safekeeperLiveBytes"):
        assert store.metric(metric) == there.metric(metric)
    store.put(1, 1, "late")
    expected = items(store.items())
    store.commit()
    assert items(restart(world, 69, **small).items()) == expected


@pytest.mark.crash
def test_while_old_commits_are_deleted_readers_get_a_version_whole_or_an_error(world: Any, items: Any) -> None:
    world.settings[RETAINED] = "2"
    hostile = {"cleanAt": 1.01, "leastCommitBytes": 4096}
    states: dict[int, dict[str, str]] = {}
    newest, done = 0, threading.Event()
    outcomes = {"read": 0, "gone": 0}

    def read() -> None:
        while not done.is_set():
            for version in range(max(1, newest - 4), newest + 1):
                try:
                    store = restart(world, version, **hostile)
                except Py4JJavaError as error:
                    if version >= newest - 2 or "CANNOT_LOAD_STATE_STORE" not in str(error):
                        raise
                    outcomes["gone"] += 1
                else:
                    assert items(store.items()) == states[version]
                    store.release()
                    outcomes["read"] += 1

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            writer = world.provider(**hostile)
            for version in itertools.count():
                if (more := version - (600 if LONG else 40)) > 0:
                    if outcomes["read"] > 10 or any(map(Future.done, readers)):
                        break
                    done.wait(0.01 * more)  # on a quick machine every version is gone before a reader has opened it
                store = writer.open(version, None).putMany(20, 30, version).put(1, version % 13, f"{version}")
                states[version + 1] = items(store.items())
                store.commit()
                newest = version + 1
                writer.provider().doCleanupMaintenance()
        finally:
            done.set()
        for reader in readers:
            reader.result(60)
    assert min(world.versions()) > 1


def test_with_two_retained_versions_the_one_before_them_can_be_gone_back_to(world: Any, items: Any) -> None:
    """As Spark's own: the newest version, and as many before it as are retained."""
    world.settings[RETAINED] = "2"
    states: list[dict[str, str]] = [{}]
    writer = world.provider(cleanAt=1.01)
    for version in range(9):
        store = writer.open(version, None).putMany(5, 10, version).put(1, version, "cold")
        states.append(items(store.items()))
        store.commit()
        writer.provider().doCleanupMaintenance()
    again = world.provider(cleanAt=1.01)
    store = again.open(7, None)
    assert items(store.items()) == states[7]
    assert len(again.changes(7, 9, "default")) == 3 * 6  # what the cleaner moved is no change
    store.put(2, 2, "another way").commit()
    again.provider().doCleanupMaintenance()
    assert items(world.provider().open(8, None).items()) == {**states[7], "2:2": "another way"}
