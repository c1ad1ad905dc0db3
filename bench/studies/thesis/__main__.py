"""The measurements of the S4 thesis again, with its settings, ours beside its figures.

    python -m safekeeper.bench.studies.thesis [--quick] [--only 4.5] [--folder DIR] [--embedded] [--store URL ...]

The thesis' file backends were on NFS with a filer behind it; here they are on a local disk, which is its figure 5.1.
In 4.5 to 4.7 states are saved through a SafeKeeper: by three processes if all the stores can be shared by them, else by
one. For 4.6 a Redis that syncs every write and an HBase are started on this machine; `--store` adds others. A number
that the thesis has stands beside ours, with the reason where they differ; its disk model predicts (3.4).
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from safekeeper.bench.studies.thesis import disk_model, figures, small_writes
from safekeeper.bench.studies.thesis.finding import FULL, QUICK, Finding, ThesisScale, ThesisSite
from safekeeper.dev.process import DevError

EXPERIMENTS: dict[str, Callable[[ThesisSite, ThesisScale], Finding]] = {
    "3.4": disk_model.predictions,
    "4.1": figures.throughput_and_latency,
    "4.2": figures.index_rebuild,
    "4.5": figures.word_count,
    "4.6": figures.word_count,
    "4.7": figures.throughput_against_ids,
    "5.1": figures.throughput_and_latency,
    "table-5.1": small_writes.small_writes,
}
"""By the number of the section, figure or table. 4.1 and 5.1 are one here: the local disk; 4.6 is 4.5 with servers."""
_SAME = {"5.1": "4.1"}


@contextmanager
def started_servers(folder: Path) -> Iterator[ThesisSite]:
    """A place with Redis and HBase running beside it, or with what is missing for that."""
    starts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "redis": lambda: _dev("redis").RedisServer(folder / "redis", appendonly="yes", appendfsync="always"),
        "hbase": lambda: _dev("hbase").HBaseServer(folder / "hbase"),
    }
    urls, missing = [], []
    with ExitStack() as running:
        for name, start in starts.items():
            try:
                urls.append(running.enter_context(start()).url)
            except (ModuleNotFoundError, DevError) as error:
                missing.append(f"{name} is not measured: {error}")
        yield ThesisSite(folder, urls, missing)


def _dev(name: str) -> Any:
    return import_module(f"safekeeper.dev.{name}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer operations, rounds and ids")
    parser.add_argument("--only", choices=list(EXPERIMENTS), help="one of them")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--embedded", action="store_true", help="leave out 4.6, which needs servers")
    parser.add_argument("--store", action="append", default=[], help="another store for 4.5 and 4.6, empty")
    options = parser.parse_args()
    scale = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        alone = ThesisSite(Path(folder), options.store)
        for name, experiment in EXPERIMENTS.items():
            if name != options.only and (options.only or name in _SAME):
                continue
            if name == "4.6" and options.embedded:
                continue
            if name == "4.6":
                with started_servers(Path(folder)) as site:
                    experiment(dataclasses.replace(site, servers=[*site.servers, *options.store]), scale).print()
            else:
                experiment(alone, scale).print()


if __name__ == "__main__":
    main()
