"""What goes into the pipeline, and what must come out of it, whoever is killed meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random

from safekeeper.streams import StreamElement

VOCABULARY = ("To", "be", " or", "not ", "THAT", "is", "", "the", "question", " ")
Totals = dict[bytes, list[bytes]]
"""The bodies of each word, in order."""


def line(seed: int, number: int) -> bytes:
    """The line with this number."""
    random = Random(f"{seed} {number}")  # noqa: S311 - it has to be repeatable
    return VOCABULARY[int(len(VOCABULARY) * random.random())].encode()


def expected(seed: int, lines: int) -> Totals:
    """What a run without a failure puts out."""
    found: Totals = defaultdict(list)
    words = [word for number in range(1, lines + 1) if (word := line(seed, number).strip().lower())]
    for place, word in enumerate(words, 1):
        count = len(found[word]) + 1
        found[word].append(b"%d %d %d" % (count, count, place))
    return dict(found)


def arranged(elements: Iterable[StreamElement]) -> Totals:
    """What has come out. Words that Spark has in different partitions come in any order, those of one word do not."""
    found: Totals = defaultdict(list)
    for element in elements:
        found[element.key].append(element.body)
    return dict(found)
