"""A process that may open few files, on a root with many: its files come from one pool, and running out is no end."""

import time
from contextlib import suppress
from pathlib import Path

import pytest

from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.backends.log.options import LogOptions
from safekeeper.testing.peer import PATIENCE, Peer

from .inside import compact, damage, hog_files, limit_files, open_files, stats, stop_passes
from .killing import open_as_another_process
from .power import QuickFiles

OPTIONS = LogOptions(segment=4096)
VALUE = bytes(2000)


def make(root: Path, folders: int, segments: int) -> dict[CheckpointId, bytes]:
    """A root with so many folders of so many segments, each folder with an index file; what it holds."""
    handles = [open_as_another_process(root, OPTIONS, QuickFiles()) for _ in range(folders)]
    values: dict[CheckpointId, bytes] = {}
    for turn in range(segments):
        for number, handle in enumerate(handles):
            ids = CheckpointId("one", b"%d %d" % (number, turn)), CheckpointId("all", b"%d" % turn)
            handle.write(Batch(dict.fromkeys(ids, VALUE)))
            values |= dict.fromkeys(ids, VALUE)
    for handle in handles:
        handle._log._writing.background.run_pass(everything=False)
    for handle in handles:
        handle.close()
    return values


def check(peer: Peer, values: dict[CheckpointId, bytes]) -> None:
    """All of it can be read, one by one and at once, and be listed and counted."""
    assert [peer.read([id])[0] for id in values] == list(values.values())
    assert peer.read(list(values)) == list(values.values())
    for group in ("one", "all"):
        assert sorted(set(peer.keys(group))) == sorted(id.key for id in values if id.group == group)
    assert sorted(peer.groups()) == ["all", "one"]
    assert peer.call(stats) == len(values)
    assert peer.call(damage) == []


@pytest.mark.parametrize(("folders", "segments"), ((10, 12), (40, 2), (1, 100)), ids=str)
def test_a_root_with_many_files_is_read_and_written_with_few(tmp_path, folders, segments):
    values = make(tmp_path / "store", folders, segments)
    assert len(list((tmp_path / "store").glob("*/*.segment"))) >= folders * segments
    with Peer(f"log://{tmp_path}/store?segment=4K") as peer:
        peer.call(limit_files, 64)
        check(peer, values)
        peer.write(Batch({CheckpointId("all", b"0"): b"new"}))
        values[CheckpointId("all", b"0")] = b"new"
        check(peer, values)
        peer.call(compact)
        check(peer, values)
        until = time.monotonic() + PATIENCE
        while peer.call(open_files) > 50:  # a pass in the background needs some, for a moment
            assert time.monotonic() < until, "none are left for the application"
            time.sleep(0.05)


def test_a_handle_is_of_use_again_when_there_are_files_again(tmp_path):
    values = make(tmp_path / "store", 4, 12)
    with Peer(f"log://{tmp_path}/store?segment=4K") as peer:
        peer.call(limit_files, 64)
        check(peer, values)  # all modules are loaded
        for spare in range(12):
            for attempt in ("read", "write"):
                peer.reopen()
                peer.call(hog_files, spare)
                with suppress(Unavailable):
                    if attempt == "read":
                        assert peer.read(list(values)) == list(values.values())
                    else:
                        peer.write(Batch({CheckpointId("one", b"0 0"): VALUE}))
                peer.call(hog_files, -1)
                check(peer, values)
                peer.write(Batch({CheckpointId("one", b"0 1"): VALUE}))


def test_what_is_open_for_reading_makes_room_for_what_is_needed(tmp_path):
    """The pool has files open that nobody reads now; the application has taken all others."""
    values = make(tmp_path / "store", 2, 12)
    with Peer(f"log://{tmp_path}/store?segment=4K") as peer:
        peer.call(limit_files, 64)
        peer.call(stop_passes)
        peer.write(Batch({CheckpointId("one", b"0 0"): VALUE}))
        assert peer.read(list(values)) == list(values.values())
        peer.call(hog_files, 0)
        for turn in range(5):
            peer.write(Batch({CheckpointId("all", b"%d" % turn): VALUE}))  # some of them begin a segment
            assert peer.read(list(values)) == list(values.values())
