"""What users write: URLs, secrets, command lines."""

import subprocess
import sys

import pytest

from safekeeper.backends.hdfs.options import HdfsFolder, HdfsOptions, parse
from safekeeper.backends.hdfs.peace.client import PeacePlacement
from safekeeper.backends.hdfs.peace.connect import SECRET_VARIABLE, address_towards, open_placement, read_secret
from safekeeper.backends.hdfs.peace.in_process import with_coordinator
from safekeeper.backends.hdfs.placement import StockPlacement
from safekeeper.errors import BadUrl
from safekeeper.url import Url

FOLDER = HdfsFolder("hdfs://127.0.0.1:8020", "/ckpt", None, "a secret of sixteen bytes")


def test_hdfs_decides_unless_the_url_says_otherwise():
    assert isinstance(open_placement(FOLDER, HdfsOptions()), StockPlacement)
    peace = open_placement(FOLDER, HdfsOptions(placement="peace", peace="127.0.0.1:7337"))
    assert isinstance(peace, PeacePlacement)


def test_the_secret_is_shown_nowhere():
    url = Url.parse("hdfs://:sesame-open-yourself@nn:8020/c?placement=peace&peace=h:1")
    assert parse(url).secret == "sesame-open-yourself"
    assert "sesame" not in f"{url} {parse(url)} {parse(url)!r}"


def test_a_password_without_peace_is_refused():
    with pytest.raises(BadUrl, match="has a password"):
        parse(Url.parse("hdfs://:word@nn:8020/c"))


def test_the_secret_comes_from_the_url_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    (tmp_path / "secret").write_text("the secret in the file\n")
    assert read_secret("the secret that was given") == "the secret that was given"
    assert read_secret(None, tmp_path / "secret") == "the secret in the file"
    with pytest.raises(BadUrl, match=f"set {SECRET_VARIABLE}"):
        read_secret(None)
    with pytest.raises(BadUrl, match="at least 16 bytes"):
        read_secret("short")
    with pytest.raises(BadUrl, match="No such file"):
        read_secret(None, tmp_path / "nothing")
    monkeypatch.setenv(SECRET_VARIABLE, "the secret of the environment")
    assert read_secret(None) == "the secret of the environment"


def test_a_writer_knows_the_address_that_the_name_node_sees():
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert address_towards(None) == "127.0.0.1"
    assert address_towards("no such host.invalid") == "127.0.0.1"
    assert address_towards("no such host.invalid", "127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    "url",
    ["memory:", "log:///state", "hdfs://nn:8020/c", "hdfs://nn:8020/c?placement=peace&peace=h:1"],
)
def test_a_coordinator_is_started_only_where_one_is_asked_for_and_none_named(url):
    assert with_coordinator(url) == url


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["serve", "redis://h/0"], "is no HDFS: write hdfs://namenode:8020"),
        (["serve", "hdfs://nn:8020", "--listen", "7337"], "'7337' is no HOST:PORT"),
        (["serve", "hdfs://nn:8020", "--topology", "nothing.json"], "nothing.json cannot be read"),
        (["serve", "hdfs://nn:8020"], f"set {SECRET_VARIABLE}"),
        (["serve", "hdfs://nn:8020", "--wire-rate", "10"], "give --wire-rate and --link-rate together, both above 0"),
        (["serve", "hdfs://nn:8020", "--wire-rate", "0", "--link-rate", "9"], "both above 0, or else --link"),
        (["serve", "hdfs://nn:8020", "--topology", "t.json", "--link", "2"], "are in t.json or on the command line"),
    ],
    ids=lambda value: str(value),
)
def test_a_wrong_command_is_an_error_of_one_line(words, problem):
    done = subprocess.run(
        [sys.executable, "-m", "safekeeper.cli", "peace", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_topology_file_is_enough_to_serve_without_asking_hdfs(tmp_path, monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "a secret for the tests")
    (tmp_path / "topology.json").write_text('{"link": 3, "nodes": {"10.0.1.1:9866": "/1", "10.0.2.1:9866": "/2"}}')
    command = [sys.executable, "-m", "safekeeper.cli", "peace", "serve", "hdfs://nowhere:1"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--topology", str(tmp_path / "topology.json")],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout.readline().endswith("(DataNodes: /1 1, /2 1; wire 2, link 3)\n")
            child.terminate()
            assert child.wait(60) == 0
        finally:
            child.kill()
