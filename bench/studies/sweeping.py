"""Sweeping checkpoints beside synchronous and individual ones: elements a block, bytes in all, time of a block.

    python -m safekeeper.bench.studies.sweeping [--rate 3000] [--seconds 20] [--intervals 0.2,0.5,1,2] [--plot FILE]

Eight operators in four processes, each with a `log:` of its own, TCP between them (`bench/lab/pipeline.py`). Arms:
together (all operators at the same moment, whole state), individual (a timer each, whole state), sweep (whole state),
sweep changes (ours: the parts that have changed). All elements are checked at the sink. A block has the operator's
state, 20 elements, and the outputs that its reader has not acknowledged and that no block before it has. So a swept one
has to have the state and what was sent since its reader's capture: rate x tau, which is measured, too. The chain runs a
while before anything is counted, until it has no backlog.

The oracle of the totals: a block of any operator but the last has the state and what its reader had not acknowledged:
what was sent since the reader's last capture, if the answer to that can have come, or since its own, if that was later.
The moments of all captures are measured; what they have to hold in all is computed from them, and compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from safekeeper.bench.harness import plots, svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.laboratory import needs_laboratory

with needs_laboratory():
    from safekeeper.bench.lab.pipeline import ELEMENT_BYTES, OPERATORS, STATE, Arm, OperatorChain

ARMS: tuple[Arm, ...] = get_args(Arm)
FIGURES = {
    "elements a block (figure 2)": "elements_a_block",
    "bytes of blocks an event (figure 3)": "bytes_an_event",
    "ms a block (figure 4)": "milliseconds",
}
"""What is plotted, with the numbers of the figures of the paper."""
PAPER = {
    "elements_a_block": "Paper: sweeping has about 1/30 of both others.",
    "bytes_an_event": "Paper: sweeping has 1/13 to 1/30; the others are flat over the interval, sweeping falls.",
    "milliseconds": "Paper: sweeping takes about 1/4, at 0.5 s and 1,000 to 7,000 elements a second.",
}
_WARM_UP, _SETTLE = 1.0, 10.0  # seconds: at least, and at most until there is no backlog
_ANSWER = 0.01  # seconds until a capture of a timer is acknowledged; a swept one is made when that has come
_BACKLOG = 0.1  # seconds of elements in the chain that are no backlog


@dataclass(frozen=True, slots=True)
class Swept:
    """What one arm wrote at one interval."""

    arm: Arm
    interval: float
    seconds: float
    events: int
    """Elements at the sink."""
    blocks: int
    nbytes: int
    elements: int
    spent: float
    """Processor-bound seconds of capturing and encoding."""
    swept: float = 0.0
    """Elements a block, of all operators but the last."""
    tau: float = 0.0
    """How many seconds before such a block its reader had captured one, the mean."""
    behind: int = 0
    """How many elements were in the chain at the end."""
    total: int = 0
    """Elements of all blocks whose reader had captured before."""
    oracle: float = 0.0
    """How many these have to have."""
    processor: float = 0.0
    """Seconds of the processor of capturing and encoding."""

    @property
    def predicted(self) -> float:
        """Elements that a swept block has to have: the state, and what was sent since its reader's capture."""
        return STATE + self.events / max(self.seconds, 1e-9) * self.tau

    @property
    def elements_a_block(self) -> float:
        """How much a block has to carry."""
        return self.elements / max(self.blocks, 1)

    @property
    def bytes_an_event(self) -> float:
        """Bytes of blocks of all operators, for each element that passed."""
        return self.nbytes / max(self.events, 1)

    @property
    def milliseconds(self) -> float:
        """What a block takes."""
        return 1e3 * self.spent / max(self.blocks, 1)

    @property
    def messages(self) -> float:
        """Bytes that travel, blocks and elements, beside the elements alone."""
        return 1 + self.nbytes / max(self.events * (OPERATORS + 1) * ELEMENT_BYTES, 1)

    def __str__(self) -> str:
        return (
            f"  {self.arm:14} {self.blocks:6} blocks  {self.elements_a_block:8.0f} elements a block"
            f"  {self.bytes_an_event:8.0f} bytes an event  {self.milliseconds:7.2f} ms a block"
            f" ({1e3 * self.processor / max(self.blocks, 1):.3f} of the processor)"
            f"  {self.messages:5.2f} x the bytes of the elements  {self.events:7} events  {self.behind:5} at the end"
        )


def run(arm: Arm, interval: float, rate: float, seconds: float) -> Swept:
    """Let the chain run, and count."""
    with tempfile.TemporaryDirectory() as folder, OperatorChain(folder, rate, arm, interval) as chain:
        chain.wait_for(1)
        time.sleep(_WARM_UP)
        settled = time.monotonic() + _SETTLE
        while chain.sent - chain.seen > rate * _BACKLOG and time.monotonic() < settled:
            time.sleep(0.05)
        chain.count_anew()
        begun, seen = time.monotonic(), chain.seen
        time.sleep(seconds)
        spent, behind, events = time.monotonic() - begun, chain.sent - chain.seen, chain.seen - seen
        chain.finish()
        counted = chain.counted()
        found = blocks_and_taus(counted.captures, begun + spent)
        totals = total_and_oracle(arm, counted.captures, events / spent, begun + spent)
        numbers = events, counted.blocks, counted.nbytes, counted.elements, counted.seconds
        return Swept(arm, interval, spent, *numbers, *found, behind, *totals, counted.processor)


