"""A comparison as a page of HTML that needs nothing else: no network, no scripts. Also as CSV, JSON and a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, fields
from html import escape

from rich.table import Table

from safekeeper.bench.harness import svg
from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.harness.plots import figure, legend, page
from safekeeper.bench.ycsb.compare import Comparison, Point, Sample

_FAR_APART = 20  # times as fast as the slowest is the fastest, and a linear axis would not show the slow ones apart

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 99.99)


_HEADER = ("store", "threads", "operations/s", "low to high", "mean (ms)", "95 % (ms)", "99 % (ms)", "errors")
_UNITS = {"throughput": "ops/sec", "mean": "ns", "p50": "ns", "p95": "ns", "p99": "ns"}
"""Of the columns that have one."""


def to_table(comparison: Comparison) -> Table:
    """For a terminal: one line for each store and number of threads."""
    table = Table(box=None, header_style="bold")
    for name in _HEADER:
        table.add_column(name, justify="left" if name == "store" else "right", overflow="fold")
    for cells in _rows(comparison):
        table.add_row(*cells)
    return table


def _rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for point in comparison.points:
        if point.samples:
            rate = point.throughput
            times = (point.mean.median, point.latencies.percentile(95), point.latencies.percentile(99))
            yield (
                point.url,
                str(point.threads),
                f"{rate.median:,.0f}",
                f"{rate.low:,.0f} to {rate.high:,.0f}",
                *(milliseconds(time) for time in times),
                str(point.errors),
            )


def _recovery_rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for url, found in comparison.recoveries.items():
        for one in found:
            times = (one.open_seconds, one.list_seconds, one.recover_seconds)
            sizes = (one.open_bytes, one.peak_bytes)
            yield (
                url,
                f"{one.ids:,}",
                *(milliseconds(seconds * 1e9) for seconds in times),
                *(f"{size / 1e6:,.1f}" for size in sizes),
            )


def milliseconds(nanoseconds: float) -> str:
    """A time for people, in milliseconds with three digits or more."""
    value = nanoseconds / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def to_csv(comparison: Comparison) -> str:
    """One line for each run; times are nanoseconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f.name for f in fields(Sample)]
    writer.writerow(f"{name}({_UNITS[name]})" if name in _UNITS else name for name in names)
    writer.writerows(astuple(sample) for point in comparison.points for sample in point.samples)
    return text.getvalue()


def to_json(comparison: Comparison, machine: Machine) -> str:
    """Everything, for other programs; times are nanoseconds, those of recoveries seconds."""

    points = [
        {
            "url": point.url,
            "threads": point.threads,
            "throughput": asdict(point.throughput),
            "mean": asdict(point.mean),
            "percentiles": {f"{percent:g}": point.latencies.percentile(percent) for percent in PERCENTILES},
            "errors": point.errors,
            "rounds": [asdict(sample) for sample in point.samples],
        }
        for point in comparison.points
        if point.samples
    ]
    return json.dumps(
        {
            "machine": asdict(machine),
            "units": _UNITS | {"percentiles": "ns", "bytes_on_disk": "bytes"},
            "workload": comparison.workload,
            "settings": asdict(comparison.settings),
            "partial": comparison.partial,
            "failed": comparison.failed,
            "points": points,
            "recoveries": {url: [asdict(one) for one in found] for url, found in comparison.recoveries.items()},
            "bytes_on_disk": comparison.bytes_on_disk,
        },
        indent=1,
    )


def to_html(comparison: Comparison, machine: Machine) -> str:
    """The page."""
    title = f"{comparison.workload or 'workload'} on {len(comparison.urls)} stores"
    return page(title, _sections(comparison, machine))


