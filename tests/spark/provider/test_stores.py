"""What a store does row by row: iterators, scans, column families, lists, the change feed."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from safekeeper.spark.build import spark_home, spark_version

with_event_time = pytest.mark.skipif(
    spark_version(spark_home()) < "4.2", reason="this Spark has no keys with an event time"
)


def fails_with(condition: str) -> Any:
    return pytest.raises(Py4JJavaError, match=condition)


def test_reads_find_what_was_written_last(world: Any) -> None:
    store = world.provider().open(0, None).put(1, 1, "a").put(1, 1, "b").put(2, 2, "c").remove(2, 2)
    assert store.get(1, 1) == "b"
    assert store.get(2, 2) is None
    assert store.has(1, 1)
    assert not store.has(2, 2)
    assert list(store.getAll([[2, 2], [1, 1], [9, 9]])) == [None, "b", None]


def test_removing_what_is_not_there_is_no_change(world: Any) -> None:
    provider = world.provider()
    provider.open(0, None).remove(5, 5).commit()
    assert list(provider.changes(1, 1, None)) == []


@pytest.mark.parametrize("encoding", ("plain", "prefix", "range"))
@pytest.mark.parametrize("steps", (0, 3))
def test_an_iterator_shows_the_store_as_it_was_when_opened(world: Any, items: Any, encoding: str, steps: int) -> None:
    store = world.provider(encoding).open(0, None)
    for key in range(10):
        store.put(0, key, "before")
    store.openIterator(steps)
    for key in range(5):
        store.put(0, key, "after")
        store.remove(0, key + 5)
    store.put(0, 100, "new")
    seen = items(store.restOfIterator())
    assert len(seen) == 10 - steps
    assert set(seen.values()) == {"before"}
    assert items(store.items()) == {**{f"0:{key}": "after" for key in range(5)}, "0:100": "new"}


def test_an_iterator_goes_on_through_ten_thousand_updates(world: Any, items: Any) -> None:
    store = world.provider().open(0, None).putMany(5000, 20, 1)
    before = items(store.items())
    store.openIterator(0).putMany(10_000, 40, 2)
    assert items(store.restOfIterator()) == before


def test_a_committed_store_takes_no_more_updates(world: Any) -> None:
    store = world.provider().open(0, None).put(1, 1, "a")
    store.commit()
    with fails_with("STATE_STORE_OPERATION_OUT_OF_ORDER"):
        store.put(1, 1, "b")
    with fails_with("CANNOT_COMMIT"):
        store.commit()


def test_abort_after_commit_and_a_second_abort_do_nothing(world: Any, items: Any) -> None:
    provider = world.provider()
    store = provider.open(0, None).put(1, 1, "a")
    store.commit()
    store.abort()
    other = provider.open(1, None)
    other.abort()
    other.abort()
    assert items(provider.open(1, None).items()) == {"1:1": "a"}


def test_a_store_opened_for_reading_refuses_updates_until_it_is_upgraded(world: Any, items: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "a").commit()
    reader = provider.openForReading(1, None)
    with fails_with("opened for reading"):
        reader.put(1, 1, "b")
    writer = provider.upgrade(reader)
    assert writer.get(1, 1) == "a"
    writer.put(1, 1, "b").commit()
    assert items(provider.open(2, None).items()) == {"1:1": "b"}


def test_reading_once_and_releasing_twice_is_fine(world: Any) -> None:
    provider = world.provider()
    reader = provider.openForReading(0, None)
    reader.release()
    reader.release()
    provider.open(0, None).commit()


def test_a_prefix_scan_gives_the_keys_of_one_prefix(world: Any, items: Any) -> None:
    provider = world.provider("prefix")
    store = provider.open(0, None)
    for prefix in range(4):
        for key in range(3):
            store.put(prefix, key, f"{prefix}-{key}")
    store.remove(2, 1).put(2, 9, "nine").put(2, 0, "again")
    expected = {"2:0": "again", "2:2": "2-2", "2:9": "nine"}
    assert items(store.startingWith(2)) == expected
    assert items(store.startingWith(7)) == {}
    store.commit()
    assert items(world.provider("prefix").open(1, None).startingWith(2)) == expected


def test_a_range_scan_is_in_order_and_excludes_its_end(world: Any) -> None:
    store = world.provider("range").open(0, None)
    for key in (5, -3, 200, 0, 17, -1000):
        store.put(key, 0, f"{key}")
    keys = [str(item).split(":")[0] for item in store.between([-3, 0], [200, 0])]
    assert keys == ["-3", "0", "5", "17"]
    assert [str(item).split(":")[0] for item in store.between(None, [0, 0])] == ["-1000", "-3"]
    assert [str(item).split(":")[0] for item in store.between([17, 0], None)] == ["17", "200"]
    assert list(store.between([17, 0], [-3, 0])) == []
    assert [str(item).split(":")[0] for item in store.items()] == ["-1000", "-3", "0", "5", "17", "200"]


@with_event_time
def test_keys_with_the_event_time_first_are_scanned_in_its_order(world: Any) -> None:
    """What a join of format 4 evicts by: Spark gives the schema of these keys without the time."""
    provider = world.provider("time first")
    store = provider.open(0, None)
    for key, time in ((1, 30), (2, 10), (1, 20), (3, -5)):
        store.put(key, time, f"{key} at {time}")
    expected = ["3:-5=3 at -5", "2:10=2 at 10", "1:20=1 at 20"]
    assert list(store.between(None, [0, 25])) == expected
    store.commit()
    fresh = world.provider("time first").open(1, None)
    assert list(fresh.items()) == [*expected, "1:30=1 at 30"]
    assert fresh.get(1, 20) == "1 at 20"


@with_event_time
def test_keys_with_the_event_time_last_are_found_by_what_is_before_it(world: Any) -> None:
    store = world.provider("time last").open(0, None)
    for key, time in ((1, 30), (2, 10), (1, 20)):
        store.put(key, time, f"{key} at {time}")
    assert list(store.startingWith(1)) == ["1:20=1 at 20", "1:30=1 at 30"]
    store.remove(1, 20)
    assert list(store.startingWith(1)) == ["1:30=1 at 30"]


def test_scans_follow_an_undo(world: Any, items: Any) -> None:
    provider = world.provider("range")
    provider.open(0, None).put(1, 0, "one").put(2, 0, "two").commit()
    provider.open(1, None).put(3, 0, "three").remove(1, 0).put(2, 0, "over").abort()
    assert items(provider.open(1, None).between(None, None)) == {"1:0": "one", "2:0": "two"}


def test_delete_range_deletes_the_keys_in_it(world: Any, items: Any) -> None:
    provider = world.provider("range")
    store = provider.open(0, None)
    for key in range(10):
        store.put(key, 0, "x")
    store.deleteRange(3, 0, 7, 0)
    kept = {f"{key}:0": "x" for key in (0, 1, 2, 7, 8, 9)}
    assert items(store.items()) == kept
    store.commit()
    assert items(world.provider("range").open(1, None).items()) == kept


def test_scans_need_an_encoding_that_allows_them(world: Any) -> None:
    store = world.provider().open(0, None)
    with fails_with("prefix scan needs"):
        store.startingWith(1)
    with fails_with("range scan needs"):
        store.between(None, None)
    with fails_with("deleteRange needs"):
        store.deleteRange(0, 0, 1, 0)


def test_column_families_keep_their_keys_apart(world: Any, items: Any) -> None:
    provider = world.provider(families=True)
    store = provider.open(0, None).createFamily("a", "plain", False).createFamily("b", "range", False)
    store.put(1, 1, "default").putIn("a", 1, 1, "in a").putIn("b", 1, 1, "in b")
    store.commit()
    assert store.numKeys() == 3
    fresh = world.provider(families=True).open(1, None)
    assert list(fresh.families()) == ["a", "b", "default"]
    fresh.createFamily("a", "plain", False).createFamily("b", "range", False)
    assert (fresh.get(1, 1), fresh.getIn("a", 1, 1), fresh.getIn("b", 1, 1)) == ("default", "in a", "in b")
    assert items(fresh.itemsIn("b")) == {"1:1": "in b"}


def test_a_removed_column_family_is_gone_with_its_keys(world: Any, items: Any) -> None:
    provider = world.provider(families=True)
    store = provider.open(0, None).createFamily("a", "plain", False).putIn("a", 1, 1, "x")
    assert store.removeFamily("a")
    assert not store.removeFamily("a")
    with fails_with("STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"):
        store.getIn("a", 1, 1)
    store.createFamily("a", "plain", False)
    assert items(store.itemsIn("a")) == {}
    store.commit()
    assert list(world.provider(families=True).open(1, None).families()) == ["a", "default"]


def test_an_aborted_column_family_was_never_there(world: Any) -> None:
    provider = world.provider(families=True)
    provider.open(0, None).createFamily("a", "plain", False).putIn("a", 1, 1, "x").abort()
    assert list(provider.open(0, None).families()) == ["default"]


@pytest.mark.parametrize("name", ("", " a", "default", "$mine"))
def test_column_family_names_that_spark_reserves_are_refused(world: Any, name: str) -> None:
    with fails_with("STATE_STORE_CANNOT"):
        world.provider(families=True).open(0, None).createFamily(name, "plain", False)


def test_without_column_families_there_is_only_the_default_one(world: Any) -> None:
    store = world.provider().open(0, None)
    with fails_with("STATE_STORE_UNSUPPORTED_OPERATION"):
        store.createFamily("a", "plain", False)
    with fails_with("STATE_STORE_UNSUPPORTED_OPERATION"):
        store.putIn("a", 1, 1, "x")


def test_a_key_can_have_a_list_of_values(world: Any) -> None:
    provider = world.provider(families=True, lists=True)
    store = provider.open(0, None)
    store.putList("default", 1, 1, ["a", "b"]).merge("default", 1, 1, ["c"]).merge("default", 1, 1, ["d", "e"])
    store.merge("default", 2, 2, ["only"])
    assert list(store.listOf("default", 1, 1)) == ["a", "b", "c", "d", "e"]
    assert list(store.listOf("default", 9, 9)) == []
    assert store.get(1, 1) == "a"
    store.commit()
    fresh = world.provider(families=True, lists=True).open(1, None)
    assert sorted(map(str, fresh.everyValueIn("default"))) == [
        "1:1=a", "1:1=b", "1:1=c", "1:1=d", "1:1=e", "2:2=only"
    ]  # fmt: skip


def test_lists_need_a_family_that_has_them(world: Any) -> None:
    store = world.provider().open(0, None)
    with fails_with("several values for a key"):
        store.merge("default", 1, 1, ["a"])
    with fails_with("several values for a key"):
        store.listOf("default", 1, 1)


def test_the_change_feed_has_one_change_for_each_put(world: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "a").put(1, 1, "b").commit()
    provider.open(1, None).put(2, 2, "c").remove(1, 1).commit()
    assert list(provider.changes(1, 2, None)) == [
        "0 put 1:1=a", "0 put 1:1=b", "1 put 2:2=c", "1 delete 1:1"
    ]  # fmt: skip
    assert list(world.provider().changes(2, 2, None)) == ["1 put 2:2=c", "1 delete 1:1"]


def test_the_change_feed_of_a_large_commit_is_whole_and_in_order(world: Any) -> None:
    """Of many blocks, in several values, some of them in the middle of a record."""
    provider = world.provider(valueBytes=8192)
    provider.open(0, None).putMany(200, 300, 1).put(1, 1, "long " * 5000).putMany(100, 10, 2).commit()
    provider.open(1, None).put(2, 2, "last").commit()
    keys = [str(change).split("=")[0] for change in provider.changes(1, 2, None)]
    first, second = ([f"0 put 0:{key}" for key in range(count)] for count in (200, 100))
    assert keys == [*first, "0 put 1:1", *second, "1 put 2:2"]


def test_what_the_cleaner_moves_is_no_change(world: Any) -> None:
    provider = world.provider(cleanAt=1.01)
    moved = 0
    for version in range(20):
        store = provider.open(version, None).put(0, version, "x")
        store.commit()
        moved += store.metric("safekeeperCleanedBytes")
    assert moved > 0
    assert list(provider.changes(1, 20, None)) == [f"{version} put 0:{version}=x" for version in range(20)]


def test_the_change_feed_follows_the_chain_and_not_the_siblings(world: Any) -> None:
    provider, other = world.provider(), world.provider()
    provider.open(0, None).put(1, 1, "kept").commit()
    sibling = other.open(0, None).put(1, 1, "sibling")
    provider.open(1, None).put(2, 2, "next").commit()
    sibling.commit()
    assert list(provider.changes(1, 2, None)) == ["0 put 1:1=kept", "1 put 2:2=next"]


def test_a_change_feed_over_a_missing_commit_is_an_error(world: Any) -> None:
    provider = world.provider()
    for version in range(3):
        provider.open(version, None).put(0, version, "x").commit()
    world.keys()[1].unlink()
    with fails_with("CANNOT_READ_STREAMING_STATE_FILE"):
        provider.changes(1, 3, None)


def test_the_change_feed_of_a_column_family_with_lists(world: Any) -> None:
    provider = world.provider(families=True)
    store = provider.open(0, None).createFamily("a", "plain", True).put(7, 7, "other")
    store.putList("a", 1, 1, ["x", "y"]).merge("a", 1, 1, ["z"])
    store.commit()
    assert list(provider.changes(1, 1, "a")) == ["0 put 1:1=x", "0 merge 1:1=y", "0 merge 1:1=z"]


def test_a_state_is_replayed_from_any_version_that_it_descends_from(world: Any, items: Any) -> None:
    provider = world.provider()
    for version in range(4):
        provider.open(version, None).put(0, version, "x").commit()
    assert set(items(world.provider().replay(2, 4).items())) == {"0:0", "0:1", "0:2", "0:3"}
    with fails_with("UNEXPECTED_VERSION"):
        world.provider().replay(0, 2)
    with fails_with("CANNOT_LOAD_STATE_STORE"):
        world.provider().replay(2, 9)
