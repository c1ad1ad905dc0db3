"""What goes into the queries of `spark_query.py`, step by step, and what must come out of each step, however they ran.

The events of a step lie within half of its ten minutes, and its last one at the end of that half: so the watermark is
known, and what belongs to earlier steps is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

DELAY, GAP, REACH = 120, 40, 300
"""Seconds: a watermark is so far behind, sessions are so far apart, and words are so near that they are joined."""

START, STEP, LENGTH = 1_700_000_400, 600, 299
"""Seconds: of the first step, from one to the next, and from a step's first event to its last."""

Events = list[tuple[str, int]]
"""Words and their times."""


@dataclass(slots=True)
class CheckpointWalk:
    """A walk of one checkpoint in *folder*, as far as it has come."""

    folder: Path
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    late: list[tuple[str, int, int]] = field(default_factory=list)
    """Sessions that a watermark has yet to end."""
    alone: list[tuple[str, int, int | None]] = field(default_factory=list)
    """Words of the left that had none near them."""

    def step(self) -> dict[str, list[list[object]]]:
        """Write the events of the next step; what the queries must find in it."""
        start = START + self.steps * STEP
        left = events(start, 300, 97 * (self.steps + 1), 7)
        right = events(start, 150, 97 * (self.steps + 1), 11)
        for name, words in (("left", left), ("right", right)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            file = self.folder / name / f"{self.steps}.txt"
            file.write_text("\n".join(f"{word},{time}" for word, time in words))
        self.steps += 1
        new = {word for word, _ in left} - set(self.counts)
        self.counts.update(word for word, _ in left)
        found: dict[str, Sequence[tuple[object, ...]]] = {
            "counts": list(self.counts.items()),
            "new": [(word,) for word in new],
            "sessions": self._sessions(left, start + LENGTH - DELAY),
            "joined": self._joined(left, right),
        }
        return {name: sorted(map(list, rows), key=repr) for name, rows in found.items()}

    def _sessions(self, events: Events, watermark: int) -> list[tuple[str, int, int]]:
        found = sessions(events)
        over, self.late = self.late, [row for row in found if row[1] > watermark]
        return over + [row for row in found if row[1] <= watermark]

    def _joined(self, left: Events, right: Events) -> list[tuple[str, int, int | None]]:
        near: list[tuple[str, int, int | None]]
        near = [(word, at, to) for word, at in left for other, to in right if word == other and at <= to <= at + REACH]
        met = {(word, at) for word, at, _ in near}
        over, self.alone = self.alone, [(word, at, None) for word, at in left if (word, at) not in met]
        return over + near


def events(start: int, count: int, words: int, stride: int) -> Events:
    """So many events, in no order of time; the last one ends the step."""
    found = [(f"word {number * number % words}", start + number * stride % LENGTH) for number in range(count - 1)]
    return [*found, ("word 0", start + LENGTH)]


def sessions(events: Events) -> list[tuple[str, int, int]]:
    """Word, end and number of events of each session."""
    found: list[tuple[str, int, int]] = []
    open: dict[str, tuple[int, int]] = {}
    for word, time in sorted(events, key=lambda event: event[1]):
        end, count = open.get(word, (time, 0))
        if time > end:
            found.append((word, end, count))
            count = 0
        open[word] = time + GAP, count + 1
    return found + [(word, end, count) for word, (end, count) in open.items()]
