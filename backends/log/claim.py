"""Becoming the writer of a root: the lock, the epoch, and what is left of the writer before."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safekeeper.backends.log.files import Files
from safekeeper.errors import Conflict

_CLAIM: Final = "claim"
_LOCK: Final = "lock"
_EPOCH: Final = re.compile(r"epoch-(\d{8,})")

_held: set[int] = set()


def _close_in_child() -> None:
    # A lock belongs to the open file, which a child shares: it would keep the lock after the parent's death.
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def claiming(root: Path) -> Iterator[None]:
    """Keep others from claiming anything in *root* meanwhile."""
    fd = _open_held(root / _CLAIM)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        release(fd)


def take_lock(root: Path, folder: Path) -> int:
    """The lock of a writer's folder, held until `release`. Raise `Conflict` if another writer lives."""
    fd = _open_held(folder / _LOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
        release(fd)
        raise Conflict(f"{root} is being written by {owner}: close it there, or write through that process") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


def release(fd: int) -> None:
    """Give a lock back."""
    _held.discard(fd)
    os.close(fd)


def _open_held(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _held.add(fd)
    return fd


def next_epoch(root: Path, files: Files) -> int:
    """Claim an epoch that nobody had before, durably."""
    claimed = [int(match[1]) for name in os.listdir(root) if (match := _EPOCH.fullmatch(name))]
    epoch = max(claimed, default=0) + 1
    os.close(files.create(_epoch_path(root, epoch)))
    files.sync_folder(root)
    for old in claimed:
        files.remove(_epoch_path(root, old))
    return epoch


def _epoch_path(root: Path, epoch: int) -> Path:
    return root / f"epoch-{epoch:08}"
