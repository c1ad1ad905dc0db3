"""What the backends on a local file system share: which folders they take, durable folders, and errors a person can act
on.

An error that will come again whatever is tried, such as a path through a file, is a `BadUrl`, so that nobody waits for
it to go away: when a store is opened (`check_folder`) and when it is first written (`unusable`). A store that worked
before and has the same trouble now is `Unavailable`: whoever caused it may still put it right.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safekeeper.backend import Survives
from safekeeper.errors import BadUrl, Unavailable

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems that live in memory: they outlast a process and nothing else."""

_REMOTE = re.compile(
    "(9p|afs|beegfs|ceph|cifs|coda|fuse|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|pvfs2|smb3|smbfs|vboxsf|virtiofs)([.].*)?"
)
"""File systems whose files may be those of other hosts. `fuse.` anything is one: nobody can tell what is behind it."""
_LOCAL = frozenset({"fuse.fuse-overlayfs"})
"""But for these: the layers of a container whose user is not root are local."""
_PAGES_PER_HOST = re.compile("9p|afs|cifs|coda|nfs4?|smb3|smbfs|vboxsf|virtiofs|fuse[.]sshfs")
"""Those of them where each host has locks or mapped pages of its own, whatever a URL says."""

_FOR_GOOD = frozenset(
    {errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS}
)

_ADVICE = {
    errno.ENOSPC: "the file system is full: free some space and write again",
    errno.EDQUOT: "the quota is used up: free some space and write again",
    errno.EROFS: "the file system is read-only: mount it writable or choose another folder",
    errno.EACCES: "permission denied: let this user into the folder or choose another one",
    errno.EPERM: "permission denied: let this user into the folder or choose another one",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENOTDIR: "something on the path is no folder: choose another path",
    errno.EEXIST: "something on the path is no folder: choose another path",
    errno.ENAMETOOLONG: "the path is too long: choose a shorter one",
    errno.ELOOP: "the links on the path lead to themselves: choose another path",
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


def unusable(path: str | os.PathLike[str], error: OSError) -> BadUrl | Unavailable:
    """The same for an *error* of the first write: a `BadUrl` if it will come again whenever this is tried."""
    explained = unavailable(path, error)
    return BadUrl(str(explained)) if error.errno in _FOR_GOOD else explained


def check_folder(path: Path) -> None:
    """Raise `BadUrl` if there cannot be a store at *path*, which need not exist yet, or if it may not be read."""
    try:
        found = _nearest(path)
        if not found.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "", str(found))
        if not os.access(found, os.R_OK | os.X_OK if found == path else os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "", str(found))
    except OSError as error:
        raise unusable(path, error) from error


def _nearest(path: Path) -> Path:
    """*path*, or the nearest folder above it that exists."""
    while True:
        try:
            os.stat(path)
        except FileNotFoundError:
            path = path.resolve().parent if path.is_symlink() else path.absolute().parent
        else:
            return path


def check_local(path: Path, shared: bool | None = None) -> None:
    """Raise `BadUrl` if *path* is, or would be, on a file system that other hosts may write to at the same time.

    What these backends rely on is then not given: locks that everybody sees and that end with their process, names
    that appear at once, mapped pages that are the same for all. *shared*: whether the URL says, with `scope=network`,
    that the file system gives all that; it is believed unless it cannot be. None: a URL of this kind cannot say so.
    """
    kind = file_system_type(path)
    if kind not in _LOCAL and (_PAGES_PER_HOST if shared else _REMOTE).fullmatch(kind):
        advice = "choose a folder on a local file system, or a store that is on the network"
        if shared is False and not _PAGES_PER_HOST.fullmatch(kind):
            advice += "; or say ?scope=network if its locks and caches are the same for all hosts"
        raise BadUrl(f"{path} is on {kind}: {advice}")


def survives_on(path: Path) -> Survives:
    """What synced files below *path* survive: everything but the loss of the host, unless they are in memory.

    The folder need not exist yet; then its nearest parent counts.
    """
    return Survives.PROCESS if file_system_type(path) in IN_MEMORY else Survives.PROCESS | Survives.OS | Survives.POWER


def file_system_type(path: Path) -> str:
    """The type of the file system that *path* is on or would be on, as the kernel calls it; "" if it cannot be told."""
    fd = os.open(_nearest(path), os.O_PATH | os.O_CLOEXEC)
    try:
        # By the mount, not by the device: files of a btrfs have another device than its mount.
        with open(f"/proc/self/fdinfo/{fd}") as facts:
            mount = next((line.split()[1] for line in facts if line.startswith("mnt_id:")), None)
        with open("/proc/self/mountinfo", errors="surrogateescape") as mounts:
            for fields in map(str.split, mounts):
                if fields[0] == mount:
                    return fields[fields.index("-") + 1]
    except OSError:
        pass
    finally:
        os.close(fd)
    return ""


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable: what was created, renamed or removed in it."""
    fd = _open_folder(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    # On an xfs that was shut down meanwhile the sync finds nothing to write and succeeds. To open it again fails.
    os.close(_open_folder(path))


def _open_folder(path: str | os.PathLike[str]) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


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
    except FileNotFoundError:
        if path.parent.is_dir():  # as below /proc
            raise PermissionError(errno.EPERM, "", str(path)) from None
        raise
    sync_folder(path.parent)
