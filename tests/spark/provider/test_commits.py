"""Versions, siblings and retries: which state a store shows, and what must be an error instead."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from safekeeper.spark import PREFIX

SPARKS = "spark.sql.streaming.stateStore."


def fails_with(condition: str) -> Any:
    return pytest.raises(Py4JJavaError, match=condition)


def test_a_commit_is_there_after_a_restart(world: Any, items: Any) -> None:
    store = world.provider().open(0, None).put(1, 1, "one").put(1, 2, "two")
    assert not store.hasCommitted()
    store.commit()
    assert store.hasCommitted()
    assert items(world.provider().open(1, None).items()) == {"1:1": "one", "1:2": "two"}


def test_an_aborted_store_leaves_nothing(world: Any, items: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "kept").commit()
    provider.open(1, None).put(1, 1, "lost").put(2, 2, "lost").remove(1, 1).abort()
    assert items(provider.open(1, None).items()) == {"1:1": "kept"}


def test_an_empty_commit_is_a_version_too(world: Any, items: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "one").commit()
    provider.open(1, None).commit()
    assert items(world.provider().open(2, None).items()) == {"1:1": "one"}


def test_every_retained_version_can_be_opened_after_a_restart(world: Any, items: Any) -> None:
    provider = world.provider()
    expected: list[dict[str, str]] = [{}]
    for version in range(12):
        store = provider.open(version, None).put(0, version, f"new {version}").put(0, 0, f"over {version}")
        if version % 3 == 2:
            store.remove(0, version - 1)
        expected.append(items(store.items()))
        store.commit()
    for version in (12, 3, 7, 1, 0, 11):
        store = world.provider().openForReading(version, None)
        assert items(store.items()) == expected[version]
        store.release()


def test_a_version_that_was_committed_twice_is_the_later_one(world: Any, items: Any) -> None:
    provider, other = world.provider(), world.provider()
    provider.open(0, None).put(1, 1, "first").commit()
    other.open(0, None).put(1, 1, "second").commit()
    for reader in (world.provider(), other, provider):
        store = reader.open(1, None)
        assert items(store.items()) == {"1:1": "second"}
        store.abort()


def test_a_version_reopened_after_its_successor_exists_is_what_it_was(world: Any, items: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "v1").commit()
    provider.open(1, None).put(1, 1, "v2").commit()
    retry = provider.open(1, None)
    assert items(retry.items()) == {"1:1": "v1"}
    retry.put(2, 2, "v2 again").commit()
    assert items(provider.open(2, None).items()) == {"1:1": "v1", "2:2": "v2 again"}


def test_a_retry_far_back_loads_the_old_version(world: Any, items: Any) -> None:
    provider = world.provider()
    for version in range(6):
        provider.open(version, None).put(0, version, "x").commit()
    retry = provider.open(2, None)
    assert set(items(retry.items())) == {"0:0", "0:1"}
    retry.put(0, 99, "other branch").commit()
    assert set(items(provider.open(3, None).items())) >= {"0:0", "0:1"}


def test_a_zombie_does_not_change_what_its_successor_made(world: Any, items: Any) -> None:
    zombie, successor = world.provider(), world.provider()
    zombies_store = zombie.open(0, None).put(1, 1, "zombie")
    successor.open(0, None).put(1, 1, "successor").commit()
    successor.open(1, None).put(2, 2, "more").commit()
    zombies_store.put(1, 1, "zombie still writing").commit()
    expected = {"1:1": "successor", "2:2": "more"}
    assert items(world.provider().open(2, None).items()) == expected
    assert items(zombie.open(2, None).items()) == expected
    successor.open(2, None).put(3, 3, "on").commit()
    assert items(world.provider().openForReading(1, None).items()) == {"1:1": "successor"}


def test_a_query_that_was_set_back_goes_on_from_what_it_then_wrote(world: Any, items: Any) -> None:
    """Whoever deletes the newest batches from a checkpoint wants what follows to replace them."""
    world.settings["spark.sql.streaming.minBatchesToRetain"] = "2"
    provider = world.provider()
    for version in range(6):
        provider.open(version, None).put(0, version, "first time").commit()
    for version in range(2, 5):
        again = world.provider()
        store = again.open(version, None)
        assert "0:5" not in items(store.items())
        store.put(0, version, "second time").commit()
        again.provider().doCleanupMaintenance()
    assert items(world.provider().open(5, None).items()) == {
        "0:0": "first time",
        "0:1": "first time",
        "0:2": "second time",
        "0:3": "second time",
        "0:4": "second time",
    }


def test_with_ids_each_sibling_is_reached_by_its_own(world_with_ids: Any, items: Any) -> None:
    world = world_with_ids
    provider = world.provider()
    base = provider.open(0, None).put(0, 0, "base").commit()
    left = provider.open(1, base).put(1, 1, "left").commit()
    right = provider.open(1, base).put(1, 1, "right").commit()
    assert len({base, left, right}) == 3
    for reader in (provider, world.provider()):
        for id, value in ((left, "left"), (right, "right"), (left, "left")):
            store = reader.open(2, id)
            assert items(store.items()) == {"0:0": "base", "1:1": value}
            store.abort()


def test_with_ids_a_commit_names_its_base(world_with_ids: Any) -> None:
    provider = world_with_ids.provider()
    first = provider.open(0, None).put(0, 0, "a")
    id = first.commit()
    assert first.baseId() is None
    second = provider.open(1, id)
    second.commit()
    assert second.baseId() == id


def test_two_actions_on_one_batch_read_one_commit_not_the_chain(world_with_ids: Any) -> None:
    """Spark keeps the first of the two ids: the other one is in memory, and undo and one frame lead over."""
    provider = world_with_ids.provider()
    id = provider.open(0, None).put(0, 0, "0").commit()
    for version in range(1, 6):
        first = provider.open(version, id)
        if version > 1:
            assert first.metric("safekeeperCommitsRead") == 1
        first_id = first.put(0, version, "first").commit()
        second = provider.open(version, id)
        assert second.metric("safekeeperCommitsRead") == 0
        second.put(0, version, "second").commit()
        id = first_id


def test_without_ids_none_is_reported(world: Any) -> None:
    store = world.provider().open(0, None).put(0, 0, "a")
    assert store.commit() is None
    assert store.baseId() is None


def test_a_missing_version_is_an_error(world: Any) -> None:
    world.provider().open(0, None).put(0, 0, "a").commit()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().open(2, None)


def test_an_unknown_id_is_an_error(world_with_ids: Any) -> None:
    world_with_ids.provider().open(0, None).put(0, 0, "a").commit()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world_with_ids.provider().open(1, "7b0e2d9c-0000-4000-8000-000000000000")


@pytest.mark.parametrize("lost", (0, 1, 2))
def test_a_missing_commit_is_an_error_and_never_a_shorter_state(world: Any, lost: int) -> None:
    provider = world.provider(cleanAt=1_000_000)
    for version in range(3):
        provider.open(version, None).put(0, version, "x").commit()
    world.keys()[lost].unlink()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().open(3, None)


def test_a_damaged_commit_is_an_error(world: Any) -> None:
    world.provider().open(0, None).put(0, 0, "a" * 100).commit()
    path = world.keys()[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().open(1, None)


def test_a_negative_version_is_an_error(world: Any) -> None:
    with fails_with("UNEXPECTED_VERSION"):
        world.provider().open(-1, None)


def test_a_failed_load_does_not_keep_others_out(world: Any) -> None:
    provider = world.provider(leaseMs=100)
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        provider.open(5, None)
    provider.open(0, None).put(0, 0, "a").commit()


@pytest.mark.parametrize("codec", ("zstd", "lz4", "none"))
def test_a_commit_above_the_value_limit_is_written_in_parts(world: Any, items: Any, codec: str) -> None:
    provider = world.provider(valueBytes=64 << 10, codec=codec)
    store = provider.open(0, None).putMany(2000, 200, 7).put(1, 1, "A" * 300_000)
    expected = items(store.items())
    store.commit()
    assert len(world.keys("part")) > 3
    assert max(path.stat().st_size for path in world.keys("part") + world.keys()) < 65 << 10
    assert items(world.provider().open(1, None).items()) == expected


def test_a_missing_part_is_an_error(world: Any) -> None:
    world.provider(valueBytes=16 << 10).open(0, None).putMany(500, 200, 7).commit()
    world.keys("part")[1].unlink()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().open(1, None)


def test_a_store_can_begin_empty_at_any_version(world: Any, items: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "old").commit()
    store = provider.openEmpty(5).put(2, 2, "new")
    store.commit()
    assert store.metric("forceSnapshotCount") == 1
    assert items(world.provider().open(6, None).items()) == {"2:2": "new"}


def test_cleaning_keeps_what_a_restart_reads_short(world: Any, items: Any) -> None:
    provider = world.provider()
    for version in range(60):
        store = provider.open(version, None).put(0, version % 7, f"value {version}")
        expected = items(store.items())
        store.commit()
    fresh = world.provider().open(60, None)
    assert items(fresh.items()) == expected
    assert fresh.metric("safekeeperCommitsRead") <= 3


def test_cleanup_keeps_the_retained_versions_and_what_they_need(world: Any, items: Any) -> None:
    world.settings["spark.sql.streaming.minBatchesToRetain"] = "4"
    provider = world.provider(cleanAt=1.5)
    expected = [{}]
    for version in range(40):
        store = provider.open(version, None).putMany(50, 40, version % 20).put(1, version, "cold")
        expected.append(items(store.items()))
        store.commit()
        provider.provider().doCleanupMaintenance()
    assert len(world.keys()) < 30
    assert min(world.versions()) > 1
    for version in (40, 39, 38, 37):
        store = world.provider().openForReading(version, None)
        assert items(store.items()) == expected[version]
        store.release()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().open(1, None)


def test_cleanup_keeps_siblings_and_the_chains_below_them(world_with_ids: Any, items: Any) -> None:
    world = world_with_ids
    world.settings["spark.sql.streaming.minBatchesToRetain"] = "2"
    provider = world.provider()
    id = provider.open(0, None).put(0, 0, "base").commit()
    for version in range(1, 8):
        left = provider.open(version, id).put(0, version, "left").commit()
        right = provider.open(version, id).put(0, version, "right").commit()
        id = left
    provider.provider().doCleanupMaintenance()
    assert min(world.versions()) > 1
    for sibling, value in ((left, "left"), (right, "right")):
        assert items(world.provider().open(8, sibling).items())["0:7"] == value


def test_cleanup_deletes_the_parts_of_what_it_deletes(world: Any) -> None:
    world.settings["spark.sql.streaming.minBatchesToRetain"] = "1"
    provider = world.provider(valueBytes=16 << 10)
    for version in range(4):
        provider.open(version, None).putMany(300, 200, version).commit()
    before = len(world.keys("part"))
    provider.provider().doCleanupMaintenance()
    assert 0 < len(world.keys("part")) < before
    world.provider().open(4, None)


def test_cleanup_deletes_no_part_of_a_commit_that_is_being_written(world: Any, items: Any) -> None:
    """Set back to its beginning, a query commits a version below all that are kept; the parts come before the head."""
    world.settings["spark.sql.streaming.minBatchesToRetain"] = "1"
    provider = world.provider()
    for version in range(5):
        provider.open(version, None).put(0, 0, f"{version}").commit()
    again = world.provider(valueBytes=1024)
    store = again.open(0, None).putMany(300, 100, 7)
    expected = items(store.items())
    committing = again.commitInBackground(store)
    while not committing.isDone():
        again.provider().doCleanupMaintenance()
    committing.get()
    assert len(world.keys("part")) > 10
    assert items(world.provider().open(1, None).items()) == expected


def test_cleanup_of_a_store_without_commits_does_nothing(world: Any) -> None:
    world.provider().provider().doMaintenance()
    assert world.keys() == []


def test_a_checkpoint_made_anew_in_the_same_folder_shows_no_old_state(world: Any, items: Any) -> None:
    world.provider().open(0, None).put(1, 1, "old").commit()
    world.new_query()
    provider = world.provider()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        provider.open(1, None)
    assert items(provider.open(0, None).items()) == {}


def test_a_copied_checkpoint_is_refused_for_writing(world: Any, items: Any) -> None:
    world.provider().open(0, None).put(1, 1, "mine").commit()
    copy = world.folder / "copy"
    shutil.copytree(world.checkpoint, copy)
    with fails_with("belongs to the checkpoint in"):
        world.provider(checkpoint=copy).open(1, None)
    assert items(world.provider(checkpoint=copy).openForReading(1, None).items()) == {"1:1": "mine"}


def test_a_moved_checkpoint_can_be_adopted(world: Any, items: Any) -> None:
    world.provider().open(0, None).put(1, 1, "mine").commit()
    moved = world.folder / "moved"
    world.checkpoint.rename(moved)
    store = world.provider(checkpoint=moved, movedCheckpoint="adopt").open(1, None)
    assert items(store.items()) == {"1:1": "mine"}
    store.commit()
    world.provider(checkpoint=moved).open(2, None)


def test_a_store_without_a_query_is_known_by_its_place(world: Any, items: Any) -> None:
    """As in Spark's own tests, where a checkpoint has no metadata file."""
    (world.checkpoint / "metadata").unlink()
    world.provider().open(0, None).put(1, 1, "here").commit()
    assert items(world.provider().open(1, None).items()) == {"1:1": "here"}
    elsewhere = world.folder / "elsewhere"
    elsewhere.mkdir()
    with fails_with("CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"):
        world.provider(checkpoint=elsewhere).open(1, None)


