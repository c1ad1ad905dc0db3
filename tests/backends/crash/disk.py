"""A disk made of FUSE: it remembers every write and every flush, and fails writes when it is told to.

    mounted/disk        the one file: what a loop device is put on
    image               what the disk holds now
    record              every write and flush, in order
    control             position u64 | failing u8 | length u8 | pattern; mapped by the disk and by whoever uses it

The disk is a process. A write or a flush is in the record, and counted in `position`, before it is answered. So whoever
reads `position` after a save was acknowledged knows how much of the record that save may rest on.

A flush makes every write before it durable. What was written since may be there or not after a power cut, each sector
for itself: `Record.states` makes such images.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

SECTOR = 512
PATIENCE = 120.0
"""Seconds after which something that does not happen counts as stuck."""

_HEADER = struct.Struct("<QI")
_FLUSH = (1 << 64) - 1
_CONTROL_BYTES = 4096
_ANYTHING = b""
_ATOMIC_BYTES = 4096  # ext4 checks the sum of the superblock before it replays its journal, so block 0 is never torn


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """One write that the disk took."""

    offset: int
    data: bytes


class FuseDisk(AbstractContextManager["FuseDisk"]):
    """The disk, started with a copy of an image. Everything of it is in *folder*."""

    def __init__(self, folder: Path, image: Path) -> None:
        self._folder = folder
        (folder / "mounted").mkdir(parents=True)
        (folder / "image").write_bytes(image.read_bytes())
        (folder / "record").touch()
        (folder / "control").write_bytes(bytes(_CONTROL_BYTES))
        self._control = _mapped(folder / "control")
        self.file = folder / "mounted" / "disk"
        self._process = subprocess.Popen([sys.executable, "-P", "-m", __name__, str(folder)], env=_environment())
        deadline = time.monotonic() + PATIENCE
        while not self.file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise AssertionError("the FUSE disk did not start: its standard error says why")
            time.sleep(0.01)

    @property
    def control(self) -> Path:
        return self._folder / "control"

    def record(self) -> Record:
        """What was written and flushed so far."""
        return Record.read(self._folder / "record")

    def image(self) -> bytes:
        """What the disk holds now, flushed or not."""
        return (self._folder / "image").read_bytes()

    def fail_writes(self, having: bytes = _ANYTHING) -> None:
        """From now on every write fails in which *having* occurs."""
        self._control[9:] = bytes([len(having)]) + having.ljust(_CONTROL_BYTES - 10, b"\0")
        self._control[8] = 1

    def heal(self) -> None:
        """From now on every write succeeds."""
        self._control[8] = 0

    def __exit__(self, *_: object) -> None:
        unmounted = subprocess.run(["umount", str(self._folder / "mounted")], check=False, capture_output=True)
        if unmounted.returncode:
            self._process.kill()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()
        assert unmounted.returncode == 0, unmounted.stderr.decode()


def position(control: mmap.mmap) -> int:
    """How many writes and flushes the disk has taken."""
    return int.from_bytes(control[:8], "little")


def open_control(path: Path) -> mmap.mmap:
    """The control file of a disk, to ask for its `position`."""
    return _mapped(path)


class Record:
    """The writes (`DiskWrite`) and flushes (None) of a disk, in their order."""

    def __init__(self, entries: Sequence[DiskWrite | None]) -> None:
        self.entries = entries

    @classmethod
    def read(cls, path: Path) -> Self:
        entries: list[DiskWrite | None] = []
        content, at = memoryview(path.read_bytes()), 0
        while at < len(content):
            offset, size = _HEADER.unpack_from(content, at)
            at += _HEADER.size
            entries.append(None if offset == _FLUSH else DiskWrite(offset, bytes(content[at : at + size])))
            at += size
        return cls(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def states(self, image: bytes, cuts: Sequence[tuple[int, str, Random]]) -> Iterator[bytearray]:
        """What a disk that began as *image* holds after power cuts, each at a position, which must not decrease.

        Besides the position a cut says what becomes of the writes since the last flush: "lost", "kept", or "torn" (each
        is there, or not, or some of its sectors are).
        """
        durable, waiting, at = bytearray(image), list[DiskWrite](), 0
        for position, how, random in cuts:
            for entry in self.entries[at:position]:
                if entry is not None:
                    waiting.append(entry)
                    continue
                for write in waiting:
                    durable[write.offset : write.offset + len(write.data)] = write.data
                waiting.clear()
            at = position
            state = bytearray(durable)
            for write in waiting if how != "lost" else ():
                for start, end in [(0, len(write.data))] if how == "kept" else _torn(write, random):
                    state[write.offset + start : write.offset + end] = write.data[start:end]
            yield state


def _torn(write: DiskWrite, random: Random) -> Iterator[tuple[int, int]]:
    """Which parts of a write are there."""
    share = random.choice((0.0, 0.0, 0.5, 1.0, 1.0))
    start = 0
    while start < len(write.data):
        size = SECTOR if write.offset + start >= _ATOMIC_BYTES else _ATOMIC_BYTES - (write.offset + start)
        if random.random() < share:
            yield start, min(start + size, len(write.data))
        start += size


def _mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _serve(folder: Path) -> None:
    """Be the disk until it is unmounted."""
    import mfusepy  # here: it looks for libfuse when it is imported, which only this process needs

    image, control = _mapped(folder / "image"), _mapped(folder / "control")
    record = os.open(folder / "record", os.O_WRONLY | os.O_APPEND)
    count = 0

    def note(offset: int, data: bytes) -> None:
        nonlocal count
        os.writev(record, [_HEADER.pack(offset, len(data)), data])
        count += 1
        control[:8] = count.to_bytes(8, "little")

    def check(data: bytes) -> None:
        if control[8] and bytes(control[10 : 10 + control[9]]) in data:
            raise OSError(errno.EIO, "this write was chosen to fail")

    class OneFile(mfusepy.Operations):
        use_ns = True

        def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path != "/disk":
                raise OSError(errno.ENOENT, path)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(image)}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", "disk"]

        def open(self, path: str, flags: int) -> int:
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return image[offset : offset + size]

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            check(data)
            image[offset : offset + len(data)] = data
            note(offset, data)
            return len(data)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            if not control[9]:
                check(_ANYTHING)
            note(_FLUSH, b"")
            return 0

    # One thread: what is in the record before a flush was written before it. No cache above: what is read is `image`.
    mfusepy.FUSE(OneFile(), str(folder / "mounted"), foreground=True, nothreads=True, direct_io=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
