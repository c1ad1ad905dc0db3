"""`safekeeper bench`: YCSB's benchmark for checkpoint stores.

Results go to standard output in YCSB's format, everything else to standard error. Exit codes: 0 all well, 1 the results
are partial (interrupted, or the store failed), 2 it could not be done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

import safekeeper
from safekeeper.bench.properties import BadProperty, Settings, guess, load_file, parse_assignments
from safekeeper.errors import BadUrl

if TYPE_CHECKING:
    from safekeeper.bench.driver import Result

app = typer.Typer(
    help="Measure stores with YCSB's workloads.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)

StoreUrl = Annotated[str, typer.Argument(metavar="URL", help="The store, such as log:///var/lib/bench.")]
Files = Annotated[
    list[str] | None,
    typer.Option("-P", metavar="FILE", help="A YCSB property file, or a bundled workload: workloada, s4thesis."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME=VALUE", help="A property; backend.NAME=VALUE is an option of the store's URL."),
]
Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="The property threadcount.")]
Target = Annotated[float | None, typer.Option("--target", metavar="OPS", help="The property target: operations/s.")]
Status = Annotated[bool, typer.Option("-s", help="Print a status line every status.interval seconds.")]


def settings_of(
    files: list[str] | None, assignments: list[str] | None, threads: int | None = None, target: float | None = None
) -> Settings:
    """The settings that the options of a command make, later ones over earlier ones."""
    properties: dict[str, str] = {}
    for file in files or ():
        properties |= load_file(file)
    given = parse_assignments(assignments or ())
    if threads is not None:
        given["threadcount"] = str(threads)
    if target is not None:
        given["target"] = str(target)
    settings = Settings.of(properties | given)
    for name in settings.ignored.keys() & given.keys():
        say(f"the property {name} means nothing here{guess(name)}")
    return settings


def store_url(url: str, settings: Settings) -> str:
    """*url* with the options that were given as properties."""
    for name, value in settings.backend_options.items():
        url += f"{'&' if '?' in url else '?'}{quote(name)}={quote(value)}"
    return url


@app.command()
def load(
    url: StoreUrl,
    file: Files = None,
    property: Assignments = None,
    threads: Threads = None,
    target: Target = None,
    status: Status = False,
) -> None:
    """Insert the records of a workload."""
    _measure("load", url, settings_of(file, property, threads, target), status)


@app.command()
def run(
    url: StoreUrl,
    file: Files = None,
    property: Assignments = None,
    threads: Threads = None,
    target: Target = None,
    status: Status = False,
) -> None:
    """Do the operations of a workload on records that were loaded before."""
    _measure("run", url, settings_of(file, property, threads, target), status)


def _measure(phase: str, url: str, settings: Settings, status: bool) -> None:
    require_histograms()
    from safekeeper.bench.driver import Driver
    from safekeeper.bench.workload import Workload

    with safekeeper.open(store_url(url, settings)) as store:
        driver = Driver(Workload(settings), store, status=status)
        result = driver.load() if phase == "load" else driver.run()
    _print_result(result, settings)
    if result.partial:
        raise typer.Exit(1)


def _print_result(result: Result, settings: Settings) -> None:
    from safekeeper.bench.exporters import export

    text = export(result, settings.percentiles, settings.exporter)
    for note in result.notes:
        say(note)
    if result.measurements.first_error is not None:
        say(f"the store failed, first with: {result.measurements.first_error}")
    if result.partial:
        say(f"PARTIAL RESULTS, {result.partial} after {result.operations} operations")
    if not settings.exportfile:
        sys.stdout.write(text)
        return
    try:
        Path(settings.exportfile).write_text(text)
    except OSError as error:
        sys.stdout.write(text)  # rather here than nowhere
        raise BadProperty(f"exportfile={settings.exportfile}: {error.strerror}") from error


def require_histograms() -> None:
    """Raise `BadUrl` with advice if the extra with the histograms is not installed."""
    try:
        import hdrh.histogram  # type: ignore[import-untyped] # noqa: F401
    except ModuleNotFoundError as error:
        raise BadUrl("the benchmark needs the module hdrh: pip install 'safekeeper[bench]'") from error


def say(message: str) -> None:
    """Tell the user something that is no result."""
    print(f"safekeeper: {message}", file=sys.stderr)
