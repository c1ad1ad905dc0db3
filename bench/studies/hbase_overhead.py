"""What `hbase:` costs on top of happybase: the same saves and fetches, through us and through the driver alone.

    python -m safekeeper.bench.studies.hbase_overhead [--quick] [--threads 1,32] [--url hbase://...]

Nine saves and one fetch of 1 KB, over 1,000 ids of one group, from 1 to 32 threads; a save is one id, or a batch of
100. The driver does what somebody would write by hand: a pool of as many connections as there are threads, one row per
id, put, batch and row; no checksum, nothing against late writes, no order between hosts. Without `--url` a server is
started for it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import happybase

import safekeeper
from safekeeper.backend import Batch, CheckpointId
from safekeeper.bench.harness.interleave import AT_MOST_15_PERCENT_OVER, Interleaved, Measure, interleave, report
from safekeeper.dev.hbase import HBaseServer
from safekeeper.url import Url

IDS = 1000
KEYS = [b"key%06d" % number for number in range(IDS)]
VALUE_BYTES = 1024
BATCH = 100
THREADS = "1,2,4,8,16,32"
FETCH_SHARE = 0.1

Operation = Callable[[list[bytes]], object]


def measure(save: Operation, fetch: Operation, batch: int, threads: int, seconds: float) -> Measure:
    """Saves and fetches from so many threads; the rate is in operations per second."""

    def work(seed: int, end: float) -> int:
        dice = random.Random(seed)  # noqa: S311 - it chooses keys
        done = 0
        while not done or time.perf_counter() < end:
            start = dice.randrange(IDS - batch + 1)
            if dice.random() < FETCH_SHARE:
                fetch(KEYS[start : start + 1])
            else:
                save(KEYS[start : start + batch])
            done += 1
        return done

    def run() -> float:
        with ThreadPoolExecutor(threads) as pool:
            started = time.perf_counter()
            operations = sum(pool.map(work, range(threads), [started + seconds] * threads))
            return operations / (time.perf_counter() - started)

    return run


def our_operations(store: safekeeper.Backend, value: bytes) -> tuple[Operation, Operation]:
    """Saves and fetches through safekeeper."""
    ids = {key: CheckpointId("bench", key) for key in KEYS}
    return (
        lambda keys: store.write(Batch({ids[key]: value for key in keys})),
        lambda keys: store.read([ids[key] for key in keys]),
    )


def driver_operations(pool: Any, table: str, value: bytes) -> tuple[Operation, Operation]:
    """Saves and fetches through the driver alone."""
    cells = {b"data:checkpoint": value}

    def save(keys: list[bytes]) -> None:
        with pool.connection() as connection:
            if len(keys) == 1:
                connection.table(table).put(keys[0], cells)
            else:
                with connection.table(table).batch() as batch:
                    for key in keys:
                        batch.put(key, cells)

    def fetch(keys: list[bytes]) -> None:
        with pool.connection() as connection:
            connection.table(table).row(keys[0])

    return save, fetch


@contextmanager
def server_at(url: str | None) -> Iterator[str]:
    """The URL of a store: the one that was given, or one in a server that is started for it."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder, HBaseServer(Path(folder)) as server:
        yield server.url


def compare(url: str, threads_tried: list[int], rounds: int, seconds: float) -> Iterator[Interleaved]:
    """Both arms in turns, for each number of threads and each size of a save."""
    place = Url.parse(url)
    value = random.Random(0).randbytes(VALUE_BYTES)  # noqa: S311
    driver_table = "happybase_alone"
    with safekeeper.open(f"{url}?connections={max(threads_tried)}") as store:
        with closing(happybase.Connection(place.host, place.port)) as connection:
            if driver_table.encode() not in connection.tables():
                connection.create_table(driver_table, {"data": {"max_versions": 1}})
        for batch in (1, BATCH):
            for threads in threads_tried:
                # Not one pool for all of it: those of its connections that are idle for a minute break.
                pool = happybase.ConnectionPool(threads, host=place.host, port=place.port)
                ours = measure(*our_operations(store, value), batch, threads, seconds)
                driver = measure(*driver_operations(pool, driver_table, value), batch, threads, seconds)
                title = f"hbase, {batch} ids a save, {threads} threads"
                yield interleave({"safekeeper": ours, "happybase": driver}, rounds, title)


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description="What hbase: costs on top of happybase.")
    parser.add_argument("--quick", action="store_true", help="fewer threads and shorter rounds")
    parser.add_argument("--rounds", type=int, default=21, help="many and short ones: what else happens hits both arms")
    parser.add_argument("--seconds", type=float, help="of each arm in each round")
    parser.add_argument("--threads", help="the numbers of threads to measure with")
    parser.add_argument("--url", help="measure on this server; it gets two tables")
    given = parser.parse_args()
    threads = [int(number) for number in (given.threads or ("1,8,32" if given.quick else THREADS)).split(",")]
    seconds = given.seconds or (0.2 if given.quick else 0.5)
    with server_at(given.url) as url:
        results = report(compare(url, threads, given.rounds, seconds), "safekeeper")
    for result in results:
        print(result.at_least(AT_MOST_15_PERCENT_OVER, "safekeeper", "happybase"))


if __name__ == "__main__":
    main()
