"""A process that owns a group and counts, until it is killed or somebody else takes the group.

Prints `owner` when the group is its own, `+KEY` for every event that was acknowledged, and `conflict` at its end.
"""

from __future__ import annotations

import sys
from itertools import count

from safekeeper import Checkpointed, Conflict, SafeKeeper


def main(url: str, mode: str, patience: float, keys: int) -> None:
    """Count each of *keys* keys in turn."""
    with SafeKeeper(url) as keeper:
        elements = Checkpointed(keeper, "words", lambda: 0, owner=mode, patience=patience)  # type: ignore[arg-type]
        try:
            elements.claim()
            print("owner", flush=True)
            for n in count():
                key = b"%d" % (n % keys)
                with elements.event(key) as element:
                    element.state += 1
                assert element.ticket is not None
                element.ticket.result()
                print("+" + key.decode(), flush=True)
        except Conflict:
            print("conflict", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
