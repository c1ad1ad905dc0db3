"""Five processes with eight operators each that share an `IdleCapture`: the simulator beside what really happens.

    python -m safekeeper.bench.studies.minmax [--seconds 15] [--cores 1.2] [--share 0.01] [--plot FILE] [--quick]

The units of the thesis (4.5): four of eight have six times the load and twice the state of the others; loads are scaled
so that all processes together use *cores*. One thread of each process takes all events. Every process has a `log:` of
its own, and a thread that follows the operators it is the backup of: their blocks wait there, and the `IdleCapture`
that all operators of the process share says when one of these captures and when what waits of one is pasted. What is
compared is the mean expected recovery time of a process: of the backup that has most to paste and to process again. The
simulator gets the loads and the costs of captures and pastes that were measured in the run. The arm *whole* captures
all eight at once, and pastes what comes. Loads and costs are processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safekeeper
from safekeeper import Every, SafeKeeper
from safekeeper.bench.harness import plots, svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.studies.minmax_simulator import RULES, SHIPPED, SimulatedServer, Simulator
from safekeeper.journal.block import Block
from safekeeper.journal.follow import Follow
from safekeeper.operators import Operator
from safekeeper.operators.core import Core
from safekeeper.policy import Changed, IdleCapture
from safekeeper.policy.minmax import CaptureUnit, segments
from safekeeper.standby import ReceivedBlocks

PROCESSES, UNITS = 5, 8
LOADS = 0.168, 0.028
STATES = 40_000, 20_000
"""Numbers in the state of a unit of each kind."""
EVENT = 0.001  # seconds that an event takes
_WARM_UP = 1.0
_TICK = 0.02  # seconds, by a clock that all processes have
_LIST, _RECEIVE, _ASK = 1.0, 0.05, 0.01  # seconds between listings, reads, and questions whether to paste


@dataclass(frozen=True, slots=True)
class MeasuredProcess:
    """What one process has seen."""

    unsaved: dict[str, dict[str, float]]
    """By tick and backup: how long it would take to process again what is in no block."""
    waiting: dict[str, dict[str, float]]
    """By tick and owner: how long it would take to paste what has come of it."""
    loads: tuple[float, float]
    """Of the units of each kind."""
    costs: tuple[float, float]
    """How long a capture of each kind takes."""
    pauses: list[float]
    """How long each capture took; of all units together, where they are captured at once."""
    pastes: list[tuple[int, int, float]]
    """Of each paste the kind of the unit, how many blocks, and how long it took."""


def backup_of(process: int, unit: int) -> int:
    """Which process follows a unit: the others in turns, two units each."""
    return (process + 1 + unit // 2 % (PROCESSES - 1)) % PROCESSES


class Worker:
    """One of the processes."""

    def __init__(self, folder: str, process: int, arm: str, scale: float, share: float) -> None:
        self._folder, self._process, self._arm, self._scale = folder, process, arm, scale
        self.captures: list[tuple[int, float]] = []
        self.pastes: list[tuple[int, int, float]] = []
        self._received: dict[tuple[int, int], ReceivedBlocks] = {}
        self._ending = threading.Event()
        self._operators: list[Operator] = []
        self._views: dict[int, str] = {}
        rule = RULES.get(arm, RULES[SHIPPED])()
        self._idle = IdleCapture(rule, share=share, at_least=60.0, backup=lambda view: self._views.get(id(view), ""))

    def run(self, seconds: float) -> MeasuredProcess:
        """Take events for so long, after a warm-up."""
        self._time_captures()
        with ExitStack() as stack:
            keeper = stack.enter_context(SafeKeeper(f"log://{self._folder}/{self._process}", serializer=None))
            for unit in range(UNITS):
                capture = Changed(Every(seconds=3600)) if self._arm == "whole" else self._idle
                operator = Operator(f"u{self._process}.{unit}", keeper, capture=capture)
                self._views[id(operator._core)] = str(backup_of(self._process, unit))
                self._operators.append(stack.enter_context(operator))
            follower = threading.Thread(target=self._follow)
            follower.start()
            stack.callback(follower.join)
            stack.callback(self._ending.set)
            return self._take_events(seconds)

    def _time_captures(self) -> None:
        capture = Core.capture

        def timed(core: Core, number: int, *, now: bool = False) -> Block | None:
            begun = time.thread_time()
            block = capture(core, number, now=now)
            if block is not None:
                unit = [operator._core for operator in self._operators].index(core)
                self.captures.append((unit, time.thread_time() - begun))
            return block

        setattr(Core, "capture", timed)  # noqa: B010 - what operators do is measured from outside

    def _follow(self) -> None:
        """Receive what others capture, as a standby does, and paste it when it is its turn."""
        mine = [
            (owner, unit)
            for owner in range(PROCESSES)
            for unit in range(UNITS)
            if owner != self._process and backup_of(owner, unit) == self._process
        ]
        with ExitStack() as stack:
            stores = {owner: stack.enter_context(safekeeper.open(f"log://{self._folder}/{owner}")) for owner, _ in mine}
            for owner, unit in mine:
                follow = Follow(stores[owner], f"u{owner}.{unit}")
                self._received[owner, unit] = ReceivedBlocks(follow, str(owner))
            read = listed = 0.0
            while not self._ending.wait(_ASK):
                now = time.monotonic()
                due, look = now - read > _RECEIVE, now - listed > _LIST
                read, listed = now if due else read, now if look else listed
                for (_, unit), received in self._received.items():
                    if due:
                        received.receive(look=look)
                    if self._arm == "whole" or self._idle.may_paste(received):
                        self._paste(unit % 2, received)

    def _paste(self, kind: int, received: ReceivedBlocks) -> None:
        begun = time.thread_time()
        if blocks := received.paste():
            self.pastes.append((kind, blocks, time.thread_time() - begun))

    def _look(self, now: float) -> tuple[dict[str, float], dict[str, float]]:
        """How long the backups would process again, and how long this one would paste, by owner."""
        with self._idle._lock:
            unsaved = segments(self._idle._units(now), now)
        waiting: dict[str, float] = {}
        for (owner, _), received in self._received.items():
            waiting[str(owner)] = waiting.get(str(owner), 0.0) + received.waiting
        return unsaved, waiting

    def _take_events(self, seconds: float) -> MeasuredProcess:
        begun = time.monotonic()
        done, spent = [0] * UNITS, [0.0] * UNITS
        unsaved: dict[str, dict[str, float]] = {}
        waiting: dict[str, dict[str, float]] = {}
        pauses: list[float] = []
        looked = whole = begun + _WARM_UP
        while (now := time.monotonic()) < begun + _WARM_UP + seconds:
            for unit, operator in enumerate(self._operators):
                rate = LOADS[unit % 2] * self._scale / EVENT
                if done[unit] < (now - begun) * rate:
                    done[unit] += 1
                    spent[unit] += self._event(operator, unit, done[unit])
            if now >= looked:
                looked = (now // _TICK + 1) * _TICK
                tick = str(int(now / _TICK))
                unsaved[tick], waiting[tick] = self._look(now)
            if self._arm == "whole" and now >= whole:
                whole = now + 1.0
                pauses.append(self._capture_all())
            time.sleep(0.0005)
        passed = time.monotonic() - begun
        loads = [statistics.fmean(spent[kind::2]) / passed for kind in (0, 1)]
        costs = [
            statistics.fmean([took for unit, took in self.captures if unit % 2 == kind] or [0.0]) for kind in (0, 1)
        ]
        pauses = pauses or [took for _, took in self.captures]
        kinds = (loads[0], loads[1]), (costs[0], costs[1])
        return MeasuredProcess(unsaved, waiting, *kinds, sorted(pauses), self.pastes)

    def _event(self, operator: Operator, unit: int, number: int) -> float:
        begun = time.thread_time()
        with operator.event("in", number) as event:
            state = event.part(b"state", lambda: [1_000_000] * STATES[unit % 2]).state
            state[number % len(state)] += 1
            while time.thread_time() - begun < EVENT:
                pass
        return EVENT

    def _capture_all(self) -> float:
        before = len(self.captures)
        for operator in self._operators:
            with operator._lock:
                operator._append(now=True)
        return sum(took for _, took in self.captures[before:])


def measure(arm: str, seconds: float, scale: float, share: float) -> list[MeasuredProcess]:
    """Run all processes."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, children = [], []
        for process in range(PROCESSES):
            reading, writing = os.pipe()
            if not (pid := os.fork()):
                code = 1
                try:
                    found = Worker(folder, process, arm, scale, share).run(seconds)
                    fields: dict[str, Any] = {name: getattr(found, name) for name in MeasuredProcess.__slots__}
                    with os.fdopen(writing, "w") as pipe:
                        json.dump(fields, pipe)
                    code = 0
                finally:
                    os._exit(code)
            os.close(writing)
            pipes.append(reading)
            children.append(pid)
        said = []
        for reading in pipes:
            with os.fdopen(reading) as pipe:
                said.append(pipe.read())
        for pid in children:
            os.waitpid(pid, 0)
    return [MeasuredProcess(**json.loads(text)) for text in said]


