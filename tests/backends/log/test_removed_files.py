"""Files that are removed or replaced under a writer: it notices with the next block, and acknowledges nothing more."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.background import Background
from safekeeper.backends.log.options import LogOptions
from safekeeper.testing.peer import PATIENCE, Peer

from .inside import damage

A, B = CheckpointId("group", b"a"), CheckpointId("group", b"b")
SIZES = {"append": 10, "rotate": 5000}
"""Of a value that fits into the segment, and of one that does not."""


def remove_folder(root: Path) -> None:
    shutil.rmtree(root / "writer-1")


def remove_root(root: Path) -> None:
    shutil.rmtree(root)


def move_root(root: Path) -> None:
    os.rename(root, root.with_name("elsewhere"))


def remove_root_that_has_a_copy(root: Path) -> None:
    """Copies that are made of links keep the files, under names that nobody reads."""
    shutil.copytree(root, root.with_name("copy"), copy_function=os.link)
    shutil.rmtree(root)


def remove_segment(root: Path) -> None:
    for path in root.glob("*/*.segment"):
        path.unlink()


def replace_segment(root: Path) -> None:
    """What a restored backup does."""
    for path in root.glob("*/*.segment"):
        shutil.copy(path, path.with_suffix(".new"))
        os.rename(path.with_suffix(".new"), path)


def remove_head(root: Path) -> None:
    """Then others do not learn of anything that is written."""
    (root / "writer-1" / "head").unlink()


def replace_root(root: Path) -> None:
    """By another process, which writes to a folder of the same name, with the same epoch."""
    shutil.rmtree(root)
    with Peer(f"log://{root}") as other:
        other.write(Batch({B: b"theirs"}))
    assert (root / "writer-1").exists()


REMOVALS: dict[str, Callable[[Path], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        *(remove_folder, remove_root, move_root, remove_root_that_has_a_copy),
        *(remove_segment, replace_segment, remove_head, replace_root),
    )
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_a_writer_whose_files_are_gone_acknowledges_nothing_more(tmp_path, remove, size):
    root = tmp_path / "store"
    with LogBackend(root, LogOptions(segment=4096)) as store:
        store.write(Batch({A: b"first"}))
        remove(root)
        before = contents(root)
        for turn in range(3):
            with pytest.raises(Unavailable, match=r"store.* was removed, moved or replaced .*open the store again"):
                store.write(Batch({A: b"%d" % turn + bytes(size)}))
        assert contents(root) == before or remove in (replace_segment, remove_segment, remove_head)
    assert contents(root) == before or remove in (replace_segment, remove_segment, remove_head)
    if remove is replace_root:
        with LogBackend(root) as store:
            assert store.read([A, B]) == [None, b"theirs"], "it has written to a folder of somebody else"
            assert damage(store) == []


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_handle_that_is_opened_again_begins_anew(tmp_path):
    root = tmp_path / "store"
    with LogBackend(root) as store:
        store.write(Batch({A: b"first"}))
        remove_root(root)
        with pytest.raises(Unavailable, match="open the store again"):
            store.write(Batch({A: b"second"}))
        with LogBackend(root) as again:
            again.write(Batch({A: b"third"}))
            assert again.read([A]) == [b"third"]
    with LogBackend(root) as store:
        assert store.read([A]) == [b"third"]


def test_compaction_does_not_touch_a_folder_that_somebody_else_made_in_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(Background, "due", lambda self: False)  # files shall not come while they are removed
    root = tmp_path / "store"
    with LogBackend(root, LogOptions(segment=4096)) as store:
        for turn in range(20):
            store.write(Batch({A: b"%d" % turn + bytes(900)}))
        replace_root(root)
        before = contents(root)
        with pytest.raises(Unavailable, match="removed, moved or replaced"):
            store.compact()
        assert contents(root) == before


@pytest.mark.parametrize("sync", ("interval", "none"))
def test_what_waits_in_a_buffer_is_not_written_to_files_that_are_gone(tmp_path, sync):
    root, until = tmp_path / "store", time.monotonic() + PATIENCE
    with LogBackend(root, LogOptions(sync=sync, sync_interval=0.01)) as store:
        store.write(Batch({A: b"first"}))
        remove_folder(root)
        with pytest.raises(Unavailable, match="removed, moved or replaced"):
            write_until(store, until)


def write_until(store: LogBackend, until: float) -> None:
    while time.monotonic() < until:
        store.write(Batch({A: b"value"}))
        time.sleep(0.01)


@pytest.mark.parametrize("remove", (remove_root, replace_root))
def test_a_reader_does_not_answer_from_files_that_are_gone(tmp_path, remove):
    root = tmp_path / "store"
    with Peer(f"log://{root}") as peer, LogBackend(root) as store:
        peer.write(Batch({A: b"first"}))
        assert store.read([A]) == [b"first"]
        peer._process.kill()
        peer._process.wait()
        remove(root)
        with pytest.raises(Unavailable, match="open the store again"):
            store.read([A])
        with LogBackend(root) as again:
            assert again.read([A]) == [None]
