"""The state stores that are compared: the floor, Spark's own in four settings, and ours."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from safekeeper.spark import configure
from safekeeper.spark.build import SOURCES, build, source_folders, spark_home, spark_version
from safekeeper.testing.entry_point import write_entry_points

OURS, BEFORE, FLOOR, OBJECTS = "safekeeper", "before", "floor", "hdfs"

_STATE = "spark.sql.streaming.stateStore."
_ROCKSDB = {_STATE + "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}
_CHANGELOG = {**_ROCKSDB, _STATE + "rocksdb.changelogCheckpointing.enabled": "true"}

SETTINGS: dict[str, dict[str, str]] = {
    FLOOR: {_STATE + "providerClass": "io.safekeeper.bench.FloorStateStoreProvider"},
    OBJECTS: {_STATE + "providerClass": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"},
    "rocksdb": {**_ROCKSDB, _STATE + "rocksdb.changelogCheckpointing.enabled": "false"},
    "changelog": _CHANGELOG,
    "tuned": {
        **_CHANGELOG,
        _STATE + "rocksdb.blockCacheSizeMB": "512",
        _STATE + "rocksdb.trackTotalNumberOfRows": "false",
    },
    OURS: {},
}
"""What Spark is told, by arm. `tuned` is RocksDB with changelog, a larger cache and no counting of rows."""

COUNTS_ROWS = frozenset(SETTINGS) - {FLOOR, "tuned"} | {BEFORE}
"""The arms that say how many rows their state has."""


def before_jar(given: Path, folder: Path) -> Path:
    """The jar of another version of ours, from its tree if that is what is given."""
    if given.is_file():
        return given
    sources, jar = given / "safekeeper" / "spark", folder / "before.jar"
    shims = [
        path for path in (sources / "shim" / "common", sources / "shim" / spark_version(spark_home())) if path.exists()
    ]
    build((sources / "java", *shims), spark_home(), jar)
    return jar


SLOW = """
import os, time
from safekeeper.backends.file import FileBackend
class SlowBackend(FileBackend):
    def write(self, batch):
        time.sleep(float(os.environ["SAFEKEEPER_BENCH_SLOW_MS"]) / 1000)
        return super().write(batch)
"""


def slow_store(folder: Path, milliseconds: int) -> str:
    """A URL for `configure` of a store on files in *folder* that takes so much longer for each write."""
    code = folder / "slow"
    code.mkdir()
    (code / "slow_backend.py").write_text(SLOW)
    write_entry_points(code, {"slow": "slow_backend:SlowBackend"})
    os.environ["SAFEKEEPER_BENCH_SLOW_MS"] = str(milliseconds)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
    sys.path.append(str(code))
    importlib.invalidate_caches()
    return f"slow://{folder}/store"


def build_floor(folder: Path) -> Path:
    """Compile the provider that stores nothing; it is no part of the jar that users get."""
    jar = folder / "floor.jar"
    home = spark_home()
    _, *shims = source_folders(spark_version(home))
    build((Path(__file__).parent / "java", SOURCES / "io" / "safekeeper" / "spark" / "shim", *shims), home, jar)
    return jar


def with_arm(builder: SparkSession.Builder, arm: str, floor: Path, before: Path, url: str) -> SparkSession.Builder:
    """Let *builder* make a session whose queries keep their state in *arm*; ours keeps it in *url*.

    The arm `before` is ours with the jar *before*, of another version.
    """
    if arm in (OURS, BEFORE):
        configure(builder, url)
        return builder.config("spark.jars", str(before)) if arm == BEFORE else builder
    if arm == FLOOR:
        builder.config("spark.jars", str(floor))
    for name, value in SETTINGS[arm].items():
        builder.config(name, value)
    return builder
