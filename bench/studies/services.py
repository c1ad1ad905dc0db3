"""What a service pays for its states: a keeper beside diskcache, sqlite3, py-lmdb and redis-py used by hand.

    python -m safekeeper.bench.studies.services [--quick] [--only sqlite3] [--processor] [--folder DISK]

Like for like: every save is on disk when it counts (sqlite3 and diskcache with `synchronous=full`, lmdb with its sync,
redis with `appendfsync always`), states are the same dicts in msgpack, with a checksum that is verified when they are
read, and batches are of 1,000. All are in one folder and are measured in turns.

    p50, p99    one durable save after another, in a thread as a service has them; ours in the main thread, too, where
                a keeper leaves the write to its worker
    processor   saves by single calls, 1,000 to a sync, in processor time of this process; redis' server is another one
    bulk        1,000 states at a time, in the way that is meant for it
    recover     every state of a group, decoded

`log:` has a keeper in front: the others have neither queues nor retries, deadlines, metrics or order to offer. Lines
are those of the classes below, without docstrings.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sqlite3
import statistics
import tempfile
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import xxhash

from safekeeper import CheckpointId, SafeKeeper
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Interleaved, interleave, report
from safekeeper.dev.process import DevError
from safekeeper.dev.redis import RedisServer

OURS, SQLITE = "safekeeper", "sqlite3"
IN_MAIN_THREAD = "safekeeper, main thread"
BATCH = 1000
WANTED_PROCESSOR, WANTED_RATE = 1 / 1.6, 0.6

State = dict[str, Any]
Clock = Callable[[], float]


def packed(state: State) -> bytes:
    """The bytes of a state, with a checksum in front."""
    value: bytes = msgpack.packb(state)
    return xxhash.xxh3_64_digest(value) + value


def unpacked(record: bytes) -> State:
    """The state that was `packed`."""
    value = record[8:]
    if xxhash.xxh3_64_digest(value) != record[:8]:
        raise ValueError("a checksum does not match")
    state: State = msgpack.unpackb(value)
    return state


class Keeping(ABC):
    """A way to keep states under keys."""

    @abstractmethod
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Open a store in *folder*; *stack* closes it."""

    @abstractmethod
    def save(self, key: str, state: State) -> None:
        """Durable when it returns."""

    @abstractmethod
    def save_singly(self, states: dict[str, State]) -> None:
        """By a call for each; durable when it returns."""

    @abstractmethod
    def save_bulk(self, states: dict[str, State]) -> None:
        """In the way for bulk; durable when it returns."""

    @abstractmethod
    def recover(self) -> Iterator[object]:
        """All states."""


class KeeperWay(Keeping):
    """SafeKeeper on `log:`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._keeper = stack.enter_context(SafeKeeper(f"log://{folder}/log"))

    def save(self, key: str, state: State) -> None:
        self._keeper.save(CheckpointId("s", key), state).result()

    def save_singly(self, states: dict[str, State]) -> None:
        for key, state in states.items():
            self._keeper.save(CheckpointId("s", key), state)
        self._keeper.flush()

    def save_bulk(self, states: dict[str, State]) -> None:
        self._keeper.save_many((CheckpointId("s", key), state) for key, state in states.items())

    def recover(self) -> Iterator[object]:
        return self._keeper.recover("s")


class SqliteByHand(Keeping):
    """sqlite3 of the standard library: a table in WAL mode, fully synchronous."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._db = sqlite3.connect(folder / "states.sqlite", isolation_level=None, check_same_thread=False)
        stack.callback(self._db.close)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.execute("create table states (key text primary key, value blob) without rowid")

    def save(self, key: str, state: State) -> None:
        self._db.execute("insert or replace into states values (?, ?)", (key, packed(state)))

    def save_singly(self, states: dict[str, State]) -> None:
        self._db.execute("begin")
        for key, state in states.items():
            self._db.execute("insert or replace into states values (?, ?)", (key, packed(state)))
        self._db.execute("commit")

    def save_bulk(self, states: dict[str, State]) -> None:
        rows = [(key, packed(state)) for key, state in states.items()]
        self._db.execute("begin")
        self._db.executemany("insert or replace into states values (?, ?)", rows)
        self._db.execute("commit")

    def recover(self) -> Iterator[object]:
        for key, record in self._db.execute("select key, value from states"):
            yield key, unpacked(record)