def _sections(comparison: Comparison, machine: Machine) -> Iterator[str]:
    if comparison.partial:
        yield f'<p class="warning">Partial results: {escape(comparison.partial)}.</p>'
    for url, reason in comparison.failed.items():
        yield f'<p class="warning">{escape(url)} failed: {escape(reason)}</p>'
    if warning := machine.warning():
        yield f'<p class="warning">{escape(warning)}</p>'
    yield f"<p>{escape(machine.sentence())}</p>"
    yield f"<p>{escape(_what_ran(comparison))}</p>"
    yield legend(comparison.urls)
    yield '<div class="plots">'
    caption = "Medians; numbers at the points are threads, bars go from the slowest round to the fastest."
    yield figure("Throughput against latency", _throughput(comparison), caption)
    yield figure("Latency percentiles", _percentiles(comparison), "With the most threads, all rounds together.")
    if comparison.recoveries:
        yield figure("Recovery", _recovery(comparison), "Open the store and read every state back.")
    if comparison.bytes_on_disk:
        yield figure("Bytes stored", _sizes(comparison), "At the end of all rounds, dead values included.")
    yield "</div><h2>Numbers</h2>"
    yield html_table(_HEADER, list(_rows(comparison)))
    if comparison.recoveries:
        yield "<h2>Recovery</h2>"
        times, sizes = ("open (ms)", "list keys (ms)", "read all (ms)"), ("memory open (MB)", "memory at peak (MB)")
        columns = ("store", "ids", *times, *sizes)
        yield html_table(columns, list(_recovery_rows(comparison)))


def _what_ran(comparison: Comparison) -> str:
    settings = comparison.settings
    rounds = max((len(point.samples) for point in comparison.points), default=0)
    operations = f"{settings.operationcount:,} operations"
    if not settings.operationcount:
        operations = f"{settings.maxexecutiontime:g} seconds of operations"
    return (
        f"{operations} on {settings.recordcount:,} records of"
        f" {settings.fieldcount * settings.fieldlength:,} bytes, {settings.requestdistribution}, {rounds} interleaved"
        f" rounds; the median of the rounds is shown. Driver: {settings.driver}."
    )


def _throughput(comparison: Comparison) -> str:
    def line(points: list[Point]) -> list[tuple[float, float]]:
        return [(point.throughput.median, point.mean.median / 1e6) for point in points]

    series = [
        svg.Series(
            url,
            line(points),
            [str(point.threads) for point in points],
            [(point.throughput.low, point.throughput.high) for point in points],
        )
        for url in comparison.urls
        for points in [comparison.of(url)]
    ]
    rates = [rate for one in series for rate, _ in one.points]
    far_apart = bool(rates) and max(rates) > _FAR_APART * min(rates)
    axes = svg.Axis("operations a second", logarithmic=far_apart), svg.Axis("mean latency, ms", logarithmic=True)
    return svg.line_plot("Mean latency against throughput", *axes, series)


def _percentiles(comparison: Comparison) -> str:
    # Percentiles are spaced by how many nines they have.
    ticks = [(float(n), f"{percent:g}") for n, percent in enumerate(PERCENTILES)]
    series = []
    for url in comparison.urls:
        last = comparison.of(url)[-1:]
        points = [(float(n), p.latencies.percentile(of) / 1e6) for p in last for n, of in enumerate(PERCENTILES)]
        series.append(svg.Series(url, points))
    axes = svg.Axis("percentile, per cent of operations", ticks=ticks), svg.Axis("latency, ms", logarithmic=True)
    return svg.line_plot("Latency at each percentile", *axes, series)


def _recovery(comparison: Comparison) -> str:
    series = [
        svg.Series(url, [(one.ids, (one.open_seconds + one.recover_seconds) * 1000) for one in found])
        for url in comparison.urls
        for found in [comparison.recoveries.get(url, [])]
    ]
    axes = svg.Axis("ids", logarithmic=True), svg.Axis("open and read all, ms", logarithmic=True)
    return svg.line_plot("Time to recover against the number of ids", *axes, series)


def _sizes(comparison: Comparison) -> str:
    """Bars in HTML: there a long name of a store finds its place by itself."""
    sizes = comparison.bytes_on_disk
    most = max(sizes.values()) or 1
    bars = (
        f'<dt>{escape(url)}</dt><dd><span class="bar c{number % svg.COLOURS}" style="width:{sizes[url] / most:.1%}">'
        f"</span>{svg.short(sizes[url], ' ')}B</dd>"
        for number, url in enumerate(comparison.urls)
        if url in sizes
    )
    return f'<dl class="bars">{"".join(bars)}</dl>'


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself where it is too wide."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
