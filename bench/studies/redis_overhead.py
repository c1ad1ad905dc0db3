"""What `redis:` costs on top of redis-py: the same saves and fetches, through us and through the driver alone.

    python -m safekeeper.bench.studies.redis_overhead [--quick] [--threads 1,32] [--appendfsync always,everysec,off]

Nine saves and one fetch of 1 KB, over 1,000 ids of one group, from 1 to 32 threads; a save is of one id, or of 100 at a
time. The driver does what somebody would write by hand: HSET, HGET and a transaction for the 100; no checksum, no list
of groups, nothing against late writes.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.bench.harness.interleave import AT_MOST_15_PERCENT_OVER, Interleaved, interleave, report
from safekeeper.dev.redis import RedisServer

IDS = 1000
VALUE_BYTES = 1024
BATCH = 100
THREADS = "1,2,4,8,16,32"
FETCH_SHARE = 0.1

Operation = Callable[[random.Random], object]


@dataclass(frozen=True, slots=True)
class SaveAndFetch:
    """One way of doing the work: how it saves and how it fetches."""

    save: Operation
    fetch: Operation

    def rate(self, threads: int, seconds: float) -> float:
        """Operations a second, all threads together, measured for so many seconds."""

        def work(seed: int) -> int:
            dice = random.Random(seed)  # noqa: S311 - it chooses keys
            done = 0
            while not done or time.perf_counter() < end:
                (self.fetch if dice.random() < FETCH_SHARE else self.save)(dice)
                done += 1
            return done

        with ThreadPoolExecutor(threads) as pool:
            started = time.perf_counter()
            end = started + seconds
            operations = sum(pool.map(work, range(threads)))
        return operations / (time.perf_counter() - started)


def arms(store: Backend, client: redis.Redis, batch: int) -> dict[str, SaveAndFetch]:
    """Ours and the driver's, for saves of *batch* ids at a time."""
    value = random.Random(0).randbytes(VALUE_BYTES)  # noqa: S311 - any bytes will do
    keys = [b"key%06d" % number for number in range(IDS)]
    ids = {key: CheckpointId("bench", key) for key in keys}

    def chosen(dice: random.Random) -> Sequence[bytes]:
        start = dice.randrange(IDS - batch + 1)
        return keys[start : start + batch]

    def save_by_driver(dice: random.Random) -> None:
        if batch == 1:
            client.hset("bench", chosen(dice)[0], value)
        else:
            with client.pipeline(transaction=True) as transaction:
                transaction.hset("bench", mapping=dict.fromkeys(chosen(dice), value))
                transaction.execute()

    return {
        "redis-py": SaveAndFetch(save_by_driver, lambda dice: client.hget("bench", dice.choice(keys))),
        "safekeeper": SaveAndFetch(
            lambda dice: store.write(Batch({ids[key]: value for key in chosen(dice)})),
            lambda dice: store.read([ids[dice.choice(keys)]]),
        ),
    }


def redis_settings(appendfsync: str) -> dict[str, Any]:
    """The settings of a server that syncs like this; `off` keeps no append-only file at all."""
    return {"appendonly": "no"} if appendfsync == "off" else {"appendonly": "yes", "appendfsync": appendfsync}


def measure(appendfsync: str, threads_tried: Sequence[int], rounds: int, seconds: float) -> Iterator[Interleaved]:
    """A result for each size of a save and each number of threads."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder), **redis_settings(appendfsync)) as server,
        server.client() as client,
        safekeeper.open(server.url) as store,
    ):
        for batch in (1, BATCH):
            both = arms(store, client, batch)
            for threads in threads_tried:
                title = f"redis with appendfsync {appendfsync}, {batch} ids a save, {threads} threads"
                yield interleave(
                    {name: lambda arm=arm, n=threads: arm.rate(n, seconds) for name, arm in both.items()},  # type: ignore[misc]
                    rounds,
                    title,
                )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description="What redis: costs on top of redis-py.")
    parser.add_argument("--quick", action="store_true", help="fewer threads and shorter rounds")
    parser.add_argument("--rounds", type=int, default=21, help="many and short ones: what else happens hits both arms")
    parser.add_argument("--seconds", type=float, help="of each arm in each round")
    parser.add_argument("--threads", help="the numbers of threads to measure with")
    parser.add_argument("--appendfsync", default="always,everysec,off", help="the settings to measure with")
    parser.add_argument("--output", type=Path, help="a file for all numbers, as JSON")
    given = parser.parse_args()
    threads = [int(number) for number in (given.threads or ("1,8,32" if given.quick else THREADS)).split(",")]
    seconds = given.seconds or (0.06 if given.quick else 0.3)
    found = (measure(each, threads, given.rounds, seconds) for each in given.appendfsync.split(","))
    for result in report(itertools.chain.from_iterable(found), "safekeeper", given.output):
        print(result.at_least(AT_MOST_15_PERCENT_OVER, "safekeeper", "redis-py"))


if __name__ == "__main__":
    main()
