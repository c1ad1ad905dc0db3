"""The state stores that are compared: the floor, Spark's own in four settings, and ours."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from safekeeper.spark import configure
from safekeeper.spark.build import SOURCES, build, source_folders, spark_home, spark_version

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


def build_floor(folder: Path) -> Path:
    """Compile the provider that stores nothing; it is no part of the jar that users get."""
    jar = folder / "floor.jar"
    home = spark_home()
    _, *shims = source_folders(spark_version(home))
    build((Path(__file__).parent / "java", SOURCES / "io" / "safekeeper" / "spark" / "shim", *shims), home, jar)
    return jar


def with_arm(builder: SparkSession.Builder, arm: str, floor: Path, before: Path, store: Path) -> SparkSession.Builder:
    """Let *builder* make a session whose queries keep their state in *arm*; ours keeps it below *store*.

    The arm `before` is ours with the jar *before*, of another version.
    """
    if arm in (OURS, BEFORE):
        configure(builder, f"log://{store}")
        return builder.config("spark.jars", str(before)) if arm == BEFORE else builder
    if arm == FLOOR:
        builder.config("spark.jars", str(floor))
    for name, value in SETTINGS[arm].items():
        builder.config(name, value)
    return builder
