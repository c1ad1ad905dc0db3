"""A sign of life that others on the same host can see: a locked file. The kernel unlocks it when the process has ended,
however that came about, and not before.

What a process says of itself in its claim names the file. Whoever reads that tries the lock: if it is free, the process
is gone for sure. If the file is not there, or is not the one that was named, nothing is known: the temporary folder may
be another one, as in a container. A forked child keeps its parent's lock; then a dead parent looks alive.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import socket
import tempfile
from contextlib import suppress
from enum import Enum
from pathlib import Path
from threading import Lock
from typing import Any


class Life(Enum):
    """What can be said of a process."""

    HERE = "it runs on this host, or is stopped there"
    ENDED = "it has ended"
    EARLIER = "it ran before this host was started, or on another one"
    UNKNOWN = "nothing is known"


class SignOfLife:
    """A locked file, from now until `end` or the end of the process."""

    def __init__(self) -> None:
        self.about: dict[str, str] = {"boot": _boot()}
        """What others need to know to look at it."""
        self._file: int | None = None
        self._path = Path(tempfile.gettempdir()) / f"safekeeper-{os.getuid()}" / secrets.token_hex(8)
        with suppress(OSError):  # nowhere to put it: others see less
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.about |= {"lock": str(self._path), "inode": _inode(self._file)}

    def end(self) -> None:
        """Say that this life is over."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(file)


_lock = Lock()
_lives: dict[int, SignOfLife] = {}


def of_this_process() -> dict[str, str]:
    """What to say of this process. Its file is made once, and is there until the process ends."""
    with _lock:
        life = _lives.get(os.getpid())  # a forked child has another one
        if life is None:
            life = _lives[os.getpid()] = SignOfLife()
            atexit.register(life.end)
    return life.about


def look(about: dict[str, Any]) -> Life:
    """What can be said of the process that has said *about* of itself."""
    if about.get("boot") != _boot():
        return Life.EARLIER
    try:
        file = os.open(about["lock"], os.O_RDWR | os.O_CLOEXEC)
    except (KeyError, OSError):
        return Life.UNKNOWN
    try:
        if _inode(file) != about.get("inode"):
            return Life.UNKNOWN
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Life.HERE
    finally:
        os.close(file)
    return Life.ENDED


def _inode(file: int) -> str:
    found = os.fstat(file)
    return f"{found.st_dev}:{found.st_ino}"


def _boot() -> str:
    """Another one on each host, and each time it is started."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
