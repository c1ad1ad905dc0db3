"""A writer that stops (SIGSTOP), and one that is taken for dead, seen from another process."""

from __future__ import annotations

import time
from pathlib import Path

from safekeeper.testing.peer import PATIENCE


def wait_until_stopped(pid: int) -> None:
    until = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < until, "it does not stop"
        time.sleep(0.001)


def lose_the_lock_of(pid: int, root: Path) -> Path:
    """Do what a file server does that forgets a lock: the file that the process has locked is not there any more."""
    (folder,) = (lock.parent for lock in root.glob("*/lock") if lock.read_text().startswith(f"process {pid} "))
    (folder / "lock").unlink()
    return folder
