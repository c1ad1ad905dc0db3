"""`safekeeper bench`: YCSB's benchmark for checkpoint stores.

Results go to standard output in YCSB's format, everything else to standard error. Exit codes: 0 all well, 1 the results
are partial (interrupted, or the store failed), 2 it could not be done.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table

from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings, guess, load_file, parse_assignments
from safekeeper.errors import BadUrl, SafekeeperError, one_line

if TYPE_CHECKING:
    from safekeeper.bench.ycsb.recover import Recovery
    from safekeeper.bench.ycsb.runner import RunResult
    from safekeeper.bench.ycsb.status import IntervalSink

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
Async = Annotated[bool, typer.Option("--async", help="The property driver=async: save through a SafeKeeper.")]
Processes = Annotated[
    int, typer.Option("--processes", min=1, metavar="N", help="Run from so many processes, each with its threads.")
]
Spark = Annotated[str | None, typer.Option("--spark", metavar="MASTER", help="Run from the executors of a Spark.")]
Clients = Annotated[
    int, typer.Option("--clients", min=1, metavar="N", help="With --spark: from so many tasks at once.")
]
Status = Annotated[
    bool,
    typer.Option("-s", help="Print a status line with percentiles (us) every status.interval seconds."),
]
Intervals = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the percentiles of every interval to this file, .csv or .json."),
]


def settings_of(
    files: list[str] | None,
    assignments: list[str] | None,
    threads: int | None = None,
    target: float | None = None,
    through_keeper: bool = False,
) -> YcsbSettings:
    """The settings that the options of a command make, later ones over earlier ones."""
    properties: dict[str, str] = {}
    for file in files or ():
        properties |= load_file(file)
    given = parse_assignments(assignments or ())
    if threads is not None:
        given["threadcount"] = str(threads)
    if target is not None:
        given["target"] = str(target)
    if through_keeper:
        given["driver"] = "async"
    settings = YcsbSettings.of(properties | given)
    for name in settings.ignored.keys() & given.keys():
        say(f"the property {name} means nothing here{guess(name)}")
    return settings


def store_url(url: str, settings: YcsbSettings) -> str:
    """*url* with the options that were given as properties."""
    for name, value in settings.backend_options.items():
        url += f"{'&' if '?' in url else '?'}{quote(name)}={quote(value)}"
    return url


@app.command("load", help="Insert the records of a workload.")
@app.command("run", help="Do the operations of a workload on records that were loaded before.")
def measure(
    context: typer.Context,
    url: StoreUrl,
    file: Files = None,
    property: Assignments = None,
    threads: Threads = None,
    target: Target = None,
    through_keeper: Async = False,
    processes: Processes = 1,
    spark: Spark = None,
    clients: Clients = 2,
    status: Status = False,
    intervals: Intervals = None,
) -> None:
    """Load or run, whichever the command was called as."""
    require_histograms()
    from safekeeper.bench.ycsb.clients import Share, run_in_processes
    from safekeeper.bench.ycsb.on_spark import run_on_spark

    settings = settings_of(file, property, threads, target, through_keeper)
    share = Share(store_url(url, settings), "load" if context.info_name == "load" else "run", settings)
    if spark is None and processes == 1:
        with ExitStack() as opened:
            result = share.run(sinks=list(_sinks(settings, share.phase, status, intervals, opened)))
    else:
        if intervals is not None:
            raise BadProperty("--intervals takes the intervals of one process: leave out --processes and --spark")
        if status:
            say("-s shows the progress of one process only: nothing is shown here")
        result = run_on_spark(share, spark, clients) if spark is not None else run_in_processes(share, processes)
    _print_result(result, settings)
    if result.partial:
        raise typer.Exit(1)


def _sinks(
    settings: YcsbSettings, phase: str, status: bool, intervals: Path | None, opened: ExitStack
) -> Iterator[IntervalSink]:
    """What the intervals of a run go to; *opened* closes the files."""
    from safekeeper.bench.ycsb.status import HdrLogs, IntervalFile, PrintedStatus, RewrittenLine

    if status:
        yield PrintedStatus()
    elif sys.stderr.isatty():
        yield RewrittenLine(phase)
    if intervals is not None:
        yield opened.enter_context(closing(IntervalFile(intervals)))
    if settings.hdrhistogram_fileoutput:
        require_folder(Path(f"{settings.hdrhistogram_path}READ.hdr"))
        yield opened.enter_context(closing(HdrLogs(settings.hdrhistogram_path)))


def _print_result(result: RunResult, settings: YcsbSettings) -> None:
    from safekeeper.bench.ycsb.exporters import export, write_percentile_files

    _write_raw(result, settings)
    if settings.hdrhistogram_fileoutput:
        write_percentile_files(result.measurements, settings.hdrhistogram_path)
    text = export(result, settings)
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
        write_file(Path(settings.exportfile), text)
    except BadProperty:
        sys.stdout.write(text)  # rather here than nowhere
        raise


def _write_raw(result: RunResult, settings: YcsbSettings) -> None:
    """Write every operation to where `measurement.raw.output_file` says, if they were kept."""
    from safekeeper.bench.ycsb.exporters import raw_lines

    lines = raw_lines(result.measurements)
    if not settings.raw_output_file:
        sys.stdout.writelines(lines)
        return
    try:
        with open(settings.raw_output_file, "a") as file:  # as YCSB does
            file.writelines(lines)
    except OSError as error:
        raise BadProperty(f"{settings.raw_output_file}: {error.strerror}") from error


@app.command()
def recover(
    url: StoreUrl,
    ids: Annotated[str, typer.Option(help="The numbers of ids to measure at.")] = "1000,10000,100000",
    value_size: Annotated[int, typer.Option(min=0, help="Bytes of each state.")] = 70,
    kill: Annotated[bool, typer.Option("--kill", help="Kill the process that fills the store.")] = False,
    only_open: Annotated[bool, typer.Option("--only-open", help="Do not list and read everything.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure time and memory to open a store and read everything back, against the number of ids.

    The ids go to the group 'recover' of the store and stay there.
    """
    from safekeeper.bench.ycsb import recover as recovery

    found: list[recovery.Recovery] = []
    failure = ""
    end: recovery.End = "kill" if kill else "close"
    try:
        for one in recovery.measure(url, numbers(ids, "--ids"), value_size=value_size, end=end, only_open=only_open):
            found.append(one)
            say(f"{one.ids:,} ids done")
    except (KeyboardInterrupt, SafekeeperError) as error:
        if not found:
            raise
        failure = str(error) or "interrupted"
    if as_json:
        print(dumps([asdict(one) for one in found]))
    else:
        _print_table(_recoveries(found))
    if failure:
        say(f"PARTIAL RESULTS, after {found[-1].ids:,} ids: {failure}")
        raise typer.Exit(1)


