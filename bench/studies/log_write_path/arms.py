"""The arms: the log, raw loops and other embedded stores, and two ways to keep them busy.

Values differ from each other and do not compress: of one value for all, stores that compress would write a part only.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from safekeeper.bench.ycsb.peers import PEERS, BackendPeer, EmbeddedStore, RawFile

IDS = [b"%016d" % n for n in range(1000)]
VALUES = [os.urandom(1024) for _ in IDS]
_WRITTEN_BEFORE = 32 << 20


@contextmanager
def opened(folder: Path, peers: bool = True) -> Iterator[dict[str, EmbeddedStore]]:
    """The log, the raw loops and, if wanted, the other stores, each in a folder of its own."""
    makers: dict[str, Callable[[Path], EmbeddedStore]] = {
        "log": lambda path: BackendPeer(f"log://{path}"),
        "raw": RawFile,
        "overwrite": partial(RawFile, ahead=_WRITTEN_BEFORE),
        **(PEERS if peers else {}),
    }
    folder.mkdir(parents=True)
    arms = {name: make(folder / name) for name, make in makers.items()}
    try:
        yield arms
    finally:
        for arm in arms.values():
            arm.close()


def mixed(arm: EmbeddedStore, threads: int, seconds: float) -> float:
    """Operations a second of so many threads, 90 % saves and 10 % fetches."""
    counts = [0] * threads
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        random, save, fetch = Random(number), arm.save, arm.fetch  # noqa: S311 - it has to be repeatable
        for turn in itertools.count():
            at = random.randrange(len(IDS))
            if turn % 10:
                save(IDS[at], VALUES[at])
            else:
                fetch(IDS[at])
            if time.perf_counter() >= end:
                counts[number] = turn + 1
                return

    started = time.perf_counter()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, threads)]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started)


def repeated(work: Callable[[], object], seconds: float, weight: float = 1.0) -> float:
    """How often a second *work* runs, times *weight*."""
    started = time.perf_counter()
    for turn in itertools.count(1):
        work()
        if (elapsed := time.perf_counter() - started) >= seconds:
            return weight * turn / elapsed
    raise AssertionError("unreachable")
