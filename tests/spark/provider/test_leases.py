"""One store at a time has a provider's state, and gives it back however its task ends."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError


def test_a_second_store_waits_until_the_first_is_done(world: Any) -> None:
    provider = world.provider()
    first = provider.open(0, None).put(1, 1, "a")
    second = provider.openInBackground(1)
    assert not second.isDone()
    first.commit()
    assert second.get().get(1, 1) == "a"


def test_whoever_waits_too_long_gets_an_error_that_names_the_holder(world: Any) -> None:
    provider = world.provider(leaseMs=50)
    provider.open(0, None)
    with pytest.raises(Py4JJavaError, match="UNRELEASED_THREAD_ERROR"):
        provider.open(0, None)


def test_a_thread_that_reads_may_write_the_same_version(world: Any, items: Any) -> None:
    """Spark 4.0 opens a store to read from and another one to write to, in one task."""
    provider = world.provider(leaseMs=1000)
    provider.open(0, None).put(1, 1, "a").commit()
    reader = provider.openForReading(1, None)
    writer = provider.open(1, None).put(2, 2, "b")
    assert reader.get(1, 1) == "a"
    writer.commit()
    reader.abort()
    assert items(provider.open(2, None).items()) == {"1:1": "a", "2:2": "b"}


def test_a_thread_that_writes_may_read_the_same_version(world: Any, items: Any) -> None:
    """The state data source of Spark 4.0 opens a store to create a family in, and leaves it."""
    provider = world.provider(families=True, leaseMs=1000)
    provider.open(0, None).createFamily("f", "plain", False).putIn("f", 1, 1, "a").commit()
    provider.open(1, None).createFamily("f", "plain", False)
    assert list(provider.changes(1, 1, "f")) == ["0 put 1:1=a"]
    reader = provider.openForReading(1, None)
    assert items(reader.itemsIn("f")) == {"1:1": "a"}
    reader.abort()
    provider.open(1, None).putIn("f", 2, 2, "b").commit()


@pytest.mark.parametrize(("reads", "writes"), ((1, 0), (1, 1)), ids=("another version", "another thread"))
def test_a_reader_shares_with_no_other_version_and_no_other_thread(world: Any, reads: int, writes: int) -> None:
    provider = world.provider(leaseMs=50)
    provider.open(0, None).put(1, 1, "a").commit()
    provider.openForReading(reads, None)
    with pytest.raises(Py4JJavaError, match="UNRELEASED_THREAD_ERROR"):
        provider.open(writes, None) if writes != reads else provider.openInBackground(writes).get()


def test_what_was_committed_can_be_read_where_there_is_no_task(world: Any, items: Any) -> None:
    """As the tests of Spark 4.0 do with every store."""
    provider = world.provider(encoding="prefix", families=True)
    store = provider.open(0, None).put(1, 1, "a").put(2, 2, "b").createFamily("f", "plain", True)
    store.merge("f", 3, 3, ["c", "d"])
    store.commit()
    assert items(store.items()) == {"1:1": "a", "2:2": "b"}
    assert (store.get(1, 1), store.get(1, 2), store.has(2, 2)) == ("a", None, True)
    assert list(store.getAll([[1, 1], [1, 2]])) == ["a", None]
    assert items(store.startingWith(2)) == {"2:2": "b"}
    assert list(store.listOf("f", 3, 3)) == ["c", "d"]
    assert list(store.everyValueIn("f")) == ["3:3=c", "3:3=d"]
    with pytest.raises(Py4JJavaError, match="Cannot put after COMMITTED"):
        store.put(1, 1, "more")
    assert items(world.provider(encoding="prefix").open(1, None).items()) == {"1:1": "a", "2:2": "b"}


def test_what_was_committed_is_not_read_while_another_store_is_open_or_after_it_has_committed(
    world: Any, items: Any
) -> None:
    provider = world.provider(leaseMs=1000)
    store = provider.open(0, None).put(1, 1, "a")
    store.commit()
    other = provider.openInBackground(1).get().put(1, 1, "b")
    with pytest.raises(Py4JJavaError, match="Cannot iterator after COMMITTED"):
        store.items()
    other.abort()
    assert items(store.items()) == {"1:1": "a"}
    provider.open(1, None).put(1, 1, "b").commit()
    with pytest.raises(Py4JJavaError, match="Cannot get after COMMITTED"):
        store.get(1, 1)


def test_an_iterator_over_what_was_committed_goes_on_while_others_write(world: Any, items: Any) -> None:
    provider = world.provider(leaseMs=1000)
    store = provider.open(0, None).putMany(500, 10, 1)
    before = items(store.items())
    store.commit()
    store.openIterator(100)
    provider.openInBackground(1).get().putMany(5000, 10, 2).commit()
    assert items(store.restOfIterator()).items() <= before.items()
    second = provider.open(2, None).openIterator(1).putMany(5000, 10, 3)
    assert len(second.restOfIterator()) == 4999, "an iterator that is left behind spoils no other"


@pytest.mark.parametrize("read", ("keyExists", "get", "iterator", "allColumnFamilyNames"))
def test_a_store_whose_rows_were_ended_is_not_read_although_the_lease_is_still_its_own(world: Any, read: str) -> None:
    """A second thread of a task may come between these two steps of another store that takes the lease."""
    provider = world.provider(families=True)
    store = provider.commitInTask(0)
    assert (store.has(1, 1), store.numKeys()) == (True, 1)
    store.endRows()
    reads = {
        "keyExists": lambda: store.has(1, 1),
        "get": lambda: store.get(1, 1),
        "iterator": store.items,
        "allColumnFamilyNames": store.families,
    }
    with pytest.raises(Py4JJavaError, match=f"Cannot {read} after COMMITTED"):
        reads[read]()
    assert store.numKeys() == 1
    provider.provider().close()


def test_a_closed_provider_has_nothing_to_read(world: Any) -> None:
    provider = world.provider()
    store = provider.open(0, None).put(1, 1, "a")
    store.commit()
    provider.provider().close()
    with pytest.raises(Py4JJavaError, match="Cannot get after COMMITTED"):
        store.get(1, 1)
    provider.open(1, None)


def test_a_task_that_fails_before_its_commit_leaves_nothing(world: Any, items: Any) -> None:
    provider = world.provider(leaseMs=1000)
    store = provider.openInTask(0, False, "the task failed")
    assert not store.hasCommitted()
    assert items(provider.open(0, None).items()) == {}


def test_a_task_that_fails_after_its_commit_can_be_repeated(world: Any, items: Any) -> None:
    provider = world.provider(leaseMs=1000)
    assert provider.openInTask(0, True, "the task failed").hasCommitted()
    retry = provider.open(0, None)
    assert items(retry.items()) == {}
    retry.put(1, 1, "by the retry").commit()
    assert items(world.provider().open(1, None).items()) == {"1:1": "by the retry"}


def test_a_task_that_is_killed_as_it_opens_a_store_undoes_nothing_of_its_successor(world: Any, items: Any) -> None:
    """It has given the state back before it comes to its own end."""
    provider = world.provider(leaseMs=1000)
    provider.open(0, None).put(1, 1, "a").commit()
    killed = provider.killedTask(1)
    successor = provider.open(1, None).put(2, 2, "b")
    provider.end(killed)
    assert items(successor.items()) == {"1:1": "a", "2:2": "b"}
    successor.commit()
    assert items(world.provider().open(2, None).items()) == {"1:1": "a", "2:2": "b"}


def test_a_task_that_ends_well_gives_the_state_back(world: Any, items: Any) -> None:
    provider = world.provider(leaseMs=1000)
    provider.openInTask(0, True, None)
    assert items(provider.open(1, None).items()) == {"1:1": "by a task"}


def test_reading_an_old_version_meanwhile_disturbs_no_writer(world: Any, items: Any) -> None:
    """The state data source makes a provider of its own."""
    provider = world.provider()
    provider.open(0, None).put(1, 1, "v1").commit()
    provider.open(1, None).put(1, 1, "v2").commit()
    writer = provider.open(2, None).put(1, 1, "v3")
    reader = world.provider().openForReading(1, None)
    assert items(reader.items()) == {"1:1": "v1"}
    writer.put(2, 2, "more").commit()
    assert items(reader.items()) == {"1:1": "v1"}
    assert items(world.provider().open(3, None).items()) == {"1:1": "v3", "2:2": "more"}


def test_a_closed_provider_lets_its_store_finish(world: Any, items: Any) -> None:
    provider = world.provider()
    store = provider.open(0, None).put(1, 1, "a")
    provider.provider().close()
    store.put(2, 2, "b").commit()
    assert items(world.provider().open(1, None).items()) == {"1:1": "a", "2:2": "b"}


def test_a_store_of_an_unloaded_provider_is_upgraded_by_it(world: Any, items: Any) -> None:
    old, new = world.provider(), world.provider()
    old.open(0, None).put(1, 1, "a").commit()
    reader = old.openForReading(1, None)
    old.provider().close()
    new.upgrade(reader).put(2, 2, "b").commit()
    assert items(new.open(2, None).items()) == {"1:1": "a", "2:2": "b"}
