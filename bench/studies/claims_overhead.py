"""What a claim costs: durable writes with `Claim.check` after each of them, or after each tenth, beside plain ones.

    python -m safekeeper.bench.studies.claims_overhead [--quick] [--only log]

A write is a batch of one value of 1 KB, as durable as the store makes it; `redis:` has appendfsync always. A check
reads one's own claim: one read, or one round trip.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import safekeeper
from safekeeper import Batch, CheckpointId, claims
from safekeeper.backend import Backend
from safekeeper.bench.harness.interleave import Interleaved, interleave, report
from safekeeper.dev.process import DevError
from safekeeper.dev.redis import RedisServer

PLAIN = "plain"
_VALUE_BYTES = 1024
_IDS = 1000


def rate(store: Backend, claim: claims.Claim, every: int, seconds: float) -> float:
    """Writes a second, with a check after each *every* of them; 0 is never."""
    value = os.urandom(_VALUE_BYTES)
    batches = itertools.cycle([Batch({CheckpointId("orders", b"%d" % n): value}) for n in range(_IDS)])
    started = time.perf_counter()
    for written in itertools.count(1):
        store.write(next(batches))
        if every and written % every == 0:
            claim.check()
        if written % 10 == 0 and (elapsed := time.perf_counter() - started) >= seconds:
            return written / elapsed
    raise AssertionError("unreachable")


def compare(store: Backend, claim: claims.Claim, seconds: float) -> tuple[float, float]:
    """The medians of what a write takes and of what a check behind it takes: few are hit by what else happens."""
    value = os.urandom(_VALUE_BYTES)
    writes, checks = list[float](), list[float]()
    end = time.perf_counter() + seconds
    while not writes or time.perf_counter() < end:
        batch = Batch({CheckpointId("orders", b"%d" % (len(writes) % _IDS)): value})
        started = time.perf_counter()
        store.write(batch)
        written = time.perf_counter()
        claim.check()
        writes.append(written - started)
        checks.append(time.perf_counter() - written)
    return statistics.median(writes), statistics.median(checks)


def tables(folder: Path, options: argparse.Namespace) -> Iterator[Interleaved]:
    """A table for each kind of store."""
    for kind in ("log", "lmdb", "redis"):
        if options.only not in kind:
            continue
        with ExitStack() as stack:
            url = f"{kind}://{folder}/{kind}"
            if kind == "redis":
                (folder / kind).mkdir()
                try:
                    server = stack.enter_context(RedisServer(folder / kind, appendonly="yes", appendfsync="always"))
                except DevError as error:
                    print(f"redis is not measured: {error}")
                    continue
                url = server.url
            store = stack.enter_context(safekeeper.open(url))
            claim = claims.take(store, "orders")
            arms = {
                name: partial(rate, store, claim, every, options.seconds)
                for name, every in ((PLAIN, 0), ("a check after each write", 1), ("a check after 10 writes", 10))
            }
            yield interleave(arms, options.rounds, f"{kind}, writes of 1 KB", "writes/s")
            write, check = compare(store, claim, options.rounds * options.seconds)
            print(f"{kind}: a write takes {1e6 * write:.0f} us, a check {1e6 * check:.0f} us: {check / write:.0%} more")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter rounds")
    parser.add_argument("--only", default="", help="the stores whose name contains this")
    parser.add_argument("--rounds", type=int, default=21, help="many and short ones: what else happens hits all arms")
    parser.add_argument("--seconds", type=float, help="of each arm in each round")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.05 if options.quick else 0.3)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        report(tables(Path(folder), options), PLAIN, options.json)


if __name__ == "__main__":
    main()
