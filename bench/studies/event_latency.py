"""How long events wait while the elements they change are saved: `python -m safekeeper.bench.studies.event_latency`.

128 MB of state in 1, 4 and 64 elements of a `Checkpointed` on a durable `log:`; one thread has 2,000 events a second,
for keys by chance, and in each round all elements are saved once (`checkpoint()`). An event's latency counts from when
it was to begin. So does Table 7 of SGuard, but that saves once a minute and not once in the few seconds of a round.

    none          nothing is saved
    whole         one call of msgpack an element, as it was before there were slices
    all at once   in slices, and all elements are left to the worker at once, as it was before
    one by one    what `Checkpointed` does: in slices, one element after the other
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from safekeeper import Checkpointed, SafeKeeper
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import rotated
from safekeeper.bench.studies.no_pause import NONE, PARTS, State, Whole, states
from safekeeper.elements.one_by_one import OneByOne
from safekeeper.keeper.serializers import serializer_named

WHOLE, AT_ONCE, ONE_BY_ONE = "whole", "all at once", "one by one"
ARMS = (NONE, WHOLE, AT_ONCE, ONE_BY_ONE)
WANTED = 0.1
"""With 64 elements: the mean latency beside that of saving them all at once."""


@dataclass
class EventLatencies:
    """The latencies of an arm, round by round, in milliseconds."""

    mean: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long the checkpoint took."""

    def note(self, late: list[float], seconds: float) -> None:
        """One round more."""
        late.sort()
        self.mean.append(mean(late))
        self.p99.append(late[int(0.99 * (len(late) - 1))])
        self.longest.append(late[-1])
        self.seconds.append(seconds)


class Events(threading.Thread):
    """Changes elements by chance, so many a second."""

    def __init__(self, elements: Checkpointed[State], keys: Sequence[bytes], rate: float) -> None:
        super().__init__(name="events", daemon=True)
        self.late: list[float] = []
        self._elements, self._keys, self._pause = elements, keys, 1 / rate
        self._over = threading.Event()

    def run(self) -> None:
        chance, due = random.Random(1), time.perf_counter()  # noqa: S311 (no secret)
        while not self._over.is_set():
            due += self._pause
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            with self._elements.event(chance.choice(self._keys)) as element:
                record = element.state["user"]
                record["count"] += 1
            self.late.append(1e3 * (time.perf_counter() - due))

    def stop(self) -> list[float]:
        """What was noted."""
        self._over.set()
        self.join()
        return self.late


@contextmanager
def holding(keeper: SafeKeeper, state: Sequence[State]) -> Iterator[tuple[Checkpointed[State], list[bytes]]]:
    """Elements with this *state* in memory, and their keys."""
    left = iter(state)
    elements = Checkpointed(keeper, "elements", lambda: next(left), trigger=None)
    keys = [b"%d" % number for number in range(len(state))]
    for key in keys:
        with elements.event(key) as element:
            element.state["user"] = {"count": 0}
    yield elements, keys
    for key in keys:
        elements.forget(key).result()
    elements.close()


def measure(
    keeper: SafeKeeper, arm: str, state: Sequence[State], options: argparse.Namespace
) -> tuple[list[float], float]:
    """The latencies while all is saved once, in a round of so many seconds; how long the save took."""
    with ExitStack() as stack:
        elements, keys = stack.enter_context(holding(keeper, state))
        if arm == AT_ONCE:
            stack.enter_context(patch.object(OneByOne, "wait", lambda _: None))
        gc.collect()
        events = Events(elements, keys, options.rate)
        events.start()
        time.sleep(0.1)
        began = time.perf_counter()
        for ticket in [] if arm == NONE else elements.checkpoint():
            ticket.result()
        took = time.perf_counter() - began
        time.sleep(max(options.seconds - took, 0.0))
        return events.stop(), took


def compare(folder: Path, parts: int, options: argparse.Namespace) -> dict[str, EventLatencies]:
    """All arms with the state in so many elements."""
    state = states(options.megabytes, parts)
    msgpack = serializer_named("msgpack")
    found = {arm: EventLatencies() for arm in ARMS}
    keepers = {
        arm: SafeKeeper(f"log://{folder}/{parts}-{number}", serializer=Whole() if arm == WHOLE else msgpack)
        for number, arm in enumerate(ARMS)
    }
    try:
        for turn in range(options.rounds):
            for arm in rotated(list(ARMS), turn):
                found[arm].note(*measure(keepers[arm], arm, state, options))
    finally:
        for keeper in keepers.values():
            keeper.close()
    return found


def table(parts: int, found: dict[str, EventLatencies]) -> Table:
    """One row an arm; medians over the rounds."""
    table = Table(title=f"{parts} elements: latency of an event, in ms", title_justify="left")
    for column in ("arm", "mean", "p99", "longest", "s a checkpoint"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, late in found.items():
        figures = [f"{median(values):.2f}" for values in (late.mean, late.p99, late.longest)]
        table.add_row(arm, *figures, "" if arm == NONE else f"{median(late.seconds):.2f}")
    return table


def goal(found: dict[str, EventLatencies]) -> Goal:
    """That this helps where there are many elements."""
    ratio = median(a / b for a, b in zip(found[ONE_BY_ONE].mean, found[AT_ONCE].mean, strict=True))
    text = f"64 elements: mean latency one by one at most {WANTED} of that of all at once: {ratio:.3f}"
    return Goal(text, ratio <= WANTED)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less state and fewer rounds")
    parser.add_argument("--parts", type=int, nargs="*", default=PARTS)
    parser.add_argument("--megabytes", type=int, help="of state, as bytes of msgpack")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each arm in each round, with one checkpoint in it")
    parser.add_argument("--rate", type=float, default=2000.0, help="events a second")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    options.megabytes = options.megabytes or (16 if options.quick else 128)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 4.0)
    console, kept = Console(), {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for parts in options.parts:
            found = compare(Path(folder), parts, options)
            console.print(table(parts, found))
            if parts == max(PARTS):
                print(goal(found))
            kept[parts] = {arm: vars(late) for arm, late in found.items()}
    if options.json is not None:
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
