"""What a backend's URL takes, from the docstrings of its options: `safekeeper backends NAME` and `docs/backends.md`.

python -m safekeeper.options > docs/backends.md
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from safekeeper.backend import Backend, SupportsUrlOptions
from safekeeper.registry import BUNDLED, backend_class
from safekeeper.url import Size, without_none

_INTRODUCTION = """\
# Backends and the options of their URLs

This page is made by `python -m safekeeper.options > docs/backends.md` from the options in the code; a test compares the
two. `safekeeper backends NAME` prints the part of one backend, also of one that another package brings.

A URL is `SCHEME://USER:PASSWORD@HOST:PORT/PATH?OPTION=VALUE&OPTION=VALUE`. A size is a number of bytes, or of KiB, MiB
or GiB with a K, M or G behind it. An option or a word that is not known is refused, with those that are. Which backend
to take: the table in the [README](../README.md#which-backend). What exactly survives what:
[durability.md](durability.md).

Every backend takes `assert=process,os,power,host`, or some of these words. It declares what a write survives where that
cannot be found out.
"""


@dataclass(frozen=True, slots=True)
class UrlOption:
    """One option of a URL."""

    name: str
    takes: str
    default: str
    """As it is written in a URL; empty where leaving it out means something else than any value."""
    text: str


@dataclass(frozen=True, slots=True)
class OptionsOfUrl:
    """One dataclass of options."""

    text: str
    options: list[UrlOption]


def options_of(backend: type[Backend]) -> list[OptionsOfUrl]:
    """What the URL of *backend* takes; each option where it is first. Nothing if the class does not say."""
    found: list[OptionsOfUrl] = []
    seen: set[str] = set()
    settings: type
    for settings in backend.url_options if isinstance(backend, SupportsUrlOptions) else ():
        options = [option for option in _options(settings) if option.name not in seen]
        seen |= {option.name for option in options}
        found.append(OptionsOfUrl(_one_line(settings.__doc__), options))
    return found


def _options(settings: Any) -> Iterator[UrlOption]:
    hints, texts = typing.get_type_hints(settings), _docstrings(settings)
    for field in dataclasses.fields(settings):
        hint = without_none(hints[field.name])
        yield UrlOption(
            field.name.replace("_", "-"), _takes(hint), _shown(hint, field.default), texts.get(field.name, "")
        )


def _takes(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(typing.get_args(hint))
    return {Size: "a size", bool: "yes, no", int: "a whole number", float: "a number"}.get(hint, "a text")


def _shown(hint: Any, default: Any) -> str:
    if default is None:
        return ""
    if hint is Size:
        return next(
            (
                f"{default >> bits}{unit}"
                for bits, unit in ((30, "G"), (20, "M"), (10, "K"))
                if not default % (1 << bits)
            ),
            str(default),
        )
    return {True: "yes", False: "no"}[default] if hint is bool else f"{default:g}" if hint is float else str(default)


def _docstrings(settings: type) -> dict[str, str]:
    """The docstrings under the fields of *settings* and of the classes that it is made of."""
    texts: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                texts[ast.unparse(field.target)] = _one_line(ast.literal_eval(below.value))
    return texts


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def describe(backend: type[Backend]) -> str:
    """The options of *backend* as Markdown that is also plain text."""
    parts = []
    for found in options_of(backend):
        parts.append(_wrap(found.text))
        for option in found.options:
            default = f" (default `{option.default}`)" if option.default else ""
            parts.append(_wrap(f"- **`{option.name}=`** {option.takes}{default}. {option.text}", "  "))
        if not found.options:
            parts.append("It takes no options of its own.")
    return "\n\n".join(parts) or "Its class does not say which options its URL takes (`url_options`)."


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    """All bundled backends, as `docs/backends.md`."""
    sections: dict[type[Backend], list[str]] = {}
    for scheme in BUNDLED:
        sections.setdefault(backend_class(scheme.replace("+", "+file") if scheme.endswith("+") else scheme), []).append(
            scheme
        )
    parts = [_INTRODUCTION]
    for backend, schemes in sections.items():
        row = BUNDLED[schemes[0]]
        extra = f" Its driver: `pip install 'safekeeper[{row.extra}]'`." if row.extra else ""
        summary = row.summary[0].upper() + row.summary[1:]
        facts = f"{summary}. Who sees a write: {row.scope}. It survives: {row.survives}.{extra}"
        title = ", ".join(f"`{scheme}:`" if not scheme.endswith("+") else f"`{scheme}SCHEME:`" for scheme in schemes)
        parts.append(f"## {title}\n\n{_wrap(facts)}\n\n{describe(backend)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
