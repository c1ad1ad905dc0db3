"""What the parts of a backend's URL mean, and its options as typed values.

Url.parse("log:///var/lib/app?sync=interval").options(LogOptions)
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from safekeeper.errors import BadUrl

_PASSWORD = re.compile(r"^([^:]*:(?://(?![/?#]))?[^:]*:).*@", re.DOTALL)
"""In any text, also one that is not quite a URL: from the colon behind the user to the last `@`, since an unescaped
password may hold every character."""
_PASSWORD_IN_PATH = re.compile(r"^([^:]*:(?!//)[^:]*:).*@", re.DOTALL)
"""In a URL whose slashes were forgotten."""
_LOGIN = re.compile(r"(://[^/\s:@]*:)\S*@")
"""In a URL that stands in other text."""
_SECRET = re.compile(r"(?i)password|passphrase|passwd|secret|token|credential|(^|[-_])key$")
"""Names of options whose values nobody should see."""
_OPTION = re.compile("([?&])([^=&]*)=[^&]*")

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
        shown = repr(_mask(text))
        if not colon or not scheme or not scheme.replace("+", "").replace("-", "").isalnum():
            raise BadUrl(f"{shown} is no URL: write a scheme first, such as file:///var/lib/app")
        server, behind = _split_server(rest)
        if ":" in server and "@" in behind:
            # It could be a password with a slash that is not escaped, and would then be shown as a path.
            raise BadUrl(f"{shown} has a '@' behind its host: write %40 there, or %2F, %3F, %23 and %40 in a password")
        try:
            # The scheme goes through as it is: urlsplit treats only the ones it knows as having a query.
            parts = urlsplit(f"safekeeper:{rest}")
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            port = parts.port
        except ValueError as error:
            reason = "look at its host, port and options" if "@" in server else error  # which may quote the password
            raise BadUrl(f"{shown} is no URL: {reason}") from None
        if parts.fragment:
            raise BadUrl(f"{shown} has a '#': write it as %23")
        if len(dict(pairs)) < len(pairs):
            raise BadUrl(f"{shown} has an option twice")
        user, password = (unquote(part) if part else None for part in (parts.username, parts.password))
        path = unquote(parts.path, errors="surrogateescape")  # a file's name is any bytes
        return cls(scheme.lower(), path, parts.hostname, port, user, password, dict(pairs))

    def __str__(self) -> str:
        """The URL for messages: in one printable line, without passwords."""
        login = _escape(self.user or "", "@:/") + (":***" if self.password else "")
        host = f"[{self.host}]" if ":" in (self.host or "") else _escape(self.host or "")
        server = f"//{login}{'@' if login else ''}{host}" if self.host else "//" if self.path.startswith("/") else ""
        port = f":{self.port}" if self.port is not None else ""
        path = _escape(self.path, "@" if self.host else "")
        shown = {name: "***" if _SECRET.search(name) else value for name, value in self.query.items()}
        query = "&".join(f"{_escape(name, '&=+')}={_escape(value, '&+@')}" for name, value in shown.items())
        return _PASSWORD_IN_PATH.sub(r"\1***@", f"{self.scheme}:{server}{port}{path}{'?' if query else ''}{query}")

    def __repr__(self) -> str:
        return f"<Url {self}>"

    def local_path(self) -> str:
        """The path of a store in the file system. Raise `BadUrl` when there is none, or a host before it."""
        if self.host is not None:
            path = _escape(self.host + self.path)
            raise BadUrl(f"{self} names a host: a local path has three slashes, {self.scheme}:///{path}")
        if not self.path:
            raise BadUrl(f"{self} has no path: write {self.scheme}:///var/lib/app")
        if "\0" in self.path:
            raise BadUrl(f"{self} has a NUL in its path: no file system takes that")
        if not os.path.normpath(self.path).strip("/"):
            raise BadUrl(f"{self} is the root of all files: name a folder of its own, {self.scheme}:///var/lib/app")
        if self.path.lstrip("/").startswith("~"):
            # A shell does not expand it within a word, and a folder with this name is made by mistake only.
            home = os.path.expanduser(self.path.lstrip("/"))
            whole = f"{self.scheme}://{_escape(home)}" if home.startswith("/") else "the whole path"
            raise BadUrl(f"{self}: '~' is not expanded in a URL: write {whole}")
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
                raise BadUrl(f"{name}={_escape(text)} in {self}: {error}") from None
        try:
            return settings(**values)
        except ValueError as error:
            raise BadUrl(f"{self}: {error}") from error


Size = typing.NewType("Size", int)
"""A number of bytes; in a URL with an optional K, M or G (1024 each)."""


def without_none(hint: Any) -> Any:
    """The type of an option that may also be None; any other as it is."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):  # `Literal[...] | None` makes the first of the two
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def _convert(hint: Any, text: str) -> Any:
    hint = without_none(hint)
    if typing.get_origin(hint) is typing.Literal:
        if text not in (words := typing.get_args(hint)):
            raise ValueError(f"it takes {', '.join(words)}")
        return text
    if hint is bool:
        if text not in ("yes", "no"):
            raise ValueError("it takes yes or no")
        return text == "yes"
    if hint is Size:
        return _parse_size(text)
    if hint in (int, float):
        return _parse_number(hint, text)
    if hint is str:
        return text
    raise TypeError(f"an option of a URL cannot be a {hint}")


