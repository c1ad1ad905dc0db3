"""Claiming a folder of a root: the lock, the epoch, and what keeps a writer that was given up for dead from harm.

    claim:    "SKLOGCLM" | version u64 | epoch u64 | ~epoch u64
              locked (flock) while somebody claims, read by everybody: another epoch means that the folders changed

A folder is named after the epoch of its owner, `writer-7`. Whoever takes over the folder of a dead writer renames it,
so one that was not dead finds none of its files any more; and it marks the status that the old writer has open, so
that a block which is written to a file that is still open is not acknowledged.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Final, Self

from safekeeper.backends.log.files import Files
from safekeeper.backends.log.manifest import is_of_single_writer
from safekeeper.backends.log.open_files import list_folder, with_room
from safekeeper.backends.log.writer_status import WriterStatus
from safekeeper.backends.shared.records import VERSION
from safekeeper.errors import Conflict, Unavailable

_CLAIM: Final = "claim"
_CREATE: Final = "create"
_LOCK: Final = "lock"
_FOLDER: Final = re.compile(r"writer-([1-9]\d*)")
_OLD_EPOCH: Final = re.compile(r"epoch-(\d{8,})")  # where version 1 kept it
_MARK: Final = int.from_bytes(b"SKLOGCLM", "little")
_WORDS: Final = struct.Struct("<4Q")
_MASK: Final = (1 << 64) - 1

_held: set[int] = set()
_changing = RLock()  # nobody forks between opening a file and noting it, or between forgetting and closing it


def _close_in_child() -> None:
    # A lock belongs to the open file, which a child shares: it would keep the lock after the parent's death.
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_changing.release)
os.register_at_fork(after_in_child=_close_in_child)


class Claims:
    """The file of a root that tells when a folder was claimed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._last: tuple[bytes, int] = b"", 0  # what was read last, and the epoch in it: it is nearly always the same

    @classmethod
    def of_reader(cls, root: Path) -> Self | None:
        """The claims of *root*; None if nobody ever claimed a folder, or only a safekeeper that knew of no others."""
        try:
            fd = with_room(lambda: os.open(root / _CLAIM, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        claims = cls(fd)
        weakref.finalize(claims, os.close, fd).atexit = False
        return claims if _decode(os.pread(fd, _WORDS.size, 0))[:2] == (_MARK, VERSION) else None

    @property
    def epoch(self) -> int:
        """Another number after each claim; 0 if it cannot be told now."""
        raw = os.pread(self._fd, _WORDS.size, 0)
        last, epoch = self._last
        if raw == last:
            return epoch
        _, _, epoch, complement = _decode(raw)
        epoch = epoch if epoch ^ _MASK == complement else 0
        self._last = raw, epoch
        return epoch

    def is_removed(self) -> bool:
        """Whether whoever claims from now on will say so elsewhere."""
        return os.fstat(self._fd).st_nlink == 0

    def publish(self, epoch: int) -> None:
        """Say that a folder was claimed."""
        os.pwrite(self._fd, _WORDS.pack(_MARK, VERSION, epoch, epoch ^ _MASK), 0)


def _decode(raw: bytes) -> tuple[int, int, int, int]:
    mark, version, epoch, complement = _WORDS.unpack(raw.ljust(_WORDS.size, b"\0"))
    return mark, version, epoch, complement


@dataclass(frozen=True, slots=True)
class Seat:
    """A folder that this process has claimed."""

    folder: Path
    epoch: int
    lock_fd: int
    before: Path | None = None
    """The name of the folder before, if it was another writer's."""


@contextmanager
def claiming(root: Path, patience: float = 60.0) -> Iterator[Claims]:
    """Keep others from claiming anything in *root* meanwhile. Raise `Unavailable` if somebody does so for too long."""
    fd = _open_held(root / _CLAIM)
    try:
        _wait_for(fd, root, patience)
        yield Claims(fd)
    finally:
        release(fd)


@contextmanager
def creating(root: Path, patience: float = 60.0) -> Iterator[None]:
    """Keep others from creating an id in *root* meanwhile. Raise `Unavailable` if somebody does so for too long."""
    fd = _open_held(root / _CREATE)
    try:
        _wait_for(fd, root, patience, "creating an id", 0.001)
        yield
    finally:
        release(fd)


def _wait_for(fd: int, root: Path, patience: float, what: str = "claiming a folder", pause: float = 0.005) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                problem = f"{root}: another process has been {what} for {patience:g} s: is it stopped?"
                raise Unavailable(problem) from None
        time.sleep(pause)


def writer_folders(root: Path) -> list[Path]:
    """The folders of the writers of *root*, in the order of their epochs."""
    try:
        names = list_folder(root)
    except FileNotFoundError:
        return []
    epochs = sorted(int(match[1]) for name in names if (match := _FOLDER.fullmatch(name)))
    return [folder_of(root, epoch) for epoch in epochs]


def folder_of(root: Path, epoch: int) -> Path:
    """The folder of the writer with *epoch*."""
    return root / f"writer-{epoch}"


def take_seat(root: Path, files: Files) -> Seat:
    """Take over the folder of a writer that is gone, or begin a new one; only within `claiming`."""
    for folder in writer_folders(root):
        if (seat := take_over(folder, files)) is not None:
            return seat
    epoch = _next_epoch(root)
    folder = folder_of(root, epoch)
    files.make_folder(folder)
    lock_fd = _try_lock(folder)
    assert lock_fd is not None, "a folder that nobody knows is locked"
    try:
        _sign(lock_fd)
    except BaseException:
        release(lock_fd)
        raise
    return Seat(folder, epoch, lock_fd)


def take_over(folder: Path, files: Files) -> Seat | None:
    """Take over *folder* if its writer is gone, else None; only within `claiming`."""
    lock_fd = _try_lock(folder)
    if lock_fd is None:
        return None
    try:
        root = folder.parent
        epoch = _next_epoch(root)
        WriterStatus.fence(folder)
        new = folder_of(root, epoch)
        files.move_folder(folder, new)
        files.sync_folder(root)
        for name in list_folder(root):
            if _OLD_EPOCH.fullmatch(name):
                files.remove(root / name)
        _sign(lock_fd)
    except BaseException:
        release(lock_fd)
        raise
    return Seat(new, epoch, lock_fd, folder)


def give_back(seat: Seat, files: Files) -> None:
    """Undo `take_over`: nothing could be made of what is in the folder, which shall be found where it was."""
    if seat.before is not None:
        files.move_folder(seat.folder, seat.before)
        files.sync_folder(seat.folder.parent)


def is_abandoned(folder: Path) -> bool:
    """Whether nobody holds the lock of *folder*; only within `claiming`, since it takes the lock for a moment."""
    lock_fd = _try_lock(folder)
    if lock_fd is not None:
        release(lock_fd)
    return lock_fd is not None


def has_writer(folder: Path) -> bool:
    """Whether somebody holds the lock of *folder*: its writer, or whoever takes it over."""
    return _is_locked(folder / _LOCK)


def is_claiming(root: Path) -> bool:
    """Whether somebody takes a folder of *root* just now."""
    return _is_locked(root / _CLAIM)


def _is_locked(path: Path) -> bool:
    """Whether a file is locked. For a moment it has a lock itself, of a kind that many may have at once."""
    with _changing:
        try:
            fd = with_room(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False


def release(fd: int) -> None:
    """Give a lock back."""
    with _changing:
        _held.discard(fd)
        os.close(fd)


def _try_lock(folder: Path) -> int | None:
    """The lock of a folder, None if another process has it. Raise `Conflict` if that process cannot share a root."""
    fd = _open_held(folder / _LOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
        release(fd)
        if is_of_single_writer(folder):
            raise Conflict(
                f"{folder.parent} is being written by {owner}, whose safekeeper shares no root: close it there"
            ) from None
        return None
    except BaseException:
        release(fd)
        raise
    return fd


def _sign(lock_fd: int) -> None:
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _open_held(path: Path) -> int:
    with _changing:
        fd = with_room(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        _held.add(fd)
    return fd


def _next_epoch(root: Path) -> int:
    """An epoch that nobody had before: the folder that is named after it claims it."""
    matches = [_FOLDER.fullmatch(name) or _OLD_EPOCH.fullmatch(name) for name in list_folder(root)]
    return max((int(match[1]) for match in matches if match), default=0) + 1