def expected_recovery(measured: Sequence[MeasuredProcess]) -> float:
    """The mean over processes and ticks of what the slowest backup would take: to paste, and to process again."""
    ticks = [sorted(map(int, one.waiting)) for one in measured]

    def waiting(backup: int, tick: int, owner: int) -> float:
        """What waited there, when it was last looked at."""
        last = ticks[backup][max(bisect(ticks[backup], tick) - 1, 0)]
        return measured[backup].waiting[str(last)].get(str(owner), 0.0)

    return statistics.fmean(
        max(seconds + waiting(int(backup), int(tick), owner) for backup, seconds in unsaved.items())
        for owner, one in enumerate(measured)
        for tick, unsaved in one.unsaved.items()
        if unsaved
    )


def paste_costs(measured: Sequence[MeasuredProcess]) -> tuple[float, float]:
    """How long it takes to paste a block of each kind."""
    costs = []
    for kind in (0, 1):
        pastes = [(blocks, took) for one in measured for of, blocks, took in one.pastes if of == kind]
        costs.append(sum(took for _, took in pastes) / max(sum(blocks for blocks, _ in pastes), 1))
    return costs[0], costs[1]


def simulate(rule: str, measured: Sequence[MeasuredProcess], share: float) -> float:
    """The mean expected recovery time that the simulator gives for these loads and costs."""
    servers = []
    pastes = paste_costs(measured)
    for process, one in enumerate(measured):
        units = []
        for unit in range(UNITS):
            costs = one.loads[unit % 2], one.costs[unit % 2], pastes[unit % 2]
            units.append(CaptureUnit(f"u{unit}", str(backup_of(process, unit)), *costs))
        servers.append(SimulatedServer(str(process), units, RULES[rule]()))
    simulator = Simulator(servers, share=share, again="any time")
    simulator.run(10.0, 60.0)
    return statistics.fmean(simulator.seen)


