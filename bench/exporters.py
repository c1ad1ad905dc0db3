"""Results in YCSB's formats, lines of text, JSON and a JSON array, so that what reads YCSB's output reads ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from safekeeper.bench.driver import Result
from safekeeper.bench.measurements import Latencies, Row
from safekeeper.bench.properties import Exporter


def rows(result: Result, percentiles: tuple[float, ...]) -> Iterator[Row]:
    """Every number of *result*, in YCSB's order. Only a partial result has a `Complete`, which is 0."""
    yield Row("OVERALL", "RunTime(ms)", int(result.seconds * 1000))
    yield Row("OVERALL", "Throughput(ops/sec)", result.throughput)
    if result.partial:
        yield Row("OVERALL", "Complete", 0)
    totals = result.measurements.totals()
    returns = result.measurements.returns
    for name in sorted(totals.keys() | {name for name, _ in returns}):
        if name in totals:
            yield from _latency_rows(name, totals[name], percentiles)
        for (of, code), count in sorted(returns.items()):
            if of == name:
                yield Row(name, f"Return={code}", count)
    yield from result.measurements.beside


def _latency_rows(name: str, latencies: Latencies, percentiles: tuple[float, ...]) -> Iterator[Row]:
    yield Row(name, "Operations", latencies.count)
    yield Row(name, "AverageLatency(us)", latencies.mean / 1000)
    yield Row(name, "MinLatency(us)", latencies.least // 1000)
    yield Row(name, "MaxLatency(us)", latencies.most // 1000)
    for percent in percentiles:
        yield Row(name, f"{_ordinal(percent)}PercentileLatency(us)", latencies.percentile(percent) // 1000)


def _ordinal(percent: float) -> str:
    if percent != int(percent):
        return f"{percent:g}"
    number = int(percent)
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def export(result: Result, percentiles: tuple[float, ...], exporter: Exporter) -> str:
    """*result* as text in one of YCSB's formats, with the end of the last line."""
    all_rows = list(rows(result, percentiles))
    match exporter:
        case "TextMeasurementsExporter":
            return "".join(f"[{row.metric}], {row.measurement}, {row.value}\n" for row in all_rows)
        case "JSONMeasurementsExporter":
            return "".join(f"{json.dumps(asdict(row))}\n" for row in all_rows)
        case "JSONArrayMeasurementsExporter":
            return f"{json.dumps([asdict(row) for row in all_rows])}\n"
