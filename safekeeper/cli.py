"""The command `safekeeper`: look into a store, change it, check it.

Keys are bytes. On the command line and in what is printed they are text where that is possible; `%xx` stands for any
other byte, and `%25` for the per cent sign itself. What comes from a store is printed with escapes for all that could
do something to a terminal; only `get` writes a value as it is.

Exit codes: 0 all well, 1 the answer is no (absent, damaged), 2 it could not be done; the reason is one line on standard
error.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Self
from urllib.parse import quote_from_bytes, unquote_to_bytes

import typer
from rich.console import Console
from rich.table import Column, Table
from typer.core import TyperGroup

import safekeeper
from safekeeper import places, stores
from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    Damage,
    SupportsCompaction,
    SupportsExists,
    SupportsStats,
    Survives,
)
from safekeeper.errors import BadState, Corruption, SafekeeperError, one_line
from safekeeper.options import describe, options_of
from safekeeper.registry import BUNDLED, Commands, backend_class, commands, same_store, third_party
from safekeeper.url import show_url

if TYPE_CHECKING:
    from safekeeper.integrations.filesystem.layout import FileEntry, VolumePath
    from safekeeper.integrations.filesystem.volume import FileVolumes
    from safekeeper.journal.survey import JournalStatus
    from safekeeper.testing.check import CheckedStore

_PLAIN: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}


class _Later(TyperGroup):
    """Commands that are known by name; their module is imported when one of them is called or asked for help."""

    def __init__(self, name: str, commands: Commands) -> None:
        super().__init__(name=name, help=commands.help)
        self._app = commands.app

    def make_context(self, *args: Any, **settings: Any) -> Any:
        module, _, attribute = self._app.partition(":")
        try:
            added = getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise SafekeeperError(f"the commands of {self.name} ({self._app}) do not load: {error}") from error
        whole = typer.Typer(add_completion=False, **_PLAIN)
        whole.add_typer(added, name=self.name)
        group: Any = typer.main.get_command(whole)
        return group.commands[self.name].make_context(*args, **settings)


class _WithAdded(TyperGroup):
    """Our own commands and those that are added (`registry.commands`), which cost nothing until they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(commands())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if found := super().get_command(ctx, cmd_name):
            return found
        added = commands().get(cmd_name)
        return _Later(cmd_name, added) if added else None


app = typer.Typer(
    cls=_WithAdded,
    help="Keep checkpoints: look into a store, change it, check it.",
    epilog="Exit codes: 0 all well, 1 the answer is no (absent, damaged), 2 it could not be done.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_PLAIN,
)
out = Console(highlight=False, markup=False)  # with markup, 'safekeeper[lmdb]' loses its brackets
err = Console(stderr=True, highlight=False, markup=False)

_FILES = "safekeeper://"
_CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

