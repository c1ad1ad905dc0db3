"""The page that `safekeeper bench all` writes: which goals are met, and all that the studies printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from safekeeper.bench.harness.run_all import StudyOutcome

_SHOWN = {True: "yes", False: "**no**", None: "not measured"}


def page(outcomes: Sequence[StudyOutcome]) -> str:
    """What all studies found, as Markdown."""
    return "\n".join(_lines(outcomes)) + "\n"


def _lines(outcomes: Sequence[StudyOutcome]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "Written by `safekeeper bench all`; do not edit."
    yield from dict.fromkeys(outcome.machine.what() for outcome in outcomes)
    yield ""
    yield "Rates belong to this machine and to what else it did meanwhile. Ratios of things measured turn by turn hold"
    yield "elsewhere, too; where a study gives a spread, it is the lowest and the highest round."
    if any(outcome.quick for outcome in outcomes):
        yield "With `--quick` rounds are few and short: a goal that is missed or met by little may well change sides."
    yield from ("", "## Goals", "", _summary(outcomes))
    for outcome in outcomes:
        if outcome.goals or outcome.failure:
            yield from _goals(outcome)
    for outcome in outcomes:
        yield from _section(outcome)


def _summary(outcomes: Sequence[StudyOutcome]) -> str:
    counts = Counter(goal.verdict for outcome in outcomes for goal in outcome.goals)
    counted = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in ("met", "not met", "not measured") if counts[verdict]
    )
    failed = [outcome.study.name for outcome in outcomes if outcome.failure]
    return f"{counted or 'none'}." + (f" Studies that did not run to their end: {', '.join(failed)}." if failed else "")


def _goals(outcome: StudyOutcome) -> Iterator[str]:
    name = outcome.study.name
    yield from ("", f"From [{name}](#{name}):", "")
    if outcome.failure:
        yield from (f"It did not run to its end: {outcome.failure}", "")
    if outcome.goals:
        yield from ("| goal | met |", "|---|---|")
    for goal in outcome.goals:
        text = goal.text.replace("|", "\\|")
        yield f"| {text} | {_SHOWN[goal.met]} |"


def _section(outcome: StudyOutcome) -> Iterator[str]:
    yield from ("", f"## {outcome.study.name}", "", outcome.study.title, "")
    command = f"python -m safekeeper.bench.studies.{outcome.study.name}"
    if outcome.quick:
        command += " --quick"
    yield f"`{command}`, {outcome.seconds:.0f} s, {outcome.machine.date}."
    if warning := outcome.warning():
        yield from ("", f"**{warning}**")
    if outcome.failure:
        yield from ("", f"It did not run to its end: {outcome.failure}")
    if outcome.output:
        yield from ("", "```", *(line.rstrip() for line in outcome.output.splitlines()), "```")
