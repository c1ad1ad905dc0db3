"""Files that somebody removes while a store is in use: a write that would go to a file without a name is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backend import Backend
from safekeeper.testing.peer import Peer

from .explorer import STORES

PARTS = [
    ("file", ""),
    ("file", "group"),
    ("file", ".tmp"),
    ("lmdb", ""),
    ("lmdb", "data.mdb"),
    ("lmdb", "lock.mdb"),
    ("log", ""),
    ("log", "writer-*"),
]
NAMES = [f"{scheme}-{part or 'everything'}" for scheme, part in PARTS]


def an_id(number: int) -> CheckpointId:
    return CheckpointId("group", b"%d" % number)


def remove(root: Path, part: str) -> None:
    for path in root.parent.glob(f"{root.name}/{part}" if part else root.name):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def try_to_write(store: Backend, numbers: range) -> dict[CheckpointId, bytes]:
    """What is acknowledged."""
    acknowledged = {}
    for number in numbers:
        try:
            store.write(Batch({an_id(number): b"%d" % number}))
        except Unavailable:
            continue
        acknowledged[an_id(number)] = b"%d" % number
    return acknowledged


@pytest.mark.parametrize("made_again", (False, True), ids=("gone", "made again by another process"))
@pytest.mark.parametrize(("scheme", "part"), PARTS, ids=NAMES)
def test_what_is_acknowledged_after_files_were_removed_is_there(tmp_path, scheme, part, made_again):
    root = tmp_path / "store"
    url = STORES[scheme].format(root)
    with safekeeper.open(url) as store, Peer(url) as other:
        try_to_write(store, range(3))
        remove(root, part)
        if made_again:
            other.write(Batch({CheckpointId("others", b""): b"1"}))
        acknowledged = try_to_write(store, range(10, 20))
        assert other.read(list(acknowledged)) == list(acknowledged.values())
    with safekeeper.open(url) as store, Peer(url) as other:
        acknowledged |= try_to_write(store, range(20, 23))
        assert {an_id(number) for number in range(20, 23)} <= acknowledged.keys()
        assert store.read(list(acknowledged)) == list(acknowledged.values())
        assert other.read(list(acknowledged)) == list(acknowledged.values())


@pytest.mark.parametrize("scheme", STORES)
def test_the_first_write_after_everything_was_removed_is_refused(tmp_path, scheme):
    root = tmp_path / "store"
    with safekeeper.open(STORES[scheme].format(root)) as store:
        assert len(try_to_write(store, range(3))) == 3
        remove(root, "")
        with pytest.raises(Unavailable, match="store"):
            store.write(Batch({an_id(4): b"4"}))
