"""What it costs to capture and to paste windows that know their changes (Hwang's thesis, figure 4.5).

    python -m safekeeper.bench.studies.delta_captures [--plot FILE] [--quick]

A unit counts tuples by key in windows of 10 s that begin every second. Each tuple is of any of the keys. It is captured
every 0.1 to 20 seconds of the tuples' time: the keys that had a tuple, as an operator does. The time of a capture is
fitted to the windows that are new and those that were updated; beside it stands a capture of everything that these keys
have. Times are of the processor, the least of several captures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from safekeeper.bench.harness import plots, svg
from safekeeper.bench.harness.goals import Goal
from safekeeper.keeper.serializers import serializer_named
from safekeeper.operators import Windows

_SIZE, _STEP = 10, 1
THESIS = {"capture": (18.6, 7.3), "paste": (30.2, 7.2)}
"""Microseconds for a new window and for an updated one, in figure 4.5 of the thesis."""
INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_MSGPACK = serializer_named("msgpack")


@dataclass(slots=True)
class DeltaCost:
    """The captures of one interval: of what they had the median, of the times the least."""

    interval: float
    new: float
    updated: float
    nbytes: float
    capture: float
    paste: float
    whole: float


def _count(before: int | None, _: object) -> int:
    return (before or 0) + 1


def _unit(keys: int) -> list[Windows]:
    return [Windows(_SIZE, _STEP, _count) for _ in range(keys)]


def measure(interval: float, keys: int, per_second: float, captures: int, seed: int = 1) -> DeltaCost:
    """Captures every *interval* seconds, when there are as many windows as there ever are."""
    random = Random(seed)  # noqa: S311
    states, copies = _unit(keys), _unit(keys)
    begin, rows = 0.0, []
    for number in range(captures + 1):
        end = begin + (interval if number else 2 * _SIZE)
        touched = set()
        for at in sorted(random.uniform(begin, end) for _ in range(round(per_second * (end - begin)))):
            key = random.randrange(keys)
            touched.add(key)
            states[key].close(at)
            states[key].add(at)
        begin = end
        row = capture_and_paste([states[key] for key in touched], [copies[key] for key in touched])
        if number:
            rows.append(row)
    new, updated, nbytes, *times = zip(*rows, strict=True)
    counts = (statistics.median(column) for column in (new, updated, nbytes))
    return DeltaCost(interval, *counts, *map(min, times))


def counted_bytes(state: Windows) -> int:
    """How many bytes a capture of *state* has to have in msgpack: new windows with number, time and summary, updated
    ones with number and summary, in five columns and three lists around them."""
    new, updated, below = list(state._new), list(state._updated), state._below
    summaries = {number: state._windows[number][1] for number in (*new, *updated)}
    columns = 3 * _head(len(new)) + 2 * _head(len(updated)) + 3 + (1 if below is None else _int(below))
    return columns + 9 * len(new) + sum(_int(number) + _int(summary) for number, summary in summaries.items())


def _int(value: int) -> int:
    """Bytes of an int that is not negative, or a bit below 0."""
    if value < 0:
        return 1 if value >= -32 else 2
    return next(size for size, most in ((1, 1 << 7), (2, 1 << 8), (3, 1 << 16), (5, 1 << 32)) if value < most)


def _head(count: int) -> int:
    """Bytes of the head of a list."""
    return 1 if count < 16 else 3


def capture_and_paste(states: list[Windows], copies: list[Windows]) -> tuple[float, ...]:
    """Capture *states* and paste that into *copies*: new and updated windows, bytes, and seconds for both and for a
    capture of everything."""
    new, updated = (sum(column) for column in zip(*(state.dirty for state in states), strict=True))
    counted = sum(map(counted_bytes, states))
    begun = time.process_time()
    data = [_MSGPACK.dumps(state.changes()) for state in states]
    captured = time.process_time()
    for copy, changes in zip(copies, data, strict=True):
        copy.paste(_MSGPACK.loads(changes))
    pasted = time.process_time()
    for state in states:
        _MSGPACK.dumps(state.everything())
    whole = time.process_time() - pasted
    if [copy.open() for copy in copies] != [state.open() for state in states]:
        raise AssertionError("what was pasted is not what was captured")
    if counted != (nbytes := sum(map(len, data))):
        raise AssertionError(f"a capture has {nbytes} bytes, of {new} new and {updated} updated windows: not {counted}")
    return new, updated, nbytes, captured - begun, pasted - captured, whole


def fit(costs: list[DeltaCost], times: list[float]) -> tuple[float, float, float]:
    """What a new window and an updated one take, by least squares, and r2."""
    nn = sum(cost.new**2 for cost in costs)
    uu = sum(cost.updated**2 for cost in costs)
    nu = sum(cost.new * cost.updated for cost in costs)
    nt = sum(cost.new * time for cost, time in zip(costs, times, strict=True))
    ut = sum(cost.updated * time for cost, time in zip(costs, times, strict=True))
    determinant = nn * uu - nu * nu
    new, updated = (nt * uu - ut * nu) / determinant, (ut * nn - nt * nu) / determinant
    fitted = [new * cost.new + updated * cost.updated for cost in costs]
    return new, updated, statistics.correlation(fitted, times) ** 2


def study(costs: list[DeltaCost]) -> Iterator[Goal]:
    """Print and judge."""
    print("interval  new windows  updated  bytes  capture  paste  everything (ms)")
    for cost in costs:
        print(
            f"{cost.interval:8g}  {cost.new:11,.0f}  {cost.updated:7,.0f}  {cost.nbytes:7,.0f}"
            f"  {1e3 * cost.capture:.2f}  {1e3 * cost.paste:.2f}  {1e3 * cost.whole:.2f}"
        )
    text = f"bytes of all captures exactly as counted: {sum(cost.nbytes for cost in costs):,.0f}"
    yield Goal(f"{text} in the medians", True)  # else `capture_and_paste` has raised
    for name, times in (("capture", [c.capture for c in costs]), ("paste", [c.paste for c in costs])):
        new, updated, line = fit(costs, times)
        text = f"{name}: {1e6 * new:.2f} us a new window, {1e6 * updated:.2f} an updated one"
        yield Goal(f"{text}, new above updated", new > updated)
        yield Goal(f"{name} is linear in both, r2 above 0.95: {line:.3f}", line > 0.95)
    ten, twenty = costs[-2], costs[-1]
    for what, ratio in (("bytes", twenty.nbytes / ten.nbytes), ("time", twenty.capture / ten.capture)):
        yield Goal(f"a plateau at the window's size: {what} of 20 s {ratio:.2f} of 10 s, at most 1.1", ratio <= 1.1)


def _plot(costs: list[DeltaCost], file: Path) -> None:
    arms = {"capture": "capture", "paste": "paste", "whole": "capture of everything"}
    intervals = svg.Axis("seconds between captures", logarithmic=True)
    lines = [
        svg.Series(name, [(cost.interval, 1e3 * float(getattr(cost, field))) for cost in costs])
        for field, name in arms.items()
    ]
    cost_plot = svg.line_plot("ms a capture", intervals, svg.Axis("ms", logarithmic=True), lines)
    found = []
    for name, (full, part) in THESIS.items():
        new, updated, _ = fit(costs, [float(getattr(cost, name)) for cost in costs])
        found.append(
            f"{name}: {1e6 * new:.2f} and {1e6 * updated:.2f} us a new and an updated window"
            f" (thesis: {full:g} and {part:g})"
        )
    text = f"{'; '.join(found)}. As in the thesis there is a plateau at the window's size, 10 s."
    kilobytes = [svg.Series("bytes", [(cost.interval, cost.nbytes / 1e3) for cost in costs])]
    byte_plot = svg.line_plot("kB a capture", intervals, svg.Axis("kB", logarithmic=True), kilobytes)
    figures = [
        plots.figure("Figure 4.5: what captures and pastes cost", cost_plot, text),
        plots.figure("Bytes of a capture", byte_plot, "New windows whole, of updated ones the summary."),
    ]
    file.write_text(plots.page("captures of changes", [plots.legend(list(arms.values())), plots.figures(figures)]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer keys and captures")
    parser.add_argument("--plot", type=Path, help="where a page with plots goes")
    options = parser.parse_args()
    keys, captures = (50, 3) if options.quick else (2_000, 9)
    costs = [measure(interval, keys, keys * 0.5, captures) for interval in INTERVALS]
    for goal in study(costs):
        print(goal, flush=True)
    if options.plot:
        _plot(costs, options.plot)


if __name__ == "__main__":
    main()
