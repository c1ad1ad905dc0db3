"""Continuous eventual checkpoints, as their paper measured them: what recovery loads and replays, and the price of it.

    python -m safekeeper.bench.studies.eventual_checkpoints [--quick] [--items 100000] [--only extent]

An operator averages count windows of ten tuples of 100 bytes for each item; an item is drawn for each event. Opened and
closed windows are recorded with every block, and further ones as the policy says. The **extent** is how many records
recovery loads, the **replay** how many bytes of tuples it takes again. A model of a page says what they should be, with
blocks after the same events and as many further records in each.

    opened    processor time of the events of two items with what was opened and closed recorded, in memory and on disk,
              beside an operator that records nothing; windows of 1 and of 1,000 tuples
    extent    the extent and the replay with q = 1, 2, 4, 8 records for each open window, and by u; loading them
    response  processor time of the events with 10 ms for further records in every 25, 50, 100 or 250, beside none
    within    recover_within = 1, 2, 5 seconds (scaled down with the items): what recovery takes after a kill

Times are of the processor where only that can be compared on a busy machine; the text says where.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Literal, cast

import safekeeper
from safekeeper.bench.harness.goals import Goal
from safekeeper.journal import Follow
from safekeeper.keeper.lanes import Bounds
from safekeeper.operators import Operator
from safekeeper.operators.core import Core
from safekeeper.policy import Capture, CaptureView, Eventual, What
from safekeeper.streams import StreamElement

_WINDOW = 10
_TUPLE = bytes(100)
_STEADY = 30  # events for each item until the oldest open window is as old as it gets
_KEYS: list[bytes] = []
_FORK = multiprocessing.get_context("fork")


class NoOutlet:
    """Takes everything."""

    retains = True
    last = 0

    def send(self, elements: Sequence[StreamElement]) -> None:
        """As `Outlet.send`."""
        self.last = int(elements[-1].number)  # type: ignore[arg-type]

    def acknowledged(self) -> dict[str, int]:
        """As `Outlet.acknowledged`."""
        return {}

    def close(self) -> None:
        """As `Outlet.close`."""


class Noted(Eventual):
    """Notes after which events blocks were captured, and how many further records each has."""

    def __init__(self, q: float | None, u: int | None = None, *, budget: float = 0.005, period: float = 0.1) -> None:
        super().__init__(q, u, budget=budget, period=period)
        self.blocks: list[tuple[int, int]] = []

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        parts = super().due(view)
        return None if parts is None else self._noted(cast("Core", view), cast("Iterator[bytes]", parts))

    def _noted(self, core: Core, parts: Iterator[bytes]) -> Iterator[bytes]:
        before = self.recorded
        yield from parts
        self.blocks.append((core.events, self.recorded - before))


def no_checks() -> Noted:
    """Only what was opened and closed is recorded."""
    return Noted(q=float("inf"))


def items_of(count: int, items: int, seed: int = 1) -> list[int]:
    """Which item each event is of."""
    random = Random(seed)  # noqa: S311
    if len(_KEYS) < items:
        _KEYS[:] = [b"item %08d" % number for number in range(items)]
    return [random.randrange(items) for _ in range(count)]


def take(operator: Operator, drawn: Sequence[int], first: int, window: int = _WINDOW) -> None:
    """Let *operator* take events, whose positions begin with *first*."""
    for position, item in enumerate(drawn, first):
        with operator.event("tuples", position) as event:
            part = event.part(_KEYS[item], list)
            state = part.state
            state.append(len(_TUPLE))
            if len(state) == window:
                event.emit("averages", b"%d" % (sum(state) // window))
                part.close()


def operator_on(url: str, capture: Capture, hold: int = 100_000) -> Operator:
    """The operator of this study."""
    outputs = {"averages": NoOutlet()}
    return Operator("cec", url, outputs=outputs, capture=capture, kind="deterministic", hold=Bounds(hold))


def abandon(operator: Operator) -> None:
    """Let it end as if it had been killed: what is not in the journal is lost."""
    operator._pump.stop()
    operator._state = "closed"
    operator._stack.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What recovery would have to do."""

    extent: int
    replay: int
    """Events."""
    open: int
    events: int = 0
    """Until the last block."""


