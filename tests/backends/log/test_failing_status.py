"""The writer status is written by calls that can fail, and never through a map: that would end the process."""

import errno
import os
import re
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.claim import Claims
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.testing.peer import Peer

A, B = CheckpointId("group", b"a"), CheckpointId("group", b"b")


def mapped(root: Path) -> list[tuple[str, str]]:
    """Which files below *root* this process has mapped, and how: `r--s`."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return [(fields[1], fields[5]) for fields in lines if len(fields) == 6 and str(root) in fields[5]]


def test_nothing_but_index_files_is_mapped_and_those_are_never_written(tmp_path):
    with Peer(f"log://{tmp_path}/store") as peer, LogBackend(tmp_path / "store") as store:
        for turn in range(3):
            peer.write(Batch({A: b"%d" % turn}))
            store.write(Batch({B: b"%d" % turn}))
            store.compact()
            assert store.read([A, B]) == [b"%d" % turn] * 2
        maps = mapped(tmp_path)
        assert maps, "there is an index file, which is mapped"
        assert all(how == "r--s" and re.search(r"\.index( \(deleted\))?$", path) for how, path in maps), maps


@pytest.mark.parametrize("step", ("choose", "take", "publish", "publish_generation"))
def test_a_block_of_which_others_cannot_be_told_is_one_that_failed(tmp_path, monkeypatch, step):
    root = tmp_path / "store"
    with Peer(f"log://{root}?segment=4K") as peer, LogBackend(root, LogOptions(segment=4096)) as store:
        store.write(Batch({A: b"old" + bytes(2500), B: b"old"}))
        assert peer.read([B]) == [b"old"]
        with monkeypatch.context() as patch:
            patch.setattr(WriterStatus, step, fail)
            with pytest.raises(Unavailable):
                store.write(Batch({A: b"new" + bytes(2500), B: b"new"}))  # it does not fit into the segment
            assert store.read([B]) == peer.read([B]) == [b"old"], "one sees it and the other does not"
        for turn in range(3):
            store.write(Batch({A: b"%d" % turn}))
            assert store.read([A, B]) == peer.read([A, B]) == [b"%d" % turn, b"old"]
        store.compact()
        assert store.read([A, B]) == peer.read([A, B]) == [b"2", b"old"]
    with LogBackend(root) as store:
        assert store.read([A, B]) == [b"2", b"old"]
        assert list(store.verify()) == []


def fail(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_claim_of_which_others_cannot_be_told_leaves_nothing_open_or_locked(tmp_path, monkeypatch):
    with LogBackend(tmp_path / "store") as store:
        open_files = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(Claims, "publish", fail)
            for _ in range(3):
                with pytest.raises(Unavailable):
                    store.write(Batch({A: b"1"}))
        assert len(os.listdir("/proc/self/fd")) <= open_files + 1  # that of `claim`, to look at
        store.write(Batch({A: b"2"}))
        assert store.read([A]) == [b"2"]
    assert len(list((tmp_path / "store").glob("writer-*"))) == 1


def test_a_failed_claim_keeps_nobody_from_claiming_as_long_as_its_error_is_kept(tmp_path):
    root = tmp_path / "store"
    with LogBackend(root) as store:
        store.write(Batch({A: b"1"}))
    manifest = root / "writer-1" / "manifest"
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-1])
    with LogBackend(root) as store, Peer(f"log://{root}") as peer:
        with pytest.raises(Exception, match="the checksum does not match") as kept:
            store.write(Batch({A: b"2"}))
        manifest.write_bytes(content)
        peer.write(Batch({A: b"3"}))
        assert kept.value
