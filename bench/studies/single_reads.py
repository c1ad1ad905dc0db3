"""A read of one id from `log`, beside a read of one file: in processor time, so that it holds on a busy machine, too.

    python -m safekeeper.bench.studies.single_reads [--quick]

1,000 ids of 1 KB, chosen uniformly, one id a read, everything in the system's cache. `own` is read by its writer, `one
writer` by another process while its writer lives, `three writers` so with three writers of a third of the ids each.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.backend import Backend
from safekeeper.bench.harness.interleave import Interleaved, interleave, report
from safekeeper.testing.peer import Peer

FILE: Final = "one file per id"
_IDS: Final = [CheckpointId("single", b"%04d" % number) for number in range(1000)]
_GOALS: Final = {"own": 1.0, "one writer": 1.0, "three writers": 1.0}


def rate(store: Backend, reads: int) -> float:
    """Reads a second of processor time."""
    chosen = Random(1).choices(_IDS, k=reads)  # noqa: S311
    started = time.process_time()
    for id in chosen:
        store.read([id])
    return reads / (time.process_time() - started)


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, Backend]]:
    """What is compared, filled, with its writers at rest."""
    with ExitStack() as running:
        arms = {
            name: running.enter_context(safekeeper.open(url))
            for name, url in (
                (FILE, f"file://{folder}/file"),
                ("own", f"log://{folder}/own"),
                ("one writer", f"log://{folder}/one"),
                ("three writers", f"log://{folder}/three"),
            )
        }
        for name in (FILE, "own"):
            arms[name].write(Batch({id: os.urandom(1024) for id in _IDS}))
        for place, writers in (("one", 1), ("three", 3)):
            for number in range(writers):
                peer = running.enter_context(Peer(f"log://{folder}/{place}"))
                peer.write(Batch({id: os.urandom(1024) for id in _IDS[number::writers]}))
        yield arms


def measure(folder: Path, rounds: int, reads: int) -> Interleaved:
    """All arms, turn by turn."""
    with stores(folder) as arms:
        measured = {name: partial(rate, store, reads) for name, store in arms.items()}
        return interleave(measured, rounds, "single reads of 1 KB", "reads a second of the processor")


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--rounds", type=int, help="how often each arm is measured")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    given = parser.parse_args()
    rounds, reads = given.rounds or (3 if given.quick else 15), 1000 if given.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        (result,) = report([measure(Path(folder), rounds, reads)], FILE, given.json)
    for arm, wanted in _GOALS.items():
        print(result.at_least(wanted, arm, FILE))


if __name__ == "__main__":
    main()
