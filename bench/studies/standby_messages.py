"""What active and passive standbys send, and how long nothing comes when one of a pair is killed (SW, figures 5 and 6).

    python -m safekeeper.bench.studies.standby_messages [--rates 1000,3000] [--seconds 5] [--plot FILE] [--quick]

Two subjobs of two operators each, a process each, TCP between them (`bench/lab/copies.py`). Arms: no standby; an
**active** standby of the second subjob (each element goes to both copies), of both (each copy sends to both); and
**passive** ones, whose operators append blocks by sweeping checkpoints every 0.5 s, on `log:`. Counted are the elements
that the second subjob has received, and the bytes of blocks. All elements are checked at the sink. Then a process of
the second subjob is killed in the middle of a run: of two active copies the other goes on; a passive one is started
again by whoever notices, which is done at once here.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

from safekeeper.bench.harness import plots, svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.laboratory import needs_laboratory

with needs_laboratory():
    from safekeeper.bench.lab.copies import COPIES, OPERATORS, CopiedPair, StandbyArm
    from safekeeper.bench.lab.pipeline import ELEMENT_BYTES

PAPER: dict[StandbyArm, float] = {"none": 1.0, "none-active": 2.0, "active-active": 4.0, "passive": 1.1}
"""Messages beside those without a standby, in figure 5 of the paper."""
KILLED: tuple[StandbyArm, ...] = ("active-active", "passive")
_BEFORE, _AFTER = 2.0, 3.0  # seconds of a run around a kill
_DOTS = 0.1  # seconds between dots of a plot


@dataclass(frozen=True, slots=True)
class SentMessages:
    """What one arm has sent at one rate."""

    arm: StandbyArm
    rate: float
    elements: int
    """That came from the source."""
    received: int
    """Elements that went from the first subjob to the second, copies and all."""
    nbytes: int
    """Of blocks that go to a disk."""

    @property
    def messages(self) -> float:
        """Beside the elements that go from one subjob to the other without a standby. Bytes of blocks count as
        elements; those of all operators, beside the elements on all ways from the source to the sink."""
        blocks = self.nbytes / (self.elements * ELEMENT_BYTES * (OPERATORS + 1))
        return self.received / self.elements + blocks

    def __str__(self) -> str:
        return (
            f"{self.rate:g} elements a second, {self.arm}: {self.messages:.3f} times the messages without a standby"
            f" ({self.elements} elements, {self.received} between the subjobs, {self.nbytes / 1e3:.0f} kB of blocks)"
        )


@dataclass(frozen=True, slots=True)
class Silence:
    """What the sink saw of a kill. Times are in seconds, 0 is the kill."""

    arm: StandbyArm
    arrivals: list[tuple[float, int]]
    """When how many elements had come, from the first one shown on."""

    def longest(self, begin: float, end: float) -> float:
        """The longest time without an element that began in a part of the run."""
        return max((b - a for (a, _), (b, _) in pairwise(self.arrivals) if begin <= a < end), default=0.0)

    @property
    def spacing(self) -> float:
        """The median of the times between two arrivals, before the kill."""
        return statistics.median(b - a for (a, _), (b, _) in pairwise(self.arrivals) if b < 0)

    def shown(self) -> Iterator[tuple[float, float]]:
        """What is plotted: not every arrival, but both sides of every silence."""
        last = -inf
        for (at, seen), (then, _) in pairwise([*self.arrivals, (inf, 0)]):
            if at - last >= _DOTS or then - at >= _DOTS:
                yield at + _BEFORE, float(seen - self.arrivals[0][1])
                last = at

    def __str__(self) -> str:
        return (
            f"{self.arm}, a process killed: the longest silence is {1e3 * self.longest(-0.1, _AFTER):.0f} ms; before"
            f" the kill it was {1e3 * self.longest(-_BEFORE, -0.1):.0f} ms, the median {1e3 * self.spacing:.1f} ms"
        )


def count(arm: StandbyArm, rate: float, seconds: float) -> SentMessages:
    """Let the pair run, and count. Raise `AssertionError` if the sink gets something wrong."""
    with tempfile.TemporaryDirectory() as folder, CopiedPair(folder, rate, arm) as pair:
        time.sleep(seconds)
        received, _, nbytes = pair.finish()
        return SentMessages(arm, rate, pair.sent, received, nbytes if arm == "passive" else 0)


def kill_one(arm: StandbyArm, rate: float) -> Silence:
    """Kill a process of the second subjob; a passive one is started again. The sink has to get everything."""
    with tempfile.TemporaryDirectory() as folder, CopiedPair(folder, rate, arm) as pair:
        pair.wait_for(pair.sent)
        time.sleep(_BEFORE)
        killed = time.monotonic()
        pair.kill("b0")
        if arm == "passive":
            pair.start("b0")
        time.sleep(_AFTER)
        pair.wait_for(pair.sent)
        shown = [(at - killed, seen) for at, seen in pair.arrivals if at > killed - _BEFORE]
    return Silence(arm, shown)


def goals(sent: Sequence[SentMessages], silences: Sequence[Silence]) -> list[Goal]:
    """What STREAMS 6.1 wants of figures 5 and 6."""
    found = []
    bounds: dict[StandbyArm, tuple[float, float]] = {
        "none-active": (1.9, 2.1),
        "active-active": (3.8, 4.2),
        "passive": (1.0, 1.15),
    }
    for one in sent:
        if one.arm in bounds:
            least, most = bounds[one.arm]
            text = f"{one.arm} at {one.rate:g}/s: {one.messages:.2f} times the messages, {least:g} to {most:g}"
            found.append(Goal(f"{text} (paper: {PAPER[one.arm]:g})", least <= one.messages <= most))
    for silence in silences:
        if silence.arm == "active-active":
            longest, noise = silence.longest(-0.1, _AFTER), silence.longest(-_BEFORE, -0.1)
            most = 3 * silence.spacing
            text = f"an active standby leaves no gap: {1e3 * longest:.0f} ms, at most 3 medians, {1e3 * most:.0f}"
            found.append(Goal(f"{text} (before the kill {1e3 * noise:.0f})", longest <= most))
    return found


def _plot(sent: Sequence[SentMessages], silences: Sequence[Silence], file: Path) -> None:
    arms = list(COPIES)
    lines = [svg.Series(arm, [(one.rate, one.messages) for one in sent if one.arm == arm]) for arm in arms]
    rates = sorted({one.rate for one in sent})
    lines += [svg.Series(f"{arm}, paper", [(rate, PAPER[arm]) for rate in rates]) for arm in arms]
    title = "messages, beside those without a standby"
    messages = svg.line_plot(title, svg.Axis("elements a second"), svg.Axis("times"), lines)
    text = "Figure 5. The paper has 2 for one active standby, 4 for two, and about 1.1 for passive ones."
    body = [
        plots.legend([line.name for line in lines]),
        plots.figures([plots.figure("Figure 5: messages", messages, text)]),
    ]
    if silences:
        lines = [svg.Series(one.arm, list(one.shown())) for one in silences]
        axes = svg.Axis(f"seconds; the kill is at {_BEFORE:g}"), svg.Axis("elements at the sink")
        plot = svg.line_plot("elements at the sink", *axes, lines)
        text = "Figure 6. In the paper an active standby shows nothing, a passive one a flat piece."
        body += [
            plots.legend([line.name for line in lines]),
            plots.figures([plots.figure("Figure 6: a process is killed", plot, text)]),
        ]
    file.write_text(plots.page("active and passive standbys", body))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1000,3000", help="elements a second")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each arm at each rate")
    parser.add_argument("--plot", type=Path, help="where a page with plots goes")
    parser.add_argument("--quick", action="store_true", help="1 s at 300 elements a second, no kill; no goals")
    options = parser.parse_args()
    if options.quick:
        options.rates, options.seconds = "300", 1.0
    sent, silences = [], []
    for rate in map(float, options.rates.split(",")):
        for arm in COPIES:
            sent.append(count(arm, rate, options.seconds))
            print(sent[-1], flush=True)
    for arm in () if options.quick else KILLED:
        silences.append(kill_one(arm, float(options.rates.split(",")[0])))
        print(silences[-1], flush=True)
    for goal in goals(sent, silences):
        print(Goal(goal.text, None) if options.quick else goal)
    if options.plot:
        _plot(sent, silences, options.plot)


if __name__ == "__main__":
    main()
