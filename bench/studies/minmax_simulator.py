"""Which rule for captures keeps recovery shortest: a simulator that runs the rules of `policy/minmax.py`.

    python -m safekeeper.bench.studies.minmax_simulator [--quick] [--seconds 60] [--seeds 4] [--family] [--plot FILE]

Servers hold eight units each, four of one kind and four of another, that the other servers back up in equal shares. A
server that has nothing to process captures one of its units or pastes what another has captured, as its rule says.
Meanwhile tuples wait, so after a capture or a paste of c seconds with a load L it is busy for c L / (1 - L) more. A
unit may be captured again when its last capture was pasted. What is shown is the mean over time and servers of the
expected recovery time, beside that of round robin. The costs of whole captures are not in the thesis, only that those
of one kind take twice as long; they are the same each time, and to paste takes as long as to capture.
With *family* the rules run on 60 loads: how busy a server is, how much more one kind of units has to process than the
other, how much dearer its captures are. Backups at random are also simulated, with and without the moves of
`policy/assign.py` once a second; who gets a unit pastes it first.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from safekeeper.bench.harness import plots, svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.policy.assign import assign
from safekeeper.policy.minmax import (
    CaptureRule,
    CaptureUnit,
    PayingRule,
    RootRule,
    RoundRobin,
    ThesisRule,
    WaitingPaste,
    expected_recovery,
    segments,
)

RULES: dict[str, Callable[[], CaptureRule]] = {
    "round robin": RoundRobin,
    "thesis": ThesisRule,
    "root": RootRule,
    "paying": PayingRule,
}
SHIPPED = "paying"
"""The rule of an `IdleCapture`, unless it is given another one."""
LOADS = {
    "the thesis'": ((0.168, 0.034), (0.028, 0.017)),
    "equal costs": ((0.168, 0.017), (0.028, 0.017)),
    "18 % at 10 ms, 1.5 % at 40 ms": ((0.18, 0.010), (0.015, 0.040)),
    "18 % at 5 ms, 1.5 % at 60 ms": ((0.18, 0.005), (0.015, 0.060)),
    "all equal": ((0.1, 0.02), (0.1, 0.02)),
}
SERVERS = (5, 9)
UNEQUAL = list(LOADS)[2:4]
Kinds: TypeAlias = tuple[tuple[float, float], ...]
"""Of each kind of units the load, and the cost of a capture."""
BUSY = (0.1, 0.4, 0.78)
"""How much of the time a server processes, in the family."""
HEAVIER = (1, 3, 6, 12)
"""How many times as much the units of one kind have to process."""
DEARER = (0.1, 0.25, 1, 2, 4)
"""How many times as much a capture of them costs."""
_COST = 0.02  # seconds, the geometric mean of both kinds
_EPOCH = 1.0  # seconds between two assignments
_TICK = 1 / 256  # seconds; how often the recovery times are looked at


@dataclass(slots=True)
class SimulatedServer:
    """One server: its units, its rule, and what it has to paste, the oldest first."""

    name: str
    units: list[CaptureUnit]
    rule: CaptureRule
    received: list[tuple[SimulatedServer, CaptureUnit]] = field(default_factory=list)

    @property
    def load(self) -> float:
        """Seconds of processing in a second."""
        return sum(unit.load for unit in self.units)

    def pastes(self, now: float) -> list[WaitingPaste]:
        """The oldest that was received from each server."""
        oldest: dict[str, tuple[SimulatedServer, CaptureUnit]] = {}
        for owner, unit in self.received:
            oldest.setdefault(owner.name, (owner, unit))
        found = []
        for owner, unit in oldest.values():
            load = sum(other.load for other in owner.units if other.backup == self.name)
            recovery = segments(owner.units, now)[self.name]
            found.append(WaitingPaste(owner.name, unit.name, unit.waiting, recovery, load))
        return found


Again: TypeAlias = Literal["when pasted", "any time"]
"""When a unit may be captured again: as in the thesis, or as real operators do, of which several blocks may wait."""


class Simulator:
    """Servers from 0 to the end; *seen* are the recovery times at every tick, of each server. Captures and pastes take
    at most *share* of the time. Backups are assigned anew every *epoch* seconds, if that is given."""

    def __init__(
        self,
        servers: list[SimulatedServer],
        *,
        paste: bool = True,
        share: float = 1.0,
        again: Again = "when pasted",
        epoch: float | None = None,
    ) -> None:
        self._share, self._again, self._epoch = share, again, epoch
        self.servers = {server.name: server for server in servers}
        self.seen: list[float] = []
        self.captures: list[tuple[str, float]] = []
        self.pastes = self.moves = 0
        self._paste = paste
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._next = 0.0  # when to look

    def at(self, when: float, do: Callable[[float], None]) -> None:
        """Do something at a time; at the same time in the order of these calls."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, do))

    def run(self, begin: float, end: float) -> None:
        """Run to *end*; look from *begin* on, just before what happens at a tick."""
        self._next = begin
        for server in self.servers.values():
            self.at(0.0, lambda now, server=server: self._idle(server, now))  # type: ignore[misc]
        if self._epoch is not None:
            self.at(self._epoch, self._assign)
        while self._events and self._events[0][0] < end:
            when, _, do = heapq.heappop(self._events)
            self._look_until(when)
            do(when)
        self._look_until(end - _TICK)

    def _look_until(self, when: float) -> None:
        while self._next <= when + 1e-9:
            self.seen += [expected_recovery(server.units, self._next) for server in self.servers.values()]
            self._next += _TICK

    def _idle(self, server: SimulatedServer, now: float) -> None:
        deed = server.rule.choose(now, server.units, server.pastes(now))
        if deed is None:
            self.at(now + _TICK, lambda now: self._idle(server, now))
            return
        if isinstance(deed, CaptureUnit):
            cost = deed.capture
            deed.free = False
            self.captures.append((deed.name, now))
            self.at(now + cost, lambda when: self._captured(server, deed, now))
        else:
            cost = deed.paste
            unit = next(unit for owner, unit in server.received if owner.name == deed.owner)
            server.received = [pair for pair in server.received if pair[1] is not unit]
            self.pastes += 1
            self.at(now + cost / (1 - server.load), lambda when: self._pasted(unit, cost))
        busy = max(cost / (1 - server.load), cost / self._share)
        self.at(now + busy, lambda now: self._idle(server, now))

    def _assign(self, now: float) -> None:
        """Move units to other backups. Who gets one has to paste it first."""
        assert self._epoch is not None
        self.at(now + self._epoch, self._assign)
        for move in assign({name: server.units for name, server in self.servers.items()}, now):
            owner = self.servers[move.owner]
            unit = next(unit for unit in owner.units if unit.name == move.unit)
            if unit.free and not unit.waiting:  # else it is under way to the one before
                unit.backup, unit.free, unit.waiting = move.to, False, unit.paste
                self.servers[move.to].received.append((owner, unit))
                self.moves += 1

    def _captured(self, owner: SimulatedServer, unit: CaptureUnit, begun: float) -> None:
        unit.since = begun
        if not self._paste:
            unit.free = True
            return
        unit.waiting += unit.paste
        unit.free = self._again == "any time"
        self.servers[unit.backup].received.append((owner, unit))

    def _pasted(self, unit: CaptureUnit, cost: float) -> None:
        unit.waiting -= cost
        unit.free = True


