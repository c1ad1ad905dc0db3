"""A file system of its own on a loop device that can be shut down under its users and mounted again. As root.

python -m tests.backends.log.gone KIND FOLDER CALL      run one of the functions below on it
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.testing.peer import Peer
from tests.backends.log.inside import compact, damage

_SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
KEEP_LOG, DROP_LOG = 1, 2  # whether what is in memory of the file system's own log goes to disk before that
CANNOT = 77  # how the process ends where nothing can be mounted


class GoneDisk:
    """The file system, mounted on `folder`."""

    def __init__(self, kind: str, place: Path) -> None:
        self.folder = place / "mounted"
        self.folder.mkdir()
        with (place / "image").open("wb") as file:
            file.truncate(400 << 20)
        _run(f"mkfs.{kind}", "-q", place / "image")
        self._device = _run("losetup", "--find", "--show", place / "image").strip()
        self.mount()

    def mount(self) -> None:
        _run("mount", self._device, self.folder)

    def shut_down(self, how: int) -> None:
        """What the kernel does when a disk fails: every later call is an error, and unsynced changes are gone."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUT_DOWN, struct.pack("I", how))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        _run("umount", self.folder)
        _run("blockdev", "--flushbufs", self._device)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=False, capture_output=True)
        _run("losetup", "--detach", self._device)


def _run(*command: str | Path) -> str:
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def id_of(name: str) -> CheckpointId:
    return CheckpointId("group", name.encode())


def errors_instead_of_signals(disk: GoneDisk) -> None:
    """A process that writes and reads while the file system is shut down gets errors, and lives."""
    url = f"log://{disk.folder}/store"
    with Peer(url) as writer, Peer(url) as reader:
        writer.write(Batch({id_of("a"): b"1"}))
        writer.call(compact)
        assert reader.read([id_of("a")]) == [b"1"]
        os.sync()  # pages of files are clean now: the next change of a mapped one has to ask the file system
        disk.shut_down(DROP_LOG)
        for _ in range(3):
            try:
                writer.write(Batch({id_of("a"): b"2"}))
            except Unavailable:
                continue
            raise AssertionError("written to a file system that is gone")
        for handle in (writer, reader):
            with suppress(Unavailable):
                assert handle.read([id_of("a")]) == [b"1"]
            assert handle._process.poll() is None
    disk.unmount()
    disk.mount()
    check(url, {"a": b"1"})


def head_that_is_old(disk: GoneDisk, how: int, behind: int, size: int, writers: int) -> None:
    """What was acknowledged is there after the file system has come back, though `head` is of long ago."""
    root = disk.folder / f"{how}-{behind}-{size}-{writers}"
    url = f"log://{root}?segment=4K"
    expected = {}
    peers = [Peer(url) for _ in range(writers)]
    for turn in range(3):
        for number, peer in enumerate(peers):
            expected[f"{number}"] = expected["shared"] = b"before %d" % turn
            peer.write(Batch({id_of(f"{number}"): expected[f"{number}"], id_of("shared"): expected["shared"]}))
    os.sync()
    old = [head.read_bytes() for head in sorted(root.glob("*/head"))]
    for turn in range(behind):
        for number, peer in enumerate(peers):
            expected[f"{number}"] = expected["shared"] = b"%d of %d" % (turn, number) + bytes(size)
            peer.write(Batch({id_of(f"{number}"): expected[f"{number}"], id_of("shared"): expected["shared"]}))
    disk.shut_down(how)
    for peer in peers:
        peer._process.kill()
        peer._process.wait()
    disk.unmount()
    disk.mount()
    found = [head.read_bytes() for head in sorted(root.glob("*/head"))]
    print("heads", "old" if found == old else "not as expected")
    check(url, expected)


def check(url: str, expected: dict[str, bytes]) -> None:
    """Everything is there, for one who reads and for one who writes, now and later."""
    ids = [id_of(name) for name in expected]
    for _ in range(2):
        with Peer(url) as reader, Peer(url) as writer:
            assert reader.read(ids) == list(expected.values()), "what was acknowledged is not there"
            writer.write(Batch({id_of("later"): b"later"}))
            for handle in (reader, writer):
                assert handle.read(ids) == list(expected.values())
            assert reader.read([id_of("later")]) == [b"later"]
            assert reader.call(damage) == []


def old_heads(disk: GoneDisk) -> None:
    """One writer whose head is one block behind, and two whose heads are several; in the long form, some more."""
    head_that_is_old(disk, DROP_LOG, 1, 0, 1)
    head_that_is_old(disk, KEEP_LOG, 5, 0, 2)
    if os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long":
        for behind, size in ((1, 0), (2, 0), (12, 900), (1, 5000)):
            for writers in (1, 2):
                head_that_is_old(disk, DROP_LOG, behind, size, writers + 1)
                head_that_is_old(disk, KEEP_LOG, behind, size, writers)


if __name__ == "__main__":
    kind, place, call = sys.argv[1:]
    try:
        disk = GoneDisk(kind, Path(place))
    except (subprocess.CalledProcessError, OSError) as error:
        print(getattr(error, "stderr", error), file=sys.stderr)
        sys.exit(CANNOT)
    try:
        globals()[call](disk)
    finally:
        disk.remove()
    print("fine")
