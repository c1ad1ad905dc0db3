"""How a benchmark says whether a goal is met: one line, which `safekeeper bench all` collects for its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_VERDICTS: dict[bool | None, str] = {True: "met", False: "not met", None: "not measured"}
_LINE = re.compile(r"^goal (met|not met|not measured): (.*)$", re.MULTILINE)
_BESIDE = re.compile(r"^beside: (.+?): (.+): (more|less|as in the thesis|no goal)(.*)$")


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached, with what was measured, and whether it was."""

    text: str
    met: bool | None
    """None if it was not measured this time; the text says when it is."""

    @property
    def verdict(self) -> str:
        """In words."""
        return _VERDICTS[self.met]

    def __str__(self) -> str:
        return f"goal {self.verdict}: {self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the page: what was compared, what was found, and what that means."""

    what: str
    """With the goal, if it is one."""
    found: str
    """With the paper's number, if it is compared with one."""
    verdict: str


def verdicts_in(output: str) -> Iterator[Verdict]:
    """The goals that a benchmark's output speaks of, and its numbers that stand beside a paper's (`beside`)."""
    for line in output.splitlines():
        if goal := _LINE.match(line):
            what, _, found = goal[2].partition(": ") if "thesis" in goal[2] else goal[2].rpartition(": ")
            yield Verdict(what or found, found if what else "", goal[1])
        elif number := _BESIDE.match(line):
            yield Verdict(number[1], number[2] + number[4], number[3])


def beside(what: str, found: str, verdict: str = "no goal", why: str = "") -> str:
    """The line for a number that is no goal. With a paper's number in *found*, the verdict says how it compares."""
    return f"beside: {what}: {found}: {verdict}{why}"


def goals_in(output: str) -> Iterator[Goal]:
    """The goals that a benchmark's output speaks of."""
    met = {verdict: met for met, verdict in _VERDICTS.items()}
    return (Goal(match[2], met[match[1]]) for match in _LINE.finditer(output))
