"""What `cleanAt` buys and costs: extent, restart time, bytes written and commit time of a Spark aggregation against it.

    python -m safekeeper.bench.studies.spark_cleaner --quick
    python -m safekeeper.bench.studies.spark_cleaner --rounds 3 --html page.html

Two ways to update the state: `uniform` draws from all keys, `cold` always takes the same fifth of them, so that the
others must be moved to the front for ever. Every query fills the state in its first batch and then updates a fifth of
it in each, on `log:` with every commit synced. All run in one JVM, each in a session of its own, in an order that
rotates from round to round. The second half of the batches counts, when the cleaner has come to its pace.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from safekeeper.bench.harness import svg
from safekeeper.bench.harness.interleave import Spread, rotated
from safekeeper.bench.harness.machine import Machine
from safekeeper.bench.harness.plots import figure, figures, legend, page
from safekeeper.bench.ycsb.report import html_table
from safekeeper.spark import configure, setting

WAYS = ("uniform", "cold")
LIMITS = ("1.25", "1.5", "2", "3", "4")
MEASURES = {
    "extent": "times the state that a restart replays, at the most",
    "restart ms": "to load the state, all partitions added up",
    "written": "times the size of the changes that was appended",
    "commit ms": "of all tasks, the median",
    "commit max": "of all tasks",
}
_SHARE = 5  # a batch updates one key in so many
_SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True)
class CleanerScale:
    """How much to measure."""

    keys: int
    batches: int
    rounds: int


FULL = CleanerScale(200_000, 40, 3)
QUICK = CleanerScale(40_000, 10, 1)

Found = dict[str, float]
"""A turn's numbers, by the names in `MEASURES`."""


def write_inputs(folder: Path, way: str, size: CleanerScale) -> list[Path]:
    """A file for each batch: the first has every key, the last is for the restart."""
    folder.mkdir()
    paths = []
    for batch in range(size.batches + 2):
        drawn = np.random.default_rng(batch).choice(size.keys, size.keys // _SHARE, replace=False)
        keys = np.arange(size.keys) if batch == 0 else drawn if way == "uniform" else np.arange(len(drawn)) * _SHARE
        paths.append(folder / f"{batch:04}.parquet")
        pq.write_table(pa.table({"key": keys}), paths[-1])
    return paths


def turn(spark: SparkSession, folder: Path, inputs: Sequence[Path], clean_at: str) -> Found:
    """Run the batches with one setting, then restart the query and let it run one more."""
    session = spark.newSession()
    session.conf.set(setting("clean_at"), clean_at)
    (folder / "input").mkdir(parents=True)
    *before, last = inputs
    progress = _run(session, folder, before)[1:]  # without the one that filled the state
    session._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]
    (restart,) = _run(session, folder, [last])
    steady = progress[len(progress) // 2 :]
    changed = sum(batch["safekeeperAppendedBytes"] for batch in steady)
    moved = sum(batch["safekeeperCleanedBytes"] for batch in steady)
    return {
        "extent": max(batch["safekeeperExtentBytes"] / batch["safekeeperLiveBytes"] for batch in progress),
        "restart ms": restart["safekeeperLoadMicros"] / 1000,
        "written": (changed + moved) / changed,
        "commit ms": statistics.median(batch["commitTimeMs"] for batch in steady),
        "commit max": max(batch["commitTimeMs"] for batch in steady),
    }


def _run(session: SparkSession, folder: Path, inputs: Sequence[Path]) -> list[dict[str, float]]:
    """Run the query over further *inputs*, a batch for each; what Spark tells of the state in each."""
    for path in inputs:
        os.link(path, folder / "input" / path.name)
    rows = session.readStream.schema("key bigint").option("maxFilesPerTrigger", 1).parquet(str(folder / "input"))
    stream = rows.groupBy("key").agg(F.count("*"), F.sum("key")).writeStream.format("noop").outputMode("update")
    query = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    states = [batch.stateOperators[0] for batch in query.recentProgress if batch.numInputRows]
    return [{"commitTimeMs": state.commitTimeMs, **state.customMetrics} for state in states]


def measure(size: CleanerScale, limits: list[str], folder: Path) -> dict[str, dict[str, list[Found]]]:
    """All turns, by the way of updating and the setting."""
    inputs = {way: write_inputs(folder / way, way, size) for way in WAYS}
    found: dict[str, dict[str, list[Found]]] = {way: {limit: [] for limit in limits} for way in WAYS}
    builder = SparkSession.Builder().master("local[2]").appName("safekeeper bench")
    for name, value in {**_SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder.config(name, value)
    with configure(builder, f"log://{folder}/store").getOrCreate() as spark:
        turn(spark, folder / "warm-up", inputs["uniform"], "2")
        for number in range(size.rounds):
            for way in WAYS:
                for limit in rotated(limits, number):
                    print(f"round {number + 1}, {way}: cleanAt {limit}", file=sys.stderr)
                    one = folder / f"{way} {limit} {number}"
                    found[way][limit].append(turn(spark, one, inputs[way], limit))
    return found


def _rows(found: dict[str, list[Found]]) -> list[list[str]]:
    return [[limit, *(str(_spread(turns, name)) for name in MEASURES)] for limit, turns in found.items()]


def _spread(turns: list[Found], name: str) -> Spread:
    return Spread.of(found[name] for found in turns)


def table(way: str, found: dict[str, list[Found]]) -> Table:
    """What was found for one way of updating."""
    shown = Table(title=f"{way} updates", title_justify="left", box=None)
    for name in ("cleanAt", *MEASURES):
        shown.add_column(name, justify="right")
    for row in _rows(found):
        shown.add_row(*row)
    return shown


def to_html(found: dict[str, dict[str, list[Found]]], machine: Machine) -> str:
    """A page with a plot for each measure."""
    return page("what cleanAt buys and costs", _sections(found, machine))


def _sections(found: dict[str, dict[str, list[Found]]], machine: Machine) -> Iterator[str]:
    if warning := machine.warning():
        yield f'<p class="warning">{escape(warning)}</p>'
    yield f"<p>{escape(machine.sentence())}</p>{legend(list(found))}"
    yield figures(figure(name, _plot(found, name), f"{name}: {MEASURES[name]}.") for name in MEASURES)
    for way, limits in found.items():
        yield f"<h2>{way} updates</h2>"
        yield html_table(["cleanAt", *MEASURES], _rows(limits))


def _plot(found: dict[str, dict[str, list[Found]]], name: str) -> str:
    series = [
        svg.Series(way, [(float(limit), _spread(turns, name).median) for limit, turns in limits.items()])
        for way, limits in found.items()
    ]
    return svg.line_plot(f"{name} against cleanAt", svg.Axis("cleanAt"), svg.Axis(name), series)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small state and one round")
    parser.add_argument("--limits", default=",".join(LIMITS), help="the settings to try; %(default)s")
    parser.add_argument("--rounds", type=int, help="how often each setting has its turn")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    parser.add_argument("--html", type=Path, help="where a page with plots goes")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
        size = replace(size, rounds=options.rounds or size.rounds)
        found = measure(size, options.limits.split(","), Path(folder))
    for way, limits in found.items():
        Console().print(table(way, limits))
    if options.html:
        options.html.write_text(to_html(found, Machine.here(options.folder)))


if __name__ == "__main__":
    main()
