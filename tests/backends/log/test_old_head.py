"""A writer status that is older than the segments, in the same run of the kernel: the file system was mounted again.

The segments were synced, the status never is. So what it says was true once; what is whole in the segments counts.
"""

import errno
import os
import shutil
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Corruption, Unavailable
from safekeeper.backends.log import abandoned
from safekeeper.backends.log.appender import Appender
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.testing.peer import PATIENCE, Peer

from .killing import kill, open_as_another_process
from .layout import layout_of
from .power import QuickFiles

OPTIONS = LogOptions(segment=4096)
A = CheckpointId("group", b"a")

pytestmark = pytest.mark.timeout(PATIENCE)


def id_of(number: int) -> CheckpointId:
    return CheckpointId("group", b"%d" % number)


def heads_of_a_writer(root: Path, monkeypatch: pytest.MonkeyPatch, size: int, writes: int = 12) -> list[bytes]:
    """Write, and be killed; all that `head` ever held, the last one included."""
    seen: list[bytes] = []
    for step in ("choose", "take", "publish", "publish_generation"):
        original = getattr(WriterStatus, step)

        def note(self: WriterStatus, *numbers: int, original=original) -> None:
            original(self, *numbers)
            seen.extend(path.read_bytes() for path in root.glob("*/head"))

        monkeypatch.setattr(WriterStatus, step, note)
    store = LogBackend(root, OPTIONS, QuickFiles())
    for number in range(writes):
        store.write(Batch({id_of(number): bytes([number]) * size, A: b"%d" % number}))
    kill(store)
    monkeypatch.undo()
    return list(dict.fromkeys(seen))


def expected(size: int, writes: int = 12) -> dict[CheckpointId, bytes]:
    return {id_of(number): bytes([number]) * size for number in range(writes)} | {A: b"%d" % (writes - 1)}


def copy_with(root: Path, head: bytes, copy: Path) -> Path:
    shutil.copytree(root, copy)
    (copy / "writer-1" / "head").write_bytes(head)
    return copy


@pytest.mark.parametrize("size", (10, 700), ids=("one segment", "several segments"))
def test_whatever_the_head_was_once_all_that_was_acknowledged_is_read_and_written_on(tmp_path, monkeypatch, size):
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, size)
    assert len(heads) > 36
    values = expected(size)
    for number, head in enumerate(heads):
        for first in ("read", "write"):
            root = copy_with(tmp_path / "store", head, tmp_path / f"{number} {first}")
            with LogBackend(root, OPTIONS, QuickFiles()) as store:
                if first == "write":
                    store.write(Batch({CheckpointId("other", b""): b""}))
                assert store.read(list(values)) == list(values.values()), f"head {number}"
                store.write(Batch({A: b"later"}))
                assert store.read([A]) == [b"later"], "a sequence was chosen that is too low"
                assert list(store.verify()) == []
            shutil.rmtree(root)


@pytest.mark.parametrize("beside", ("writing", "reading"))
def test_beside_another_writer_as_well(tmp_path, monkeypatch, beside):
    """One that has a folder of its own since then, and one that reads only."""
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, 10)
    values = expected(10)
    for number, head in enumerate(heads[::3]):
        root = copy_with(tmp_path / "store", head, tmp_path / f"{number}")
        shutil.copytree(root / "writer-1", root / "writer-3")
        shutil.rmtree(root / "writer-1")
        with (
            LogBackend(root, OPTIONS, QuickFiles()) as store,
            open_as_another_process(root, OPTIONS, QuickFiles()) as other,
        ):
            if beside == "writing":
                other.write(Batch({A: b"theirs"}))
                assert store.read([A]) == [b"theirs"]
            assert other.read(list(values)) == store.read(list(values))
            store.write(Batch({A: b"ours"}))
            assert other.read([A]) == store.read([A]) == [b"ours"]
        shutil.rmtree(root)


