"""The page that `safekeeper bench all` writes: which goals are met, and all that the scripts printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from safekeeper.bench.everything import Outcome


def page(outcomes: Sequence[Outcome]) -> str:
    """What all scripts found, as Markdown."""
    return "\n".join(_lines(outcomes)) + "\n"


def _lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "Written by `safekeeper bench all`; do not edit."
    yield from dict.fromkeys(outcome.machine.what() for outcome in outcomes)
    yield ""
    yield "Rates belong to this machine and to what else it did meanwhile. Ratios of things measured turn by turn hold"
    yield "elsewhere, too; where a script gives a spread, it is the lowest and the highest round."
    yield ""
    yield "| goal | met | script |"
    yield "|---|---|---|"
    for outcome in outcomes:
        for goal in outcome.goals:
            yield f"| {goal.text} | {'yes' if goal.met else '**no**'} | {outcome.script.name} |"
    for outcome in outcomes:
        yield from _section(outcome)


def _section(outcome: Outcome) -> Iterator[str]:
    yield from ("", f"## {outcome.script.name}", "", outcome.script.title, "")
    command = f"python -m safekeeper.bench.{outcome.script.name}"
    if outcome.quick and outcome.script.has_quick:
        command += " --quick"
    yield f"`{command}`, {outcome.machine.moment()}."
    if warning := outcome.machine.warning():
        yield from ("", f"**{warning}**")
    if outcome.failure:
        yield from ("", f"It did not run to its end: {outcome.failure}")
    if outcome.output:
        yield from ("", "```", *(line.rstrip() for line in outcome.output.splitlines()), "```")
