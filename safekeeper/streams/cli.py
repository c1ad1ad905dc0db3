"""`safekeeper stream`: look at streams and trim them.

Bodies and keys are shown as text where that is possible, with `%xx` for other bytes, as the keys of a store are.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from typing import Annotated, Any

import typer

from safekeeper.cli import show_key
from safekeeper.errors import SafekeeperError, one_line
from safekeeper.streams.carrier import Position, StreamElement, StreamStatus, SupportsSurvey
from safekeeper.streams.registry import carrier_of, open_inlet
from safekeeper.url import show_url

app = typer.Typer(no_args_is_help=True, help="Look at streams, and trim them.")

StreamUrl = Annotated[
    str, typer.Argument(metavar="URL", help="The stream, such as redis://127.0.0.1:6379/0?stream=words.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def ls(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where streams are; with stream=NAME only that one.")],
    as_json: AsJson = False,
) -> None:
    """List the streams at a place: what they retain, who reads them, and how far behind each reader is."""
    found = list(_survey(url))
    if as_json:
        _print_json([_as_json(status) for status in found])
        return
    for status in found:
        _print(_describe(status))
        for reader, upto in status.readers.items():
            _print(f"  {reader}: acknowledged {_show(upto)}{_lag(status, upto)}")
    if not found:
        typer.echo("there are no streams", err=True)
        raise typer.Exit(1)


@app.command()
def tail(
    url: StreamUrl,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last elements.")] = 10,
    after: Annotated[str | None, typer.Option(help="All after this number, instead of the last ones.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those that come.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print elements of a stream: number, key, body. Nobody's position changes."""
    with closing(open_inlet(url, after=None if after is None else _parse(after))) as inlet:
        end: Any = inlet.last()
        kept: deque[StreamElement] = deque(maxlen=lines)
        at: Any = None
        while end is not None and at != end and (some := inlet.read(timeout=1.0)):
            at = some[-1].number if some[-1].number < end else end
            kept.extend(some)
            if after is not None:
                _print_elements(some, as_json)
        if after is None:
            _print_elements(kept, as_json)
        while follow:
            _print_elements(inlet.read(timeout=60.0), as_json)


@app.command()
def trim(
    url: StreamUrl,
    upto: Annotated[str | None, typer.Option(help="Up to this number, whoever has not read them.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also what a reader has not acknowledged.")] = False,
) -> None:
    """Forget what every reader has acknowledged, as the producer does from time to time; or up to a number.

    Elements that a reader has not acknowledged are lost to it: its next read says so. That needs --force.
    """
    (status,) = _survey(url)
    if status.last is None:
        raise SafekeeperError(f"{show_url(url)}: there is no such stream")
    floor = min(status.readers.values(), default=None)
    end = floor if upto is None else _parse(upto)
    if end is None:
        raise SafekeeperError(f"{status.name} has no readers that say what can go: give --upto")
    behind = [name for name, at in status.readers.items() if at < end]
    if behind and not force:
        raise SafekeeperError(
            f"{', '.join(behind)} would lose elements of {status.name}: --force says that this is wanted"
        )
    _carrier(url).trim(url, end)
    (after,) = _survey(url)
    _print(_describe(after))


def _carrier(url: str) -> SupportsSurvey:
    carrier = carrier_of(url)
    if not isinstance(carrier, SupportsSurvey):
        raise SafekeeperError(f"{show_url(url)}: what carries this stream cannot be asked about it")
    return carrier


def _survey(url: str) -> Any:
    return _carrier(url).survey(url)


def _parse(text: str) -> Position:
    """A position as it was typed: 17, or 1700000000000-3."""
    numbers = text.split("-")
    if not all(number.isdecimal() for number in numbers):
        raise SafekeeperError(f"{text} is not a position: write 17, or 1700000000000-3 for a foreign stream")
    return int(text) if len(numbers) == 1 else tuple(map(int, numbers))


def _show(position: Position | None) -> str:
    return "-".join(map(str, position)) if isinstance(position, tuple) else str(position)


def _describe(status: StreamStatus) -> str:
    if status.last is None:
        return f"{status.name}: nothing yet"
    if status.first is None:
        return f"{status.name}: up to {_show(status.last)}, nothing retained"
    first, last = status.first, status.last
    count = f" ({last - first + 1:,} elements)" if isinstance(first, int) and isinstance(last, int) else ""
    return f"{status.name}: {_show(status.first)} to {_show(status.last)}{count}"


def _lag(status: StreamStatus, upto: Position) -> str:
    last = status.last
    return f", {last - upto:,} behind" if isinstance(last, int) and isinstance(upto, int) else ""


def _as_json(status: StreamStatus) -> dict[str, Any]:
    readers = {name: _show(upto) if isinstance(upto, tuple) else upto for name, upto in status.readers.items()}
    first, last = (_show(at) if isinstance(at, tuple) else at for at in (status.first, status.last))
    return {"name": status.name, "first": first, "last": last, "readers": readers}


def _print_elements(elements: Iterable[StreamElement], as_json: bool) -> None:
    for element in elements:
        if as_json:
            number = _show(element.number) if isinstance(element.number, tuple) else element.number
            _print_json({"number": number, "key": show_key(element.key), "body": show_key(element.body)})
        else:
            _print(f"{_show(element.number)}\t{show_key(element.key)}\t{show_key(element.body)}")


def _print(text: str) -> None:
    print("\t".join(map(one_line, text.split("\t"))), flush=True)


def _print_json(value: Any) -> None:
    print(json.dumps(value), flush=True)
