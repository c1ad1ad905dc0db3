"""What the backends on a local file system share: durable folders, whole writes, and errors a person can act on."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safekeeper.backend import Survives
from safekeeper.errors import Unavailable

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems that live in memory: they outlast a process and nothing else."""

_ADVICE = {
    errno.ENOSPC: "the file system is full: free some space and write again",
    errno.EDQUOT: "the quota is used up: free some space and write again",
    errno.EROFS: "the file system is read-only: mount it writable or choose another folder",
    errno.EACCES: "permission denied: let this user into the folder or choose another one",
    errno.EPERM: "permission denied: let this user into the folder or choose another one",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENOTDIR: "something on the path is no folder: choose another path",
    errno.EEXIST: "something on the path is no folder: choose another path",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter folder",
}


@contextmanager
def os_errors_as_unavailable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an `OSError` inside the block into an `Unavailable` that names the place and says what to do."""
    try:
        yield
    except OSError as error:
        raise unavailable(path, error) from error


def unavailable(path: str | os.PathLike[str], error: OSError) -> Unavailable:
    """An `Unavailable` for *error* that names the place, *path* unless the error knows better, and says what to do."""
    advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
    return Unavailable(f"{error.filename or os.fspath(path)}: {advice}")


def survives_on(path: Path) -> Survives:
    """What synced files below *path* survive: everything but the loss of the host, unless they are in memory.

    The folder need not exist yet; then its nearest parent counts.
    """
    return Survives.PROCESS if file_system_type(path) in IN_MEMORY else Survives.PROCESS | Survives.OS | Survives.POWER


def file_system_type(path: Path) -> str:
    """The type of the file system that *path* is on or would be on, as the kernel calls it; "" if it cannot be told."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        if fields[2] == wanted:
            return fields[fields.index("-") + 1]
    return ""


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable: what was created, renamed or removed in it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create *path* and its missing parents, for this user only, all of them durable when this returns.

    A folder that exists is not an error, but it may be one that another process has just made and not yet synced, so
    its parent is synced all the same.
    """
    if not path.parent.is_dir():
        make_folder(path.parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_folder(path.parent)
