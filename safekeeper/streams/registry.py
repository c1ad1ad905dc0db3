"""Opening a stream by its URL: which carrier serves a scheme.

The bundled carriers are the table `CARRIERS`. Others register under the entry point group `safekeeper.streams`, the
scheme as the entry point's name, a module or an object that is a `Carrier`; a bundled scheme cannot be taken over.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING

from safekeeper.errors import BadUrl
from safekeeper.streams.carrier import Carrier, Inlet, Outlet, Position
from safekeeper.url import guess, show_url

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

STREAMS_GROUP = "safekeeper.streams"

# The module of the carrier; the module that its driver installs, and the extra that installs it.
_REDIS = ("safekeeper.backends.redis.stream", "redis", "redis")
CARRIERS: dict[str, tuple[str, str | None, str | None]] = {
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+unix": _REDIS,
    "store": ("safekeeper.streams.store", None, None),
    "tcp": ("safekeeper.streams.tcp", None, None),
}


def open_outlet(url: str, *, readers: Sequence[str] = (), floor: int = 0) -> Outlet:
    """Open the producing side of the stream that *url* names, and declare who reads it.

        with closing(open_outlet("redis://127.0.0.1:6379/0?stream=words", readers=["counter"])) as words:
            words.send([StreamElement(words.last + 1, b"to be")])

    A reader is known by its name, so that what it has not read is retained while it is away. Without readers nothing is
    ever trimmed by itself. A stream has one producer at a time. *floor* is what the caller knows to be acknowledged by
    all of them: a carrier that has lost everything may go on after that.
    """
    if isinstance(readers, str):
        raise TypeError("readers= takes a list of names")
    names = list(dict.fromkeys(map(_check_reader, readers)))
    return carrier_of(url).open_outlet(url, names, floor)


def open_inlet(url: str, *, reader: str | None = None, after: Position | None = None) -> Inlet:
    """Open the reading side of the stream that *url* names, as one of its readers, after a position.

    Without *after* it goes on after what the reader has acknowledged. Without *reader* it begins with the oldest
    element that is there, and cannot acknowledge: it only looks.
    """
    return carrier_of(url).open_inlet(url, None if reader is None else _check_reader(reader), after)


def _check_reader(name: str) -> str:
    if not isinstance(name, str) or not name or len(name.encode()) > 200 or not name.isprintable():
        raise ValueError(f"a reader's name is 1 to 200 bytes of printable text, not {name!r}")
    return name


def carrier_of(url: str) -> Carrier:
    """The carrier that serves *url*, imported now. Raise `BadUrl` when there is none or its driver is missing."""
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme:
        raise BadUrl(f"{show_url(url)} is not the URL of a stream: write redis://127.0.0.1:6379/0?stream=words")
    scheme = scheme.lower()
    if row := CARRIERS.get(scheme):
        return _import_bundled(scheme, *row)
    others = _third_party()
    if point := others.get(scheme):
        try:
            return typing.cast("Carrier", point.load())
        except Exception as error:
            raise BadUrl(f"the carrier {point.value} for {scheme}: does not load: {error}") from error
    known = sorted({*CARRIERS, *others})
    raise BadUrl(
        f"no carrier for {scheme}:{guess(scheme, known)}; there are: {', '.join(known)}; a stream in a store of "
        f"another kind is store:{scheme}:...?stream=NAME"
    )


def _third_party() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # which takes a while, and most programs need no entry point

    return {point.name: point for point in entry_points(group=STREAMS_GROUP)}


def _import_bundled(scheme: str, module: str, needs: str | None, extra: str | None) -> Carrier:
    try:
        return typing.cast("Carrier", importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or needs is None or error.name.split(".")[0] != needs:
            raise
        raise BadUrl(f"{scheme}: needs the module {needs}: pip install 'safekeeper[{extra}]'") from error
