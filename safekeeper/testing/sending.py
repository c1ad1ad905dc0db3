"""Elements for tests, and a producer that sends until it is killed.

    python -m safekeeper.testing.sending URL SEED FLOOR

It goes on after the last element that the stream has, or after FLOOR, sends some elements again, and writes a line with
the number of the last one whenever `send` has returned.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from random import Random

from safekeeper.streams import Inlet, Outlet, StreamElement, open_outlet
from safekeeper.testing.peer import PATIENCE


def numbered(first: int, *bodies: bytes) -> list[StreamElement]:
    """Elements with these bodies, numbered from *first*."""
    return [StreamElement(number, body) for number, body in enumerate(bodies, first)]


def drain(inlet: Inlet, count: int) -> list[StreamElement]:
    """The next *count* elements of *inlet*."""
    found: list[StreamElement] = []
    give_up = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < give_up, f"only {len(found)} of {count} elements came"
        found += inlet.read(timeout=1.0)
    assert len(found) == count, "more elements came than were sent"
    return found


def elements_from(first: int, count: int) -> list[StreamElement]:
    """The elements that every such producer sends under these numbers."""
    return [StreamElement(n, b"%d " % n * (n % 50), b"%d" % (n % 7)) for n in range(first, first + count)]


def send_until_killed(outlet: Outlet, random: Random) -> None:
    """Send without end."""
    while True:
        first = max(1, outlet.last + 1 - random.choice((0, 0, 1, 20)))
        outlet.send(elements_from(first, outlet.last + 1 - first + random.choice((1, 5, 100))))
        outlet.acknowledged()
        print(outlet.last, flush=True)


if __name__ == "__main__":
    with closing(open_outlet(sys.argv[1], readers=["r"], floor=int(sys.argv[3]))) as opened:
        send_until_killed(opened, Random(sys.argv[2]))  # noqa: S311 - it has to be repeatable
