"""Spark Connect: the server is told of safekeeper, its clients are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import safekeeper
from safekeeper.dev.process import ServerProcess, free_port
from safekeeper.spark import PREFIX, build

CLIENT = Path(__file__).with_name("connect_client.py")


@pytest.fixture
def remote(environment, quick, tmp_path):
    """The address of a server that was started with the printed settings alone, as a file of properties."""
    words = [sys.executable, "-m", "safekeeper.spark", "conf", "--properties", f"file://{tmp_path}/store"]
    properties = tmp_path / "spark.conf"
    properties.write_text(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    port = free_port()
    given = quick | {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    given |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings = [word for item in given.items() for word in ("--conf", "=".join(item))]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    command = [
        str(build.spark_home() / "bin" / "spark-submit"),
        *server,
        "--properties-file",
        str(properties),
        *settings,
        "spark-internal",
    ]
    with ServerProcess(command, tmp_path / "server", "Spark Connect server started"):
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.timeout(900)
def test_clients_count_on_in_the_store_of_the_server_or_in_one_of_their_own(remote, tmp_path):
    inputs = tmp_path / "inputs"
    inputs.mkdir()

    def count(checkpoint, *settings):
        command = [sys.executable, str(CLIENT), remote, str(inputs), str(tmp_path / checkpoint), *settings]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout.strip()

    (inputs / "1.txt").write_text("a\nb\na\n")
    assert count("one") == "[('a', 2), ('b', 1)]"
    (inputs / "2.txt").write_text("a\n")
    assert count("one") == "[('a', 3), ('b', 1)]"
    other = f"file://{tmp_path}/other"
    assert count("two", f"{PREFIX}url={other}") == "[('a', 3), ('b', 1)]"
    for url in (f"file://{tmp_path}/store", other):
        with safekeeper.open(url) as store:
            assert [group for group in store.groups() if group.startswith("spark/")], f"there is nothing in {url}"
