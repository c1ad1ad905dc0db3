"""Results in YCSB's formats, lines of text, JSON and a JSON array, so that what reads YCSB's output reads ours.

`measurementtype` decides what is said of an operation (`kinds`). Files besides: every operation (`raw`), and
percentiles in the format of HdrHistogram (`READ.hgrm`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from safekeeper.bench.ycsb.kinds import RawPoints
from safekeeper.bench.ycsb.measurements import Latencies, Measurements
from safekeeper.bench.ycsb.properties import BadProperty, YcsbSettings
from safekeeper.bench.ycsb.runner import RunResult
from safekeeper.keeper.metrics import Histogram, Metrics


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One number: `[READ], AverageLatency(us), 12.5`."""

    metric: str
    measurement: str
    value: int | float


def rows(result: RunResult, settings: YcsbSettings) -> Iterator[ExportRow]:
    """Every number of *result*, in YCSB's order. Only a partial result has a `Complete`, which is 0."""
    yield ExportRow("OVERALL", "RunTime(ms)", int(result.seconds * 1000))
    yield ExportRow("OVERALL", "Throughput(ops/sec)", result.throughput)
    if result.partial:
        yield ExportRow("OVERALL", "Complete", 0)
    totals = result.measurements.totals()
    returns = result.measurements.returns
    for name in sorted(totals.keys() | {name for name, _ in returns}):
        with_hdr = settings.measurementtype.startswith("hdrhistogram") and name in totals
        kept = result.measurements.kept.get(name)
        if with_hdr:
            yield from _latency_rows(name, totals[name], settings.percentiles)
        for measurement, value in kept.summary() if kept else ():
            yield ExportRow(name, measurement, value)
        for (of, code), count in sorted(returns.items()):
            if of == name:
                yield ExportRow(name, f"Return={code}", count)
        if with_hdr and settings.histogram_verbose:
            for at in totals[name].in_microseconds.get_recorded_iterator():
                yield ExportRow(name, str(at.value_iterated_to), at.count_at_value_iterated_to)
        for measurement, value in kept.details() if kept else ():
            yield ExportRow(name, measurement, value)
    if result.measurements.keeper is not None:
        yield from _keeper_rows(result.measurements.keeper, settings.percentiles)


def _latency_rows(name: str, latencies: Latencies, percentiles: tuple[float, ...]) -> Iterator[ExportRow]:
    yield ExportRow(name, "Operations", latencies.count)
    yield ExportRow(name, "AverageLatency(us)", latencies.mean / 1000)
    yield ExportRow(name, "MinLatency(us)", latencies.least // 1000)
    yield ExportRow(name, "MaxLatency(us)", latencies.most // 1000)
    for percent in percentiles:
        yield ExportRow(name, f"{_ordinal(percent)}PercentileLatency(us)", latencies.percentile(percent) // 1000)


def _keeper_rows(metrics: Metrics, percentiles: tuple[float, ...]) -> Iterator[ExportRow]:
    """What a keeper measured itself. Its percentiles are bounds: at most twice too high."""
    for name in ("saves", "stored", "superseded", "dropped", "rejected", "expired", "failed", "batches", "retries"):
        yield ExportRow("KEEPER", name.capitalize(), getattr(metrics, name))
    yield ExportRow("KEEPER", "BytesWritten", metrics.bytes_written)
    for name in ("serialization_wait", "serialize", "storage_wait", "store", "sync"):
        histogram: Histogram = getattr(metrics, name)
        metric = f"KEEPER-{name.upper().replace('_', '-')}"
        yield ExportRow(metric, "Operations", histogram.count)
        yield ExportRow(metric, "AverageLatency(us)", histogram.mean * 1e6)
        for percent in percentiles:
            yield ExportRow(metric, f"{percent:g}PercentileBound(us)", int(histogram.quantile(percent / 100) * 1e6))


def _ordinal(percent: float) -> str:
    if percent != int(percent):
        return str(percent)
    number = int(percent)
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def export(result: RunResult, settings: YcsbSettings) -> str:
    """*result* as text in one of YCSB's formats, with the end of the last line."""
    all_rows = list(rows(result, settings))
    match settings.exporter:
        case "TextMeasurementsExporter":
            return "".join(f"[{row.metric}], {row.measurement}, {row.value}\n" for row in all_rows)
        case "JSONMeasurementsExporter":
            return "".join(f"{json.dumps(asdict(row))}\n" for row in all_rows)
        case "JSONArrayMeasurementsExporter":
            return f"{json.dumps([asdict(row) for row in all_rows])}\n"


_LINE = re.compile(r"\[([^\]]+)\], (.+), (\S+)")


def read_rows(text: str) -> Iterator[ExportRow]:
    """The numbers in the output of YCSB or of `export`, whichever exporter made it; other lines are passed over."""
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            yield ExportRow(match[1], match[2], _number(match[3]))
        elif line.lstrip().startswith(("{", "[{")):
            found = json.loads(line)
            for row in found if isinstance(found, list) else [found]:
                yield ExportRow(row["metric"], row["measurement"], row["value"])


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def raw_lines(measurements: Measurements) -> Iterator[str]:
    """Every operation in YCSB's lines, where they were kept."""
    for name, kept in sorted(measurements.kept.items()):
        if isinstance(kept, RawPoints):
            yield from kept.lines(name)


def write_percentile_files(measurements: Measurements, path: str) -> None:
    """Write a file for each kind of operation, *path* and `READ.hgrm`: HdrHistogram's percentiles, in microseconds."""
    for name, latencies in measurements.totals().items():
        try:
            with Path(f"{path}{name}.hgrm").open("wb") as file:
                latencies.in_microseconds.output_percentile_distribution(file, 1.0)
        except OSError as error:
            raise BadProperty(f"{path}{name}.hgrm: {error.strerror}") from error
