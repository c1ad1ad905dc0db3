"""`lmdb` and `objects` beside their driver doing the same writes: what the contract costs.

    python -m safekeeper.bench.studies.lmdb_and_objects_overhead [--quick] [--only lmdb] [--processor]

The driver puts the same keys and values, byte by byte, in transactions of the same size or with the same calls to the
file system, one after the other or as many at a time. What is written is made before the clock starts, here batches,
there pairs. Into LMDB a second arm writes pairs that it makes while the clock runs, as somebody would who wants a
damaged value to be found out: name, checksum, value. S3 is a server of moto's, if that is installed.

The figure is how many times as fast as the driver the backend is.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import lmdb
import xxhash

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.bench.harness.interleave import AT_MOST_15_PERCENT_OVER, Interleaved, interleave, report
from safekeeper.dev.process import DevError
from safekeeper.dev.s3 import SETTINGS, S3Server

Items = Sequence[tuple[bytes, bytes]]
Prepare = Callable[[Items], Callable[[], object]]
"""Makes what is written ready, and returns the write."""

SHAPES = {
    "1 x 1 KB": (1, 1 << 10),
    "16 x 1 KB": (16, 1 << 10),
    "1000 x 1 KB": (1000, 1 << 10),
    "1 x 1 MB": (1, 1 << 20),
}
"""Values in a write, and the bytes of each."""
_IDS = 1000
_READY_BYTES = 64 << 20
"""How much is made ready at most before the clock starts."""
_MOST_AT_S3 = 16
"""Larger batches would tell how fast moto is, for minutes."""
OURS = "safekeeper"


def rate(prepare: Prepare, count: int, size: int, seconds: float, clock: Callable[[], float]) -> float:
    """Values saved in a second, each write over ids that were written before."""
    value = os.urandom(size)
    ids = min(_IDS, _READY_BYTES // size)
    keys = itertools.cycle([b"%016d" % n for n in range(ids)])
    writes = [prepare([(key, value) for key in itertools.islice(keys, count)]) for _ in range(ids // count)]
    writes[0]()
    started, saved = clock(), 0
    for write in itertools.cycle(writes):
        write()
        saved += count
        if (elapsed := clock() - started) >= seconds:
            return saved / elapsed
    raise AssertionError("unreachable")


def keeper(url: str, stack: ExitStack) -> Prepare:
    """Saving through safekeeper."""
    store = stack.enter_context(safekeeper.open(url))
    return lambda items: partial(store.write, Batch({CheckpointId("bench", key): value for key, value in items}))


def raw_lmdb(folder: Path, sync: bool, stack: ExitStack, *, careful: bool) -> Prepare:
    """Saving with py-lmdb, in its fastest way; *careful*: with checksums that are made while the clock runs."""
    environment = stack.enter_context(lmdb.open(str(folder), map_size=1 << 30, sync=sync))

    def save(items: Items) -> None:
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(items)

    if careful:
        return lambda items: lambda: save(checked(items))
    return lambda items: partial(save, checked(items))


def checked(items: Items) -> Items:
    """What `lmdb:` stores for *items*."""
    records = []
    for key, value in items:
        name = b"bench\0" + key
        records.append((name, xxhash.xxh3_64_digest(value, xxhash.xxh3_64_intdigest(name)) + value))
    return records


def raw_folder(root: Path) -> Prepare:
    """Saving files with fsspec as `objects` does: list, write, move, delete."""
    files: Any = fsspec.filesystem("file", use_listings_cache=False)
    (root / "tmp").mkdir(parents=True)
    numbers = itertools.count()

    def save(items: Items) -> None:
        for key, value in items:
            folder, name = f"{root}/{key.decode()}", f"v{next(numbers):016x}"
            try:
                old = files.ls(folder, detail=False)
            except FileNotFoundError:
                old = []
            files.pipe_file(f"{root}/tmp/{name}", value)
            files.makedirs(folder, exist_ok=True)
            files.mv(f"{root}/tmp/{name}", f"{folder}/{name}")
            for path in old:
                files.rm_file(path)

    return lambda items: partial(save, items)


def raw_s3(place: str, endpoint: str, stack: ExitStack) -> Prepare:
    """Saving objects with s3fs as `objects` does, as many at a time: list, put, delete."""
    files: Any = fsspec.filesystem("s3", endpoint_url=endpoint, use_listings_cache=False)
    pool = stack.enter_context(ThreadPoolExecutor(16))

    def save_one(item: tuple[bytes, bytes]) -> None:
        folder = f"{place}/{item[0].decode()}"
        old = files.find(folder, prefix="v")
        files.pipe_file(f"{folder}/v{time.time_ns():016x}", item[1])
        for path in old:
            files.rm_file(path)

    return lambda items: lambda: list(pool.map(save_one, items))


def lmdb_arms(sync: bool, at: Path, stack: ExitStack) -> dict[str, Prepare]:
    """On LMDB."""
    return {
        "driver": raw_lmdb(at / "raw", sync, stack, careful=False),
        "driver with checksums": raw_lmdb(at / "careful", sync, stack, careful=True),
        OURS: keeper(f"lmdb://{at}/ours?sync={'always' if sync else 'none'}", stack),
    }


def folder_arms(at: Path, stack: ExitStack) -> dict[str, Prepare]:
    """On a local folder, through fsspec."""
    return {"driver": raw_folder(at / "raw"), OURS: keeper(f"objects+file://{at}/ours", stack)}


def s3_arms(server: S3Server, stack: ExitStack) -> dict[str, Prepare]:
    """On S3, through s3fs."""
    place = server.make_bucket()
    return {
        "driver": raw_s3(f"{place}/raw", server.endpoint, stack),
        OURS: keeper(f"objects+s3://{place}/ours?endpoint-url={server.endpoint}", stack),
    }


def tables(folder: Path, server: S3Server | None, options: argparse.Namespace) -> Iterator[Interleaved]:
    """A table per store and shape."""
    stores: dict[str, Callable[[Path, ExitStack], dict[str, Prepare]]] = {
        "lmdb, sync=always": partial(lmdb_arms, True),
        "lmdb, sync=none": partial(lmdb_arms, False),
        "objects+file": folder_arms,
    }
    if server is not None:
        stores["objects+s3"] = lambda at, stack: s3_arms(server, stack)
    clock = time.process_time if options.processor else time.perf_counter
    for kind, make in stores.items():
        if options.only not in kind:
            continue
        for name, (count, size) in SHAPES.items():
            seconds = options.seconds
            if kind == "objects+s3":
                if count > _MOST_AT_S3:
                    continue
                seconds *= 3  # a write takes moto ten milliseconds
            with ExitStack() as stack, tempfile.TemporaryDirectory(dir=folder) as at:
                arms = {
                    arm: partial(rate, prepare, count, size, seconds, clock)
                    for arm, prepare in make(Path(at), stack).items()
                }
                yield interleave(arms, options.rounds, f"{kind}, {name}", "values/s")


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server | None]:
    """An S3 server; None if what it needs is not installed."""
    os.environ.update(SETTINGS)
    try:
        server = S3Server(folder)
    except DevError as error:
        print(f"objects+s3 is not measured: {error}")
        yield None
        return
    with server:
        yield server


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter rounds")
    parser.add_argument("--only", default="", help="the stores whose name contains this")
    parser.add_argument("--rounds", type=int, default=21, help="many and short ones: what else happens hits all arms")
    parser.add_argument("--seconds", type=float, help="of each arm in each round")
    parser.add_argument("--processor", action="store_true", help="count processor time only: for a busy machine")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    options.seconds = options.seconds or (0.05 if options.quick else 0.2)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, s3_server(Path(folder) / "s3") as server:
        results = report(tables(Path(folder), server, options), OURS, options.json)
    for result in results:
        for arm in result.rates:
            if arm != OURS:
                print(result.at_least(AT_MOST_15_PERCENT_OVER, OURS, arm))


if __name__ == "__main__":
    main()
