"""How a benchmark says whether a goal is met: one line, which `safekeeper bench all` collects for its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE = re.compile(r"^goal (met|not met): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached, with what was measured, and whether it was."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"goal {'met' if self.met else 'not met'}: {self.text}"


def goals_in(output: str) -> Iterator[Goal]:
    """The goals that a benchmark's output speaks of."""
    return (Goal(match[2], match[1] == "met") for match in _LINE.finditer(output))
