"""Wrong NameNodes, missing rights, full disks: one clear line each."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress

import jpype
import pytest

import safekeeper
from safekeeper import BadUrl, Batch, CheckpointId, Unavailable
from safekeeper.backends.hdfs.client import Client, start_jvm
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode
from safekeeper.url import Url

from .kerberos import not_with_kerberos, write_settings

A, B = CheckpointId("g", b"a"), CheckpointId("g", b"b")


def write(url):
    with safekeeper.open(url) as store:
        store.write(Batch({A: b"value"}))


def check_line(url, line, error=Unavailable):
    with pytest.raises(error) as raised:
        write(url)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def admin(hdfs):
    """The cluster's own client, for what only an administrator does."""
    with closing(Client(f"hdfs://{hdfs.name_node.address}", {})) as client:
        yield client._fs


def path_of(url):
    return jpype.JClass("org.apache.hadoop.fs.Path")(Url.parse(url).path)


@pytest.mark.parametrize(
    ("url", "error", "line"),
    (
        ("hdfs://127.0.0.1:1/x?timeout=1", Unavailable, "nothing listens there: start the NameNode, or correct"),
        ("hdfs://no-such-host.invalid/x", Unavailable, "the host is not known: correct it, or look at the name server"),
        ("hdfs://127.0.0.1:1", BadUrl, "names no folder: write hdfs://namenode:8020/checkpoints"),
        ("hdfs://127.0.0.1:1/", BadUrl, "names no folder"),
        ("hdfs://127.0.0.1:1/a/../b", BadUrl, "HDFS has no such path: leave out empty names, dots and colons"),
        ("hdfs://me:secret@127.0.0.1:1/x", BadUrl, "has a password: HDFS knows users by Kerberos, leave it away"),
        ("hdfs://127.0.0.1:1/x?replication=0", BadUrl, "replication= takes 1 to 512"),
        ("hdfs://127.0.0.1:1/x?segment=1000", BadUrl, "segment= and chunk= take 1M or more"),
        ("hdfs://127.0.0.1:1/x?sync=fsync", BadUrl, "it takes hsync, hflush"),
        ("hdfs://127.0.0.1:1/x?timeout=0", BadUrl, "take more than 0 seconds"),
        ("hdfs://127.0.0.1:1/x?workers=0", BadUrl, "workers= takes 1 or more"),
        ("hdfs://127.0.0.1:1/x?compact-dead=1", BadUrl, "compact-dead= takes a share from 0.05 to 0.95"),
    ),
)
def test_a_url_that_leads_nowhere_is_one_clear_line(url, error, line):
    check_line(url, line, error)


@pytest.mark.parametrize(
    ("answer", "line"),
    (
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20, "answers, but not as a NameNode does: correct the port"),
        (b"", "did not answer in time: look at the servers and the network, or raise timeout="),
    ),
    ids=("http", "silence"),
)
def test_a_server_that_is_no_name_node_is_one_clear_line(answer, line):
    kept = []

    def answer_all():
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                kept.append(client)
                if answer:
                    client.recv(1000)
                    client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_all)
        thread.start()
        try:
            check_line(f"hdfs://127.0.0.1:{listening.getsockname()[1]}/x?timeout=2", line)
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in kept:
                client.close()


def test_a_name_node_that_does_not_answer_keeps_nobody_from_another(hdfs_url):
    gave_up = threading.Event()

    def open_silent(port):
        with suppress(Unavailable), safekeeper.open(f"hdfs://127.0.0.1:{port}/x?timeout=60"):
            pass
        gave_up.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=open_silent, args=[listening.getsockname()[1]])
        thread.start()
        with listening.accept()[0]:
            write(hdfs_url)
            assert not gave_up.is_set()
    thread.join()


def test_the_settings_of_a_cluster_with_two_name_nodes_are_found_and_followed(hdfs, hdfs_url, tmp_path):
    """Of the two one is down; the other is the real one. What they hold survives the loss of a host."""
    settings = {
        "fs.defaultFS": "hdfs://pair",
        "dfs.nameservices": "pair",
        "dfs.ha.namenodes.pair": "one,other",
        "dfs.namenode.rpc-address.pair.one": "127.0.0.1:1",
        "dfs.namenode.rpc-address.pair.other": hdfs.name_node.address,
        "dfs.client.failover.proxy.provider.pair": "org.apache.hadoop.hdfs.server.namenode.ha."
        "ConfiguredFailoverProxyProvider",
    }
    code = """
import sys, safekeeper
from safekeeper import Batch, CheckpointId, Survives
from safekeeper.backends.hdfs.peace.in_process import with_coordinator
for place in ("hdfs://pair", "hdfs://"):
    with safekeeper.open(place + sys.argv[1]) as store:
        assert Survives.HOST in store.survives
        store.write(Batch({CheckpointId("g", b"a"): b"value"}))
    with safekeeper.open(with_coordinator(place + sys.argv[1] + "?placement=peace")) as store:
        store.write(Batch({CheckpointId("g", b"b"): b"planned"}))
        assert store.placement_counts().hits == 1
"""
    run_with(settings, tmp_path, code, Url.parse(hdfs_url).path)
    with safekeeper.open(hdfs_url) as store:
        assert store.read([A, B]) == [b"value", b"planned"]