class Model:
    """The paper's structures, and nothing else: windows open and close; a block records that, and so many more: those
    with the oldest record to bound the extent, those with the oldest change to bound the replay."""

    def __init__(self, bounds: Literal["extent", "replay"]) -> None:
        self.bounds = bounds
        self.counts: dict[int, int] = {}
        self.records = 0
        self.recorded: OrderedDict[int, int] = OrderedDict()  # the number of the newest record, the oldest first
        self.changed: OrderedDict[int, int] = OrderedDict()  # the first event that is in no record
        self.opened: dict[int, None] = {}
        self.closed: dict[int, None] = {}
        self.events = 0

    def take(self, item: int) -> None:
        """An event of *item*."""
        self.events += 1
        count = self.counts[item] = self.counts.get(item, 0) + 1
        if count == 1:
            self.opened[item] = None
        if count < _WINDOW:
            self.changed.setdefault(item, self.events)
            return
        del self.counts[item]
        self.changed.pop(item, None)
        self.recorded.pop(item, None)
        self.opened.pop(item, None)
        self.closed[item] = None

    def block(self, further: int) -> None:
        """A block, with so many further records."""
        for item in self.opened:
            self.record(item)
        self.records += len(self.closed.keys() - self.opened.keys())
        self.opened.clear()
        self.closed.clear()
        for _ in range(further):
            self.record(self.choose())

    def choose(self) -> int:
        """Which item to record now."""
        return next(iter(self.recorded if self.bounds == "extent" else self.changed))

    def record(self, item: int) -> None:
        """Make a record."""
        self.records += 1
        self.recorded[item] = self.records
        self.recorded.move_to_end(item)
        self.changed.pop(item, None)

    @property
    def extent(self) -> int:
        """The records from the oldest that is needed."""
        return self.records - next(iter(self.recorded.values()), self.records) + 1

    @property
    def replay(self) -> int:
        """The events from the oldest that is in no record."""
        return self.events - next(iter(self.changed.values()), self.events + 1) + 1


def modelled(drawn: Sequence[int], bounds: Literal["extent", "replay"], blocks: Sequence[tuple[int, int]]) -> Outcome:
    """What the model says, with blocks after these events and with so many further records."""
    model = Model(bounds)
    done = 0
    for events, further in blocks:
        for item in drawn[done:events]:
            model.take(item)
        done = events
        model.block(further)
    return Outcome(model.extent, model.replay, len(model.counts))


class Never:
    """No block at all."""

    fuzzy = by_time = True

    def due(self, view: CaptureView) -> What | None:
        """As `Capture.due`."""
        return None


def openings(folder: Path, events: int, rounds: int) -> Iterator[Goal]:
    """What it costs to record what was opened and closed, and nothing else."""
    drawn = items_of(events, 2)
    for window, limit in ((1_000, 1.1), (1, 1.5)):
        spent: dict[str, list[float]] = {"none": [], "memory": [], "disk": []}
        for number in range(rounds):
            arms = list(spent)
            for arm in arms[number % 3 :] + arms[: number % 3]:
                url = f"log://{folder}/opened-{window}-{number}" if arm == "disk" else "memory:"
                operator = operator_on(url, Never() if arm == "none" else no_checks(), hold=events + 1)
                operator.__enter__()
                begun = time.process_time()
                take(operator, drawn, 1, window)
                if arm != "none":
                    operator.flush()
                spent[arm].append(time.process_time() - begun)
                abandon(operator)
        rate = events / statistics.median(spent["none"])
        print(f"windows of {window:,}: {rate:,.0f} events a second of the processor if nothing is recorded")
        for arm, beside, most in (("memory", "none", limit), ("disk", "memory", 1.05)):
            ratio = statistics.median(a / b for a, b in zip(spent[arm], spent[beside], strict=True))
            yield Goal(f"windows of {window:,}: {arm} {ratio:.3f} of {beside}, at most {most:g}", ratio <= most)


