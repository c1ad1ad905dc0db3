"""`lmdb` and `objects` beside their driver doing the same writes: what the contract costs.

    python -m safekeeper.bench.driver_overhead
    python -m safekeeper.bench.driver_overhead --s3 bucket/prefix --endpoint-url http://127.0.0.1:5000

The driver puts the same keys and values, in transactions of the same size or with the same calls to the file system;
what is written is made before the clock starts, here batches, there pairs. The figure is how many times as fast as the
driver the backend is.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import lmdb

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.bench.interleave import Result, interleave, report

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


def rate(prepare: Prepare, count: int, size: int, seconds: float, clock: Callable[[], float]) -> float:
    """Values saved in a second, each write over ids that were written before."""
    value = os.urandom(size)
    keys = itertools.cycle([b"%016d" % n for n in range(_IDS)])
    writes = [prepare([(key, value) for key in itertools.islice(keys, count)]) for _ in range(_IDS // count)]
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


def raw_lmdb(folder: Path, sync: bool, stack: ExitStack) -> Prepare:
    """Saving with py-lmdb, in its fastest way."""
    environment = stack.enter_context(lmdb.open(str(folder), map_size=1 << 30, sync=sync))

    def save(items: Items) -> None:
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(items)

    return lambda items: partial(save, items)


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
    from concurrent.futures import ThreadPoolExecutor

    files: Any = fsspec.filesystem("s3", endpoint_url=endpoint, use_listings_cache=False)
    pool = stack.enter_context(ThreadPoolExecutor(16))

    def save_one(item: tuple[bytes, bytes]) -> None:
        folder = f"{place}/{item[0].decode()}"
        old = files.find(folder, prefix="v")
        files.pipe_file(f"{folder}/v{time.time_ns():016x}", item[1])
        for path in old:
            files.rm_file(path)

    return lambda items: lambda: list(pool.map(save_one, items))


def tables(folder: Path, options: argparse.Namespace) -> Iterator[Result]:
    """A table per store and shape."""
    clock = time.process_time if options.processor else time.perf_counter
    for name, (count, size) in SHAPES.items():
        pairs: dict[str, Callable[[ExitStack, Path], tuple[Prepare, Prepare]]] = {
            "lmdb, sync=always": lambda stack, at: (
                raw_lmdb(at / "raw", True, stack),
                keeper(f"lmdb://{at}/ours", stack),
            ),
            "lmdb, sync=none": lambda stack, at: (
                raw_lmdb(at / "raw", False, stack),
                keeper(f"lmdb://{at}/ours?sync=none", stack),
            ),
            "objects+file": lambda stack, at: (raw_folder(at / "raw"), keeper(f"objects+file://{at}/ours", stack)),
        }
        if options.s3:
            place, endpoint = f"{options.s3}/{secrets.token_hex(4)}", options.endpoint_url
            pairs["objects+s3"] = lambda stack, at, place=place, endpoint=endpoint: (  # type: ignore[misc]
                raw_s3(f"{place}/raw", endpoint, stack),
                keeper(f"objects+s3://{place}/ours?endpoint-url={endpoint}", stack),
            )
        for kind, make in pairs.items():
            if options.only in kind:
                with ExitStack() as stack, tempfile.TemporaryDirectory(dir=folder) as at:
                    raw, ours = make(stack, Path(at))
                    arms = {
                        arm: partial(rate, prepare, count, size, options.seconds, clock)
                        for arm, prepare in (("driver", raw), ("safekeeper", ours))
                    }
                    yield interleave(arms, options.rounds, f"{kind}, {name}", "values/s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the stores whose name contains this")
    parser.add_argument("--rounds", type=int, default=9, help="how many rounds count")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each arm in each round")
    parser.add_argument("--processor", action="store_true", help="count processor time only: for a busy machine")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--s3", metavar="BUCKET/PREFIX", help="measure objects+s3 as well")
    parser.add_argument("--endpoint-url", help="where the S3 server is")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        report(tables(Path(folder), options), "safekeeper", options.json)


if __name__ == "__main__":
    main()