def example(rule: CaptureRule) -> tuple[float, float, list[tuple[str, float]]]:
    """The worked example of the thesis (4.3.1), without pastes: mean and peak of the recovery time from 40 to 390
    seconds, and the captures."""
    simulator = example_run(rule, 40.0, 390.0)
    return statistics.fmean(simulator.seen), max(simulator.seen), simulator.captures


def example_run(rule: CaptureRule, begin: float = 0.0, end: float = 20.0) -> Simulator:
    """The worked example, looked at from *begin* to *end*."""
    units = [
        CaptureUnit("u1", "s2", 0.11, 0.125, 0.125),
        CaptureUnit("u2", "s2", 0.10, 0.25, 0.25),
        CaptureUnit("u3", "s3", 0.665, 0.125, 0.125),
    ]
    simulator = Simulator([SimulatedServer("s1", units, rule)], paste=False)
    simulator.run(begin, end)
    return simulator


def cluster(
    count: int, kinds: Kinds, rule: str, seed: int, backups: Literal["shares", "random"] = "shares"
) -> list[SimulatedServer]:
    """So many servers with eight units each, in a random order and with captures of random age. They are backed up in
    equal shares, or each by anybody."""
    random = Random(seed)  # noqa: S311
    servers = []
    for number in range(count):
        peers = [f"s{other}" for other in range(count) if other != number]
        random.shuffle(peers)
        units = []
        for unit in range(8):
            load, cost = kinds[unit % 2]
            share = peers[(unit // 2 + unit % 2 * 4) % len(peers)]
            backup = share if backups == "shares" else random.choice(peers)
            units.append(CaptureUnit(f"u{number}.{unit}", backup, load, cost, cost, since=-random.random()))
        random.shuffle(units)
        servers.append(SimulatedServer(f"s{number}", units, RULES[rule]()))
    return servers


def mean(count: int, kinds: Kinds, rule: str, seconds: float, seeds: int) -> float:
    """The mean recovery time, over several runs."""
    found = []
    for seed in range(seeds):
        simulator = Simulator(cluster(count, kinds, rule, seed))
        simulator.run(seconds / 6, seconds)
        found.append(statistics.fmean(simulator.seen))
    return statistics.fmean(found)


@dataclass(frozen=True, slots=True)
class ComparedRules:
    """What the rules give on one load."""

    load: str
    servers: int
    base: float
    """The mean recovery time with round robin."""
    ratios: dict[str, float]
    """That of the other rules, as a part of it."""

    def __str__(self) -> str:
        shown = ", ".join(f"{rule} {ratio:.2f}" for rule, ratio in self.ratios.items())
        return f"{self.load}, {self.servers} servers: round robin {self.base:.3f} s; of that: {shown}"

    @property
    def goal(self) -> Goal:
        """What is wanted of the rule that is shipped."""
        limit, ratio = 0.7 if self.load in UNEQUAL else 1.0, self.ratios[SHIPPED]
        text = f"{self.load}, {self.servers} servers: {SHIPPED} at most {limit:g}: {ratio:.2f}"
        return Goal(text, round(ratio, 2) <= limit)


def compare(loads: Mapping[str, tuple[Kinds, Sequence[int]]], seconds: float, seeds: int) -> Iterator[ComparedRules]:
    """Every rule on every load, beside round robin."""
    for load, (kinds, servers) in loads.items():
        for count in servers:
            base = mean(count, kinds, "round robin", seconds, seeds)
            ratios = {rule: mean(count, kinds, rule, seconds, seeds) / base for rule in RULES if rule != "round robin"}
            yield ComparedRules(load, count, base, ratios)


def family() -> dict[str, tuple[Kinds, Sequence[int]]]:
    """60 loads, of 9 and of 5 servers in turns."""
    found: dict[str, tuple[Kinds, Sequence[int]]] = {}
    for busy in BUSY:
        for heavier in HEAVIER:
            for dearer in DEARER:
                load, cost = busy / 4 / (1 + heavier), _COST / dearer**0.5
                kinds = ((load * heavier, cost * dearer), (load, cost))
                name = f"{busy:.0%} busy, {heavier} x the load, {dearer:g} x the cost"
                found[name] = kinds, [SERVERS[1 - len(found) % 2]]
    return found


def summary(found: Sequence[ComparedRules]) -> Iterator[str]:
    """What the rules give on all loads together."""
    for rule in RULES:
        ratios = [one.ratios[rule] for one in found if rule in one.ratios]
        if ratios:
            worse = sum(round(ratio, 2) > 1 for ratio in ratios)
            text = f"{rule}: {statistics.fmean(ratios):.2f} of round robin in the mean, {max(ratios):.2f} at most"
            yield f"{text}, worse than it on {worse} of {len(ratios)}"


def assigned(count: int, seconds: float, seeds: int) -> tuple[float, float, float, int]:
    """The mean recovery time on the thesis' load with backups in equal shares, at random, and at random with moves; and
    how many moves there were."""
    times: dict[str, list[float]] = {}
    moves = 0
    for seed in range(seeds):
        for arm, epoch in (("shares", None), ("random", None), ("moved", _EPOCH)):
            servers = cluster(count, LOADS["the thesis'"], SHIPPED, seed, "shares" if arm == "shares" else "random")
            simulator = Simulator(servers, epoch=epoch)
            simulator.run(seconds / 6, seconds)
            times.setdefault(arm, []).append(statistics.fmean(simulator.seen))
            moves += simulator.moves
    shares, random, moved = (statistics.fmean(some) for some in times.values())
    return shares, random, moved, moves


def _plot(found: Sequence[ComparedRules], file: Path) -> None:
    names = list(dict.fromkeys(one.load for one in found))
    lines = [
        svg.Series(
            f"{rule}, {count} servers",
            [(float(names.index(one.load)), one.ratios[rule]) for one in found if one.servers == count],
        )
        for count in SERVERS
        for rule in RULES
        if rule != "round robin"
    ]
    ticks = svg.Axis("load", ticks=[(float(at), str(at + 1)) for at in range(len(names))])
    plot = svg.line_plot("part of round robin", ticks, svg.Axis("part of round robin"), lines)
    loads = ", ".join(f"{at}: {name}" for at, name in enumerate(names, 1))
    text = f"Mean expected recovery. Thesis: min-max gains 25 % with random backups, 50 % with balanced ones. {loads}."
    figures, shown = [plots.figure("Figure 4.8: rules beside round robin", plot, text)], list[svg.Series]()
    for name in ("round robin", "thesis"):
        simulator = example_run(RULES[name]())
        shown.append(svg.Series(name, [(n * _TICK, seen) for n, seen in enumerate(simulator.seen) if n % 32 == 0]))
    plot = svg.line_plot("expected recovery", svg.Axis("seconds"), svg.Axis("expected recovery, s"), shown)
    text = "Means 1.4748 and 1.0272 s, peaks 2.7431 and 2.0781 from 40 s on, as in the thesis."
    body = [plots.legend([line.name for line in lines]), plots.figures(figures)]
    figures = [plots.figure("The worked example (4.3.1), the first 20 s", plot, text)]
    body += [plots.legend([line.name for line in shown]), plots.figures(figures)]
    file.write_text(plots.page("which unit to capture next", body))


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run of a few seconds")
    parser.add_argument("--seconds", type=float, help="that are simulated in each run")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--family", action="store_true", help="60 loads more")
    parser.add_argument("--plot", type=Path, help="where a page with plots goes")
    options = parser.parse_args()
    for name in ("round robin", "thesis"):
        average, peak, captures = example(RULES[name]())
        schedule = " ".join(unit for unit, _ in captures[:10])
        print(f"worked example, {name}: mean {average:.4f} s, peak {peak:.4f} s, {schedule}")
    seconds, seeds = (6.0, 1) if options.quick else (60.0, 4)
    seconds, seeds = options.seconds or seconds, options.seeds or seeds
    found = []
    for compared in compare({load: (kinds, SERVERS) for load, kinds in LOADS.items()}, seconds, seeds):
        found.append(compared)
        print(compared, compared.goal, sep="\n", flush=True)
    for count in SERVERS:
        shares, random, moved, moves = assigned(count, seconds, seeds)
        print(
            f"backups of {count} servers at random: {random:.3f} s; {moves} moves leave {moved / random:.2f} of that,"
            f" equal shares are {shares / random:.2f}"
        )
    if options.family:
        many = []
        for compared in compare(family(), seconds, seeds):
            many.append(compared)
            print(compared, flush=True)
        print(*summary(many), sep="\n")
    if options.plot:
        _plot(found, options.plot)


if __name__ == "__main__":
    main()
