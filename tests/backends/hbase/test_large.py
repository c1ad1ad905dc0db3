"""Values in chunks: whatever happens between two calls, the value is the old one or the new one, and nothing stays."""

from contextlib import closing

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Corruption, Unavailable
from safekeeper.backends.hbase import table as change
from safekeeper.backends.hbase.layout import CHECKPOINT, CHUNK, HEAD, locate

A = CheckpointId("g", b"a")
GROUP = locate("g")
OLD, NEW = b"o" * 1_500_000, b"n" * 2_500_000


@pytest.fixture
def rows(hbase, hbase_url):
    """What rows the table has: those of ids, and those of chunks."""

    def look():
        with closing(hbase.client()) as client:
            found = [row for row, _ in client.table(hbase_url.rpartition("/")[2]).scan(row_start=GROUP.ids)]
        return [row for row in found if row < GROUP.chunks], [row for row in found if row >= GROUP.chunks]

    return look


@pytest.fixture
def store(hbase_url):
    with safekeeper.open(hbase_url) as store:
        yield store


def delete(store, id):
    batch = Batch()
    batch.delete(id)
    store.write(batch)


@pytest.mark.parametrize("replaced_by", (NEW, b"small", None), ids=("large", "small", "nothing"))
@pytest.mark.parametrize("who", ("the writer", "a reader", "a stranger"))
@pytest.mark.parametrize("created", (False, True), ids=("written", "created"))
def test_the_chunks_of_a_replaced_value_are_removed(store, hbase_url, rows, replaced_by, who, created):
    if created:
        assert store.create(A, OLD, b"0123456789abcdef")
    else:
        store.write(Batch({A: OLD}))
    assert [len(some) for some in rows()] == [1, 2]
    with safekeeper.open(hbase_url) as other:
        replacing = store if who == "the writer" else other
        if who == "a reader":
            assert other.read([A]) == [OLD]
        replacing.write(Batch({A: replaced_by})) if replaced_by is not None else delete(replacing, A)
    assert store.read([A]) == [replaced_by]
    ids, chunks = rows()
    left_to_the_sweeper = 2 if (who, replaced_by) == ("a stranger", b"small") else 0
    assert (len(ids), len(chunks)) == {NEW: (1, 3), b"small": (1, left_to_the_sweeper), None: (0, 0)}[replaced_by]


def test_deletes_sweep_too(store, hbase_url, rows):
    store.write(Batch({A: OLD, CheckpointId("g", b"b"): b"small"}))
    with safekeeper.open(hbase_url) as stranger:
        stranger.write(Batch({A: b"small"}))
        assert len(rows()[1]) == 2
        stranger._sweeper._after = 0
        delete(stranger, CheckpointId("g", b"b"))
    assert [len(some) for some in rows()] == [1, 0]


@pytest.mark.parametrize("value", (NEW, None), ids=("replaced", "deleted"))
def test_a_damaged_value_can_be_replaced_and_deleted(store, rows, value):
    store.write(Batch({A: b"small", CheckpointId("g", b"b"): OLD}))
    row = locate("g").row(b"a")
    store._table.write([change.put(row, {CHECKPOINT: b"\1damaged"})], store._clock.next())
    with pytest.raises(Corruption):
        store.read([A])
    store.write(Batch({A: value})) if value is not None else delete(store, A)
    assert store.read([A]) == [value]


def test_chunks_are_no_keys_and_make_no_group(store, rows):
    store.write(Batch({A: OLD}))
    ids, chunks = rows()
    assert list(store.keys("g")) == [b"a"]
    delete(store, A)
    store._table.write([change.put(chunks[0], {CHUNK: b"", HEAD: ids[0]})], store._clock.next())
    assert list(store.keys("g")) == []
    assert list(store.groups()) == []


def test_a_missing_chunk_is_corruption_and_not_absence(store, rows):
    store.write(Batch({A: OLD}))
    store._table.write([change.delete(rows()[1][1])], store._clock.next())
    with pytest.raises(Corruption, match=r"g/a in row .*: parts of the value are gone"):
        store.read([A])