def extents(folder: Path, items: int) -> Iterator[Goal]:
    """Extent and replay by q and by u, beside the model; and how long loading takes."""
    drawn = items_of(items * _STEADY, items)
    extent_of: dict[str, int] = {}
    gchecks = {}
    settings: list[tuple[str, float | None, int | None]] = [("none", None, None)]
    settings += [(f"q {q}", float(q), None) for q in (1, 2, 4, 8)]
    settings += [(f"u {u} x items", None, int(u * items)) for u in (1.25, 2.5, 5, 10)]
    print(f"{items:,} items, {len(drawn):,} events; model in brackets")
    for name, q, u in settings:
        policy = no_checks() if q is u is None else Noted(q, u, budget=0.005, period=0.1)
        url = f"log://{folder}/{name.replace(' ', '-')}"
        with safekeeper.open(url) as store:
            operator = operator_on(url, policy)
            operator.__enter__()
            steady = len(drawn) * 2 // 3
            take(operator, drawn[:steady], 1)
            before = policy.recorded
            take(operator, drawn[steady:], steady + 1)
            abandon(operator)
            found = loaded(store)
        checks = gchecks[name] = (policy.recorded - before) / (len(drawn) - steady)
        stored = [block for block in policy.blocks if block[0] <= found.events]  # the last ones may be lost
        model = modelled(drawn, "extent" if u is None else "replay", stored)
        extent_of[url] = found.extent
        megabytes = [outcome.replay * len(_TUPLE) / 1e6 for outcome in (found, model)]
        print(
            f"  {name:12} open {found.open:,} ({model.open:,}), extent {found.extent:,} ({model.extent:,}), replay"
            f" {megabytes[0]:.1f} MB ({megabytes[1]:.1f}), {checks:.3f} further records an event"
        )
        off = max(_off(found.extent, model.extent), _off(found.replay, model.replay))
        yield Goal(f"{name}: extent and replay within 10 % of the model: {off:.1%} off", off <= 0.1)
    ratio = gchecks["q 4"] / max(gchecks["q 1"], 1e-9)
    yield Goal(f"further records with q 4 at most 0.05 of those with q 1: {ratio:.3f}", ratio <= 0.05)
    yield from loads(extent_of)


def loads(extent_of: Mapping[str, int], rounds: int = 9) -> Iterator[Goal]:
    """How long journals take to load, in processor time: the least of several rounds, each with all of them."""
    taken = dict.fromkeys(extent_of, float("inf"))
    for _ in range(rounds):
        for url in taken:
            with safekeeper.open(url) as store:
                begun = time.process_time()
                loaded(store)
                taken[url] = min(taken[url], time.process_time() - begun)
    for url, seconds in taken.items():
        print(f"  {extent_of[url]:,} records load in {seconds:.3f} s of the processor")
    if len(set(extent_of.values())) > 2:  # else they are too few items
        line = statistics.correlation(list(extent_of.values()), list(taken.values())) ** 2
        yield Goal(f"loading is linear in the extent, r2 above 0.95: {line:.3f}", line > 0.95)
    most, url = max((extent, url) for url, extent in extent_of.items())
    scaled = taken[url] * 500_000 / most
    text = f"500,000 records load in 3 s (the paper: 27): {scaled:.2f} s of the processor, from {most:,}"
    yield Goal(text, scaled <= 3)


def loaded(store: safekeeper.Backend) -> Outcome:
    """What the journal says."""
    follow = Follow(store, "cec")
    follow.poll()
    image = follow.image
    return Outcome(image.extent.records, image.at.events - image.replay.events, len(image.parts), image.at.events)


def _off(found: int, expected: int) -> float:
    return abs(found - expected) / max(expected, 1)


