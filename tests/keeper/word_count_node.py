"""One node of S4's word count, as a process: counts its share of a stream of words, and can be killed at any time.

Upstream keeps the stream from the position on that the node has last reported as stored. What comes again after a kill
is not counted twice: a word's state knows the position of the last event in it.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator

from safekeeper import Checkpointed, Every, SafeKeeper


def stream(seed: int, length: int) -> Iterator[tuple[int, bytes]]:
    """Words and their positions; some words are frequent, most are not."""
    source = random.Random(seed)
    for position in range(length):
        yield position, b"word-%d" % int(150 * source.random() ** 3)


def main(url: str, node: int, nodes: int, seed: int, length: int, first: int) -> None:
    """Count the words of *node* from position *first* on; print each position up to which everything is stored."""
    trigger = Every(events=3, seconds=0.02)
    with (
        SafeKeeper(url) as keeper,
        Checkpointed(
            *(keeper, "WordCounter", lambda: [0, -1]), owner=None, trigger=trigger, ttl=0.2, tick=0.01
        ) as counters,
    ):
        for position, word in stream(seed, length):
            if position < first or zlib.crc32(word) % nodes != node:
                continue
            with counters.event(word) as element:
                count, last = element.state
                if position > last:
                    element.state = [count + 1, position]
            if position % 10 == 0:
                for ticket in counters.checkpoint():
                    ticket.result()
                print(position, flush=True)
    print(length, flush=True)


if __name__ == "__main__":
    url, *numbers = sys.argv[1:]
    main(url, *map(int, numbers))
