"""How a benchmark says whether a goal is met: one line, which `safekeeper bench all` collects for its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_VERDICTS: dict[bool | None, str] = {True: "met", False: "not met", None: "not measured"}
_LINE = re.compile(r"^goal (met|not met|not measured): (.*)$", re.MULTILINE)


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


def goals_in(output: str) -> Iterator[Goal]:
    """The goals that a benchmark's output speaks of."""
    met = {verdict: met for met, verdict in _VERDICTS.items()}
    return (Goal(match[2], met[match[1]]) for match in _LINE.finditer(output))