def _parse_number(kind: type[int] | type[float], text: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        raise ValueError("it takes a number") from None
    if isinstance(number, float) and not math.isfinite(number):  # nan is neither above 0 nor below
        raise ValueError("it takes a number")
    return number


def _words(settings: type) -> dict[str, tuple[str, ...]]:
    """The options of *settings* that take one of several words, each with its words."""
    hints = {name: without_none(hint) for name, hint in typing.get_type_hints(settings).items()}
    return {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}


def check_words(options: Any) -> None:
    """Raise `ValueError` if a field of *options*, a dataclass, has a word that its `Literal[...]` does not list.

    For the `__post_init__` of options that are made without a URL, too.
    """
    for name, words in _words(type(options)).items():
        value = getattr(options, name)
        if value is not None and value not in words:
            raise ValueError(f"{name.replace('_', '-')}={value}: it takes {', '.join(words)}")


def _parse_size(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper(), 1)
    digits = text[:-1] if unit > 1 else text
    if not digits.isdecimal():
        raise ValueError("it takes a number of bytes, such as 65536, 64K or 4M")
    return int(digits) * unit


def show_url(text: str) -> str:
    """*text*, a URL as it was typed, for messages and reports: without passwords, also if it is not quite a URL."""
    try:
        return str(Url.parse(text))
    except BadUrl:
        return _escape(_mask(text), percent=False)


def mask_logins(text: str) -> str:
    """*text*, such as a driver's message, without the passwords of the URLs in it."""
    return _LOGIN.sub(r"\1***@", text)


def _mask(text: str) -> str:
    text = _PASSWORD.sub(r"\1***@", text)
    return _OPTION.sub(lambda found: f"{found[1]}{found[2]}=***" if _SECRET.search(found[2]) else found[0], text)


def _split_server(rest: str) -> tuple[str, str]:
    """The server with its login, as urlsplit finds it, and what is behind it."""
    if not rest.startswith("//"):
        return "", rest
    end = re.search("[/?#]", rest[2:])
    return (rest[2:], "") if end is None else (rest[2 : 2 + end.start()], rest[2 + end.start() :])


def _escape(text: str, special: str = "", percent: bool = True) -> str:
    """*text* with escapes for what is not printable or means something else at its place in a URL."""
    special += " ?#%" if percent else ""
    return "".join(
        c if c.isprintable() and c not in special else quote(c, safe="", errors="surrogateescape") for c in text
    )


def guess(word: str, known: list[str]) -> str:
    """A hint for a message about an unknown *word*: which of *known* was meant, "" if none is close."""
    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
