"""What `redis:` costs on top of redis-py: the same saves and fetches, through us and through the driver alone.

    python -m safekeeper.bench.redis_overhead [--rounds 5] [--seconds 1] [--appendfsync always,everysec]

Nine saves and one fetch of 1 KB, over 1,000 ids of one group, from 1 to 32 threads; a save is one id, or a batch of 100.
The driver does what somebody would write by hand: HSET, HGET and a transaction for the batch; no checksum, no list of
groups, nothing against late writes. Both arms run in turns on one server, so what the machine does meanwhile hits both.
The ratio is our time over the driver's: median of the rounds, with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import redis

import safekeeper
from safekeeper.backend import Batch, CheckpointId
from safekeeper.dev.redis import RedisServer

IDS = 1000
VALUE_BYTES = 1024
BATCH = 100
THREADS = (1, 2, 4, 8, 16, 32)
FETCH_SHARE = 0.1

Operation = Callable[[random.Random], None]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of doing the work."""

    name: str
    save: Operation
    fetch: Operation

    def run(self, threads: int, seconds: float) -> float:
        """Seconds that an operation takes, all threads together, measured for so many seconds."""

        def work(seed: int) -> int:
            dice = random.Random(seed)  # noqa: S311 - it chooses keys
            done = 0
            while time.perf_counter() < end:
                (self.fetch if dice.random() < FETCH_SHARE else self.save)(dice)
                done += 1
            return done

        with ThreadPoolExecutor(threads) as pool:
            started = time.perf_counter()
            end = started + seconds
            operations = sum(pool.map(work, range(threads)))
        return (time.perf_counter() - started) / operations


def arms(store: safekeeper.Backend, client: redis.Redis, batch: int) -> tuple[Arm, Arm]:
    """Ours and the driver's, for saves of *batch* ids at a time."""
    value = random.Random(0).randbytes(VALUE_BYTES)  # noqa: S311
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

    ours = Arm(
        "safekeeper",
        lambda dice: _ignore(store.write(Batch({ids[key]: value for key in chosen(dice)}))),
        lambda dice: _ignore(store.read([ids[dice.choice(keys)]])),
    )
    driver = Arm("redis-py", save_by_driver, lambda dice: _ignore(client.hget("bench", dice.choice(keys))))
    return ours, driver


def _ignore(_: object) -> None:
    """What came back is of no interest here."""


def measure(appendfsync: str, rounds: int, seconds: float) -> None:
    """Print a line for each number of threads and each size of a save."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder), appendonly="yes", appendfsync=appendfsync) as server,
        server.client() as client,
        safekeeper.open(server.url) as store,
    ):
        for batch in (1, BATCH):
            ours, driver = arms(store, client, batch)
            for threads in THREADS:
                ratios, rates = [], []
                for number in range(rounds):
                    pair = (ours, driver) if number % 2 else (driver, ours)
                    took = {arm.name: arm.run(threads, seconds) for arm in pair}
                    ratios.append(took[ours.name] / took[driver.name])
                    rates.append(1 / took[ours.name])
                print(
                    f"{appendfsync:9} {batch:4} ids a save  {threads:3} threads  "
                    f"{statistics.median(rates):9.0f} operations/s  ratio {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})",
                    flush=True,
                )


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description="What redis: costs on top of redis-py.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--appendfsync", default="always,everysec", help="the settings to measure with")
    given = parser.parse_args()
    for appendfsync in given.appendfsync.split(","):
        measure(appendfsync, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