def test_without_a_query_all_stores_of_one_place_belong_together_and_no_others(world: Any) -> None:
    """Spark's own tests have the states of many places in one folder."""

    def query(root: str, *store: object) -> str:
        return str(world.jvm.TestProvider.group(str(world.folder / root), *store)).split("/")[1]

    here = query("here", 0, 0, "default")
    assert {query("here", 1, 2, "left"), query("here/", 0, 7, "right")} == {here}
    assert query("there", 0, 0, "default") != here
    assert query("checkpoint/state", 0, 0, "default") == world.query


def test_a_query_whose_metadata_is_lost_never_starts_with_less(world: Any) -> None:
    world.provider().open(0, None).put(1, 1, "a").commit()
    (world.checkpoint / "metadata").unlink()
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().open(1, None)


def test_rows_in_avro_are_refused(world: Any) -> None:
    world.settings[SPARKS + "encodingFormat"] = "avro"
    with fails_with("stateStore.encodingFormat=avro: safekeeper keeps rows as unsaferow"):
        world.provider()


def test_settings_of_other_stores_are_named(world: Any) -> None:
    others = {
        SPARKS + "fileChecksumThreadPoolSize": "1",
        SPARKS + "maxVersionsToDeletePerMaintenance": "1",
        SPARKS + "rocksdb.compactOnCommit": "true",
        SPARKS + "rowChecksum.enabled": "true",
    }
    settings = {**others, SPARKS + "maintenanceInterval": "1s", PREFIX + "codec": "lz4"}
    assert list(world.jvm.TestProvider.ignored(settings)) == sorted(others)


def test_maintenance_lists_only_when_there_were_commits(world: Any) -> None:
    """A commit that was deleted and is there again is seen by the next listing only."""
    world.settings |= {"spark.sql.streaming.minBatchesToRetain": "2", PREFIX + "leastCommitBytes": "1"}
    provider = world.provider()
    provider.commitBatches(0, 12, 3, 3)
    old = world.keys()[0]
    content = old.read_bytes()
    provider.provider().doMaintenance()
    assert not old.exists()
    old.write_bytes(content)
    provider.provider().doMaintenance()
    assert old.exists()
    provider.commitBatches(12, 6, 3, 3)
    provider.provider().doMaintenance()
    assert not old.exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    (
        ("codec", "gzip"),
        ("cleanAt", "1"),
        ("cleanAt", "x"),
        ("valueBytes", "0"),
        ("movedCheckpoint", "maybe"),
        ("leaseMs", "-"),
    ),
)
def test_a_wrong_setting_shows_before_the_first_batch(world: Any, setting: str, value: str) -> None:
    with fails_with(f"{setting}={value}: it takes"):
        world.provider(**{setting: value})
