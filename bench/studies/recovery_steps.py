"""Where the time of a recovery goes: until it is noticed, until another process is there, until it has caught up.

    python -m safekeeper.bench.studies.recovery_steps [--rounds 5] [--rate 1000] [--plot FILE] [--quick]

Sweeping's figures 7 and 8, with the operator of `takeover`: outputs leave at once, a block comes every M seconds. The
owner is stopped, so that nothing but its silence tells. Arms: a **cold** standby, which is what the paper has: somebody
watches by heartbeats, three of which may be missed, starts a process then, and that loads the journal and processes
again what came since the last block; and ours, a **warm** one, whose owner is killed: the connection's end tells.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import safekeeper
from safekeeper import claims
from safekeeper.bench.harness import plots, svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.studies.takeover import Pair
from safekeeper.standby import OwnerWatch

BEATS = 3
"""Heartbeats that may be missed."""
HEARTBEATS = (0.1, 0.2, 0.3, 0.4, 0.5)
INTERVALS = (0.1, 0.3, 0.5, 0.7, 0.9)
PAPER = {
    7: "Paper: detection takes three heartbeats and dominates from 200 ms on, redeployment takes 500 ms.",
    8: "Paper: the interval between checkpoints hardly matters; redeployment takes 500 ms.",
}


@dataclass(frozen=True, slots=True)
class RecoverySteps:
    """How many seconds each step of one recovery took."""

    heartbeat: float
    interval: float
    detection: float
    """From the failure until it was noticed."""
    redeployment: float
    """From there until another process owned the journal, and had loaded it."""
    reprocessing: float
    """From there until the first new output."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.detection + self.redeployment + self.reprocessing


def cold(folder: str, heartbeat: float, interval: float, rounds: int, rate: float) -> list[RecoverySteps]:
    """Stop the owner, and start another process when three heartbeats were missed."""
    found = []
    random = Random(1)  # noqa: S311
    with Pair(folder, rate, BEATS * heartbeat, interval) as pair, safekeeper.open(pair.store) as store:
        (owner,) = pair.alive
        for _ in range(rounds):
            holder = claims.holder(store, "counter")
            assert holder is not None
            pair.wait_for_outputs(pair.seen + 1)
            with closing(OwnerWatch(holder.mark, holder.about, BEATS * heartbeat)) as watch:
                end = time.monotonic() + 1.0 + random.random() * max(interval, heartbeat)
                while time.monotonic() < end:
                    watch.wait(0.01)
                begun = time.monotonic()
                os.kill(owner, signal.SIGSTOP)
                while not watch.gone:
                    watch.wait(0.002)
            noticed = time.monotonic()
            os.kill(owner, signal.SIGKILL)
            another = pair.start("cold")
            came = pair.wait_for_output_of(another)
            owned = pair.hear(another, "owns")
            pair.ended(owner)
            owner = another
            found.append(RecoverySteps(heartbeat, interval, noticed - begun, owned - noticed, came - owned))
        pair.finish()
    return found


def warm(folder: str, rounds: int, rate: float, interval: float) -> list[float]:
    """Kill the owner, whose standby is warm; seconds until the first new output."""
    found = []
    with Pair(folder, rate, every=interval) as pair:
        (owner,) = pair.alive
        for _ in range(rounds):
            standby = pair.start()
            pair.hear(standby, "follows")
            pair.wait_for_outputs(pair.seen + 1)
            time.sleep(0.5)
            found.append(pair.fail(owner, "kill", standby).seconds)
            pair.ended(owner)
            owner = standby
        pair.finish()
    return found


def median(found: Sequence[RecoverySteps], step: str) -> float:
    """The median of one step, in seconds."""
    return float(statistics.median(getattr(one, step) for one in found))


def _goals(by_beat: Sequence[list[RecoverySteps]], warmed: Sequence[float]) -> list[Goal]:
    everything = [one for some in by_beat for one in some]
    shares = statistics.fmean(one.detection / one.heartbeat for one in everything)
    means = [statistics.fmean(one.detection for one in some) for some in by_beat]
    fit = statistics.correlation([some[0].heartbeat for some in by_beat], means) ** 2
    total, ours = median(by_beat[0], "total"), statistics.median(warmed)
    return [
        Goal(
            f"detection takes {shares:.2f} heartbeats, from 2.5 to 3.5, and grows with them: r2 {fit:.3f}, above 0.95",
            2.5 <= shares <= 3.5 and fit > 0.95,
        ),
        Goal(
            f"a warm standby takes {1e3 * ours:.0f} ms, {ours / total:.2f} of a cold one at heartbeats of 100 ms, "
            "at most 150 ms and 0.20",
            ours <= 0.15 and ours <= total / 5,
        ),
    ]


def _plot(by_beat: Sequence[list[RecoverySteps]], by_interval: Sequence[list[RecoverySteps]], file: Path) -> None:
    figures, names = [], ["detection", "redeployment", "reprocessing"]
    axes = (("heartbeat", "heartbeat, s", by_beat, 7), ("interval", "seconds between blocks", by_interval, 8))
    for axis, label, found, number in axes:
        lines = [
            svg.Series(name, [(getattr(some[0], axis), 1e3 * median(some, name)) for some in found]) for name in names
        ]
        plot = svg.line_plot(f"figure {number}", svg.Axis(label), svg.Axis("ms"), lines)
        text = f"Medians, a cold standby. {PAPER[number]}"
        figures.append(plots.figure(f"Figure {number}: recovery over the {axis}", plot, text))
    file.write_text(plots.page("steps of a recovery", [plots.legend(names), plots.figures(figures)]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="failures of each arm")
    parser.add_argument("--rate", type=float, default=1000.0, help="elements a second")
    parser.add_argument("--plot", type=Path, help="where a page with plots goes")
    parser.add_argument("--quick", action="store_true", help="one failure of two arms; goals are not measured")
    options = parser.parse_args()
    beats: Sequence[float] = HEARTBEATS
    intervals: Sequence[float] = INTERVALS
    rounds = options.rounds
    if options.quick:
        beats, intervals, rounds = (0.1, 0.2), (0.5,), 1

    def measure(heartbeat: float, interval: float) -> list[RecoverySteps]:
        with tempfile.TemporaryDirectory() as folder:
            found = cold(folder, heartbeat, interval, rounds, options.rate)
        steps = (f"{step} {1e3 * median(found, step):4.0f}" for step in ("detection", "redeployment", "reprocessing"))
        text = f"heartbeat {1e3 * heartbeat:.0f} ms, a block every {1e3 * interval:.0f} ms"
        print(f"{text}: {', '.join(steps)}, total {1e3 * median(found, 'total'):.0f} ms", flush=True)
        return found

    by_beat = [measure(beat, 0.5) for beat in beats]
    by_interval = [measure(0.1, interval) for interval in intervals]
    with tempfile.TemporaryDirectory() as folder:
        warmed = warm(folder, 2 * rounds, options.rate, 0.5)
    print(
        f"warm, killed, a block every 500 ms: {1e3 * statistics.median(warmed):.0f} ms, worst {1e3 * max(warmed):.0f}"
    )
    for goal in _goals(by_beat, warmed):
        print(Goal(goal.text, None) if options.quick else goal)
    if options.plot:
        _plot(by_beat, by_interval, options.plot)


if __name__ == "__main__":
    main()
