"""The write path of `log` against raw files and other embedded stores, every save durable.

    python -m safekeeper.bench.studies.log_write_path --quick
    python -m safekeeper.bench.studies.log_write_path --only threads --rounds 7 --json out.json

Tables: 90 % save / 10 % fetch of 1 KB under 1,000 ids by 1 to 32 threads; 16 records and one flush; batches of 10,000
given as columns; values of 16 MB; opening and memory against the number of ids. `raw` is a loop of `write` and
`fdatasync`, `overwrite` the same over blocks that were written before: the limits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from safekeeper import Columns
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.interleave import Interleaved, interleave, report
from safekeeper.bench.studies.log_write_path.arms import IDS, VALUES, mixed, opened, repeated
from safekeeper.bench.ycsb.peers import BackendPeer, EmbeddedStore

LARGE = os.urandom(16 << 20)


@dataclass(frozen=True, slots=True)
class WritePathScale:
    """How much to measure."""

    rounds: int
    seconds: float
    """Of each arm in each round."""
    threads: tuple[int, ...]
    ids: tuple[int, ...]


FULL = WritePathScale(7, 1.0, (1, 2, 4, 8, 16, 32), (1_000, 10_000, 100_000, 1_000_000, 10_000_000))
QUICK = WritePathScale(5, 0.3, (1, 16), (1_000, 1_000_000))

GOALS = {
    "1 thread": {"overwrite": 0.85, "raw": 1.0},
    "16 threads": {"raw": 0.5, "file": 14, "leveldb": 1.3, "rocksdb": 5, "lmdb": 6, "sqlite": 12},
    "16 records": {"raw": 0.85},
    "batches": {"raw": 0.75, "leveldb": 8, "rocksdb": 8},
    "values": {"raw": 0.93, "rocksdb": 5},
}
"""How many times as fast as another arm the log is to be, by the beginning of a table's title."""
GOALS_FOR_IDS = {
    "open, ms": 20,
    "open with a tail of 20,000, ms": 50,
    "memory at rest, bytes an id": 40,
    "memory when changed, bytes an id": 130,
}
"""What is to be the most with a million ids."""


# --- the tables -------------------------------------------------------------------------------------------------------


def threads_table(folder: Path, scale: WritePathScale) -> Iterator[Interleaved]:
    """90 % save, 10 % fetch. Raw loops have one thread; beside several threads they sync once per so many records."""
    for threads in scale.threads:
        with opened(folder / f"{threads}") as arms:
            measures = {name: partial(mixed, arm, threads, scale.seconds) for name, arm in arms.items()}
            if threads > 1:
                group = list(zip(IDS, VALUES, strict=True))[:threads]
                for name in ("raw", "overwrite"):
                    measures[name] = partial(
                        repeated, partial(arms[name].save_all, group), scale.seconds, weight=threads
                    )
            title = f"{threads} thread{'s' if threads > 1 else ''}, 1 KB, 90 % save / 10 % fetch"
            yield interleave(measures, scale.rounds, title)


def group_table(folder: Path, scale: WritePathScale) -> Iterator[Interleaved]:
    """16 records in one batch, one sync."""
    items = list(zip(IDS, VALUES, strict=True))[:16]
    with opened(folder) as arms:
        measures = {
            name: partial(repeated, partial(arm.save_all, items), scale.seconds, 16) for name, arm in arms.items()
        }
        yield interleave(measures, scale.rounds, "16 records of 1 KB, one flush", "records/s")


def bulk_table(folder: Path, scale: WritePathScale) -> Iterator[Interleaved]:
    """10,000 records of 1 KB in one batch, for the log as Arrow columns."""
    keys = [b"%016d" % n for n in range(10_000)]
    items = [(key, os.urandom(1024)) for key in keys]
    values = pa.array([value for _, value in items], pa.binary())
    columns = Columns.of("bench", pa.array(keys, pa.binary()), values)
    whole = [(b"", bytes(columns.values.data))]
    with opened(folder) as arms:
        works: dict[str, Callable[[], object]] = {
            name: partial(arm.save_all, items) for name, arm in arms.items() if name in ("lmdb", "leveldb", "rocksdb")
        }
        log = arms["log"]
        assert isinstance(log, BackendPeer)
        works = {"log": partial(log.save_columns, columns), "raw": partial(arms["raw"].save_all, whole), **works}
        measures = {name: partial(repeated, work, 2 * scale.seconds, 10_000) for name, work in works.items()}
        yield interleave(measures, scale.rounds, "batches of 10,000 x 1 KB as columns", "records/s")


def large_table(folder: Path, scale: WritePathScale) -> Iterator[Interleaved]:
    """Values of 16 MB."""
    turn = itertools.count()

    def save(arm: EmbeddedStore) -> None:
        arm.save(IDS[next(turn) % 4], LARGE)

    with opened(folder) as arms:
        measures = {
            name: partial(repeated, partial(save, arm), 2 * scale.seconds, 16)
            for name, arm in arms.items()
            if name in ("log", "raw", "lmdb", "leveldb", "rocksdb", "file")
        }
        yield interleave(measures, scale.rounds, "values of 16 MB", "MB/s")


def judged(results: Iterable[Interleaved]) -> Iterator[Interleaved]:
    """The results, each followed by a line for each of its goals."""
    for result in results:
        yield result
        for name, wanted in GOALS.items():
            if result.title.startswith(name):
                for base, least in wanted.items():
                    print(result.at_least(least, "log", base))


TABLES = {"threads": threads_table, "group": group_table, "bulk": bulk_table, "large": large_table}


# --- opening and memory -----------------------------------------------------------------------------------------------


def ids_table(folder: Path, scale: WritePathScale) -> list[dict[str, float]]:
    """How long opening takes and how much memory an id needs, each measured in a process of its own."""
    rows = []
    for ids in scale.ids:
        path = folder / f"{ids}"
        _child("fill", path, ids)
        row = {"ids": float(ids), **_child("open", path, ids)}
        row["index file bytes an id"] = sum(file.stat().st_size for file in path.glob("*/*.index")) / ids
        _child("tail", path, 20_000)
        row["open with a tail of 20,000, ms"] = _child("open", path, ids)["open, ms"]
        row |= _child("change", folder / f"{ids}-changed", min(ids, 1_000_000))
        rows.append(row)
        shutil.rmtree(path)
    return rows


def _child(what: str, path: Path, number: int) -> dict[str, float]:
    command = [sys.executable, "-m", "safekeeper.bench.studies.log_write_path.ids", what, str(path), str(number)]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result


def print_rows(rows: list[dict[str, float]]) -> None:
    """Print the table of `ids_table`."""
    table = Table(title="opening and memory against the number of ids", title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" for value in row.values()))
    Console().print(table)
    for row in rows:
        if row["ids"] == 1_000_000:
            for name, most in GOALS_FOR_IDS.items():
                print(Goal(f"1,000,000 ids, {name}: at most {most}: {row[name]:.1f}", row[name] <= most))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--only", choices=[*TABLES, "ids"], help="one table")
    parser.add_argument("--rounds", type=int, help="how many rounds count")
    parser.add_argument("--threads", type=_numbers, help="how many threads, like 1,16")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--json", type=Path, help="where all numbers go")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    if options.threads:
        scale = replace(scale, threads=options.threads)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        wanted = [table(Path(folder) / name, scale) for name, table in TABLES.items() if options.only in (None, name)]
        report(judged(itertools.chain(*wanted)), "log", options.json)
        if options.only in (None, "ids"):
            print_rows(ids_table(Path(folder) / "ids", scale))


if __name__ == "__main__":
    main()
