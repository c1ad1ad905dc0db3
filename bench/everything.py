"""`safekeeper bench all`: run every benchmark script in this folder and write one page with what they say.

A script is a module or a package here that can be run with `python -m` and has a `main`; one that knows `--quick` is
given it. What it prints goes onto the page as it is; lines that `goals.Goal` makes are collected at the top.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from safekeeper.bench.goals import Goal, goals_in
from safekeeper.bench.machine import Machine

_MAIN = re.compile(r"^def main\(\) -> None:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A benchmark that can be run by itself."""

    name: str
    title: str
    """The first line of its docstring."""
    has_quick: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a script printed, or why it did not run."""

    script: Script
    output: str
    failure: str = ""

    @property
    def goals(self) -> list[Goal]:
        """The goals that it speaks of."""
        return list(goals_in(self.output))


def scripts() -> Iterator[Script]:
    """Every script, by name."""
    for file in sorted(resources.files("safekeeper.bench").iterdir(), key=lambda file: file.name):
        source = file / "__main__.py" if file.is_dir() else file
        if not source.name.endswith(".py") or not source.is_file():
            continue
        text = source.read_text()
        if _MAIN.search(text) and '__name__ == "__main__"' in text:
            title = text.partition('"""')[2].partition("\n")[0].removesuffix('"""')
            yield Script(file.name.removesuffix(".py"), title, '"--quick"' in text)


def run(script: Script, *, quick: bool) -> Outcome:
    """Run one script in a process of its own. That it fails is an outcome, not an error."""
    arguments = ["--quick"] if quick and script.has_quick else []
    done = subprocess.run(
        [sys.executable, "-m", f"safekeeper.bench.{script.name}", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "110"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    failure = ""
    if done.returncode:
        failure = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    return Outcome(script, done.stdout.rstrip(), failure)


def run_all(*, quick: bool, said: Callable[[str], object]) -> list[Outcome]:
    """Run every script, one after the other: two at once would measure each other."""
    outcomes = []
    for script in scripts():
        said(f"running {script.name}")
        outcomes.append(run(script, quick=quick))
    return outcomes


def page(outcomes: Sequence[Outcome], machine: Machine, *, quick: bool) -> str:
    """What all scripts found, as Markdown."""
    return "\n".join(_page_lines(outcomes, machine, quick=quick)) + "\n"


def _page_lines(outcomes: Sequence[Outcome], machine: Machine, *, quick: bool) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield f"Written by `safekeeper bench all{' --quick' if quick else ''}`; do not edit. {machine.sentence()}"
    yield ""
    yield "Rates belong to this machine and to what else it did meanwhile. Ratios of things measured turn by turn hold"
    yield "elsewhere, too; where a script gives a spread, it is the lowest and the highest round."
    if warning := machine.warning():
        yield from ("", f"**{warning}**")
    yield ""
    yield "| goal | met | script |"
    yield "|---|---|---|"
    for outcome in outcomes:
        for goal in outcome.goals:
            yield f"| {goal.text} | {'yes' if goal.met else '**no**'} | {outcome.script.name} |"
    for outcome in outcomes:
        yield from ("", f"## {outcome.script.name}", "", outcome.script.title)
        if outcome.failure:
            yield from ("", f"It did not run to its end: {outcome.failure}")
        if outcome.output:
            yield from ("", "```", *(line.rstrip() for line in outcome.output.splitlines()), "```")
