"""Spark on `hdfs:`: the README's query restarted amid the stream, and how many files many partitions make."""

import io
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

import safekeeper
from safekeeper.backends.hdfs.client import Client
from safekeeper.spark.demo.__main__ import Demo
from safekeeper.url import Url

PARTITIONS = 200


@pytest.fixture
def environment(monkeypatch):
    """What drivers and agents inherit."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.mark.timeout(900)  # three processes start, twice
def test_a_driver_that_is_killed_half_way_counts_exactly_when_it_is_started_again(environment, hdfs_url, tmp_path):
    said = io.StringIO()
    assert Demo(tmp_path, hdfs_url, Console(file=said, width=200), files=6).run(), said.getvalue()
    assert "counts are exact" in said.getvalue()
    assert f"commits in {hdfs_url}" in said.getvalue()


@pytest.mark.timeout(900)
def test_two_hundred_partitions_make_one_open_file_an_executor(environment, hdfs, hdfs_url, tmp_path):
    script = Path(__file__).with_name("hdfs_query.py")
    command = [sys.executable, str(script), str(tmp_path), hdfs_url, str(PARTITIONS)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as query,
        closing(Client(f"hdfs://{hdfs.name_node.address}", {})) as client,
    ):
        assert query.stdout.readline().strip() == "2000"
        root = Url.parse(hdfs_url).path
        assert [status.is_open for status in client.listing(f"{root}/segments")] == [True]
        assert not client.listing(f"{root}/chunks")
        with safekeeper.open(hdfs_url) as store:
            groups = list(store.groups())
            assert len(groups) == PARTITIONS
            assert sum(1 for group in groups for _ in store.keys(group)) >= 2 * PARTITIONS
        query.communicate()
    assert query.returncode == 0
