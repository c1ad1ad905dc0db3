"""`safekeeper dev`: servers that are there while somebody wants them, and not a moment longer."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.dev import cli as dev_cli
from safekeeper.dev import process as server_process
from safekeeper.dev.hbase import POM
from safekeeper.dev.jars import fetch_jars
from safekeeper.dev.process import DevError
from safekeeper.dev.redis import RedisServer
from safekeeper.url import Url

A = CheckpointId("g", b"a")


@pytest.fixture
def dev():
    """Runs `safekeeper dev ...` and gives the process and the URL that it prints."""
    running = []

    def start(*arguments):
        command = [sys.executable, "-m", "safekeeper.cli", "dev", *arguments]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return running[-1], running[-1].stdout.readline().strip()

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_until_nobody_listens(url):
    give_up = time.monotonic() + 60
    while True:
        try:
            safekeeper.open(url).close()
        except Unavailable:
            return
        assert time.monotonic() < give_up, "the server is still there"


@pytest.mark.parametrize("arguments", ([], ["--valkey", "--appendfsync", "no"], ["--cluster"]), ids=" ".join)
def test_a_server_can_be_tried_until_ctrl_c(dev, arguments):
    process, url = dev("redis", *arguments)
    with safekeeper.open(url) as store:
        assert store.survives
        store.write(Batch({A: b"value"}))
        assert store.read([A]) == [b"value"]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    wait_until_nobody_listens(url)


def test_a_server_ends_with_whoever_started_it_however_that_ends(dev):
    process, url = dev("redis")
    safekeeper.open(url).close()
    process.kill()
    wait_until_nobody_listens(url)


@pytest.mark.parametrize("arguments", (["redis"], ["redis", "--cluster"]), ids=" ".join)
def test_data_stays_in_the_folder_that_was_given(dev, tmp_path, arguments):
    for expected, value in ((None, b"1"), (b"1", b"2")):
        process, url = dev(*arguments, "--folder", str(tmp_path))
        with safekeeper.open(url) as store:
            assert store.read([A]) == [expected]
            store.write(Batch({A: value}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize("kind", ("redis", "hbase", "hdfs"))
def test_a_folder_that_cannot_be_made_is_one_clear_line(kind):
    with pytest.raises(DevError, match=r"^/proc/nowhere: No such file or directory: choose another --folder$"):
        dev_cli.app([kind, "--folder", "/proc/nowhere"], standalone_mode=False)


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(DevError, match=r"did not start: .*no-such-setting"):
        RedisServer(tmp_path, no_such_setting="1").start()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("arguments", (["hbase"], ["hdfs", "--nodes", "1"]), ids=" ".join)
def test_a_java_server_ends_with_whoever_started_it_however_that_ends(dev, arguments):
    process, url = dev(*arguments)
    with safekeeper.open(url) as store:
        store.write(Batch({A: b"value"}))
        assert store.read([A]) == [b"value"]
    process.kill()
    give_up = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", Url.parse(url).port)).close()
        except ConnectionRefusedError:
            break
        assert time.monotonic() < give_up, "the server is still there"


def test_jars_without_maven_are_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFEKEEPER_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevError, match=r"mvn is not installed: apt-get install maven"):
        fetch_jars(POM)


def test_jars_that_cannot_be_fetched_leave_no_half_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFEKEEPER_CACHE", str(tmp_path / "cache"))
    command = tmp_path / "mvn"
    command.write_text("#!/bin/sh\necho '[ERROR] the repository cannot be reached'; exit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(DevError, match=r"mvn could not fetch the jars: \[ERROR\] the repository cannot be reached"):
        fetch_jars(POM)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_no_port_is_given_twice(monkeypatch):
    """Of two servers that are started one after the other the first one may not listen yet when the second one asks."""
    monkeypatch.setattr(server_process.random, "sample", lambda ports, count: [20_001, 20_002, 20_003])
    monkeypatch.setattr(server_process, "_given", set())
    monkeypatch.setattr(server_process.socket.socket, "bind", lambda self, address: None)
    assert [server_process.free_port() for _ in range(3)] == [20_001, 20_002, 20_003]
