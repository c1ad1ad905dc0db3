"""A process that owns a name, writes under it, and stops itself in the middle: `SIGCONT` lets it go on.

    python -m safekeeper.testing.claiming URL NAME WHERE

WHERE is `write` or `check`: before which of the two it stops, after some blocks that were acknowledged. It never stops
within a call of the store, where it might hold a lock that others need.
"""

from __future__ import annotations

import os
import signal
import sys

import safekeeper
from safekeeper import claims
from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.errors import Conflict

BLOCKS = 3
"""How many blocks it acknowledges before it stops."""
ACKNOWLEDGED, BEATEN = b"+", b"-"
"""What it reports for a block that was acknowledged, and for one that was not; then it ends."""


def own_until_beaten(store: Backend, name: str, where: str) -> None:
    """Write one block after the other to the group *name*."""
    claim = claims.take(store, name)
    for number in range(1_000_000):
        if number == BLOCKS and where == "write":
            os.kill(os.getpid(), signal.SIGSTOP)
        store.write(Batch({CheckpointId(name, b"%d" % number): b""}))
        if number == BLOCKS and where == "check":
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            claim.check()
        except Conflict:
            os.write(sys.stdout.fileno(), BEATEN)
            return
        os.write(sys.stdout.fileno(), ACKNOWLEDGED)


if __name__ == "__main__":
    with safekeeper.open(sys.argv[1]) as opened:
        own_until_beaten(opened, sys.argv[2], sys.argv[3])
