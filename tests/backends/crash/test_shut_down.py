"""A file system that goes away and comes back while the machine runs: shut down by force, and mounted again.

The old process must not die, and whatever it answers must be true: it may hold files of a file system that nobody
else sees any more. `lmdb:` maps its files: a process that uses it may be ended by SIGBUS, and another one then waits
for ever for its lock, which is in such a file. The rest holds for it too.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from safekeeper import Batch, CheckpointId, SafekeeperError, Unavailable, stores
from safekeeper.backend import Backend
from safekeeper.backends.shared.local_files import sync_folder
from safekeeper.testing import peer as peer_module
from safekeeper.testing.peer import Peer

from .explorer import STORES
from .mounts import SHUT_DOWN_HOWS, alone, make_image, mount, run, shut_down

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
MAPPED = {"lmdb"}
"""Whose processes may be ended, or hang, when their file system goes away."""

T = TypeVar("T")
Values = dict[CheckpointId, bytes]


def _write_stream(store: Backend, notes: Path) -> None:
    """Write until a write is refused; note each in a file, where it is found even if this process is ended."""
    with notes.open("a", buffering=1) as file:
        for number in itertools.count():
            print("begin", number, file=file)
            try:
                store.write(Batch(dict([stream_item(notes, number)])))
            except SafekeeperError as error:
                print("refused", type(error).__name__, error, file=file)
                return
            print("done", number, file=file)


def stream_item(notes: Path, number: int) -> tuple[CheckpointId, bytes]:
    return CheckpointId("stream", f"{notes.name} {number % 20}".encode()), b"%d" % number * 40


def start_stream(store: Backend, notes: Path) -> None:
    """Begin to write in the background, over there."""
    threading.Thread(target=_write_stream, args=(store, notes), daemon=True).start()


def lines_of(notes: Path, enough: Callable[[list[str]], bool]) -> list[str]:
    """The notes of a stream, when there are enough."""
    deadline = time.monotonic() + peer_module.PATIENCE
    while not enough(lines := notes.read_text().splitlines() if notes.exists() else []):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it has stopped at {lines[-1:]}")
        time.sleep(0.005)
    return lines


def end_of_stream(scheme: str, peer: Peer, notes: Path) -> tuple[Values, Values]:
    """What a stream wrote with success, and what it began to write last."""
    try:
        lines = lines_of(notes, lambda lines: lines[-1].startswith("refused") or peer._process.poll() is not None)
        check_ended(scheme, peer)
    except TimeoutError:
        assert scheme in MAPPED, "it hangs"
        peer._process.kill()
        peer._process.wait()
        lines = lines_of(notes, bool)
    if peer._process.poll() is None:
        assert lines[-1].startswith(f"refused {Unavailable.__name__}"), lines[-1]
    words = [line.split() for line in lines]
    done = dict(stream_item(notes, int(number)) for word, number, *_ in words if word == "done")
    begun = [stream_item(notes, int(number)) for word, number, *_ in words if word == "begin"]
    return done, dict(begun[-1:])


def check_ended(scheme: str, peer: Peer) -> None:
    """A process lives, or was ended by the only thing that may end it, or by this test because it hung."""
    if (ended := peer._process.poll()) is not None:
        assert scheme in MAPPED, f"the process ended with {ended}"
        assert ended in (-signal.SIGBUS, -signal.SIGKILL)


def write_some(store: Backend, name: str) -> Values:
    values = {CheckpointId("some", f"{name} {number}".encode()): b"some %d" % number * 100 for number in range(20)}
    for id, value in values.items():
        store.write(Batch({id: value}))
    return values


def try_to_write(store: Backend, name: str) -> Values:
    """What is acknowledged of several writes, each of which may be refused."""
    acknowledged: Values = {}
    for number in range(10):
        id, value = CheckpointId("tried", f"{name} {number}".encode()), b"tried %d" % number * 100
        try:
            store.write(Batch({id: value}))
        except Unavailable:
            continue
        acknowledged[id] = value
    return acknowledged


def try_to_read(store: Backend, acknowledged: Values, refused: Values) -> list[CheckpointId]:
    """The ids that a read gives neither of the two for; none if it is refused."""
    try:
        found = store.read(list(acknowledged))
    except Unavailable:
        return []
    return [
        id for id, value in zip(acknowledged, found, strict=True) if value not in (acknowledged[id], refused.get(id))
    ]


def damages(store: Backend) -> list[str]:
    return [str(damage) for damage in stores.verify(store)]


def ask(scheme: str, peer: Peer, function: Callable[..., T], *args: object) -> T | None:
    """What a peer answers; None if it was ended or hangs, where that may be."""
    try:
        return peer.call(function, *args)
    except (AssertionError, BrokenPipeError, ConnectionResetError, TimeoutError):
        peer._process.wait()  # whoever hangs was killed
        check_ended(scheme, peer)
        return None


def check(url: str, acknowledged: Values, refused: Values, name: str) -> Values:
    """What a new process finds is what was acknowledged, or for what was refused last, that; then it writes."""
    with Peer(url) as peer:
        assert peer.call(damages) == []
        for id, value in zip(acknowledged, peer.read(list(acknowledged)), strict=True):
            expected = {acknowledged[id], refused.get(id, acknowledged[id])}
            assert value in expected, f"{name}: {id} is {(value or b'absent')[:20]!r}"
            acknowledged[id] = value
        return acknowledged | peer.call(write_some, name)


def go_away_and_come_back(memory: Path, scheme: str, kind: str, how: str, fate: str) -> None:
    """Two processes write while the file system is shut down; then it is mounted again, and others go on."""
    if scheme in MAPPED:
        peer_module.PATIENCE = 10.0  # it may hang, so this only says when to give it up
    image, folder = make_image(kind, memory / "image"), memory / "mounted"
    mount(image, folder, kind)
    url = STORES[scheme].format(folder / "store")
    acknowledged: Values = {}
    refused: Values = {}
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(url)) for _ in range(2)]
        for number, peer in enumerate(peers):
            acknowledged |= peer.call(write_some, f"before {number}")
        run("sync", "--file-system", folder)  # from here on what is only in memory has an older form on the disk
        streams = {memory / f"stream-{number}": peer for number, peer in enumerate(peers)}
        for notes, peer in streams.items():
            peer.call(start_stream, notes)
            lines_of(notes, lambda lines: len(lines) > 40)
        shut_down(folder, how)
        for notes, peer in streams.items():
            done, begun = end_of_stream(scheme, peer, notes)
            acknowledged |= done
            refused |= begun
        for peer in peers:
            assert not ask(scheme, peer, try_to_write, "shut down"), "there is nothing that could have kept it"
            assert not ask(scheme, peer, try_to_read, acknowledged, refused)
        if fate == "killed":
            for peer in peers:
                peer._process.kill()
                peer._process.wait()
        run("umount", *(["--lazy"] if fate == "lives on" else []), folder)
        mount(image, folder, kind)  # on another device: on the old one the dead file system would be found again
        if fate == "lives on":
            acknowledged |= ask(scheme, peers[0], try_to_write, "before others") or {}
        acknowledged = check(url, acknowledged, refused, "new")
        if fate == "lives on":
            for number, peer in enumerate(peers):
                acknowledged |= ask(scheme, peer, try_to_write, f"after others {number}") or {}
                peer._process.kill()
                peer._process.wait()
    acknowledged = check(url, acknowledged, refused, "newer")
    run("umount", folder)
    mount(image, folder, kind)
    check(url, acknowledged, refused, "newest")
    run("umount", folder)


FATES = ("killed", "lives on")
CASES = [("log", "ext4", "killed"), ("log", "xfs", "lives on"), ("file", "xfs", "lives on"), ("lmdb", "ext4", "killed")]
if LONG:
    CASES = [(scheme, kind, fate) for scheme in STORES for kind in ("ext4", "xfs") for fate in FATES]


@pytest.mark.crash
@pytest.mark.parametrize("how", SHUT_DOWN_HOWS if LONG else ["nothing flushed"])
@pytest.mark.parametrize(("scheme", "kind", "fate"), CASES, ids=["-".join(case) for case in CASES])
def test_a_file_system_that_is_shut_down_and_mounted_again_has_what_was_acknowledged(tmp_path, scheme, kind, how, fate):
    alone(go_away_and_come_back, tmp_path, scheme, kind, how, fate)


def sync_a_folder_too_late(memory: Path, kind: str) -> None:
    """The file system goes away after a name was given and before the folder's sync, which finds nothing to write."""
    folder, fsync = memory / "mounted", os.fsync
    mount(make_image(kind, memory / "image"), folder, kind)

    def shut_down_and_sync(fd: int) -> None:
        shut_down(folder, "nothing flushed")
        fsync(fd)

    (folder / "new").touch()
    os.fsync = shut_down_and_sync
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(folder)


@pytest.mark.crash
@pytest.mark.parametrize("kind", ("ext4", "xfs"))
def test_a_folder_is_not_synced_if_its_file_system_was_shut_down_meanwhile(tmp_path, kind):
    alone(sync_a_folder_too_late, tmp_path, kind)
