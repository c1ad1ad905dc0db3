"""The client of HDFS on its own: what a file is while it is written, and afterwards."""

import os
import secrets
import subprocess
import sys
import time
from contextlib import closing

import pytest

from safekeeper.backends.hdfs.client import Client
from safekeeper.backends.hdfs.errors import Exists, Missing
from safekeeper.errors import Unavailable


@pytest.fixture(scope="module")
def client(hdfs):
    with closing(Client(f"hdfs://{hdfs.name_node.address}", {})) as client:
        yield client


@pytest.fixture
def path():
    return f"/client-{secrets.token_hex(6)}/file"


@pytest.fixture
def make(client, path):
    """Creates the file, small, for the test to write."""
    return lambda **options: client.create(path, **{"replication": 2, "block_size": 1 << 20, **options})


@pytest.mark.parametrize("size", (0, 1, 10, 100_000, 3_000_000), ids=("empty", "one", "small", "direct", "blocks"))
def test_bytes_come_back_as_they_went(client, make, path, size):
    data = os.urandom(size)
    out = make()
    out.write(data)
    out.close()
    with closing(client.open(path)) as file:
        assert file.length == size
        assert file.read(0, size) == data
        assert file.read(size // 2, size - size // 2) == data[size // 2 :]
    assert bytes(size) == b"\0" * size  # bytes that the interpreter shares were not written to


def test_what_was_synced_can_be_read_while_the_file_is_open(client, make, path):
    out = make()
    for turn, sync in enumerate((out.hsync, out.hflush, out.hsync), 1):
        out.write(b"synced")
        sync()
        with closing(client.open(path)) as file:
            assert file.read(0, file.length) == b"synced" * turn
    (status,) = client.listing(os.path.dirname(path))
    assert (status.name, status.is_open, client.is_closed(path)) == ("file", True, False)
    out.close()
    (status,) = client.listing(os.path.dirname(path))
    assert (status.length, status.is_open, client.is_closed(path)) == (18, False, True)


def test_every_block_is_synced_when_it_ends_if_it_is_to_be_on_disk(hdfs, client, path):
    def synced(node, to_disk):
        before = node.syncs()
        out = client.create(path, replication=1, block_size=1 << 20, favoured=[node.address], to_disk=to_disk)
        out.write(os.urandom(3_500_000))
        out.hflush()
        assert out.pipeline() == [node.address]
        out.close()
        client.delete(path)
        return lambda: node.syncs() - before

    with_sync, without = synced(hdfs.data_nodes[0], True), synced(hdfs.data_nodes[1], False)
    give_up = time.monotonic() + 120
    while with_sync() < 4:
        assert time.monotonic() < give_up, "its blocks were not synced"
        time.sleep(0.5)
    assert without() == 0


def test_replicas_go_where_they_are_favoured(client, make, hdfs):
    assert {node.address for node in client.data_nodes()} == {node.address for node in hdfs.data_nodes}
    favoured = [node.address for node in hdfs.data_nodes[2:]]
    out = make(favoured=favoured, no_local=True)
    assert out.pipeline() == []
    out.write(b"first")
    out.hflush()
    assert set(out.pipeline()) == set(favoured)
    assert out.replicas() == 2
    out.close()


def test_a_file_is_created_once(client, make, path):
    make().close()
    with pytest.raises(Exists):
        make()
    client.rename(path, f"{path}-renamed")
    with pytest.raises(Missing):
        client.rename(path, f"{path}-again")
    with pytest.raises(Missing):
        client.open(path)
    client.delete(f"{path}-renamed")
    client.delete(f"{path}-renamed")
    assert client.status(f"{path}-renamed") is None
    assert client.listing(f"{path}-renamed") is None


def test_a_close_that_lies_is_caught(client, make, path):
    """The client's second `close` returns in peace, whatever became of the first one."""
    out = make()
    out.write(b"kept")
    out.hsync()
    client.delete(path)  # now the first close fails: nobody writes such a file
    with pytest.raises(Unavailable):
        out.close()
    make().hsync()  # somebody else's, of the same name, and open
    with pytest.raises(Unavailable, match="was not completed, although closing it did not fail"):
        out.close()


def test_a_listing_of_many_pages_is_whole(client, path):
    names = {f"{n:04d}" for n in range(1200)}
    for name in names:
        client.make_folder(f"{path}/{name}")
    assert {status.name for status in client.listing(path)} == names


def test_the_jvm_is_not_used_after_a_fork(hdfs):
    code = f"""
import os
from safekeeper.backends.hdfs.client import Client
from safekeeper.errors import Closed
client = Client("hdfs://{hdfs.name_node.address}", {{}})
child = os.fork()
if child == 0:
    for call in (lambda: client.listing("/"), lambda: Client("hdfs://{hdfs.name_node.address}", {{}})):
        try:
            call()
        except Closed as error:
            assert "spawn a fresh" in str(error)
        else:
            os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert client.listing("/") is not None
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, timeout=120, check=True)


def test_a_process_that_leaves_everything_open_ends_in_peace(hdfs, path):
    code = f"""
import threading
from safekeeper.backends.hdfs.client import Client
client = Client("hdfs://{hdfs.name_node.address}", {{}})
out = client.create("{path}", replication=1, block_size=1 << 25)
def write():
    for _ in range(20):
        out.write(bytes(1 << 20))
        out.hflush()
        client.open("{path}").read(0, 1 << 20)
thread = threading.Thread(target=write)
thread.start()
thread.join()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=True)


