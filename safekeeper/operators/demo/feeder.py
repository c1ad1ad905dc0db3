"""Sends words to a stream, for the demonstration: the word with a number is always the same, so it may be killed too.

python -m safekeeper.operators.demo.feeder URL WORDS A-SECOND
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from random import Random

from safekeeper.streams import Outlet, StreamElement, open_outlet

VOCABULARY = ("to", "be", "or", "not", "that", "is", "the", "question", "whether", "tis", "nobler", "in", "mind")
_TOGETHER = 100


def word(number: int) -> bytes:
    """The word with this number; some are frequent, some are rare."""
    random = Random(number)  # noqa: S311 - it has to be repeatable
    return VOCABULARY[int(len(VOCABULARY) * random.random() ** 2)].encode()


def feed(words: Outlet, count: int, a_second: float) -> None:
    """Send the words that are not in the stream yet, so many a second."""
    while words.last < count:
        some = range(words.last + 1, min(words.last + _TOGETHER, count) + 1)
        words.send([StreamElement(number, b"", word(number)) for number in some])
        words.acknowledged()
        time.sleep(len(some) / a_second)


if __name__ == "__main__":
    with closing(open_outlet(sys.argv[1], readers=["counter"])) as opened:
        feed(opened, int(sys.argv[2]), float(sys.argv[3]))
