"""Opening a backend by its URL: which class serves a scheme.

    open("log:///var/lib/app?sync=interval")
    open("redis://127.0.0.1:6379/0?assert=power")

The bundled backends are the table `BUNDLED`. Others register a class under the entry point group `safekeeper.backends`,
the scheme as the entry point's name; a bundled scheme cannot be taken over. A package may also bring commands of its
own: a `typer.Typer` under the group `safekeeper.commands`, the first word of the commands as the entry point's name.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import typing
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from safekeeper.backend import Backend, SupportsWorkers, Survives
from safekeeper.errors import BadUrl
from safekeeper.url import Url, guess

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

ENTRY_POINT_GROUP = "safekeeper.backends"
COMMANDS_GROUP = "safekeeper.commands"


@dataclass(frozen=True, slots=True)
class Bundled:
    """A row of the table of bundled backends."""

    module: str
    """The module below `safekeeper.backends`."""
    cls: str
    """The class in it."""
    needs: str | None
    """The module that its driver installs, None where it needs none."""
    extra: str | None
    """The extra that installs the driver: `pip install 'safekeeper[extra]'`."""
    scope: str
    """Who sees the writes, as shown by `safekeeper backends`; a handle's own `scope` is what counts."""
    survives: str
    """What a write survives with the default settings, likewise."""
    summary: str


# A row that ends with a plus serves every scheme that begins so.
BUNDLED: dict[str, Bundled] = {
    "memory": Bundled("memory", "MemoryBackend", None, None, "process", "nothing", "a dict, for tests and examples"),
    "file": Bundled("file", "FileBackend", None, None, "host", "process, os, power", "one file per id"),
    "log": Bundled(
        "log.backend", "LogBackend", None, None, "host", "process, os, power", "append-only files, the default"
    ),
    "lmdb": Bundled(
        "lmdb.backend", "LmdbBackend", "lmdb", "lmdb", "host", "process, os, power", "LMDB, atomic batches"
    ),
    "objects+": Bundled(
        "objects.backend", "ObjectsBackend", "fsspec", "objects", "network", "as asserted", "any fsspec store"
    ),
    "redis": Bundled("redis.backend", "RedisBackend", "redis", "redis", "network", "by server", "Redis 7 or Valkey"),
    "rediss": Bundled("redis.backend", "RedisBackend", "redis", "redis", "network", "by server", "the same over TLS"),
    "redis+unix": Bundled(
        "redis.backend", "RedisBackend", "redis", "redis", "network", "by server", "the same, by socket"
    ),
    "hbase": Bundled(
        "hbase.backend", "HBaseBackend", "happybase", "hbase", "network", "process", "HBase 2, by Thrift 1"
    ),
    "hdfs": Bundled(
        "hdfs.backend", "HdfsBackend", "jpype", "hdfs", "network", "process, os, power", "HDFS 3, by its client"
    ),
}


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands that a part of safekeeper or a backend's package adds to `safekeeper`, loaded when they are called."""

    app: str
    """Where their `typer.Typer` is: `module:name`."""
    help: str
    """What `safekeeper --help` says of them."""


# Each is one word after `safekeeper`. A row of a backend may only concern that backend.
BUNDLED_COMMANDS: dict[str, Commands] = {
    "bench": Commands("safekeeper.bench.cli:app", "YCSB's workloads against any backend."),
    "dev": Commands("safekeeper.dev.cli:app", "Real servers to try a backend with."),
    "peace": Commands("safekeeper.backends.hdfs.peace.cli:app", "Say when and where checkpoints are written in HDFS."),
    "stream": Commands("safekeeper.streams.cli:app", "Look at streams, and trim them."),
}


@cache
def commands() -> dict[str, Commands]:
    """All added commands by their first word: the bundled ones, and those of the entry points `safekeeper.commands`."""
    found = {
        point.name: Commands(point.value, f"From {point.dist.name if point.dist else 'an entry point'}.")
        for point in _entry_points(COMMANDS_GROUP)
    }
    return found | BUNDLED_COMMANDS


def open(url: str) -> Backend:
    """Open the store that *url* names. It writes nothing; a store that does not exist yet is empty.

    Every backend takes `?assert=process,os,power,host`, which declares what a write survives where that cannot be found
    out; such flags are kept apart in `Backend.asserted`.
    """
    parsed = Url.parse(url)
    asserted, parsed = take_asserted(parsed)
    backend = backend_class(parsed.scheme).from_url(parsed)
    backend.asserted = asserted & ~backend.survives
    backend.survives |= asserted
    backend._shown = f" {parsed}"
    return backend


def url_for_workers(url: str) -> str:
    """*url* as the workers of a distributed job get it: see `SupportsWorkers`. Most backends leave it as it is."""
    cls = backend_class(Url.parse(url).scheme)
    return cls.url_for_workers(url) if isinstance(cls, SupportsWorkers) else url


def same_store(one: str, other: str) -> bool:
    """Whether two URLs surely name one store: the same folder by whatever way, or the same server and place there."""
    first, second = Url.parse(one), Url.parse(other)
    if first.host is None and second.host is None and os.path.isdir(first.path) and os.path.isdir(second.path):
        return os.path.samefile(first.path, second.path)
    return _place(first) == _place(second)


def _place(url: Url) -> Url:
    return dataclasses.replace(url, path=url.path.rstrip("/"), user=None, password=None)


def backend_class(scheme: str) -> type[Backend]:
    """The class that serves *scheme*, imported now. Raise `BadUrl` when there is none or its driver is missing."""
    family, plus, _ = scheme.partition("+")
    if row := BUNDLED.get(scheme) or BUNDLED.get(family + plus):
        return _import_bundled(scheme, row)
    if point := third_party().get(scheme):
        try:
            cls = point.load()
        except Exception as error:
            raise BadUrl(f"the backend {point.value} for {scheme}: does not load: {error}") from error
        if not (isinstance(cls, type) and issubclass(cls, Backend)):
            raise BadUrl(f"the backend {point.value} for {scheme}: is no subclass of safekeeper.Backend")
        return cls
    known = sorted({*BUNDLED, *third_party()})
    raise BadUrl(f"no backend for {scheme}:{guess(scheme, known)}; there are: {', '.join(known)}")


def third_party() -> dict[str, EntryPoint]:
    """The backends that installed packages offer, by scheme."""
    return {point.name: point for point in _entry_points(ENTRY_POINT_GROUP) if point.name not in BUNDLED}


def _entry_points(group: str) -> EntryPoints:
    from importlib.metadata import entry_points  # which takes a while, and most programs need no entry point

    return entry_points(group=group)


def _import_bundled(scheme: str, row: Bundled) -> type[Backend]:
    try:
        module = importlib.import_module(f"safekeeper.backends.{row.module}")
    except ModuleNotFoundError as error:
        if error.name is None or row.needs is None or error.name.split(".")[0] != row.needs.split(".")[0]:
            raise
        raise BadUrl(f"{scheme}: needs the module {row.needs}: pip install 'safekeeper[{row.extra}]'") from error
    return typing.cast("type[Backend]", getattr(module, row.cls))


def take_asserted(url: Url) -> tuple[Survives, Url]:
    """What `assert=` in *url* declares, and the URL without it."""
    rest = dict(url.query)
    words = [word for word in rest.pop("assert", "").split(",") if word]
    flags = {flag.name.lower(): flag for flag in Survives if flag.name}
    asserted = Survives.NOTHING
    for word in words:
        if word not in flags:
            raise BadUrl(f"assert={word} in {url}: it takes {', '.join(flags)}")
        asserted |= flags[word]
    return asserted, dataclasses.replace(url, query=rest)
