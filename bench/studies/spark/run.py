"""One turn of one arm: a JVM of its own, the state filled, the batches measured, the query restarted.

    python -m safekeeper.bench.studies.spark.run < TURN

TURN is a `SparkTurn` as JSON; what was measured is one JSON line on standard output. Batches come one by one, each when
the one before is done, so that it can be told which files it wrote to.

The restart is that of the query, in the same JVM: the state stores are closed and everything is read again, but Spark
itself is warm, so that the time is the state store's and not that of loading classes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from safekeeper.bench.studies.spark.arms import BEFORE, COUNTS_ROWS, FLOOR, OBJECTS, OURS, slow_store, with_arm
from safekeeper.bench.studies.spark.footprint import Watch, anonymous_memory, bytes_to_disk, peak_memory
from safekeeper.bench.studies.spark.workloads import QUERIES, SCHEMA, SizedQuery
from safekeeper.testing.processes import AGENT, descendants

_SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.files.openCostInBytes": "0",  # or one core would read a small file alone
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, slots=True)
class SparkTurn:
    """What to run, and where."""

    workload: SizedQuery
    arm: str
    inputs: list[str]
    folder: str
    """Empty, and on the disk that is to be measured."""
    floor: str
    """The jar of the provider that stores nothing."""
    before: str = ""
    """The jar of another version of ours."""

    @classmethod
    def of(cls, text: str) -> SparkTurn:
        """A turn from its JSON."""
        fields = json.loads(text)
        return cls(**fields | {"workload": SizedQuery.of(fields["workload"])})


@dataclass(frozen=True, slots=True)
class BatchCost:
    """What a measured batch took. Times of several tasks are added up, as Spark does."""

    trigger_ms: int
    update_ms: int
    commit_ms: int
    files: int
    """How many files of the state it made or appended to."""
    due: float = 0
    """When its rows came, in seconds since the first measured batch was due."""
    latency_ms: float = 0
    """From then until the batch was done."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a turn found."""

    batches: list[BatchCost]
    restart_ms: float
    """From starting the query again to the end of its first batch."""
    jvm_bytes: int
    """The most that was resident until the restart."""
    agent_bytes: int
    files: int
    """Of the state, that the measured batches made or appended to."""
    bytes: int
    """How much was added to them."""
    own_files: int
    """The same for what Spark itself writes into a checkpoint: its logs of offsets and commits."""
    own_bytes: int
    disk_bytes: int
    """What JVM and agent wrote to disks, shuffles and local files of a store included."""
    anonymous_bytes: int = 0
    """What JVM and agent had in memory that no file is behind, at the end of the measured batches."""
    space_bytes: int = 0
    """Disk space then: of the state in the store or the checkpoint, and on the local disk, mapped files included."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Measured:
        """What `asdict` made JSON of."""
        return cls(**fields | {"batches": [BatchCost(**batch) for batch in fields["batches"]]})


class _Query:
    """The query of a turn: batches go in one by one."""

    def __init__(self, turn: SparkTurn, spark: SparkSession) -> None:
        self._turn, self._spark = turn, spark
        self._inputs = iter(turn.inputs)
        self._input = Path(turn.folder, "input")
        self._input.mkdir()
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        """Start it, the first time or again."""
        make, mode = QUERIES[self._turn.workload.kind]
        rows = self._spark.readStream.schema(SCHEMA).parquet(str(self._input))
        stream = make(rows, self._turn.workload).writeStream.format("noop").outputMode(mode)
        self._query = stream.option("checkpointLocation", f"{self._turn.folder}/checkpoint").start()

    def add(self) -> None:
        """Let the next batch come."""
        path = Path(next(self._inputs))
        os.link(path, self._input / path.name)  # at once, and in no time

    def work(self) -> None:
        """Wait until everything that has come is done."""
        self._running.processAllAvailable()

    def progress(self) -> list[StreamingQueryProgress]:
        """What Spark tells of the batches since the last start."""
        return [progress for progress in self._running.recentProgress if progress.numInputRows]

    def stop(self) -> None:
        """Stop it and forget its state, so that a restart has to read it."""
        self._running.stop()
        self._spark._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()  # type: ignore[union-attr]

    @property
    def _running(self) -> StreamingQuery:
        assert self._query is not None
        return self._query


def measure(turn: SparkTurn) -> Measured:
    """Run the turn."""
    checkpoint, workload = Path(turn.folder, "checkpoint"), turn.workload
    with _session(turn) as spark:
        query = _Query(turn, spark)
        query.start()
        for _ in range(workload.fills + workload.warm_ups):
            query.add()
            query.work()
        state = Watch([checkpoint / "state", Path(turn.folder, "store")])
        own = Watch([checkpoint / name for name in ("offsets", "commits", "sources")])
        disk_bytes, grown = -_disk_bytes(), []
        clock = _Clock(workload.every)
        for number in range(workload.batches):
            clock.wait_for(number)
            query.add()
            query.work()
            clock.done(number)
            grown.append(state.look())
        own_grown = own.look()
        disk_bytes += _disk_bytes()
        progress = query.progress()
        _check(progress[-1], turn)
        jvm_bytes, agent_bytes = _memory()
        anonymous_bytes = sum(map(anonymous_memory, _processes()))
        space_bytes = _space(Path(turn.folder), progress[-1])
        query.stop()
        query.add()
        started = time.perf_counter()
        query.start()
        query.work()
        restart_ms = (time.perf_counter() - started) * 1000
        _check(query.progress()[-1], turn)
        query.stop()
        _check_sums(spark, turn)
    return Measured(
        batches=[
            _batch(told, len(files), *times)
            for told, files, times in zip(progress[-workload.batches :], grown, clock.times, strict=True)
        ],
        restart_ms=restart_ms,
        jvm_bytes=jvm_bytes,
        agent_bytes=agent_bytes,
        files=len(set().union(*grown)),
        bytes=sum(sum(files.values()) for files in grown),
        own_files=len(own_grown),
        own_bytes=sum(own_grown.values()),
        disk_bytes=disk_bytes,
        anonymous_bytes=anonymous_bytes,
        space_bytes=space_bytes,
    )


class _Clock:
    """When batches are due, and how long after that they were done."""

    def __init__(self, every: float) -> None:
        self._every, self._started = every, time.perf_counter()
        self.times: list[tuple[float, float]] = []

    def wait_for(self, number: int) -> None:
        """Until it is due; without a clock that is at once."""
        now = time.perf_counter() - self._started
        due = number * self._every if self._every else now
        time.sleep(max(0, due - now))
        self.times.append((due, 0.0))

    def done(self, number: int) -> None:
        due, _ = self.times[number]
        self.times[number] = due, (time.perf_counter() - self._started - due) * 1000


def _space(folder: Path, last: StreamingQueryProgress) -> int:
    files = (path for name in ("checkpoint/state", "store", "local") for path in (folder / name).rglob("*"))
    found = 0
    for path in files:
        with suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512 if path.is_file() else 0
    # Files without a name are not found.
    mapped: int = sum(operator.customMetrics.get("safekeeperDiskBytes", 0) for operator in last.stateOperators)
    return found + mapped


def _session(turn: SparkTurn) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.Builder().master("local[2]").appName("safekeeper bench")
    folder = Path(turn.folder)
    places = {"spark.local.dir": folder / "local", "spark.sql.warehouse.dir": folder / "warehouse"}
    heap = turn.workload.objects_heap if turn.arm == OBJECTS else turn.workload.heap
    sizes = {"spark.driver.memory": heap, "spark.sql.shuffle.partitions": turn.workload.partitions}
    for name, value in {**_SETTINGS, **places, **sizes}.items():
        builder.config(name, str(value))
    for name, value in turn.workload.settings:
        builder.config(name, value)
    slow = turn.workload.slow_ms
    url = slow_store(folder, slow) if slow and turn.arm in (OURS, BEFORE) else f"log://{folder}/store"
    return with_arm(builder, turn.arm, Path(turn.floor), Path(turn.before), url).getOrCreate()


def _batch(progress: StreamingQueryProgress, files: int, due: float, latency_ms: float) -> BatchCost:
    operators = progress.stateOperators
    return BatchCost(
        trigger_ms=progress.durationMs["triggerExecution"],
        update_ms=sum(operator.allUpdatesTimeMs for operator in operators),
        commit_ms=sum(operator.commitTimeMs for operator in operators),
        files=files,
        due=due,
        latency_ms=latency_ms,
    )


def _check(last: StreamingQueryProgress, turn: SparkTurn) -> None:
    """What is fast and wrong does not count."""
    if turn.workload.kind == "aggregation" and turn.arm in COUNTS_ROWS:
        (operator,) = last.stateOperators
        found = operator.numRowsTotal, operator.numRowsUpdated
        if found != (turn.workload.keys, turn.workload.rows):
            raise AssertionError(f"{turn.arm} has {found[0]} keys and updated {found[1]}")


def _check_sums(spark: SparkSession, turn: SparkTurn) -> None:
    """After the restart, in the state itself: every row of the input was counted once."""
    workload = turn.workload
    if not workload.has_sums or turn.arm == FLOOR:
        return
    state = spark.read.format("statestore").load(f"{turn.folder}/checkpoint").select("value.*")
    sums = [F.count("*"), *(F.sum(f"`{name}`") for name in state.columns)]
    found = list(state.agg(*sums).collect()[0])
    given = [pq.read_table(path, columns=["number"])["number"] for path in turn.inputs]
    truth = [workload.keys, sum(map(len, given)), sum(pc.sum(numbers).as_py() for numbers in given)][: len(found)]
    if found != truth:
        raise AssertionError(f"{turn.arm} has {found} in its state instead of {truth}")


def _jvm() -> int:
    pid: int = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    return pid


def _processes() -> list[int]:
    return [_jvm(), *descendants([_jvm()], AGENT)]


def _disk_bytes() -> int:
    return sum(map(bytes_to_disk, _processes()))


def _memory() -> tuple[int, int]:
    jvm, *agents = map(peak_memory, _processes())
    return jvm, sum(agents)


def main() -> None:
    """Run the turn that standard input tells of."""
    print(json.dumps(asdict(measure(SparkTurn.of(sys.stdin.read())))))


if __name__ == "__main__":
    main()
