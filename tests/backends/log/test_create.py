"""Ids that are created: their tokens stay with their records, wherever these go, and whoever is killed meanwhile."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Intact, Unavailable, stores
from safekeeper.backends.log.claim import creating
from safekeeper.testing.peer import PATIENCE, Peer

from .creating import create, create_and_stop, steps_of_a_create
from .stopping import wait_until_stopped

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
MINE, THEIRS = b"m" * 16, b"t" * 16
IDS = [CheckpointId("group", b"%d" % n) for n in range(30)]


def values(store):
    return {key: value for page in store.scan("group") for key, value in page}


@pytest.mark.parametrize("options", ("segment=4K", "segment=64M&sync=none"))
def test_tokens_go_with_their_records_and_are_no_part_of_values(tmp_path, options):
    url = f"log://{tmp_path}/store?{options}"
    expected = {id.key: id.key * 50 for id in IDS}
    with safekeeper.open(url) as store:
        for turn in (b"old", b"new"):  # what is replaced makes work for compaction
            store.write(Batch({CheckpointId("rubbish", b"%d" % n): turn * 300 for n in range(20)}))
            for id in IDS[:: 1 if turn == b"old" else -1]:
                assert store.create(id, id.key * 50, MINE)
    for step in ("opened", "compacted", "opened again", "without an index"):
        if step == "without an index":
            for index in (tmp_path / "store").glob("*/*.index"):
                index.unlink()
        with safekeeper.open(url) as store:
            if step == "compacted":
                store.compact()
                assert store.stats().ids == len(IDS) + 20
            assert values(store) == expected, step
            assert store.read(IDS) == list(expected.values())
            assert all(store.create(id, b"", MINE) for id in IDS), step
            assert not any(store.create(id, b"", THEIRS) for id in IDS), step
            assert (list(store.verify()) == []) or step == "without an index"
            assert {found.value for found in store.salvage() if isinstance(found, Intact) and found.id in IDS} == {
                *expected.values()
            }
    with safekeeper.open(url) as store, safekeeper.open("memory:") as other:
        stores.copy(store, other)
        assert other.read(IDS) == list(expected.values())
        batch = Batch({IDS[0]: b"written"})
        batch.delete(IDS[1])
        store.write(batch)
        store.compact()
        assert not store.create(IDS[0], b"", MINE)
        assert store.create(IDS[1], b"again", THEIRS)
        assert store.read(IDS[:2]) == [b"written", b"again"]


def test_a_folder_says_that_it_has_tokens_before_it_has_any(tmp_path):
    def versions():
        return [path.read_bytes().split()[1] for path in (tmp_path / "store").glob("*/manifest")]

    url = f"log://{tmp_path}/store"
    with safekeeper.open(url) as store:
        store.write(Batch({IDS[0]: b"1"}))
        assert not store.create(IDS[0], b"1", MINE)
        assert versions() == [b"2"], "older versions can read it"
        with Peer(url) as other:
            other.write(Batch({IDS[1]: b"1"}))
            assert store.create(IDS[2], b"1", MINE)
            assert sorted(versions()) == [b"2", b"3"]
            store.compact()
    with safekeeper.open(url) as store:
        store.write(Batch({IDS[0]: b"1"}))
        assert sorted(versions()) == [b"2", b"3"]
        assert store.create(IDS[2], b"1", MINE)


def test_the_largest_value_can_be_created(tmp_path):
    value = bytes(64 << 20)
    with safekeeper.open(f"log://{tmp_path}/store") as store:
        assert store.create(IDS[0], value, MINE)
        assert store.read(IDS[:1]) == [value]
        assert values(store) == {IDS[0].key: value}
        assert store.create(IDS[0], value, MINE)


def test_whoever_is_killed_in_any_step_of_a_create_gets_one_answer_with_all_others(tmp_path):
    with Peer(f"log://{tmp_path}/pilot") as pilot:
        pilot.write(Batch({IDS[1]: b""}))
        steps = pilot.call(steps_of_a_create, IDS[0], b"", MINE)
    won = set()
    for step in sorted({*range(0, len(steps), 1 if LONG else 5), len(steps)}):
        url = f"log://{tmp_path}/{step}"
        with safekeeper.open(url) as store, Peer(url) as killed, ThreadPoolExecutor(1) as pool:
            killed.write(Batch({IDS[1]: b""}))
            killing = pool.submit(killed.call, create_and_stop, IDS[0], b"mine", MINE, step)
            wait_until_stopped(killed._process.pid)
            killed._process.kill()
            assert killing.exception(PATIENCE) is not None
            theirs = store.create(IDS[0], b"theirs", THEIRS)
            mine = store.create(IDS[0], b"mine", MINE)
            assert mine != theirs, f"killed before step {step}"
            for handle in (store, safekeeper.open(url)):
                assert handle.read(IDS[:1]) == [b"mine" if mine else b"theirs"]
            with Peer(url) as opened:
                opened.write(Batch({IDS[1]: b"1"}))  # it takes over the folder of the one that is gone
                assert opened.call(create, IDS[0], b"mine", MINE) == mine
                assert opened.call(create, IDS[0], b"theirs", THEIRS) == theirs
            won.add(mine)
        shutil.rmtree(tmp_path / str(step))
    assert won == {True, False}


def test_a_process_that_is_stopped_within_a_create_holds_up_creates_only(tmp_path, monkeypatch):
    url = f"log://{tmp_path}/store"
    with safekeeper.open(url) as store, Peer(url) as stopped, ThreadPoolExecutor(1) as pool:
        stopped.write(Batch({IDS[1]: b""}))
        pool.submit(stopped.call, create_and_stop, IDS[0], b"mine", MINE, 1)
        wait_until_stopped(stopped._process.pid)
        store.write(Batch({IDS[2]: b"written"}))
        assert not store.create(IDS[2], b"", THEIRS)  # what is there needs no lock
        with (
            pytest.raises(Unavailable, match="another process has been creating an id for 0 s"),
            creating(tmp_path / "store", patience=0),
        ):
            pass
        stopped._process.kill()
