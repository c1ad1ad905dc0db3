"""Results in YCSB's formats, lines of text, JSON and a JSON array, so that what reads YCSB's output reads ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from safekeeper.bench.ycsb.measurements import Latencies
from safekeeper.bench.ycsb.properties import Exporter
from safekeeper.bench.ycsb.runner import RunResult
from safekeeper.keeper.metrics import Histogram, Metrics


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One number: `[READ], AverageLatency(us), 12.5`."""

    metric: str
    measurement: str
    value: int | float


def rows(result: RunResult, percentiles: tuple[float, ...]) -> Iterator[ExportRow]:
    """Every number of *result*, in YCSB's order. Only a partial result has a `Complete`, which is 0."""
    yield ExportRow("OVERALL", "RunTime(ms)", int(result.seconds * 1000))
    yield ExportRow("OVERALL", "Throughput(ops/sec)", result.throughput)
    if result.partial:
        yield ExportRow("OVERALL", "Complete", 0)
    totals = result.measurements.totals()
    returns = result.measurements.returns
    for name in sorted(totals.keys() | {name for name, _ in returns}):
        if name in totals:
            yield from _latency_rows(name, totals[name], percentiles)
        for (of, code), count in sorted(returns.items()):
            if of == name:
                yield ExportRow(name, f"Return={code}", count)
    if result.measurements.keeper is not None:
        yield from _keeper_rows(result.measurements.keeper, percentiles)


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


def export(result: RunResult, percentiles: tuple[float, ...], exporter: Exporter) -> str:
    """*result* as text in one of YCSB's formats, with the end of the last line."""
    all_rows = list(rows(result, percentiles))
    match exporter:
        case "TextMeasurementsExporter":
            return "".join(f"[{row.metric}], {row.measurement}, {row.value}\n" for row in all_rows)
        case "JSONMeasurementsExporter":
            return "".join(f"{json.dumps(asdict(row))}\n" for row in all_rows)
        case "JSONArrayMeasurementsExporter":
            return f"{json.dumps([asdict(row) for row in all_rows])}\n"