class LmdbByHand(Keeping):
    """py-lmdb: one tree, a transaction for each batch."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._environment = stack.enter_context(lmdb.open(str(folder / "lmdb"), map_size=8 << 30))

    def save(self, key: str, state: State) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(key.encode(), packed(state))

    def save_singly(self, states: dict[str, State]) -> None:
        with self._environment.begin(write=True) as transaction:
            for key, state in states.items():
                transaction.put(key.encode(), packed(state))

    def save_bulk(self, states: dict[str, State]) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti((key.encode(), packed(state)) for key, state in states.items())

    def recover(self) -> Iterator[object]:
        with self._environment.begin() as transaction:
            for key, record in transaction.cursor():
                yield key, unpacked(record)


class DiskcacheByHand(Keeping):
    """diskcache: its Cache, fully synchronous and without eviction."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        import diskcache

        self._cache = diskcache.Cache(str(folder / "diskcache"), sqlite_synchronous=2, eviction_policy="none")
        stack.callback(self._cache.close)

    def save(self, key: str, state: State) -> None:
        self._cache[key] = packed(state)

    def save_singly(self, states: dict[str, State]) -> None:
        with self._cache.transact():
            for key, state in states.items():
                self._cache[key] = packed(state)

    def save_bulk(self, states: dict[str, State]) -> None:
        self.save_singly(states)

    def recover(self) -> Iterator[object]:
        for key in self._cache:
            yield key, unpacked(self._cache[key])


class RedisByHand(Keeping):
    """redis-py: a hash, and a server that syncs before it answers."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        server = stack.enter_context(RedisServer(folder, appendonly="yes", appendfsync="always"))
        self._client = stack.enter_context(server.client())

    def save(self, key: str, state: State) -> None:
        self._client.hset("s", key, packed(state))

    def save_singly(self, states: dict[str, State]) -> None:
        pipeline = self._client.pipeline(transaction=True)
        for key, state in states.items():
            pipeline.hset("s", key, packed(state))
        pipeline.execute()

    def save_bulk(self, states: dict[str, State]) -> None:
        self._client.hset("s", mapping={key: packed(state) for key, state in states.items()})

    def recover(self) -> Iterator[object]:
        for key, record in self._client.hscan_iter("s", count=BATCH):
            yield key, unpacked(record)


WAYS: dict[str, type[Keeping]] = {
    OURS: KeeperWay,
    SQLITE: SqliteByHand,
    "lmdb": LmdbByHand,
    "diskcache": DiskcacheByHand,
    "redis-py": RedisByHand,
}


def lines_of(way: type[Keeping]) -> int:
    """How many lines of code *way* has, without docstrings and what is empty."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(way)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return len([line for line in ast.unparse(tree).splitlines() if line.strip()])


def state_of(number: int) -> State:
    """A small session."""
    return {"user": f"user-{number}", "clicks": number, "items": [1, 2, 3], "seconds": number / 7}


