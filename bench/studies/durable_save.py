"""Where the time of one durable save goes: from the bare sync of a file to a keeper, in steps.

    python -m safekeeper.bench.studies.durable_save [--quick] [--folder DISK]

    sync                 a write of a block's size to blocks that exist, with RWF_DSYNC: what the disk takes
    sync, direct         the same past the page cache (O_DIRECT), a whole block of the file system
    sqlite3              by hand, as in the study `services`
    log                  the same record by `Backend.write` of `log:`, in this thread
    keeper               `keeper.save(...).result()` in a thread, which writes itself
    keeper, by a worker  the same with a timeout: the worker writes

All are in one folder and in one thread, a few of each in turns. It prints the median of each round's p50, and what a
step takes beyond another, round by round.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from safekeeper import Batch, CheckpointId, SafeKeeper
from safekeeper.bench.harness.interleave import Interleaved, Spread, interleave, report
from safekeeper.bench.studies.services import packed, state_of

SYNC, DIRECT, SQLITE, LOG, KEEPER, WORKER = (
    *("sync", "sync, direct", "sqlite3", "log"),
    *("keeper", "keeper, by a worker"),
)
_RECORD_BYTES = 224  # of a state of the study in the log
_FILE_BYTES = 8 << 20

Save = Callable[[int], object]


def file_of_zeros(path: Path, flags: int, stack: ExitStack) -> int:
    """A file whose blocks exist on disk, open with *flags*."""
    with path.open("wb") as file:
        file.write(bytes(_FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDWR | flags)
    stack.callback(os.close, fd)
    return fd


def syncs(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Save]]:
    """The bare syncs."""
    record, block = bytes(_RECORD_BYTES), mmap.mmap(-1, mmap.PAGESIZE)  # aligned, as O_DIRECT wants it
    fd = file_of_zeros(folder / "raw", 0, stack)
    places = _FILE_BYTES // _RECORD_BYTES
    yield SYNC, lambda n: os.pwritev(fd, [record], n % places * _RECORD_BYTES, os.RWF_DSYNC)
    try:
        direct = file_of_zeros(folder / "direct", os.O_DIRECT, stack)
    except OSError as error:
        print(f"{DIRECT} is not measured: {error}")
        return
    blocks = _FILE_BYTES // len(block)
    yield (
        DIRECT,
        lambda n: os.pwritev(direct, [block], n * _RECORD_BYTES // len(block) % blocks * len(block), os.RWF_DSYNC),
    )


def saves(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Save]]:
    """What each arm does to save state number *n*."""
    yield from syncs(folder, stack)
    db = sqlite3.connect(folder / "states.sqlite", isolation_level=None, check_same_thread=False)
    stack.callback(db.close)
    for command in ("pragma journal_mode = wal", "pragma synchronous = full"):
        db.execute(command)
    db.execute("create table states (key text primary key, value blob) without rowid")
    insert = "insert or replace into states values (?, ?)"
    yield SQLITE, lambda n: db.execute(insert, (f"key-{n:08}", packed(state_of(n))))
    keeper = stack.enter_context(SafeKeeper(f"log://{folder}/log"))

    def id_of(n: int) -> CheckpointId:
        return CheckpointId("s", f"key-{n:08}")

    yield LOG, lambda n: keeper.backend.write(Batch({id_of(n): packed(state_of(n))}))
    yield KEEPER, lambda n: keeper.save(id_of(n), state_of(n)).result()
    yield WORKER, lambda n: keeper.save(id_of(n), state_of(n)).result(timeout=60)


def median_rate(save: Save, numbers: Iterator[int], many: int) -> float:
    """One in the median time of *many* saves, one after the other."""
    times = []
    for _ in range(many):
        number = next(numbers) % 10_000
        started = time.perf_counter()
        save(number)
        times.append(time.perf_counter() - started)
    return 1 / statistics.median(times)


def measure(folder: Path, rounds: int, many: int) -> Interleaved:
    """All arms in one thread, which is not the main thread."""
    numbers = count()
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:

        def in_thread(save: Save) -> float:
            return thread.submit(median_rate, save, numbers, many).result()

        arms = {name: (lambda save=save: in_thread(save)) for name, save in saves(folder, stack)}
        return interleave(arms, rounds, "p50 of a durable save", "1/s")


def beyond(result: Interleaved, arm: str, base: str) -> str:
    """What *arm* takes beyond *base*, in microseconds."""
    pairs = zip(result.rates[arm], result.rates[base], strict=True)
    spread = Spread.of(1e6 / slow - 1e6 / quick for slow, quick in pairs)
    return f"{arm} beyond {base}: {spread.median:.0f} us ({spread.low:.0f} to {spread.high:.0f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, help="how often each arm runs")
    parser.add_argument("--saves", type=int, default=50, help="of an arm in a round")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    rounds = options.rounds or (9 if options.quick else 41)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        (result,) = report([measure(Path(folder), rounds, options.saves)], KEEPER, options.json)
    for name in result.rates:
        print(f"{name}: {statistics.median(1e6 / rate for rate in result.rates[name]):.0f} us")
    for arm, base in ((LOG, SYNC), (KEEPER, LOG), (WORKER, KEEPER), (SQLITE, SYNC)):
        print(beyond(result, arm, base))


if __name__ == "__main__":
    main()