def _plot(recoveries: Mapping[str, tuple[float, float]], single: float, whole: float, file: Path) -> None:
    rules = list(recoveries)
    ticks = svg.Axis("rule", ticks=[(float(at), rule) for at, rule in enumerate(rules)])
    names = ["real", "simulated"]
    lines = [
        svg.Series(name, [(float(at), 1e3 * recoveries[rule][which]) for at, rule in enumerate(rules)])
        for which, name in enumerate(names)
    ]
    plot = svg.line_plot("expected recovery", ticks, svg.Axis("expected recovery, ms"), lines)
    text = (
        "Five processes with eight operators each. Thesis: captures of everything are worse than round robin, round"
        f" robin than min-max. The longest pause here: {1e3 * single:.1f} ms by one unit, {1e3 * whole:.1f} by all."
    )
    figures = [plots.figure("Figure 4.6: expected recovery of real processes", plot, text)]
    file.write_text(plots.page("captures and pastes of real processes", [plots.legend(names), plots.figures(figures)]))


def main() -> None:
    """Measure, simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each arm")
    parser.add_argument("--cores", type=float, default=1.2, help="that all processes use for events")
    parser.add_argument("--share", type=float, default=0.01, help="of the time of a process, for captures")
    parser.add_argument("--plot", type=Path, help="where a page with a plot goes")
    parser.add_argument("--quick", action="store_true", help="1 s, half a core; goals are not measured")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.cores = 1.0, 0.5
    scale = options.cores / (PROCESSES * UNITS / 2 * sum(LOADS))
    goals, single, recoveries = [], 0.0, dict[str, tuple[float, float]]()
    for rule in ("round robin", SHIPPED):
        found = measure(rule, options.seconds, scale, options.share)
        real, simulated = expected_recovery(found), simulate(rule, found, options.share)
        recoveries[rule] = real, simulated
        load = [statistics.fmean(one.loads[kind] for one in found) for kind in (0, 1)]
        cost = [1e3 * statistics.fmean(one.costs[kind] for one in found) for kind in (0, 1)]
        captures, pasted = sum(len(one.pauses) for one in found), sum(len(one.pastes) for one in found)
        paste = [1e3 * seconds for seconds in paste_costs(found)]
        print(
            f"{rule}: expected recovery {1e3 * real:.1f} ms, simulated {1e3 * simulated:.1f} ms; loads {load[0]:.3f}"
            f" and {load[1]:.3f}, {captures} captures of {cost[0]:.2f} and {cost[1]:.2f} ms, {pasted} pastes of"
            f" {paste[0]:.2f} and {paste[1]:.2f} ms a block",
            flush=True,
        )
        text = f"{rule}: {real / simulated:.2f} of what is simulated, from 0.75 to 1.25"
        goals.append(Goal(text, 0.75 <= real / simulated <= 1.25))
        single = max(single, statistics.median(one.pauses[-1] for one in found))
    whole = statistics.median(one.pauses[-1] for one in measure("whole", options.seconds, scale, options.share))
    text = f"the longest pause is {1e3 * single:.1f} ms by one unit, {1e3 * whole:.1f} ms by all: {single / whole:.2f}"
    goals.append(Goal(f"{text}, at most 0.25 (medians of the processes)", single <= whole / 4))
    for goal in goals:
        print(Goal(goal.text, None) if options.quick else goal)
    if options.plot:
        _plot(recoveries, single, whole, options.plot)


if __name__ == "__main__":
    main()