def _recoveries(found: list[Recovery]) -> Table:
    columns = ("ids", "open (ms)", "list (ms)", "read all (ms)", "memory open (MB)", "at peak (MB)")
    table = Table(*columns, box=None, header_style="bold")
    for one in found:
        seconds = (f"{value * 1000:,.1f}" for value in (one.open_seconds, one.list_seconds, one.recover_seconds))
        sizes = (f"{value / 1e6:,.1f}" for value in (one.open_bytes, one.peak_bytes))
        table.add_row(f"{one.ids:,}", *seconds, *sizes)
    return table


@app.command()
def compare(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Stores; also raw:, rocksdict: and sqlite:.")],
    file: Files = None,
    property: Assignments = None,
    threads: Annotated[str, typer.Option(help="The numbers of threads to run with.")] = "1,2,4,8,16,32",
    repeat: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 5,
    recover: Annotated[str, typer.Option(help="Measure recovery, too, at these numbers of ids.")] = "",
    through_keeper: Async = False,
    csv: Annotated[Path | None, typer.Option(help="Write one line for each run to this file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.")] = None,
) -> None:
    """Run one workload on several stores, turn by turn, and compare them. The stores should be empty."""
    require_histograms()
    from safekeeper.bench.harness.machine import Machine
    from safekeeper.bench.ycsb.compare import compare, local_folder
    from safekeeper.bench.ycsb.report import to_csv, to_html, to_json, to_table

    for path in (csv, json, html):
        require_folder(path)
    settings = settings_of(file, property, through_keeper=through_keeper)
    found = compare(
        [store_url(url, settings) for url in urls],
        settings,
        workload=", ".join(Path(name).stem for name in file or ()),
        threads=numbers(threads, "--threads"),
        rounds=repeat,
        recover=numbers(recover, "--recover") if recover else (),
        said=say,
    )
    _print_table(to_table(found))
    folders = filter(None, map(local_folder, urls))
    machine = Machine.here(next(folders, None))
    for path, text in ((csv, to_csv(found)), (json, to_json(found, machine)), (html, to_html(found, machine))):
        if path is not None:
            write_file(path, text)
    for url, reason in found.failed.items():
        say(f"{url} failed: {reason}")  # the URL is as `compare` shows it
    if found.partial:
        say(f"PARTIAL RESULTS, {found.partial}")
    if found.partial or found.failed:
        raise typer.Exit(1)