def total_and_oracle(
    arm: Arm, captures: Sequence[tuple[str, float, int]], rate: float, until: float
) -> tuple[int, float]:
    """How many elements the blocks have in all, and how many they have to have. *captures* are as for
    `blocks_and_taus`; the first one of an operator does not count, since nobody knows since when it was."""
    answer = 0.0 if arm.startswith("sweep") else _ANSWER
    times: dict[str, list[float]] = {}
    total, oracle = 0, 0.0
    for name, at, count in captures:
        own, number = times.setdefault(name, []), int(name[1:])
        theirs = [when for when in times.get(f"o{number + 1}", ()) if when <= at - answer]
        if own and at < until:
            is_last = number + 1 == OPERATORS
            since = 0.0 if is_last else at - max(own[-1], theirs[-1] if theirs else 0.0)
            total, oracle = total + count, oracle + STATE + rate * since
        own.append(at)
    return total, oracle


def blocks_and_taus(captures: Sequence[tuple[str, float, int]], until: float) -> tuple[float, float]:
    """The mean elements of the blocks of all operators but the last, and the mean time since their readers' captures.
    *captures* are in the order of time: whose, when, elements."""
    last: dict[str, float] = {}
    elements, taus = [], []
    for name, at, count in captures:
        reader = f"o{int(name[1:]) + 1}"
        if reader in last and at < until:
            elements.append(count)
            taus.append(at - last[reader])
        last[name] = at
    return (statistics.fmean(elements), statistics.fmean(taus)) if taus else (0.0, 0.0)


def goals(found: Sequence[Swept]) -> list[Goal]:
    """What SW's figures 2 to 5 say, with the margins of two cores and Python."""
    by = {(one.arm, one.interval): one for one in found}
    said = []
    for interval in sorted({one.interval for one in found}):
        sweep = by["sweep", interval]
        together, individual = by["together", interval], by["individual", interval]
        share = max(sweep.bytes_an_event / other.bytes_an_event for other in (together, individual))
        most = 1 / 10 if interval >= 0.5 else 1 / 3
        text = f"sweeping writes {share:.3f} of the others' bytes at {interval} s, at most {most:.3f}"
        said.append(Goal(text, share <= most))
        text = f"a swept block has {sweep.swept:.0f} elements at {interval} s, predicted {sweep.predicted:.0f}"
        ratio = sweep.swept / max(sweep.predicted, 1e-9)
        text = f"{text} (tau {1e3 * sweep.tau:.0f} ms): {ratio:.2f}, at most 1.30"
        said.append(Goal(text, ratio <= 1.3))
        times = sweep.milliseconds / together.milliseconds, sweep.milliseconds / individual.milliseconds
        text = f"a swept block takes {times[0]:.2f} of a synchronous one and {times[1]:.2f} of an individual one"
        met = times[0] <= 1 / 3 and times[1] <= 1 / 2
        said.append(Goal(f"{text} at {interval} s, at most 0.33 and 0.50", met))
        ours = by["sweep changes", interval].messages
        text = f"bytes that travel at {interval} s: {ours:.2f} times the elements, at most 1.15"
        said.append(Goal(text, ours <= 1.15))
    return said


def oracle_goals(found: Sequence[Swept]) -> Iterator[Goal]:
    """Whether all blocks together have what they have to have."""
    for one in found:
        ratio = one.total / max(one.oracle, 1e-9)
        text = f"{one.arm} at {one.interval} s: {one.total} elements in all blocks, by the oracle {one.oracle:.0f}"
        yield Goal(f"{text}: {ratio:.2f}, from 0.75 to 1.30", 0.75 <= ratio <= 1.3)


def _plot(found: Sequence[Swept], file: Path) -> None:
    figures = []
    for title, value in FIGURES.items():
        lines = [
            svg.Series(arm, [(one.interval, float(getattr(one, value))) for one in found if one.arm == arm])
            for arm in ARMS
        ]
        plot = svg.line_plot(title, svg.Axis("seconds between blocks"), svg.Axis(title, logarithmic=True), lines)
        text = f"Over the interval of the timer: of all operators, or of the last. {PAPER[value]}"
        figures.append(plots.figure(title, plot, text))
    body = [plots.legend(list(ARMS)), plots.figures(figures)]
    file.write_text(plots.page("sweeping checkpoints", body))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=3000.0, help="elements a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each arm at each interval")
    parser.add_argument("--intervals", default="0.2,0.5,1,2", help="of the timers, in seconds")
    parser.add_argument("--plot", type=Path, help="where a page with plots goes")
    parser.add_argument("--quick", action="store_true", help="5 s at one interval, 1,000 elements a second; no goals")
    options = parser.parse_args()
    if options.quick:
        options.rate, options.seconds, options.intervals = 1000.0, 5.0, "0.5"
    found = []
    for interval in map(float, options.intervals.split(",")):
        print(f"a timer of {interval} s, {options.rate:g} elements a second")
        for arm in ARMS:
            found.append(run(arm, interval, options.rate, options.seconds))
            print(found[-1], flush=True)
    for goal in (*goals(found), *oracle_goals(found)):
        print(Goal(goal.text, None) if options.quick else goal)
    if options.plot:
        _plot(found, options.plot)


if __name__ == "__main__":
    main()
