"""What a save costs beyond the backend's write: `python -m safekeeper.bench.studies.keeper_overhead`.

One producer saves small states as fast as it can and waits until all have completed, on `memory:`. The arms are
interleaved, round by round, and the first writes the same batches to the backend directly. Rates are by the clock on
the wall and suffer from whatever else the machine does; the costs are processor time and do not.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import safekeeper
from safekeeper import Batch, Bounds, CheckpointId, SafeKeeper
from safekeeper.bench.harness.goals import Goal
from safekeeper.keeper.overflow import Overflow

IDS = [CheckpointId("bench", b"%d" % n) for n in range(1000)]
STATE = b"x" * 100
BATCH = 1000
WANTED = 100_000


@dataclass
class SaveLoop:
    """One way to save that is measured."""

    name: str
    run: Callable[[int], None]
    """Makes so many saves, and returns when all have completed."""
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def measure(self, saves: int) -> None:
        """One round."""
        wall, processor = time.perf_counter(), time.process_time()
        self.run(saves)
        self.seconds.append((time.perf_counter() - wall) / saves)
        self.processor.append((time.process_time() - processor) / saves)


def direct(saves: int) -> None:
    """The backend alone, with batches of the size that the keeper makes when it is busy."""
    with safekeeper.open("memory:") as backend:
        for start in range(0, saves, BATCH):
            batch = Batch()
            for n in range(start, min(start + BATCH, saves)):
                batch.put(IDS[n % len(IDS)], STATE)
            backend.write(batch)


def through_a_keeper(serializer: str | None, overflow: Overflow, *, called_back: bool = False) -> Callable[[int], None]:
    """A run through a keeper with these settings."""

    def run(saves: int) -> None:
        done: list[object] = []
        callback = done.append if called_back else None
        with SafeKeeper("memory:", serializer=serializer, overflow=overflow, storage_queue=Bounds(10_000)) as keeper:
            for n in range(saves):
                keeper.save(IDS[n % len(IDS)], STATE, callback=callback)
            keeper.flush()
            metrics = keeper.metrics()
        assert metrics.stored + metrics.superseded == saves

    return run


RAW = SaveLoop("serializer raw, block", through_a_keeper("raw", "block"))
ARMS = [
    SaveLoop("the backend alone", direct),
    SaveLoop("serializer None, block", through_a_keeper(None, "block")),
    RAW,
    SaveLoop("serializer raw, coalesce", through_a_keeper("raw", "coalesce")),
    SaveLoop("serializer raw, block, callback", through_a_keeper("raw", "block", called_back=True)),
    SaveLoop("serializer msgpack, block", through_a_keeper("msgpack", "block")),
]


@contextmanager
def sampled(samples: Counter[str], every: float = 0.001) -> Iterator[None]:
    """Look every so often where each thread is."""
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(every):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                if ident != threading.get_ident() and (code := frame.f_code).co_name not in ("wait", "_keep_watch"):
                    samples[f"{names.get(ident, '?'):18} {code.co_qualname}:{frame.f_lineno}"] += 1

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer saves")
    parser.add_argument("--saves", type=int, help="saves in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="sample where the threads are, with serializer raw")
    options = parser.parse_args()
    options.saves = options.saves or (20_000 if options.quick else 100_000)
    for _ in range(options.rounds):
        for arm in ARMS:
            arm.measure(options.saves)
    floor = median(ARMS[0].processor)
    print(f"{options.saves} saves of {len(STATE)} bytes on {len(IDS)} ids, median of {options.rounds} rounds")
    print(f"{'':34}{'saves/s':>10}{'(worst':>10}{'best)':>10}{'us cpu':>9}{'over the backend':>18}")
    for arm in ARMS:
        rates = [round(1 / seconds) for seconds in sorted(arm.seconds, reverse=True)]
        cost = median(arm.processor)
        print(
            f"{arm.name:34}{round(median(rates)):>10}{rates[0]:>10}{rates[-1]:>10}{cost * 1e6:>9.2f}"
            f"{(cost - floor) * 1e6:>18.2f}"
        )
    wall, processor = (round(1 / median(times)) for times in (RAW.seconds, RAW.processor))
    text = f"one producer, memory:, {RAW.name}, {WANTED:,} saves/s with their completions"
    print(Goal(f"{text}, by processor time: {processor:,}", processor >= WANTED))
    print(Goal(f"{text}, by the clock, with whatever else the machine did: {wall:,}", wall >= WANTED))
    if options.profile:
        samples: Counter[str] = Counter()
        with sampled(samples):
            RAW.run(5 * options.saves)
        print(f"\n{RAW.name}: where the threads were")
        for place, count in samples.most_common(25):
            print(f"{count / samples.total():>7.1%}  {place}")


if __name__ == "__main__":
    main()