StoreUrl = Annotated[str, typer.Argument(metavar="URL", help="The store, such as log:///var/lib/app.")]
Group = Annotated[str, typer.Argument(help="The group of the id.")]
Key = Annotated[str, typer.Argument(help="The key, with %xx for bytes that are not text.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def main() -> None:
    """Run the command line; every error of ours is one line and exit code 2."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # for a terminal that knows less
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # now, not at the end of the process, where nobody could catch what comes of it
    except SafekeeperError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output, `head` perhaps, has seen enough
        _give_up_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        _give_up_output()  # it is not the store, whose errors are ours
        _fail(f"the output could not be written: {error.strerror}")


def _give_up_output() -> None:
    """Let what is still to be written go nowhere, or Python would complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> NoReturn:
    _complain(message)
    sys.exit(2)


def _complain(message: str) -> None:
    err.print(one_line(f"safekeeper: {message}"), soft_wrap=True)


def _open_existing(url: str) -> Backend:
    """Open a store that is expected to be there: a path that was mistyped would look like an empty one."""
    store = safekeeper.open(url)
    try:
        _require_existing(store, url)
    except BaseException:
        store.close()
        raise
    return store


def _require_existing(store: Backend, url: str) -> None:
    if isinstance(store, SupportsExists) and not store.exists():
        _fail(f"there is no store at {show_url(url)}: look at its path")


def _require_another(source: str, target: str) -> None:
    if same_store(source, target):
        _fail(f"{show_url(target)} is the same store: give the URL of another one")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        out.print(safekeeper.__version__)
        raise typer.Exit


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One line of `safekeeper backends`."""

    scheme: str
    scope: str
    survives: str
    state: str
    summary: str


@app.command()
def backends(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them: the options of its URL.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the backends: who sees a write, what it survives with default settings, and whether its driver is here.

    With a NAME, such as log or objects+s3, describe what the URL of that backend takes, as docs/backends.md does.
    """
    if name is not None:
        _describe_backend(name.rstrip(":"), as_json)
        return
    rows = list(_backend_rows())
    if as_json:
        _print_json([asdict(row) for row in rows])
        return
    state = Column("state", min_width=len("'safekeeper[objects]'"))  # or a narrow terminal cuts what is to be typed
    table = Table("scheme", "scope", "survives", state, "what it is", box=None, header_style="bold")
    for row in rows:
        table.add_row(*map(one_line, asdict(row).values()))
    out.print(table, crop=False)


def _describe_backend(scheme: str, as_json: bool) -> None:
    backend = backend_class(scheme.lower())
    if as_json:
        _print_json([asdict(option) for found in options_of(backend) for option in found.options])
    else:
        print("\n".join(map(one_line, describe(backend).splitlines())))


def _backend_rows() -> Iterator[BackendRow]:
    for scheme, row in BUNDLED.items():
        ready = row.needs is None or importlib.util.find_spec(row.needs) is not None
        state = "ready" if ready else f"pip install 'safekeeper[{row.extra}]'"
        yield BackendRow(f"{scheme}:", row.scope, row.survives, state, row.summary)
    for scheme, point in sorted(third_party().items()):
        origin = point.dist.name if point.dist else "an entry point"
        try:
            cls = point.load()
        except Exception as error:
            yield BackendRow(f"{scheme}:", "?", "?", f"does not load: {error}", f"from {origin}")
            continue
        scope = getattr(cls, "scope", None)
        survives = getattr(cls, "survives", None)
        yield BackendRow(
            f"{scheme}:",
            scope.name.lower() if scope else "by URL",
            _flags(survives) if isinstance(survives, Survives) else "by URL",
            "ready",
            f"from {origin}",
        )


def _flags(survives: Survives) -> str:
    return ", ".join(flag.name.lower() for flag in survives if flag.name) or "nothing"


@app.command()
def put(
    url: StoreUrl,
    group: Group,
    key: Key,
    file: Annotated[Path | None, typer.Argument(help="The file with the value; standard input if none.")] = None,
    encode: Annotated[
        bool, typer.Option("--encode", help="The value is JSON: store it as a SafeKeeper would.")
    ] = False,
) -> None:
    """Write one value. When the command returns, the value is durable as the backend declares.

    The bytes are stored as they are: a SafeKeeper reads them with serializer=None. With --encode they are JSON, which
    becomes a state that a SafeKeeper with default settings fetches.
    """
    id = _id(group, key)
    try:
        value = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        _fail(f"{file}: {error.strerror}")
    if encode:
        value = _encode(id, value, "standard input" if file is None else str(file))
    with safekeeper.open(url) as store:
        store.write(Batch({_in_place(store, id): value}))


@app.command()
def get(
    url: StoreUrl,
    group: Group,
    key: Key,
    decode: Annotated[bool, typer.Option("--decode", help="Show the state that a SafeKeeper saved, as JSON.")] = False,
) -> None:
    """Write one value to standard output, as it is.

    With --decode it is shown as JSON, in one line; what JSON does not have, such as bytes, as Python shows it.
    """
    id = _id(group, key)
    with safekeeper.open(url) as store:
        (value,) = store.read([_in_place(store, id)])
    if value is None:
        _complain(f"{id} is not there")
        raise typer.Exit(1)
    if decode:
        _print_json(_as_json(_decode(id, value)))
        return
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def _encode(id: CheckpointId, data: bytes, origin: str) -> bytes:
    from safekeeper.keeper.serializers import Codec, serializer_named

    try:
        state = json.loads(data)
    except ValueError as error:
        _fail(f"{origin} is no JSON: {error}")
    if state is None:
        _fail("null is no state: remove the id instead")
    try:
        return Codec(serializer_named("msgpack")).encode(state)
    except BadState as error:
        _fail(f"{id}: {error}")


def _decode(id: CheckpointId, value: bytes) -> Any:
    """The state with these bytes, as it was saved, whatever its schema version is."""
    from safekeeper.keeper.serializers import MAX_SCHEMA, Codec, serializer_named, serializer_of

    try:
        name = serializer_of(value)
        if name == "pickle":
            way = "fetch it with a keeper that has serializer='pickle'"
            raise BadState(f"was saved with pickle, which runs code that it finds: {way}")
        return Codec(serializer_named(name), schema=MAX_SCHEMA, migrate=lambda state, _: state).decode(value)
    except (BadState, Corruption, ValueError) as error:
        _fail(f"{id}: {error}")


def _as_json(state: Any) -> Any:
    """*state* with what JSON does not have as text."""
    if isinstance(state, dict):
        return {key if isinstance(key, str) else repr(key): _as_json(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return list(map(_as_json, state))
    if hasattr(state, "to_pylist"):  # a table of Arrow
        return _as_json(state.to_pylist())
    return state if state is None or isinstance(state, str | int | float) else repr(state)


@app.command()
def rm(
    url: StoreUrl,
    group: Annotated[
        str, typer.Argument(help="The group of the ids, or a file or directory: safekeeper://VOLUME/PATH.")
    ],
    keys: Annotated[list[str] | None, typer.Argument(help="The keys to remove; none for a file.")] = None,
    recursive: Annotated[
        bool,
        typer.Option("--recursive", "-r", help="Remove a directory with all in it, such as a checkpoint of Spark."),
    ] = False,
) -> None:
    """Remove ids, or files. That an id is not there is no error.

    With a checkpoint in safekeeper:// goes the state that our state store keeps of its query. Stop the query first. It
    is refused if the query was moved or copied to another place in safekeeper://, where it may need that state.
    """
    if group.startswith(_FILES):
        if keys:
            _fail(f"{group} is a file or a directory: it has no keys")
        with _open_existing(url) as store:
            _remove_files(store, group, recursive)
        return
    if not keys or recursive:
        _fail("a directory is safekeeper://VOLUME/PATH" if recursive else f"which keys of {group}? name them")
    batch, ids = Batch(), [_id(group, key) for key in keys]
    with safekeeper.open(url) as store:
        for id in ids:
            batch.delete(_in_place(store, id))
        store.write(batch)


def _remove_files(store: Backend, location: str, recursive: bool) -> None:
    """Whoever dies half-way does it again: of a directory with state, its own entry goes last."""
    from safekeeper.spark.prune import groups_to_remove, remove_groups

    files, path = _file(store, location)
    entry = _existing_file(files, path)
    if entry.is_directory and not recursive:
        _fail(f"{_FILES}{path} is a directory: say --recursive to remove it with all that is in it")
    if entry.is_directory and (states := groups_to_remove(files, path)):
        for below, _ in list(files.entries_in(path)):
            with suppress(FileNotFoundError):
                files.delete_tree(below)
        remove_groups(store, states)
    files.delete_tree(path)


def _file(store: Backend, location: str) -> tuple[FileVolumes, VolumePath]:
    from safekeeper.integrations.filesystem.layout import VolumePath
    from safekeeper.integrations.filesystem.volume import FileVolumes

    return FileVolumes(store), VolumePath.parse(location.removeprefix(_FILES))


def _existing_file(files: FileVolumes, path: VolumePath) -> FileEntry:
    try:
        return files.get(path)
    except FileNotFoundError:
        _complain(f"there is no {_FILES}{path}")
        raise typer.Exit(1) from None


@app.command()
def ls(
    url: StoreUrl,
    group: Annotated[
        str | None,
        typer.Argument(help="List the keys of this group, or the files in safekeeper://VOLUME/PATH, not the groups."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the groups of a store, or the keys of one group; or the files of a directory, with size and time."""
    with _open_existing(url) as store:
        if group is not None and group.startswith(_FILES):
            _list_files(store, group, as_json)
            return
        keys = () if group is None else store.keys(places.current(store, group))
        names = dict.fromkeys(store.groups() if group is None else map(show_key, keys))
        if as_json:
            _print_json(list(names))
            return
        for name in names:
            _print(name)


def _list_files(store: Backend, location: str, as_json: bool) -> None:
    files, path = _file(store, location)
    entry = _existing_file(files, path)
    found = sorted(files.entries_in(path), key=lambda one: str(one[0])) if entry.is_directory else [(path, entry)]
    rows = [(f"{_FILES}{at}" + "/" * one.is_directory, one.size, one.modified / 1000) for at, one in found]
    if as_json:
        _print_json([dict(zip(("name", "size", "modified"), row, strict=True)) for row in rows])
        return
    for name, size, modified in rows:
        _print(f"{size:>12} {datetime.fromtimestamp(modified, UTC):%Y-%m-%dT%H:%M:%SZ} {name}")


def _volumes(store: Backend) -> tuple[FileVolumes, list[str]]:
    from safekeeper.integrations.filesystem.layout import volumes_in
    from safekeeper.integrations.filesystem.volume import FileVolumes

    return FileVolumes(store), volumes_in(store.groups())


def _sweep(store: Backend) -> int:
    """Remove what dead writers of files left, also where no file is left; of how many files that was."""
    from safekeeper.integrations.filesystem.layout import volumes_with_parts_in
    from safekeeper.integrations.filesystem.volume import FileVolumes

    return sum(FileVolumes(store).sweep(volume) for volume in volumes_with_parts_in(store.groups()))


@app.command()
def verify(url: StoreUrl, as_json: AsJson = False) -> None:
    """Read and check everything in a store; list what is damaged. Exit code 1 if anything is."""
    with _open_existing(url) as store, _Counter("{:,} bytes checked") as counter:
        found = list(stores.verify(store, counter.add))
        files, volumes = _volumes(store) if not found else (None, [])  # what is damaged below is damaged here, too
        found += [damage for volume in volumes if files is not None for damage in files.damaged(volume)]
    if as_json:
        _print_json([_damage_as_json(damage) for damage in found])
    else:
        _print_damage(found)
        err.print(f"{len(found)} damaged" if found else f"nothing is damaged, {counter.sum:,} bytes checked")
    if found:
        raise typer.Exit(1)


def _damage_as_json(damage: Damage) -> dict[str, str | None]:
    return {"place": damage.place, "problem": damage.problem, "id": str(damage.id) if damage.id else None}


def _print_damage(found: Iterable[Damage]) -> None:
    for damage in found:
        _print(f"{damage.place}: {damage.problem}" + (f" ({damage.id} is lost)" if damage.id else ""))


@app.command()
def check(
    url: StoreUrl,
    unreachable: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A store of this kind that cannot be reached, to see what it says."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try whether a backend keeps its promises: what it declares, what was shown, how fast it is beside log.

    It runs the conformance kit, for about a minute or two. A store in local files is not touched: a new folder beside
    it is used. A store on a network has to be empty. Exit code 1 if a promise is not kept. It needs the extra
    'testing'.
    """
    from safekeeper.testing.check import check

    with err.status("0 tests") as status:
        checked = check(url, unreachable=unreachable, done=status.update)
    if as_json:
        _print_json(asdict(checked) | {"kept": checked.kept})
    else:
        _print_check(checked)
    if checked.left:
        _complain(f"{checked.left} groups that are not the check's came meanwhile: they were left alone")
    if not checked.kept:
        raise typer.Exit(1)


def _print_check(checked: CheckedStore) -> None:
    table = Table("promise", "declared", "shown", box=None, header_style="bold")
    for row in checked.promises:
        table.add_row(row.name, row.declared, row.shown + (" !" if row.broken else ""))
    for speed in checked.speeds:
        ratio = f"{speed.ratio:.2f} of log ({speed.low:.2f} to {speed.high:.2f})"
        table.add_row(f"speed: one {speed.operation} of 1 KB (operations/s)", f"{speed.rate:,.0f}", ratio)
    # What is not a terminal has no width; folded cells would be hard to read.
    (out if out.is_terminal else Console(highlight=False, markup=False, width=140)).print(table, crop=False)
    for test in checked.failures:
        _print(f"failed: {test.name}: {test.reason}")
    passed = sum(test.outcome == "passed" for test in checked.tests)
    verdict = "keeps its promises as far as they were tried" if checked.kept else "does not keep its promises"
    err.print(f"{checked.backend} {verdict}: {passed} tests passed, {len(checked.failures)} failed", soft_wrap=True)


@app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="The store to copy. It is not changed.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="The store to write to.")],
    group: Annotated[list[str] | None, typer.Option(help="Copy this group only; may be given several times.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOCATION",
            help="Copy the file or directory safekeeper://VOLUME/PATH only, of a checkpoint the state, too. "
            "It may be given several times.",
        ),
    ] = None,
    spark: Annotated[str | None, typer.Option(metavar="MASTER", help="Let tasks of this Spark copy.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy every id of a store into another one, whatever their backends are.

    Ids that TO has already are replaced, its others stay, so a copy that was interrupted is simply made again. Stop
    what writes to FROM first. A Spark query goes on with the copy when its `url` names it.
    """
    _require_another(source, target)
    if files:
        if group or spark is not None:
            _fail("--files goes without --group and --spark")
        with _open_existing(source) as old, safekeeper.open(target) as new, _Counter("{:,} ids copied") as counter:
            copied = stores.copy_ids(old, new, list(_ids_of_files(old, files)), counter.add)
    elif spark is None:
        with _open_existing(source) as old, safekeeper.open(target) as new, _Counter("{:,} ids copied") as counter:
            copied = stores.copy(old, new, _families(old, group), counter.add)
    else:
        from safekeeper.spark.source import copy_on_spark

        with _open_existing(source) as old:
            groups = _families(old, group)
        copied = copy_on_spark(source, target, groups, spark)
    if as_json:
        _print_json(asdict(copied))
    else:
        err.print(f"{copied.ids:,} ids copied, {copied.nbytes:,} bytes of values")


def _ids_of_files(store: Backend, locations: Iterable[str]) -> Iterator[CheckpointId]:
    """Of files and directories, and before them of the states of the checkpoints that are there."""
    from safekeeper.spark.prune import groups_below

    for location in locations:
        if not location.startswith(_FILES):
            _fail(f"{location} is no file: write {_FILES}VOLUME/PATH")
        files, path = _file(store, location)
        _existing_file(files, path)
        yield from stores.ids_of(store, groups_below(store, f"{_FILES}{path}"))
        yield from files.ids_of(path)


@app.command()
def repair(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The damaged store. It is not changed.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new store, for what is intact.")],
    as_json: AsJson = False,
) -> None:
    """Copy what is intact of a damaged store into a new one, and list what is lost. Exit code 1 if anything is.

    An id whose last value is damaged is lost; an older value does not take its place.
    """
    _require_another(source, target)
    with _open_existing(source) as damaged, safekeeper.open(target) as new, _Counter("{:,} bytes checked") as counter:
        if next(new.groups(), None) is not None:
            _fail(f"{show_url(target)} is not empty: give the URL of a new store")
        repaired = stores.repair(damaged, new, counter.add)
    copied, lost = repaired.copied, repaired.lost
    if as_json:
        _print_json({"copied": copied, "lost": [_damage_as_json(damage) for damage in lost]})
    else:
        _print_damage(lost)
        err.print(f"{copied:,} ids copied, " + (f"{len(lost):,} places damaged" if lost else "nothing is lost"))
    if lost:
        raise typer.Exit(1)


@app.command()
def stat(url: StoreUrl, as_json: AsJson = False) -> None:
    """Say what a store is and holds: scope, what a write survives, groups, ids, bytes."""
    with _open_existing(url) as store, _Counter("{:,} ids counted") as counter:
        asserted = f" (asserted: {_flags(store.asserted)})" if store.asserted else ""
        facts: dict[str, Any] = {
            "backend": type(store).__name__,
            "scope": store.scope.name.lower(),
            "survives": _flags(store.survives) + asserted,
            "groups": len(set(store.groups())),
        }
        if isinstance(store, SupportsStats):
            stats = store.stats()
            facts |= {"ids": stats.ids, "bytes": stats.bytes_stored, **stats.details}
        else:
            facts["ids"] = counter.total(1 for _ in stores.ids_of(store))
    if as_json:
        _print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(one_line(name), f"{value:,}" if isinstance(value, int) else one_line(str(value)))
    out.print(table)


@app.command()
def journal(
    url: StoreUrl,
    names: Annotated[list[str] | None, typer.Argument(metavar="[OPERATOR]...", help="Only these operators.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the journals of operators: who owns them, what they hold, and how long a recovery will take.

    A recovery loads the extent, which is done here to measure it, and replays what is not in records. Nothing is
    changed; the owners may go on meanwhile.
    """
    from safekeeper.journal.survey import journals, status

    with _open_existing(url) as store:
        asked = {name: status(store, name) for name in names or ()}
        missing = [name for name, known in asked.items() if known is None]
        found = [known for known in asked.values() if known is not None] if names else list(journals(store))
    if as_json:
        _print_json([asdict(row) for row in found])
    for row in () if as_json else found:
        _print_journal(row)
    for name in missing:
        _complain(f"there is no journal of {name}")
    if missing or not (found or as_json):
        if not missing:
            err.print("there are no journals")
        raise typer.Exit(1)


def _print_journal(row: JournalStatus) -> None:
    _print(f"{row.name}: {row.owner}, epoch {row.epoch}{', ended' if row.ended else ''}")
    _print(f"  events    {row.events:,} taken, {row.replay:,} to replay; {row.outputs:,} outputs kept")
    extent = f"extent {row.extent:,} records in {row.blocks:,} blocks, {row.nbytes:,} bytes"
    _print(f"  state     {row.parts:,} parts; {extent}")
    _print(f"  recovery  {row.recovery_seconds:.2f} s expected")
    for standby in row.standbys:
        behind = f"{standby.blocks:,} blocks behind for {standby.seconds:g} s" if standby.blocks else "up to date"
        said = datetime.fromtimestamp(standby.when).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        _print(f"  standby   process {standby.pid} on {standby.host}: {behind} at {said}")


@app.command()
def compact(url: StoreUrl, as_json: AsJson = False) -> None:
    """Give back the space of replaced and deleted values."""
    with safekeeper.open(url) as store:
        if not isinstance(store, SupportsCompaction):
            _fail(f"{type(store).__name__} keeps nothing that could be compacted")
        _require_existing(store, url)
        with _Counter("compacting"):
            done = store.compact()
    if as_json:
        _print_json(asdict(done))
    else:
        out.print(f"{done.bytes_before:,} bytes before, {done.bytes_after:,} after")


@app.command()
def prune(
    url: StoreUrl,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    gone: Annotated[
        list[str] | None,
        typer.Option(metavar="LOCATION", help="Take checkpoints there and below as gone, without looking."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove the state of Spark queries whose checkpoint folder is gone.

    What is removed, and what is kept because nobody can tell, is shown first. Run it where the checkpoints can be seen;
    a checkpoint that was moved counts as gone until its query has been started at the new place. Checkpoints in
    safekeeper:// are looked for in the same store, and what files there left half-written a day ago is removed, too.
    """
    from safekeeper.spark.prune import Fate, remove, stored_queries

    with _open_existing(url) as store:
        found = [query for query in stored_queries(store, gone or ()) if query.fate is not Fate.THERE]
        if as_json:
            _print_json([{**asdict(query), "fate": query.fate.value} for query in found])
        for query in () if as_json else found:
            action = "remove" if query.fate is Fate.GONE else "keep"
            _print(f"{action} {query.id}, {query.keys:,} keys: {query.reason} ({query.location or 'unknown'})")
        doomed = [query for query in found if query.fate is Fate.GONE]
        if not doomed:
            err.print("nothing to remove")
        elif not dry_run and (yes or _agrees(len(doomed))):
            for query in doomed:
                remove(store, query)
            err.print(f"the state of {len(doomed)} queries is removed")
        if not dry_run and (swept := _sweep(store)):
            err.print(f"{swept} files that were never finished are removed")


def _agrees(queries: int) -> bool:
    if not sys.stdin.isatty():
        _fail("say --yes to remove them, or --dry-run to see them only")
    return typer.confirm(f"Remove the state of {queries} queries?", err=True)


def _in_place(store: Backend, id: CheckpointId) -> CheckpointId:
    """Where *id* is, if its group belongs to an owner that had to copy it."""
    return CheckpointId(places.current(store, id.group), id.key)


def _families(store: Backend, groups: list[str] | None) -> list[str] | None:
    return groups and [name for group in groups for name in places.family(store, group)]


def _id(group: str, key: str) -> CheckpointId:
    return CheckpointId(group, unquote_to_bytes(key))


def show_key(key: bytes) -> str:
    """A key as text that `unquote_to_bytes` turns back into the same bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable() and "%" not in text:
        return text
    return quote_from_bytes(key, safe="".join(chr(c) for c in range(32, 127) if chr(c) != "%"))


def _print(text: str) -> None:
    print(one_line(text))


def _print_json(value: Any) -> None:
    # JSON escapes some control characters, but not those behind the first 128, nor what turns the direction of text.
    text = json.dumps(value, ensure_ascii=False)
    print(text if text.isprintable() else re.sub(r"[^ -~]", _escape_in_json, text))


def _escape_in_json(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


class _Counter:
    """Shows a running sum on a terminal while it is entered; elsewhere it only counts."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.sum = 0
        self._status = err.status(text.format(0))

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def add(self, amount: int) -> None:
        self.sum += amount
        if err.is_terminal:
            self._status.update(self._text.format(self.sum))

    def total(self, amounts: Iterable[int]) -> int:
        for amount in amounts:
            self.add(amount)
        return self.sum


if __name__ == "__main__":
    main()
