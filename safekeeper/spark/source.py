"""Stores and Spark's executors: the checkpoints of a store as a DataFrame, and large stores copied by many tasks.

    safekeeper.spark.register(spark)
    spark.read.format("safekeeper").option("url", "log:///var/lib/app").load()      # group, key, value

The executors need safekeeper with the driver of the store, and see the store under the same URL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import safekeeper
from safekeeper.backend import CheckpointId, Scope
from safekeeper.errors import BadUrl
from safekeeper.large import with_parts
from safekeeper.stores import Copied, batches, copy_ids, ids_of, read_in_pieces, slices
from safekeeper.url import Url, guess

_IDS_OF_A_TASK = 1024
_OPTIONS = ("url", "group")
_SCHEMA = pa.schema({"group": pa.string(), "key": pa.binary(), "value": pa.binary()})


class CheckpointSource(DataSource):
    """The data source `safekeeper`: one row for each id of a store.

    url      the store
    group    read the ids of this group only
    """

    @classmethod
    def name(cls) -> str:
        return "safekeeper"

    def schema(self) -> str:
        return "group string, key binary, value binary"

    def reader(self, schema: StructType) -> CheckpointReader:
        for name in self.options:
            if name not in _OPTIONS and name != "path":
                raise BadUrl(f"there is no option {name!r}{guess(name, list(_OPTIONS))}; there are: url, group")
        if not (url := self.options.get("url")):
            raise BadUrl("no store is named: add .option('url', 'log:///var/lib/app')")
        return CheckpointReader(url, self.options.get("group"))


@dataclass(frozen=True, slots=True)
class _Piece(InputPartition):
    """What one task reads."""

    ids: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class CheckpointReader(DataSourceReader):
    """Lists the ids where the query is planned, and reads their values in tasks."""

    url: str = field(repr=False)  # it may hold a password
    group: str | None

    def partitions(self) -> Sequence[_Piece]:
        with safekeeper.open(self.url) as store:
            ids = ids_of(store, None if self.group is None else [self.group])
            pieces = [_Piece(ids) for ids in slices(ids, _IDS_OF_A_TASK)]
        return pieces or [_Piece(())]  # no partition at all would mean to Spark: one, and it is None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Piece)
        with safekeeper.open(self.url) as store:
            for batch in batches(read_in_pieces(store, partition.ids)):
                found = [(id.group, id.key, value) for id, value in batch.items()]
                yield pa.RecordBatch.from_arrays([*map(pa.array, zip(*found, strict=True))], schema=_SCHEMA)


def copy_on_spark(source: str, target: str, groups: Sequence[str] | None, master: str) -> Copied:
    """Copy from store to store by their URLs, with the tasks of the Spark at *master*. See `safekeeper.stores`."""
    local = master.startswith("local")
    for url in (source, target):
        with safekeeper.open(url) as store:
            if store.scope < (Scope.HOST if local else Scope.NETWORK):
                raise BadUrl(f"{Url.parse(url)} is seen in the {store.scope.name.lower()} only: copy without --spark")
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not just any python3 of the path
    with safekeeper.open(source) as store:
        pieces = list(slices(ids_of(store, groups and with_parts(groups)), _IDS_OF_A_TASK))
    if not pieces:
        return Copied(0, 0)

    def copy_some(pieces: Iterable[tuple[CheckpointId, ...]]) -> Iterator[Copied]:
        with safekeeper.open(source) as store, safekeeper.open(target) as other:
            for ids in pieces:
                yield copy_ids(store, other, ids)

    builder = SparkSession.Builder().master(master).appName("safekeeper copy")
    with builder.config("spark.ui.enabled", "false").getOrCreate() as spark:
        tasks = spark.sparkContext.parallelize(pieces, len(pieces))
        return tasks.mapPartitions(copy_some).fold(Copied(0, 0), lambda a, b: a + b)