def run_with(settings, folder, code, *arguments):
    """Run *code* in a process that finds *settings* where Hadoop's tools find them."""
    write_settings(folder, settings)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HADOOP_CONF_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", code, *arguments], env=environment, timeout=240, check=True)


def test_observers_are_told_how_far_they_must_be_before_a_listing(hdfs, hdfs_url, tmp_path):
    """The NameNode is the active one of a service with observers, by its settings; there is no observer here."""
    settings = {
        "dfs.nameservices": "group",
        "dfs.ha.namenodes.group": "one",
        "dfs.namenode.rpc-address.group.one": hdfs.name_node.address,
        "dfs.client.failover.proxy.provider.group": "org.apache.hadoop.hdfs.server.namenode.ha."
        "ObserverReadProxyProvider",
    }
    code = """
import sys, safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.backends.hdfs.client import Client
synced = []
with safekeeper.open("hdfs://group" + sys.argv[1]) as store:
    client = store._shared.store.client
    inner = client._fs
    class Counting:
        def __getattr__(self, name):
            return getattr(inner, name)
        def msync(self):
            synced.append(1)
            inner.msync()
    client._fs = Counting()
    store.write(Batch({CheckpointId("g", b"a"): b"value"}))
    before = len(synced)
    assert store.read([CheckpointId("g", b"a")]) == [b"value"]
    assert len(synced) > before > 0
"""
    run_with(settings, tmp_path, code, Url.parse(hdfs_url).path)
    with safekeeper.open(hdfs_url) as store:
        assert store.read([A]) == [b"value"]


@pytest.mark.parametrize("kind", ("default", "overloaded"))
def test_a_mount_table_is_followed(hdfs, hdfs_url, tmp_path, kind):
    """`hdfs:///mounted/...` on a cluster whose default is ViewFS, and a mount table under the scheme of HDFS."""
    path = Url.parse(hdfs_url).path
    mount = "fs.viewfs.mounttable.cluster.link./mounted"
    settings = {"fs.defaultFS": "viewfs://cluster", mount: f"hdfs://{hdfs.name_node.address}/"}
    place = "hdfs://"
    if kind == "overloaded":
        settings = {
            "fs.hdfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
            "fs.viewfs.overload.scheme.target.hdfs.impl": "org.apache.hadoop.hdfs.DistributedFileSystem",
            mount: f"hdfs://{hdfs.name_node.address}/",
        }
        place = "hdfs://cluster"
    code = """
import sys, safekeeper
from safekeeper import Batch, CheckpointId
for value in (b"first", b"value"):  # the folder is not there at first
    with safekeeper.open(sys.argv[1]) as store:
        store.write(Batch({CheckpointId("g", b"a"): value}))
        assert store.read([CheckpointId("g", b"a")]) == [value]
from safekeeper.backends.hdfs.peace.in_process import with_coordinator
with safekeeper.open(with_coordinator(sys.argv[1] + "?placement=peace")) as store:
    store.write(Batch({CheckpointId("g", b"b"): b"planned"}))
    assert store.placement_counts().hits == 1
"""
    run_with(settings, tmp_path, code, f"{place}/mounted{path}")
    with safekeeper.open(hdfs_url) as store:
        assert store.read([A]) == [b"value"]


@not_with_kerberos
def test_no_right_to_write_is_one_clear_line(hdfs, hdfs_url):
    check_line(hdfs_url.replace("hdfs://", "hdfs://nobody@"), "permission denied (Permission denied: user=nobody")


@not_with_kerberos
def test_reading_needs_no_right_to_write(hdfs_url):
    write(hdfs_url)
    with safekeeper.open(hdfs_url.replace("hdfs://", "hdfs://nobody@")) as store:
        assert store.read([A]) == [b"value"]


