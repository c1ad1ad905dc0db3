"""What the parts of a backend's URL mean, and its options as typed values.

Url.parse("log:///var/lib/app?sync=interval").options(LogOptions)
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from safekeeper.errors import BadUrl

_PASSWORD = re.compile(r"(//[^/@:]*:)[^/]*@")

T = TypeVar("T")


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
