"""What the kit cannot know about `file:`: its layout, its costs, its damage."""

import os
import sys
import tempfile
from collections import Counter

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Corruption, Survives
from safekeeper.testing import AWKWARD_IDS

A = CheckpointId("g", b"a")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def store(root):
    with safekeeper.open(f"file://{root}") as store:
        yield store


def files(root):
    return sorted(path for path in root.rglob("*.ckpt") if path.is_file())


def test_no_id_leaves_the_folder_or_meets_another(store, root):
    ids = list(AWKWARD_IDS.values())
    store.write(Batch({id: str(id).encode() for id in ids}))
    assert len(files(root)) == len(ids)
    assert {path.parent.parent for path in files(root)} == {root}
    assert store.read(ids) == [str(id).encode() for id in ids]


def test_a_file_of_version_1_still_opens(store, root):
    (root / "g").mkdir(parents=True)
    (root / "g" / "a.ckpt").write_bytes(bytes.fromhex("534b4631 d04c58d84d494df2 01 0100 67 61 76616c7565"))
    assert store.read([A]) == [b"value"]


def test_every_flipped_byte_and_every_truncation_is_corruption(store, root):
    store.write(Batch({A: b"value"}))
    (path,) = files(root)
    whole = path.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    damaged += [whole[:i] for i in range(len(whole))] + [whole + b"\0"]
    for data in damaged:
        path.write_bytes(data)
        for read in (lambda: store.read([A]), lambda: list(store.scan(A.group))):
            with pytest.raises(Corruption, match=str(path)):
                read()
        assert [damage.place for damage in store.verify(lambda _: None)] == [str(path)]
    path.write_bytes(whole)
    assert not list(store.verify(lambda _: None))


def test_a_renamed_file_is_corruption_not_another_ids_value(store, root):
    store.write(Batch({A: b"value"}))
    (path,) = files(root)
    path.rename(path.with_name("b.ckpt"))
    with pytest.raises(Corruption, match="files were renamed"):
        store.read([CheckpointId("g", b"b")])
    with pytest.raises(Corruption, match="holds g/a, which belongs in another file: files were renamed"):
        list(store.scan("g"))
    assert [damage.problem for damage in store.verify(lambda _: None)] == [
        "holds g/a, which belongs in another file: files were renamed"
    ]


def test_a_folder_that_was_renamed_is_corruption_not_another_groups_values(store, root):
    store.write(Batch({A: b"value"}))
    (root / "g").rename(root / "h")
    with pytest.raises(Corruption, match="holds g/a, which belongs in another file: files were renamed"):
        list(store.scan("h"))


def test_files_are_for_this_user_only(store, root):
    store.write(Batch({A: b"value"}))
    modes = {path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert files(root)[0].stat().st_mode & 0o777 == 0o600


def test_what_a_dead_writer_left_is_swept_by_the_next_one_and_a_live_ones_is_not(root):
    left = root / ".tmp" / "1-dead"
    left.mkdir(parents=True)
    (left / "0").write_bytes(b"half a fi")
    with safekeeper.open(f"file://{root}") as one, safekeeper.open(f"file://{root}") as two:
        one.write(Batch({A: b"1"}))
        two.write(Batch({A: b"2"}))
        assert not left.exists()
        assert len(list((root / ".tmp").iterdir())) == 2
        one.write(Batch({A: b"3"}))
    assert list((root / ".tmp").iterdir()) == []


def test_listing_one_group_among_many_costs_as_much_as_the_group():
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as root,  # 20,000 syncs on a disk take a minute
        safekeeper.open(f"file://{root}/store") as store,
    ):
        store.write(Batch({CheckpointId(f"group{i}", b"key"): b"" for i in range(10_000)}))
        store.write(Batch({CheckpointId("mine", bytes([i])): b"" for i in range(10)}))
        calls = count_file_system_calls()
        assert len(list(store.keys("mine"))) == 10
        assert calls() == {"os.scandir": 1}


def count_file_system_calls():
    """A function that gives the file system calls made since: audit hooks see every one that Python makes."""
    seen, active = Counter(), [True]

    def hook(event, _):
        if active and event in ("open", "os.listdir", "os.scandir"):
            seen[event] += 1

    sys.addaudithook(hook)

    def result():
        active.clear()
        return dict(seen)

    return result


def test_a_store_in_memory_survives_the_process_only():
    with safekeeper.open("file:///dev/shm/safekeeper-is-not-there") as store:
        assert store.survives == Survives.PROCESS
    assert not os.path.exists("/dev/shm/safekeeper-is-not-there")