def responses(folder: Path, items: int, rounds: int) -> Iterator[Goal]:
    """How much longer events take with further records, in processor time of the thread that takes them. Budget and
    period are in that time, too: by the clock a busy machine would cut the periods short, and not the budgets."""
    drawn = items_of(items * 10, items)
    periods = (0.025, 0.05, 0.1, 0.25)
    spent: dict[float, list[float]] = {0.0: [], **{period: [] for period in periods}}
    for number in range(rounds):
        for period in spent:
            policy: Eventual = no_checks()
            if period:
                policy = Eventual(q=1.0, budget=0.01, period=period, clock=time.thread_time)
            operator = operator_on(f"log://{folder}/response-{number}-{period}", policy)
            operator.__enter__()
            begun = time.thread_time()
            take(operator, drawn, 1)
            spent[period].append(time.thread_time() - begun)
            abandon(operator)
    for period in periods:
        ratio = statistics.median(a / b for a, b in zip(spent[period], spent[0.0], strict=True))
        limit = 1.1 / (1 - 0.01 / period)
        yield Goal(f"10 ms in every {1e3 * period:.0f}: {ratio:.2f} of none, at most {limit:.2f}", ratio <= limit)


def recoveries(folder: Path, items: int, kills: int) -> Iterator[Goal]:
    """What recovery takes after a kill with `recover_within`: from entering the operator until everything is replayed.
    Tuples are replayed from memory."""
    random = Random(1)  # noqa: S311
    for asked in (1.0, 2.0, 5.0):
        within = asked * items / 100_000
        url = f"log://{folder}/within-{asked}"
        drawn = items_of(items * (15 + 5 * kills + 5), items)
        taken = []
        for killed in range(kills + 1):
            reports, report = _FORK.Pipe(duplex=False)
            upto = items * (15 + 5 * killed)
            process = _FORK.Process(target=recover_and_go_on, args=(url, within, drawn, upto, report))
            process.start()
            recovery = reports.recv()
            if killed:
                taken.append(recovery)
            reports.recv()
            time.sleep(random.uniform(0, 0.1))
            process.kill()
            process.join()
        clock, processor = zip(*taken, strict=True)
        text = f"recover_within={within:g}: {statistics.median(clock):.2f} s by the clock, at most {max(clock):.2f}"
        text += f" ({statistics.median(processor):.2f} and {max(processor):.2f} of the processor)"
        yield Goal(f"{text}; {1.2 * within:.2f} are allowed", max(clock) <= 1.2 * within)


def recover_and_go_on(url: str, within: float, drawn: Sequence[int], upto: int, report: Connection) -> None:
    """Be an operator that recovers, says how long it took, takes events *upto* so many, says so and goes on."""
    clock, processor = time.perf_counter(), time.process_time()
    operator = operator_on(url, Eventual(recover_within=within))
    operator.__enter__()
    replay, first = operator._core.replay, operator.positions.get("tuples", 0)
    at = first if replay is None else replay._end.events
    take(operator, drawn[first:at], first + 1)
    report.send((time.perf_counter() - clock, time.process_time() - processor))
    take(operator, drawn[at:upto], at + 1)
    report.send(None)
    at = max(at, upto)
    take(operator, drawn[at:], at + 1)
    time.sleep(60)  # until it is killed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer items and rounds")
    parser.add_argument("--items", type=int)
    parser.add_argument("--only", default="", help="opened, extent, response or within")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    options = parser.parse_args()
    items = options.items or (300 if options.quick else 100_000)
    rounds = options.rounds or (1 if options.quick else 5)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for part, goals in (
            ("opened", openings(folder, items * 2, rounds)),
            ("extent", extents(folder, items)),
            ("response", responses(folder, items, rounds)),
            ("within", recoveries(folder, items, rounds)),
        ):
            if options.only in part:
                for goal in goals:
                    print(goal, flush=True)


if __name__ == "__main__":
    main()
