"""Opening a backend by its URL: which class serves a scheme, and what the parts of a URL mean.

    open("log:///var/lib/app?sync=interval")
    open("redis://127.0.0.1:6379/0?assert=power")

The bundled backends are the table `BUNDLED`. Others register a class under the entry point group `safekeeper.backends`,
the scheme as the entry point's name; a bundled scheme cannot be taken over.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from safekeeper.backend import Backend, Survives
from safekeeper.errors import BadUrl

ENTRY_POINT_GROUP = "safekeeper.backends"

_PASSWORD = re.compile(r"(//[^/@:]*:)[^/]*@")

T = TypeVar("T")


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
    "log": Bundled("log", "LogBackend", None, None, "host", "process, os, power", "append-only files, the default"),
    "lmdb": Bundled("lmdb", "LmdbBackend", "lmdb", "lmdb", "host", "process, os, power", "LMDB, atomic batches"),
    "objects+": Bundled("objects", "ObjectsBackend", "fsspec", "objects", "network", "as asserted", "any fsspec store"),
    "redis": Bundled("redis", "RedisBackend", "redis", "redis", "network", "by server", "Redis 7 or Valkey"),
    "rediss": Bundled("redis", "RedisBackend", "redis", "redis", "network", "by server", "the same over TLS"),
    "redis+unix": Bundled("redis", "RedisBackend", "redis", "redis", "network", "by server", "the same, by socket"),
    "hbase": Bundled("hbase", "HBaseBackend", "happybase", "hbase", "network", "process", "HBase 2, by Thrift 1"),
    "hdfs": Bundled(
        "hdfs.backend", "HdfsBackend", "jpype", "hdfs", "network", "process, os, power", "HDFS 3, by its client"
    ),
}


def open(url: str) -> Backend:
    """Open the store that *url* names. It writes nothing; a store that does not exist yet is empty.

    Every backend takes `?assert=process,os,power,host`, which declares what a write survives where that cannot be found
    out; such flags are kept apart in `Backend.asserted`.
    """
    parsed = Url.parse(url)
    asserted, parsed = _take_asserted(parsed)
    backend = backend_class(parsed.scheme).from_url(parsed)
    backend.asserted = asserted & ~backend.survives
    backend.survives |= asserted
    return backend


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
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in BUNDLED}


def _import_bundled(scheme: str, row: Bundled) -> type[Backend]:
    try:
        module = importlib.import_module(f"safekeeper.backends.{row.module}")
    except ModuleNotFoundError as error:
        if error.name is None or row.needs is None or error.name.split(".")[0] != row.needs.split(".")[0]:
            raise
        raise BadUrl(f"{scheme}: needs the module {row.needs}: pip install 'safekeeper[{row.extra}]'") from error
    return typing.cast("type[Backend]", getattr(module, row.cls))


def _take_asserted(url: Url) -> tuple[Survives, Url]:
    rest = dict(url.query)
    words = [word for word in rest.pop("assert", "").split(",") if word]
    flags = {flag.name.lower(): flag for flag in Survives if flag.name}
    asserted = Survives.NOTHING
    for word in words:
        if word not in flags:
            raise BadUrl(f"assert={word} in {url}: it takes {', '.join(flags)}")
        asserted |= flags[word]
    return asserted, dataclasses.replace(url, query=rest)


@dataclass(frozen=True, slots=True)
class Url:
    """A backend's URL, taken apart: `scheme://user:password@host:port/path?name=value`.

    A URL with one colon and no slashes, `file:state`, has a path that is relative to the working directory.
    """

    scheme: str
    path: str
    """With its slash in front if it has one, percent escapes decoded."""
    host: str | None = None
    port: int | None = None
    user: str | None = None
    password: str | None = None
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Url:
        """Take *text* apart. Raise `BadUrl` when it is not a URL."""
        scheme, colon, rest = text.partition(":")
        shown = repr(_PASSWORD.sub(r"\1***@", text))
        if not colon or not scheme or not scheme.replace("+", "").replace("-", "").isalnum():
            raise BadUrl(f"{shown} is no URL: write a scheme first, such as file:///var/lib/app")
        try:
            # The scheme goes through as it is: urlsplit treats only the ones it knows as having a query.
            parts = urlsplit(f"safekeeper:{rest}")
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            port = parts.port
        except ValueError as error:
            raise BadUrl(f"{shown} is no URL: {error}") from None  # the cause would show the password
        if parts.fragment:
            raise BadUrl(f"{shown} has a '#': write it as %23")
        if len(dict(pairs)) < len(pairs):
            raise BadUrl(f"{shown} has an option twice")
        user, password = (unquote(part) if part else None for part in (parts.username, parts.password))
        return cls(scheme.lower(), unquote(parts.path), parts.hostname, port, user, password, dict(pairs))

    def __str__(self) -> str:
        """The URL for messages: without the password."""
        login = f"{self.user or ''}{':***' if self.password else ''}@" if self.user or self.password else ""
        server = f"//{login}{self.host}" if self.host else "//" if self.path.startswith("/") else ""
        port = f":{self.port}" if self.port is not None else ""
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        return f"{self.scheme}:{server}{port}{self.path}{'?' if query else ''}{query}"

    def local_path(self) -> str:
        """The path of a store in the file system. Raise `BadUrl` when there is none, or a host before it."""
        if self.host is not None:
            raise BadUrl(
                f"{self} names a host: a local path has three slashes, {self.scheme}:///{self.host}{self.path}"
            )
        if not self.path:
            raise BadUrl(f"{self} has no path: write {self.scheme}:///var/lib/app")
        if "\0" in self.path:
            raise BadUrl(f"{str(self)!r} has a NUL in its path: no file system takes that")
        return self.path

    def options(self, settings: type[T]) -> T:
        """The options after the `?` as an instance of *settings*, a dataclass whose fields are the known options.

        A field is a `str`, `int`, `float`, `bool` (yes/no), `Literal[...]` of strings, `Size` (bytes, with K, M or G)
        or any of these `| None`; its name in the URL has `-` for `_`. An unknown option or a bad value raises `BadUrl`.
        """
        hints = typing.get_type_hints(settings, include_extras=True)
        fields = {f.name.replace("_", "-"): f.name for f in dataclasses.fields(typing.cast("Any", settings))}
        values: dict[str, Any] = {}
        for name, text in self.query.items():
            if name not in fields:
                takes = f"it takes {', '.join(fields)}" if fields else "it takes none"
                raise BadUrl(f"{self.scheme}: has no option {name!r}{guess(name, list(fields))}; {takes}")
            try:
                values[fields[name]] = _convert(hints[fields[name]], text)
            except ValueError as error:
                raise BadUrl(f"{name}={text} in {self}: {error}") from None
        try:
            return settings(**values)
        except ValueError as error:
            raise BadUrl(f"{self}: {error}") from error


Size = typing.NewType("Size", int)
"""A number of bytes; in a URL with an optional K, M or G (1024 each)."""


def _convert(hint: Any, text: str) -> Any:
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise ValueError(f"it takes {', '.join(choices)}")
        return text
    if hint is bool:
        if text not in ("yes", "no"):
            raise ValueError("it takes yes or no")
        return text == "yes"
    if hint is Size:
        return _parse_size(text)
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise ValueError("it takes a number") from None
    return text


def _parse_size(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal():
        raise ValueError("it takes a number of bytes, such as 65536, 64K or 4M")
    return int(digits) * unit


def guess(word: str, known: list[str]) -> str:
    """A hint for a message about an unknown *word*: which of *known* was meant, "" if none is close."""
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
