"""Stores as DataFrames, and a query whose state moves to another store."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F

import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.spark import register, setting
from safekeeper.stores import ids_of, read_in_pieces


@pytest.fixture(scope="module")
def reader(spark):
    register(spark)
    return lambda **options: spark.read.format("safekeeper").options(**options).load()


def write(url, puts):
    with safekeeper.open(url) as store:
        store.write(Batch(puts))


def contents(url):
    with safekeeper.open(url) as store:
        return dict(read_in_pieces(store, ids_of(store)))


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "safekeeper.cli", *arguments], capture_output=True, text=True)


def test_every_id_of_a_store_is_a_row(reader, tmp_path):
    url = f"log://{tmp_path}/store"
    puts = {CheckpointId("a", b"%d" % number): bytes(number) for number in range(2500)}
    puts[CheckpointId("b", b"\xff\0")] = b"\0\xff"
    write(url, puts)
    rows = reader(url=url).collect()
    assert {CheckpointId(row.group, bytes(row.key)): bytes(row.value) for row in rows} == puts
    assert len(rows) == len(puts)
    assert [tuple(map(bytes, row[1:])) for row in reader(url=url, group="b").collect()] == [(b"\xff\0", b"\0\xff")]


def test_a_store_without_ids_has_no_rows(reader, tmp_path):
    assert reader(url=f"log://{tmp_path}/nothing").count() == 0
    assert reader(url=f"log://{tmp_path}/nothing", group="a").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no store is named"),
        ({"url": "lgo:///x"}, "did you mean 'log'"),
        ({"url": "memory:", "grup": "a"}, "did you mean 'group'"),
    ],
    ids=["no URL", "an unknown scheme", "an unknown option"],
)
def test_what_is_wrong_is_said(reader, options, said):
    with pytest.raises((AnalysisException, PythonException), match=said):
        reader(**options).collect()


def test_spark_copies_a_store(environment, tmp_path):
    source, target = f"log://{tmp_path}/from", f"file://{tmp_path}/to"
    puts = {CheckpointId(f"group {number % 7}", b"%d" % number): bytes(number) for number in range(1500)}
    write(source, puts)
    done = command("copy", source, target, "--spark", "local[2]", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f'{{"ids": 1500, "nbytes": {sum(range(1500))}}}\n'
    assert contents(target) == puts


def test_spark_does_not_copy_what_its_tasks_cannot_see(tmp_path):
    done = command("copy", "memory:", f"file://{tmp_path}/to", "--spark", "local[2]")
    assert (done.returncode, done.stderr) == (
        2,
        "safekeeper: memory: is seen in the process only: copy without --spark\n",
    )


def test_a_query_goes_on_with_a_copy_of_its_state(runner, events, hdfs, ours, tmp_path):
    def query(left):
        return left.groupBy("key").agg(F.count("*"), F.sum("number"))

    inputs = {"left": events(3)}
    expected = runner(query, inputs, hdfs, mode="update").run(0, 1, 2)

    moved = runner(query, inputs, ours(), mode="update")
    moved.run(0, 1)
    copy = f"file://{tmp_path}/copy"
    assert command("copy", ours()[setting("url")], copy).returncode == 0
    moved.session.conf.set(setting("url"), copy)
    assert moved.run(2) == expected