def test_a_process_that_watches_for_crashes_ends_in_peace():
    """`faulthandler` takes signals away from Java when it ends, as that of pytest does: Java would crash by them."""
    code = """
import faulthandler
faulthandler.enable()
import jpype, threading
from safekeeper.backends.hdfs.client import start_jvm
start_jvm()
faulthandler.disable()
numbers = jpype.JClass("java.util.Random")().ints(1 << 18).toArray()
def sort():
    for _ in range(20):
        jpype.JClass("java.util.Arrays").sort(numbers.clone())
threads = [threading.Thread(target=sort) for _ in range(2)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    jpype.java.lang.System.gc()  # which stops the others
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=240, check=True)


@pytest.mark.parametrize(
    ("environment", "line"),
    (
        ({"HIDE": "java", "JAVA_HOME": ""}, "hdfs: needs Java 17: install it, or set JAVA_HOME"),
        (
            {"HIDE": "pyspark", "SPARK_HOME": ""},
            "hdfs: needs the jars of pyspark: pip install 'safekeeper[hdfs]', or set SPARK_HOME",
        ),
        (
            {"HIDE": "pyspark", "SPARK_HOME": "/nowhere"},
            "hdfs: /nowhere/jars lacks one of hadoop-client-api-, "
            "hadoop-client-runtime-, slf4j-api-: install PySpark with its jars",
        ),
        ({"HIDE": "hadoop"}, "hdfs: this process has a JVM without Hadoop: open hdfs: before whatever started it"),
    ),
    ids=("no Java", "no jars", "no jars there", "other JVM"),
)
def test_what_is_missing_is_one_clear_line(environment, line):
    code = """
import importlib.util, os
import jpype._jvmfinder
if os.environ["HIDE"] == "hadoop":
    jpype.startJVM()
if os.environ["HIDE"] == "java":
    jpype._jvmfinder.LinuxJVMFinder._java, jpype._jvmfinder.LinuxJVMFinder._locations = "/nowhere", ()
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == os.environ.get("HIDE") else find(name, *rest)
from safekeeper.backends.hdfs.client import Client
from safekeeper.errors import BadUrl
try:
    Client("hdfs://127.0.0.1:1", {})
except BadUrl as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, capture_output=True, text=True)
    assert done.stdout.strip() == line
