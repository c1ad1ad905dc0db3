"""A cgroup for a process and all that it starts, so that a state can be larger than the memory there is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited(megabytes: int) -> Iterator[Path]:
    """A new cgroup that may have so much memory, page cache included; whoever writes 0 to the file given is in it."""
    old = (_ROOT / "memory").is_dir()
    folder = (_ROOT / "memory" if old else _ROOT) / f"safekeeper-bench-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
        limit = folder / ("memory.limit_in_bytes" if old else "memory.max")
        limit.write_text(str(megabytes << 20))
    except OSError as error:
        says = f"there is no cgroup to be had ({error}): a limit of memory takes root and a memory controller"
        raise SystemExit(says) from error
    try:
        yield folder / "cgroup.procs"
    finally:
        with suppress(OSError):  # an agent may just be ending
            folder.rmdir()
