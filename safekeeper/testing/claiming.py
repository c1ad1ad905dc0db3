"""A process that owns a name, writes under it and reports what it has acknowledged, until somebody takes the name.

python -m safekeeper.testing.claiming URL NAME
"""

from __future__ import annotations

import os
import sys

import safekeeper
from safekeeper import claims
from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.errors import Conflict

BEATEN = b"\n"
"""What it reports last."""


def block(number: int) -> bytes:
    """The key of a block. A report has as many bytes as there are acknowledged blocks."""
    return b"%06d" % number


def own_until_beaten(store: Backend, name: str) -> None:
    """Write one block after the other to the group *name*; report one byte for each that is acknowledged."""
    claim = claims.take(store, name)
    number = 0
    try:
        while True:
            store.write(Batch({CheckpointId(name, claim.mark.owner.encode() + block(number)): b""}))
            claim.check()
            os.write(sys.stdout.fileno(), b".")
            number += 1
    except Conflict:
        os.write(sys.stdout.fileno(), BEATEN)


if __name__ == "__main__":
    with safekeeper.open(sys.argv[1]) as opened:
        own_until_beaten(opened, sys.argv[2])