@pytest.mark.parametrize("blocks", range(4))
def test_a_damaged_block_is_told_from_a_torn_one_also_if_the_head_is_old(tmp_path, monkeypatch, blocks):
    """Which block is damaged, counted from the last: only the last one can have been torn."""
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, 10)
    (layout,) = layout_of(tmp_path / "store" / "writer-1")
    start = layout.blocks[-2 - blocks]
    synced = [int.from_bytes(head[32:40], "little") for head in heads]
    for number, head in enumerate(heads):
        root = copy_with(tmp_path / "store", head, tmp_path / f"{number}")
        path = root / "writer-1" / layout.path.name
        content = bytearray(path.read_bytes())
        content[start + 60] ^= 1
        path.write_bytes(content)
        with LogBackend(root, OPTIONS, QuickFiles()) as store:
            if blocks == 0 and synced[number] < 12:  # nothing says that it was acknowledged
                assert store.read([id_of(10), id_of(11)]) == [bytes([10]) * 10, None]
            else:
                with pytest.raises(Corruption, match=f"{path.name}: offset {start}"):
                    store.read([A])
        shutil.rmtree(root)


def test_what_is_found_behind_an_old_head_is_seen_by_all_at_once_and_taken_over_only_once(tmp_path, monkeypatch):
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, 10)
    root, url = copy_with(tmp_path / "store", heads[20], tmp_path / "copy"), f"log://{tmp_path}/copy"
    with Peer(url) as one, Peer(url) as other, LogBackend(root) as store:
        assert one.read([A]) == other.read([A]) == store.read([A]) == [b"11"]
        assert [path.name for path in root.glob("writer-*")] == ["writer-2"]
        one.write(Batch({A: b"one"}))
        assert [path.name for path in root.glob("writer-*")] == ["writer-3"], "it has no writer any more"
        assert other.read([A]) == store.read([A]) == [b"one"]


@pytest.mark.parametrize("error", (errno.EROFS, errno.EACCES))
def test_who_may_not_write_sees_rather_too_much_than_too_little(tmp_path, monkeypatch, error):
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, 10)

    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Appender, "claim_abandoned", refuse)
    for number, head in enumerate(heads):
        root = copy_with(tmp_path / "store", head, tmp_path / f"{number}")
        with LogBackend(root) as store:
            for _ in range(2):
                assert store.read([A]) == [b"11"]
        assert (root / "writer-1" / "head").read_bytes() == head


@pytest.mark.parametrize("error", (errno.EIO, errno.ENOSPC))
def test_what_cannot_be_made_durable_is_an_error_and_not_absent(tmp_path, monkeypatch, error):
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, 10)

    class Failing(QuickFiles):
        def write(self, *_: object) -> None:
            raise OSError(error, os.strerror(error))

    root = copy_with(tmp_path / "store", heads[20], tmp_path / "copy")
    with LogBackend(root, OPTIONS, Failing()) as store:
        for _ in range(2):
            with pytest.raises(Unavailable):
                store.read([A])
    with LogBackend(root, OPTIONS, QuickFiles()) as store:
        assert store.read([A]) == [b"11"]


def test_a_stopped_claim_is_an_error_to_those_who_cannot_know_and_stops_nobody_else(tmp_path, monkeypatch):
    monkeypatch.setattr(abandoned, "_PATIENCE", 0.1)
    heads = heads_of_a_writer(tmp_path / "store", monkeypatch, 10)
    monkeypatch.setattr(abandoned, "_PATIENCE", 0.1)
    root = copy_with(tmp_path / "store", heads[20], tmp_path / "copy")
    with LogBackend(root, OPTIONS, QuickFiles()) as store:
        with abandoned.claiming(root), pytest.raises(Unavailable, match="is it stopped"):
            store.read([A])
        assert store.read([A]) == [b"11"]
    root = copy_with(tmp_path / "store", heads[-1], tmp_path / "settled")
    with LogBackend(root, OPTIONS, QuickFiles()) as store, abandoned.claiming(root):
        assert store.read([A]) == [b"11"], "its head is not old, and nothing is open"


def test_reading_changes_nothing_where_nothing_is_open(tmp_path, monkeypatch):
    heads_of_a_writer(tmp_path / "store", monkeypatch, 10)
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    with LogBackend(tmp_path / "store", OPTIONS) as store:
        assert store.read([A]) == [b"11"]
        store.stats()
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()} == before