def test_safe_mode_is_one_clear_line_and_passes(hdfs_url, admin):
    action = jpype.JClass("org.apache.hadoop.fs.SafeModeAction")
    write(hdfs_url)
    admin.setSafeMode(action.ENTER)
    try:
        check_line(hdfs_url, "the NameNode is in safe mode: wait until it leaves it, or look why it does not")
        with safekeeper.open(hdfs_url) as store:
            assert store.read([A]) == [b"value"]
    finally:
        admin.setSafeMode(action.LEAVE)
    write(hdfs_url)


@pytest.mark.parametrize("names", (True, False), ids=("names", "space"))
def test_a_quota_that_is_used_up_is_one_clear_line(hdfs_url, admin, names):
    admin.mkdirs(path_of(hdfs_url))
    unlimited = jpype.JClass("org.apache.hadoop.hdfs.protocol.HdfsConstants").QUOTA_DONT_SET
    admin.setQuota(path_of(hdfs_url), *((1, unlimited) if names else (unlimited, 1 << 20)))
    check_line(hdfs_url, f"the quota of {'names' if names else 'space'} is used up: raise it, or remove something")


def test_in_a_folder_with_erasure_codes_files_have_replicas(hdfs_url, admin):
    """Where they had codes instead, syncing them would do nothing: nothing acknowledged could be read yet."""
    admin.enableErasureCodingPolicy("XOR-2-1-1024k")
    admin.mkdirs(path_of(hdfs_url))
    admin.setErasureCodingPolicy(path_of(hdfs_url), "XOR-2-1-1024k")
    with safekeeper.open(hdfs_url) as store, safekeeper.open(f"{hdfs_url}?workers=3") as other:
        store.write(Batch({A: b"value", B: bytes(8 << 20)}))
        assert other.read([A, B]) == [b"value", bytes(8 << 20)]


@pytest.mark.timeout(600)
def test_in_an_encryption_zone_files_are_encrypted(tmp_path):
    keys = f"jceks://file{tmp_path}/keys.jceks"
    cluster = HdfsCluster(tmp_path, [HdfsNode()], hadoop_security_key_provider_path=keys)
    make_key(keys, "key")
    with cluster, closing(Client(f"hdfs://{cluster.name_node.address}", {})) as client:
        client.make_folder(Url.parse(cluster.url).path)
        admin = jpype.JClass("org.apache.hadoop.hdfs.client.HdfsAdmin")(client._fs.getUri(), client._conf)
        admin.createEncryptionZone(path_of(cluster.url), "key")
        with safekeeper.open(cluster.url) as store, safekeeper.open(f"{cluster.url}?workers=3") as other:
            store.write(Batch({A: b"plain text", B: b"plain text" * 1_000_000}))
            assert other.read([A, B]) == [b"plain text", b"plain text" * 1_000_000]
        blocks = [file.read_bytes() for file in tmp_path.glob("datanode0/blocks/**/blk_*") if file.suffix != ".meta"]
    assert sum(map(len, blocks)) > 10_000_000
    assert not any(b"plain text" in block for block in blocks)


def make_key(provider, name):
    start_jvm()
    settings = jpype.JClass("org.apache.hadoop.conf.Configuration")()
    keys = jpype.JClass("org.apache.hadoop.crypto.key.KeyProviderFactory").get(jpype.java.net.URI(provider), settings)
    keys.createKey(name, jpype.JClass("org.apache.hadoop.crypto.key.KeyProvider").options(settings))
    keys.flush()


@pytest.mark.timeout(600)
def test_no_data_node_and_a_full_disk_are_one_clear_line_each_and_a_restart_loses_nothing(tmp_path):
    """On a cluster with one DataNode and one replica. A disk is as full as a block is large."""
    cluster = HdfsCluster(tmp_path, [HdfsNode()])
    larger_than_the_disk = f"{shutil.disk_usage(tmp_path).total >> 30}G"
    url = f"{cluster.url}?segment=1M&timeout=3"
    node = cluster.data_nodes[0]
    with cluster.name_node:
        check_line(url, "no DataNode runs: start one")
        with safekeeper.open(url) as store:
            assert store.read([A]) == [None]
        with node:
            check_line(
                f"{cluster.url}?segment={larger_than_the_disk}",
                "no DataNode has room for a block: free some disk space",
            )
            with safekeeper.open(url) as store:
                store.write(Batch({A: b"value"}))
                node.kill()
                with pytest.raises(Unavailable):
                    store.write(Batch({A: b"lost"}))
                with pytest.raises(Unavailable, match="no DataNode that has the block can be reached: start it again"):
                    store.read([A])
                node.start()
                assert store.read([A])[0] in (b"value", b"lost")
                store.write(Batch({A: b"newer"}))
                assert store.read([A]) == [b"newer"]
