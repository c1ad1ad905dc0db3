"""What an operator costs: events a second, the latency of outputs, and how long a journal takes to load.

    python -m safekeeper.bench.studies.operator_cost [--quick] [--only rate] [--profile]

An event touches one of 1,000 parts, a dict with a number in it, and emits it with msgpack. The bare loop does the same
with a dict and a list, and keeps nothing. Rates are given by the clock and by the processor time of the whole process:
on a machine that has other things to do only the latter, and ratios, mean something. Durable outputs go to an outlet in
memory, so what is measured is the operator, its journal and the store.

The latency is the time from the beginning of an event to the outlet, with so many events a second; beside it stands
what a sync of the same store takes, measured before and after.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgpack

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Interleaved, Spread, interleave, report
from safekeeper.claims import Mark
from safekeeper.journal import Block, Moment
from safekeeper.journal.chain import BlockKey
from safekeeper.journal.journal import load
from safekeeper.journal.reading import ReadBlocks
from safekeeper.operators import Operator
from safekeeper.streams import StreamElement

BARE = "bare loop"
_KEYS = [b"key %d" % number for number in range(1_000)]
_LINGER = 0.005


class CountingOutlet:
    """Takes everything, and notes when."""

    retains = True
    last = 0

    def __init__(self) -> None:
        self.arrivals: list[tuple[int, float]] = []

    def send(self, elements: Sequence[StreamElement]) -> None:
        """As `Outlet.send`."""
        self.last = int(elements[-1].number)  # type: ignore[arg-type]
        self.arrivals.append((self.last, time.perf_counter()))

    def acknowledged(self) -> dict[str, int]:
        """As `Outlet.acknowledged`."""
        return {}

    def close(self) -> None:
        """As `Outlet.close`."""


class ListInlet:
    """Elements that are there already."""

    def __init__(self, count: int) -> None:
        self._elements = [StreamElement(number + 1, b"", _KEYS[number % 1_000]) for number in range(count)]
        self._at = 0

    def read(self, timeout: float | None = None) -> Sequence[StreamElement]:
        """As `Inlet.read`."""
        found = self._elements[self._at : self._at + 1_000]
        self._at += len(found)
        if not found:
            time.sleep(0.001)
        return found

    def acknowledge(self, upto: object) -> None:
        """As `Inlet.acknowledge`."""

    def last(self) -> int:
        """As `Inlet.last`."""
        return len(self._elements)

    def close(self) -> None:
        """As `Inlet.close`."""


def bare(events: int) -> None:
    """What there is to do, and nothing else."""
    states: dict[bytes, dict[str, int]] = {}
    outputs = []
    for number in range(events):
        key = _KEYS[number % 1_000]
        state = states.get(key)
        if state is None:
            state = states[key] = {}
        state["n"] = state.get("n", 0) + 1
        outputs.append(msgpack.packb(state))


def in_own_loop(url: str, events: int) -> None:
    """An operator whose author has a loop of his own."""
    pack = msgpack.packb
    with Operator("own", url, outputs={"out": CountingOutlet()}, linger=_LINGER) as operator:
        after = int(operator.positions.get("in", 0))
        for number in range(events):
            with operator.event("in", after + number + 1) as event:
                key = _KEYS[number % 1_000]
                state = event.part(key).state
                state["n"] = state.get("n", 0) + 1
                event.emit("out", pack(state), key)


def by_iteration(url: str, events: int) -> None:
    """An operator that reads its input by itself."""
    pack = msgpack.packb
    inputs = {"in": lambda after: ListInlet(events)}
    with Operator("iteration", url, inputs=inputs, outputs={"out": CountingOutlet()}, linger=_LINGER) as operator:
        for event in operator:
            state = operator.part(event.key).state
            state["n"] = state.get("n", 0) + 1
            operator.emit("out", pack(state), event.key)
            if event.position == events:
                operator.stop()


def rate(work: Callable[[], object], events: int, clock: Callable[[], float]) -> float:
    """Events a second of *clock*."""
    begun = clock()
    work()
    return events / (clock() - begun)


def rates(folder: Path, events: int, rounds: int) -> Iterator[Interleaved]:
    """Events a second, by the clock and by the processor."""
    fresh = itertools.count()

    def on_log(work: Callable[[str, int], None]) -> None:
        work(f"log://{folder}/rate{next(fresh)}", events)

    for clock, unit in ((time.perf_counter, "events/s"), (time.process_time, "events a second of the processor")):
        arms = {
            BARE: partial(bare, events),
            "memory:, own loop": partial(in_own_loop, "memory:", events),
            "memory:, iteration": partial(by_iteration, "memory:", events),
            "log:, own loop": partial(on_log, in_own_loop),
            "log:, iteration": partial(on_log, by_iteration),
        }
        measures = {name: partial(rate, work, events, clock) for name, work in arms.items()}
        yield interleave(measures, rounds, "one part and one output an event", unit)


def sync_seconds(url: str, writes: int = 50) -> float:
    """What a small durable write takes, in the median."""
    taken = []
    with safekeeper.open(url) as store:
        for number in range(writes):
            begun = time.perf_counter()
            store.write(Batch({CheckpointId("sync", b"%d" % (number % 10)): bytes(4096)}))
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def latencies(url: str, seconds: float, per_second: int) -> list[float]:
    """From the beginning of each event to the outlet."""
    outlet, begun = CountingOutlet(), []
    with Operator("latency", url, outputs={"out": outlet}, linger=_LINGER) as operator:
        start = time.perf_counter()
        for number in range(int(seconds * per_second)):
            while (wait := start + number / per_second - time.perf_counter()) > 0:
                time.sleep(wait)
            begun.append(time.perf_counter())
            with operator.event("in", number + 1) as event:
                event.part(_KEYS[number % 1_000]).state["n"] = number
                event.emit("out", b"%d" % number)
    found, at = [], 0
    for last, arrived in outlet.arrivals:
        while at < last:
            found.append(arrived - begun[at])
            at += 1
    return found


def latency(folder: Path, seconds: float) -> Iterator[Goal]:
    """The latency of outputs, beside the sync of the store, at three rates."""
    url = f"log://{folder}/latency"
    for number, per_second in enumerate((100, 1_000, 10_000)):
        before = sync_seconds(url)
        taken = sorted(latencies(f"{url}{number}", seconds, per_second))
        sync = statistics.median([before, sync_seconds(url)])
        p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
        limit = _LINGER + 3 * sync
        text = f"p50 at {per_second} events/s {1e3 * p50:.2f} ms (p99 {1e3 * p99:.2f}), at most linger + 3 x sync"
        yield Goal(f"{text} = {1e3 * _LINGER:.2f} + 3 x {1e3 * sync:.2f} = {1e3 * limit:.2f} ms", p50 <= limit)


def write_journal(url: str, parts: int, nbytes: int = 100, each: int = 10_000) -> list[bytes]:
    """A journal with so many parts, written directly; its blocks."""
    mark, blocks = Mark(1, "0" * 16), []
    with safekeeper.open(url) as store:
        for number, first in enumerate(range(0, parts, each), 1):
            keys = [b"part %012d" % key for key in range(first, min(first + each, parts))]
            values = [os.urandom(nbytes) for _ in keys]
            moment = Moment(first + len(keys), {"in": first + len(keys)})
            block = Block(moment, moment, [("in", len(keys))], keys, b"o" * len(keys), values, live=first + len(keys))
            blocks.append(block.encode())
            store.write(Batch({CheckpointId("large", BlockKey(mark, number).encode()): blocks[-1]}))
    return blocks


def load_journal(url: str) -> int:
    """Read the journal; how many parts it has."""
    with safekeeper.open(url) as store:
        blocks = ReadBlocks(store, "large")
        return len(load(blocks, blocks.chain(blocks.listed())).parts)


def read_bare(blocks: Sequence[bytes]) -> int:
    """msgpack and a dict, from memory, without checks."""
    parts: dict[bytes, bytes] = {}
    for block in blocks:
        fields = msgpack.unpackb(memoryview(block)[13:])
        parts.update(zip(fields["keys"], fields["values"], strict=True))
    return len(parts)


def loads(folder: Path, parts: int, rounds: int) -> Iterator[Interleaved]:
    """Parts a second that are loaded."""
    url = f"log://{folder}/large"
    blocks = write_journal(url, parts)
    arms = {
        BARE: lambda: rate(lambda: read_bare(blocks), parts, time.perf_counter),
        "journal on log:": lambda: rate(lambda: load_journal(url), parts, time.perf_counter),
        "journal on log:, by processor": lambda: rate(lambda: load_journal(url), parts, time.process_time),
    }
    yield interleave(arms, rounds, f"load {parts:,} parts of 100 B", "parts/s")


def _judge(text: str, found: Spread, spent: Spread, wanted: float) -> Goal:
    """By the clock; where only the processor's time says yes, the machine had no time: that is said."""
    by = "by the clock" if found.median >= wanted else "by the time of the processor only"
    return Goal(f"{text}, {by}: {found}, by processor {spent}", max(found.median, spent.median) >= wanted)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events and rounds")
    parser.add_argument("--only", default="", help="rate, latency or load")
    parser.add_argument("--events", type=int, help="of each arm in each round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--profile", action="store_true", help="show where the time of the own loop on memory: goes")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    options = parser.parse_args()
    events = options.events or (5_000 if options.quick else 200_000)
    rounds = options.rounds or (1 if options.quick else 5)
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(in_own_loop, "memory:", events)
        pstats.Stats(profile).sort_stats("tottime").print_stats(15)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        if options.only in "rate":
            wall, processor = report(rates(folder, events, rounds), BARE)
            for arm, wanted in (("memory:, own loop", 60_000), ("log:, own loop", 40_000)):
                print(_judge(f"{arm}: {wanted:,} events/s", wall.rate(arm), processor.rate(arm), wanted))
        if options.only in "latency":
            for goal in latency(folder, 0.3 if options.quick else 5.0):
                print(goal)
        if options.only in "load":
            parts = 20_000 if options.quick else 1_000_000
            (result,) = report(loads(folder, parts, rounds), BARE)
            found, spent = result.rate("journal on log:"), result.rate("journal on log:, by processor")
            print(_judge("a million parts of 100 B in 1.5 s: 666,667 parts/s", found, spent, 1e6 / 1.5))


if __name__ == "__main__":
    main()
