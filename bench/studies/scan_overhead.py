"""Reading a whole group back: `scan` and `recover` beside loops that somebody would write by hand.

    python -m safekeeper.bench.studies.scan_overhead [--quick] [--only lmdb] [--ids 1000000] [--processor]

Small states, 100 bytes each as a keeper stores them, in one group. The loops by hand read the same bytes, which they
have written with a checksum in front, and verify it: one loop over a cursor (sqlite3, py-lmdb, HSCAN of redis-py), or
over the files of a folder. `log:` has no driver, and is compared with sqlite3. For `recover` they decode the states as
well, with the keeper's codec.

All stores stay open, and what they read is in the operating system's cache. The figure is how many times as fast as the
loop by hand ours is.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import lmdb
import xxhash

import safekeeper
from safekeeper import Batch, CheckpointId, SafeKeeper, stores
from safekeeper.backend import Backend
from safekeeper.bench.harness.interleave import Interleaved, interleave, report
from safekeeper.dev.process import DevError
from safekeeper.dev.redis import RedisServer
from safekeeper.keeper.serializers import Codec, serializer_named

GROUP = "WordCounter"
OURS = "safekeeper"
BY_HAND = "by hand"
WANTED = {"log": 0.6}
"""What ours is to reach, as a part of the rate of the loop by hand."""
_WANTED_OF_DRIVERS = 0.7
_BATCH = 1000
_FILES = 20_000
"""Of a store with a file for each id, no more than so many."""

Pairs = Iterator[tuple[bytes, bytes]]
Loop = Callable[[], Pairs]
"""The keys of a group with their values, verified."""

_codec = Codec(serializer_named("msgpack"))


def states(number: int) -> Pairs:
    """The keys and values of a group of *number* small states."""
    for n in range(number):
        yield b"key-%08d" % n, _codec.encode({"word": f"word-{n}", "count": n, "about": "x" * 50})


def sealed(value: bytes) -> bytes:
    """*value* with a checksum in front."""
    return xxhash.xxh3_64_digest(value) + value


def opened(record: bytes) -> bytes:
    """What was `sealed`."""
    value = record[8:]
    if xxhash.xxh3_64_digest(value) != record[:8]:
        raise ValueError("a checksum does not match")
    return value


def sqlite_by_hand(folder: Path, pairs: Pairs, stack: ExitStack) -> Loop:
    """A table with keys and values."""
    folder.mkdir()
    connection = sqlite3.connect(folder / "store.sqlite")
    stack.callback(connection.close)
    connection.execute("create table states (key blob primary key, value blob) without rowid")
    connection.executemany("insert into states values (?, ?)", ((key, sealed(value)) for key, value in pairs))
    connection.commit()

    def loop() -> Pairs:
        for key, record in connection.execute("select key, value from states"):
            yield key, opened(record)

    return loop


def lmdb_by_hand(folder: Path, pairs: Pairs, stack: ExitStack) -> Loop:
    """A tree with several groups, one read transaction over all of one; checksums are of key and value."""
    environment = stack.enter_context(lmdb.open(str(folder), map_size=16 << 30, sync=False))
    digest, seed = xxhash.xxh3_64_digest, xxhash.xxh3_64_intdigest
    group = GROUP.encode() + b"\0"
    with environment.begin(write=True) as transaction:
        names = ((group + key, value) for key, value in pairs)
        transaction.cursor().putmulti((name, digest(value, seed(name)) + value) for name, value in names)

    def loop() -> Pairs:
        with environment.begin() as transaction:
            cursor = transaction.cursor()
            cursor.set_range(group)
            for name, record in cursor:
                if not name.startswith(group):
                    break
                value = record[8:]
                if digest(value, seed(name)) != record[:8]:
                    raise ValueError("a checksum does not match")
                yield name[len(group) :], value

    return loop


def redis_by_hand(client: Any, pairs: Pairs, stack: ExitStack) -> Loop:
    """A hash with keys and values."""
    while some := dict(islice(pairs, _BATCH)):
        client.hset("by-hand", mapping={key: sealed(value) for key, value in some.items()})

    def loop() -> Pairs:
        for key, record in client.hscan_iter("by-hand", count=_BATCH):
            yield key, opened(record)

    return loop


def files_by_hand(folder: Path, pairs: Pairs, stack: ExitStack) -> Loop:
    """A file for each key."""
    folder.mkdir()
    for key, value in pairs:
        (folder / key.decode()).write_bytes(sealed(value))

    def loop() -> Pairs:
        with os.scandir(folder) as entries:
            for entry in entries:
                with open(entry.path, "rb") as file:
                    yield entry.name.encode(), opened(file.read())

    return loop


def filled(url: str, pairs: Pairs, stack: ExitStack) -> Backend:
    """A store with *pairs*, closed once, so that it is as a restart finds it."""
    with safekeeper.open(url) as store:
        while some := dict(islice(pairs, _BATCH)):
            store.write(Batch({CheckpointId(GROUP, key): value for key, value in some.items()}))
    return stack.enter_context(safekeeper.open(url))


def rate(ids: int, clock: Callable[[], float], loop: Callable[[], Iterator[object]]) -> float:
    """States a second."""
    started, found = clock(), 0
    for _ in loop():
        found += 1
    elapsed = clock() - started
    if found != ids:
        raise AssertionError(f"{found} of {ids} states were read")
    return found / elapsed


def scanned(store: Backend) -> Iterator[object]:
    """What a scan gives; keys and reads of a store that has none."""
    scan = getattr(store, "scan", None)
    return chain.from_iterable(scan(GROUP)) if scan else stores.values_of(store, [GROUP])


def decoded(loop: Loop) -> Iterator[object]:
    """The states of what a loop by hand reads."""
    for key, value in loop():
        yield key, _codec.decode(value)


def arms_of(kind: str, folder: Path, ids: int, stack: ExitStack) -> tuple[Backend, Loop] | None:
    """A store of one kind, and the loop to compare it with; None if there is no server for it."""
    ours, by_hand = folder / "ours", folder / "by-hand"
    match kind:
        case "log":
            return filled(f"log://{ours}", states(ids), stack), sqlite_by_hand(by_hand, states(ids), stack)
        case "lmdb":
            url = f"lmdb://{ours}?sync=none"
            return filled(url, states(ids), stack), lmdb_by_hand(by_hand, states(ids), stack)
        case "file":
            return filled(f"file://{ours}", states(ids), stack), files_by_hand(by_hand, states(ids), stack)
    folder.mkdir(exist_ok=True)
    try:
        server = stack.enter_context(RedisServer(folder, appendonly="no"))
    except DevError as error:
        print(f"redis is not measured: {error}")
        return None
    client = stack.enter_context(server.client())
    return filled(server.url, states(ids), stack), redis_by_hand(client, states(ids), stack)


def tables(folder: Path, options: argparse.Namespace) -> Iterator[Interleaved]:
    """Two tables for each kind of store."""
    clock = time.process_time if options.processor else time.perf_counter
    for kind in ("log", "lmdb", "redis", "file"):
        if options.only not in kind:
            continue
        ids = min(options.ids, _FILES) if kind == "file" else options.ids
        with ExitStack() as stack:
            at = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
            if (both := arms_of(kind, at, ids, stack)) is None:
                continue
            store, loop = both
            keeper = stack.enter_context(SafeKeeper(store))
            measured: dict[str, dict[str, Callable[[], Iterator[object]]]] = {
                "scan": {BY_HAND: loop, OURS: partial(scanned, store)},
                "recover": {BY_HAND: partial(decoded, loop), OURS: partial(keeper.recover, GROUP)},
            }
            for what, arms in measured.items():
                rates = {name: partial(rate, ids, clock, arm) for name, arm in arms.items()}
                yield interleave(rates, options.rounds, f"{kind}, {what} of {ids:,} states", "states/s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer states and rounds")
    parser.add_argument("--only", default="", help="the stores whose name contains this")
    parser.add_argument("--ids", type=int, help="how many states")
    parser.add_argument("--rounds", type=int, help="how often each arm runs")
    parser.add_argument("--processor", action="store_true", help="count processor time only: for a busy machine")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    options.ids = options.ids or (50_000 if options.quick else 1_000_000)
    options.rounds = options.rounds or (5 if options.quick else 9)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for result in report(tables(Path(folder), options), OURS, options.json):
            wanted = WANTED.get(result.title.partition(",")[0], _WANTED_OF_DRIVERS)
            print(result.at_least(wanted, OURS, BY_HAND))


if __name__ == "__main__":
    main()
