"""The page that `safekeeper bench all` writes: a line for each goal and each number that a paper has."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from safekeeper.bench.harness.goals import verdicts_in
from safekeeper.bench.harness.run_all import StudyOutcome

_COMMAND = re.compile(r": `python -m [^`]*`")
_SHOWN = {"met": "met", "not met": "**not met**"}


def page(outcomes: Sequence[StudyOutcome]) -> str:
    """What all studies found, as Markdown."""
    return "\n".join(_lines(outcomes)).rstrip() + "\n"


def _lines(outcomes: Sequence[StudyOutcome]) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "Written by `safekeeper bench all` from `benchmarks.json`; do not edit. How to measure, and the reasons:"
    yield "[bench.md](bench.md). What the studies print is not kept here: run them, or use `--results FOLDER`."
    yield ""
    yield "Rates belong to one machine and to what else it did meanwhile. Ratios of things measured turn by turn hold"
    yield "elsewhere, too; behind a median is the lowest and the highest round."
    if any(outcome.quick for outcome in outcomes):
        yield "With `--quick` rounds are few and short: a goal that is missed or met by little may well change sides."
    if any(not outcome.machine.processor for outcome in outcomes):
        yield "Where the machine was not noted, the figures were copied from notes by hand, with all that these said."
    yield from ("", _summary(outcomes), "")
    for what in dict.fromkeys(outcome.machine.what() for outcome in outcomes if outcome.machine.processor):
        yield f"- {what}"
    for outcome in outcomes:
        yield from _section(outcome)


def _summary(outcomes: Sequence[StudyOutcome]) -> str:
    counts = Counter(goal.verdict for outcome in outcomes for goal in outcome.goals)
    counted = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in ("met", "not met", "not measured") if counts[verdict]
    )
    failed = [outcome.study.name for outcome in outcomes if outcome.failure]
    return f"Goals: {counted or 'none'}." + (
        f" Studies that did not run to their end: {', '.join(failed)}." if failed else ""
    )


def _section(outcome: StudyOutcome) -> Iterator[str]:
    took = f", {outcome.seconds:.0f} s" if outcome.seconds else ""
    yield from ("", f"## {outcome.study.name}", "", _COMMAND.sub("", outcome.study.title))
    cores = f"{outcome.machine.cores} cores, what else" if outcome.machine.cores else "the machine"
    machine = "" if outcome.machine.processor else f"; {cores} was not noted"
    yield f"`{_command(outcome)}`{took}, {outcome.machine.date}{machine}."
    if said := outcome.conditions:
        yield from textwrap.wrap(f"{said[0].upper()}{said[1:]}.", 120, break_long_words=False, break_on_hyphens=False)
    if warning := outcome.warning():
        yield f"**{warning}**"
    if outcome.failure:
        yield f"It did not run to its end: {outcome.failure}"
    yield ""
    for verdict in verdicts_in(outcome.output):
        if verdict.verdict != "not measured":
            found = f": {verdict.found}" if verdict.found else ""
            yield f"- {_SHOWN.get(verdict.verdict, verdict.verdict)}: {verdict.what}{found}"


def _command(outcome: StudyOutcome) -> str:
    return f"python -m safekeeper.bench.studies.{outcome.study.name}{' --quick' if outcome.quick else ''}"