class Laboratory:
    """All ways, open, and what is measured of them."""

    def __init__(self, folder: Path, stack: ExitStack, names: list[str], states: int, clock: Clock) -> None:
        self._clock = clock
        self.ways: dict[str, Keeping] = {}
        self._states = {f"key-{n:08}": state_of(n) for n in range(states)}
        for name in names:
            at = folder / name
            at.mkdir()
            try:
                self.ways[name] = WAYS[name](at, stack)
            except (DevError, ImportError) as error:
                print(f"{name} is not measured: {error}")
        for way in self.ways.values():
            for page in self._pages():
                way.save_bulk(page)
        self._numbers = count()

    def _pages(self) -> Iterator[dict[str, State]]:
        keys = list(self._states)
        for start in range(0, len(keys), BATCH):
            yield {key: self._states[key] for key in keys[start : start + BATCH]}

    def latencies(self, saves: int, rounds: int) -> tuple[Interleaved, Interleaved]:
        """The p50 and the p99 of single durable saves, as rates, round by round."""
        result = Interleaved("p50 of a durable save", "1/s"), Interleaved("p99 of a durable save", "1/s")
        arms = self.ways
        if OURS in arms:
            arms = {**arms, IN_MAIN_THREAD: arms[OURS]}
        with ThreadPoolExecutor(1) as thread:
            for turn in range(rounds + 1):
                for name, way in arms.items():
                    here = name == IN_MAIN_THREAD
                    times = self._times(way, saves) if here else thread.submit(self._times, way, saves).result()
                    if turn:
                        for part, share in zip(result, (0.5, 0.99), strict=True):
                            part.rates.setdefault(name, []).append(1 / times[int(share * (saves - 1))])
        return result

    def _times(self, way: Keeping, saves: int) -> list[float]:
        return sorted(self._time(way) for _ in range(saves))

    def _time(self, way: Keeping) -> float:
        number = next(self._numbers) % len(self._states)
        started = time.perf_counter()
        way.save(f"key-{number:08}", state_of(number))
        return time.perf_counter() - started

    def rate(
        self, way: Keeping, save: Callable[[Keeping, dict[str, State]], None], clock: Callable[[], float]
    ) -> float:
        """Saves a second of *clock*."""
        pages = list(self._pages())
        started = clock()
        for page in pages:
            save(way, page)
        return len(self._states) / (clock() - started)

    def recovered(self, way: Keeping) -> float:
        """States a second."""
        started = self._clock()
        found = sum(1 for _ in way.recover())
        if found != len(self._states):
            raise AssertionError(f"{found} of {len(self._states)} states came back")
        return found / (self._clock() - started)

    def tables(self, options: argparse.Namespace) -> Iterator[Interleaved]:
        """All that is measured."""
        yield from self.latencies(options.saves, options.rounds)

        def arms(measure: Callable[[Keeping], float]) -> dict[str, Callable[[], float]]:
            return {name: partial(measure, way) for name, way in self.ways.items()}

        singly = partial(self.rate, save=lambda way, page: way.save_singly(page), clock=time.process_time)
        bulk = partial(self.rate, save=lambda way, page: way.save_bulk(page), clock=self._clock)
        yield interleave(arms(singly), options.rounds, "saves a second of processor time", "saves/s")
        yield interleave(arms(bulk), options.rounds, "bulk", "saves/s")
        yield interleave(arms(self.recovered), options.rounds, "recover", "states/s")


def goals(results: list[Interleaved]) -> Iterator[Goal]:
    """What was to be reached."""
    p50, _, processor, bulk, recover = results
    if SQLITE not in p50.rates or OURS not in p50.rates:
        return
    medians = {name: statistics.median(1 / rate for rate in rates) for name, rates in p50.rates.items()}
    medians.pop(IN_MAIN_THREAD, None)
    shown = ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in medians.items())
    yield Goal(f"p50 of a durable save is the lowest: {shown}", min(medians, key=lambda name: medians[name]) == OURS)
    yield processor.at_least(WANTED_PROCESSOR, OURS, SQLITE)
    yield bulk.at_least(WANTED_RATE, OURS, SQLITE)
    yield recover.at_least(WANTED_RATE, OURS, SQLITE)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer states and rounds")
    parser.add_argument("--only", default="", help="ours, and those whose name contains this")
    parser.add_argument("--states", type=int, help="how many states")
    parser.add_argument("--saves", type=int, help="how many single saves in a round")
    parser.add_argument("--rounds", type=int, help="how often each arm runs")
    parser.add_argument("--processor", action="store_true", help="bulk and recover by processor time")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    options.states = options.states or (10_000 if options.quick else 50_000)
    options.saves = options.saves or (200 if options.quick else 1000)
    options.rounds = options.rounds or (5 if options.quick else 9)
    names = [name for name in WAYS if name == OURS or options.only in name]
    with suppress(BrokenPipeError), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        clock = time.process_time if options.processor else time.perf_counter
        laboratory = Laboratory(folder, stack, names, options.states, clock)
        results = report(laboratory.tables(options), OURS, options.json)
        print("lines of code: " + ", ".join(f"{name} {lines_of(WAYS[name])}" for name in laboratory.ways))
        for goal in goals(results):
            print(goal)


if __name__ == "__main__":
    main()
