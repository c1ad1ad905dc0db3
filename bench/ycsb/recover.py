"""Recovery: how long it takes to open a store and read everything back, and how much memory, against the number of ids.

The store is filled by one process, which then closes it or is killed, and opened by another: nothing is warm but the
operating system's cache. Ids are added from one size to the next; they stay in the group `recover`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

import safekeeper
from safekeeper.backend import Batch, CheckpointId, Survives
from safekeeper.columns import Columns
from safekeeper.errors import BadUrl, SafekeeperError, Unavailable
from safekeeper.keeper import SafeKeeper
from safekeeper.registry import backend_class
from safekeeper.url import Url, show_url

GROUP = "recover"
_BATCH = 10_000

End = Literal["close", "kill"]
"""How the process that filled the store ended."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What it took to get back the states of one number of ids. Memory is that of the process, beyond an empty one."""

    ids: int
    open_seconds: float
    """To open the store and read one state: with the rebuild of an index, if there is one."""
    open_bytes: int
    list_seconds: float
    """To list all keys."""
    recover_seconds: float
    """To read all states."""
    peak_bytes: int
    """At the most, while all states were read one after the other and none was kept."""


def measure(
    url: str, sizes: Sequence[int], *, value_size: int = 70, end: End = "close", only_open: bool = False
) -> Iterator[Recovery]:
    """Fill the store to each of *sizes* and recover it, or *only_open* it.

    Raise `BadUrl` for a store that ends with its process, `Unavailable` for one that does not give everything back.
    """
    with safekeeper.open(url) as store:
        if Survives.PROCESS not in store.survives:
            raise BadUrl(f"{show_url(url)}: nothing in this store outlives its process, so there is nothing to recover")
        filled = sum(1 for _ in set(store.keys(GROUP)))
    for size in sorted(set(sizes)):
        if size < filled:
            raise BadUrl(f"{show_url(url)} has {filled} ids in the group {GROUP!r} already: take an empty store")
        _child("fill", url, str(filled), str(size), str(value_size), end)
        filled = size
        recovery = Recovery(**json.loads(_child("open" if only_open else "recover", url)))
        if only_open:
            recovery = replace(recovery, ids=size)
        elif recovery.ids != size:
            missing = f"gave back {recovery.ids} of {size} ids: what it acknowledged is not all there"
            raise Unavailable(f"{show_url(url)} {missing}")
        yield recovery


def _child(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "safekeeper.bench.ycsb.recover", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    killed = arguments[-1] == "kill" and done.returncode == -signal.SIGKILL
    if done.returncode and not killed:
        raise Unavailable(done.stderr.strip().rpartition("\n")[2] or f"a process ended with {done.returncode}")
    return done.stdout


def _fill(url: str, first: int, last: int, value_size: int, end: End) -> None:
    value = np.random.default_rng(0).bytes(value_size)
    with safekeeper.open(url) as store:
        for start in range(first, last, _BATCH):
            keys = [b"%012d" % number for number in range(start, min(start + _BATCH, last))]
            store.write(Batch.of_columns(Columns.of(GROUP, keys, [value] * len(keys))))
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)


def _recover(url: str, *, only_open: bool) -> Recovery:
    backend_class(Url.parse(url).scheme)  # the import is no part of opening
    before = _memory("VmRSS")
    started = time.perf_counter()
    with safekeeper.open(url) as store:
        store.read([CheckpointId(GROUP, b"%012d" % 0)])
        opened = time.perf_counter()
        open_bytes = _memory("VmRSS") - before
        if only_open:
            return Recovery(0, opened - started, open_bytes, 0.0, 0.0, _memory("VmHWM") - before)
        sum(1 for _ in store.keys(GROUP))
        listed = time.perf_counter()
        with SafeKeeper(store, serializer=None) as keeper:
            ids = sum(1 for _ in keeper.recover(GROUP))
        done = time.perf_counter()
    return Recovery(ids, opened - started, open_bytes, listed - opened, done - listed, _memory("VmHWM") - before)


def _memory(kind: str) -> int:
    """This process's resident memory in bytes, now (`VmRSS`) or at its peak (`VmHWM`)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def _main(command: str, url: str, *arguments: str) -> None:
    try:
        if command == "fill":
            first, last, value_size = map(int, arguments[:3])
            _fill(url, first, last, value_size, "kill" if arguments[3] == "kill" else "close")
        else:
            print(json.dumps(asdict(_recover(url, only_open=command == "open"))))
    except SafekeeperError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main(*sys.argv[1:])