@app.command("all")
def everything(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter rounds.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="A study to run instead of all; several times for more.")
    ] = None,
    results: Annotated[Path | None, typer.Option(help="A folder that keeps what each study found.")] = None,
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/benchmarks.md"),
) -> None:
    """Run every study that comes with safekeeper and write a page with the results.

    It takes long, but it can be done bit by bit: beside the page is a file .json with what it is made from, and what
    this run has not measured stays. --results keeps all that the studies print.
    """
    require_histograms()
    from safekeeper.bench.harness.page import page
    from safekeeper.bench.harness.run_all import dump_kept, joined, load_kept, run_all

    require_folder(output)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever asks us to end means the studies, too
    outcomes = run_all(quick=quick, only=only or (), results=results, said=say)
    kept = output.with_suffix(".json")
    whole = joined(load_kept(kept), outcomes)
    write_file(kept, dump_kept(whole))
    write_file(output, page(whole))
    for outcome in outcomes:
        for goal in outcome.goals:
            print(f"{outcome.study.name}: {goal}")
        if outcome.failure:
            say(f"{outcome.study.name} did not run to its end: {outcome.failure}")
    if any(outcome.failure for outcome in outcomes):
        raise typer.Exit(1)


def _print_table(table: Table) -> None:
    # What is not a terminal has no width; folded cells would be hard to read.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)


def write_file(path: Path, text: str) -> None:
    """Write *text*. Raise `BadProperty` if that cannot be done."""
    try:
        path.write_text(text)
    except OSError as error:
        raise BadProperty(f"{path}: {error.strerror}") from error


def require_folder(file: Path | None) -> None:
    """Raise `BadProperty` if *file* could not be written for want of a folder: better now than after hours."""
    if file is not None and not file.parent.is_dir():
        raise BadProperty(f"{file}: there is no folder {file.parent}")


def numbers(text: str, option: str) -> list[int]:
    """The whole numbers above 0 in a list such as `1,2,4`."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise BadProperty(f"{option} {text}: it takes whole numbers with commas, such as 1,2,4")
    return [int(part) for part in parts]


def require_histograms() -> None:
    """Raise `BadUrl` with advice if the extra with the histograms is not installed."""
    try:
        import hdrh.histogram  # type: ignore[import-untyped] # noqa: F401
    except ModuleNotFoundError as error:
        raise BadUrl("the benchmark needs the module hdrh: pip install 'safekeeper[bench]'") from error


def say(message: str) -> None:
    """Tell the user something that is no result."""
    print(one_line(f"safekeeper: {message}"), file=sys.stderr)
