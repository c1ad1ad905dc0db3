"""The stream of the demo: files of words that appear one after the other, and how often each word is really there."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

WORDS_PER_FILE = 5_000
SCHEMA = "word string, time timestamp"

_START = datetime(2024, 1, 1, tzinfo=UTC)
_SECONDS_PER_FILE = 15
_VOCABULARY = [a + b + c for a in ("sa", "fe", "ke", "epe", "r") for b in ("lo", "g", "ba", "tch") for c in "aeiouy"]

Counts = Counter[tuple[str, str]]
"""How often a word is in a minute, which is given as `hh:mm`."""


def stream(folder: Path, files: int) -> Iterator[Counts]:
    """Write the next of *files* files into *folder*, whole, at every step; yield the counts of all words until then."""
    chance = random.Random(1)  # noqa: S311
    counts: Counts = Counter()
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        lines = []
        for _ in range(WORDS_PER_FILE):
            word = _VOCABULARY[int(chance.paretovariate(0.5)) % len(_VOCABULARY)]  # some often, most now and then
            time = _START + timedelta(seconds=number * _SECONDS_PER_FILE + chance.randrange(_SECONDS_PER_FILE))
            counts[f"{time:%H:%M}", word] += 1
            lines.append(json.dumps({"word": word, "time": time.isoformat()}))
        hidden = folder / f".{number:04}"
        hidden.write_text("\n".join(lines))
        os.rename(hidden, folder / f"{number:04}.json")
        yield counts