class Calls:
    """Does something at a certain call of a handle to the server."""

    def __init__(self, store, at, act):
        self._run = store._table._connections.run
        self._at, self._act = at, act
        self.made = 0
        store._table._connections.run = self._count

    def _count(self, ask):
        self.made += 1
        if self.made == self._at:
            self._act()
        return self._run(ask)


FAULTS = {
    "cut before it is sent": lambda proxy: proxy.close(),
    "cut before it is answered": lambda proxy: proxy.cut_at_the_next_answer(),
    "held up": lambda proxy: proxy.hold(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("value", (b"small", NEW), ids=("small", "large"))
def test_a_create_that_is_cut_between_any_two_calls_is_told_the_same_when_it_asks_again(
    store, hbase_url, hbase_behind, fault, value
):
    number, mine, theirs = 1, b"my own token....", b"another token..."
    while True:
        proxy, url = hbase_behind(timeout=1)
        with safekeeper.open(url) as behind:
            behind.write(Batch({CheckpointId("other", b""): b""}))  # so that its clock is set
            calls = Calls(behind, number, lambda proxy=proxy: fault(proxy))
            told = None
            try:
                told = behind.create(A, value, mine)
                assert told
            except Unavailable:
                assert store.read([A]) in ([None], [value])
        other = store.create(A, b"theirs", theirs)
        assert not (told and other)
        if fault is FAULTS["held up"] and calls.made >= number:
            proxy.release_and_wait()
        assert store.create(A, value, mine) is not other
        assert store.read([A]) == [b"theirs" if other else value]
        delete(store, A)
        assert list(store.keys("g")) == [] == [group for group in store.groups() if group == "g"]
        if calls.made >= number:
            number += 1
        elif told:
            break
    assert number > 4, "reading, chunks, the gate, reading again, the value"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.timeout(600)
def test_a_connection_cut_between_any_two_calls_leaves_the_old_value_or_the_new_one(store, hbase_behind, rows, fault):
    number = 1
    while True:
        store.write(Batch({A: OLD}))
        proxy, url = hbase_behind(timeout=1)
        with safekeeper.open(url) as behind:
            behind.write(Batch({CheckpointId("other", b""): b""}))  # so that its clock is set
            calls = Calls(behind, number, lambda proxy=proxy: fault(proxy))
            acknowledged = True
            try:
                behind.write(Batch({A: NEW}))
            except Unavailable:
                acknowledged = False
        (found,) = store.read([A])
        assert found == NEW if acknowledged else found in (OLD, NEW)
        store.write(Batch({A: b"newer"}))
        if fault is FAULTS["held up"] and calls.made >= number:
            proxy.release_and_wait()
        assert store.read([A]) == [b"newer"]
        assert list(store.keys("g")) == [b"a"]
        if calls.made >= number:
            number += 1
        elif acknowledged:  # otherwise a slow machine was in the way, not the fault
            break
    assert number > 6, "reading the old head, three chunks, the head, removing the old chunks"
    orphaned = len(rows()[1])
    assert orphaned
    _sweep(store, rows, orphaned)


def _sweep(store, rows, orphaned):
    """Writing large values sweeps away what was left behind, a page at a time, and nothing else."""
    beside = CheckpointId("g", b"beside")
    store._sweeper._after = 0
    for _ in range(orphaned // 64 + 2):
        store.write(Batch({beside: OLD}))
    assert len(rows()[1]) == 2
    assert store.read([A, beside]) == [b"newer", OLD]


def test_chunks_that_are_not_old_are_left_alone(store, hbase_url, rows):
    with safekeeper.open(hbase_url) as dying:
        write, dying._change = dying._change, lambda rows: (_ for _ in ()).throw(Unavailable("died"))
        with pytest.raises(Unavailable):
            dying.write(Batch({A: NEW}))
        store.write(Batch({CheckpointId("g", b"beside"): OLD}))
        assert len(rows()[1]) == 5
        dying._change = write


def test_a_write_that_takes_too_long_gives_up_before_its_chunks_may_be_swept(hbase_url):
    with safekeeper.open(f"{hbase_url}?orphans-after=0.000001") as store:
        with pytest.raises(Unavailable, match="took too long: raise orphans-after="):
            store.write(Batch({A: OLD}))
        assert store.read([A]) == [None]
