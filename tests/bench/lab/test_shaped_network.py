"""The data centre of network namespaces, and Peace in it. Needs root, as making namespaces does."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from safekeeper.backends.hdfs.peace.topology import Topology
from safekeeper.bench.lab.shaped_network import ShapedNetwork
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def left_behind(process):
    """The names that a process gave to namespaces and devices that are still there."""
    listings = [subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout for words in KINDS]
    return [line for listing in listings for line in listing.splitlines() if f"sk{process}" in line]


KINDS = [("netns", "list"), ("link", "show")]


def test_servers_reach_each_other_and_nothing_is_left_behind():
    with ShapedNetwork({"/rack1": 1, "/rack2": 1}) as network:
        network.shape(wire_mbit=50, link_mbit=20)
        first, second = network.servers
        assert (first.rack, second.rack) == ("/rack1", "/rack2")
        shown = subprocess.run([*second.prefix, "tc", "qdisc"], capture_output=True, text=True, check=True).stdout
        assert "tbf" in shown
        assert "rate 50Mbit" in shown
        found = []

        def enter():
            second.enter()
            found.append(os.readlink("/proc/thread-self/ns/net"))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert found != [os.readlink("/proc/self/ns/net")]
        assert left_behind(os.getpid())
    assert left_behind(os.getpid()) == []


MAKE = """
import time
from safekeeper.backends.hdfs.peace.topology import Topology
from safekeeper.bench.lab.shaped_network import ShapedNetwork
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode
with ShapedNetwork({"/rack1": 1, "/rack2": 1}):
    print("made", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["Ctrl-C", "ended", "killed"])
def test_it_is_removed_however_its_maker_ends(how):
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout.readline() == "made\n"
        assert left_behind(child.pid)
        child.send_signal(how)
        child.wait(60)
    with ShapedNetwork({}):  # whoever comes next removes what a killed one has left
        give_up = time.monotonic() + 60
        while left_behind(child.pid):
            assert time.monotonic() < give_up
            time.sleep(0.05)


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="nine Java servers; SAFEKEEPER_TEST_LEVEL=long runs it")
def test_the_experiment_runs_and_hits_its_plans():
    done = subprocess.run(
        [sys.executable, "-m", "safekeeper.bench.studies.peace", "--quick"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "goal met: all at once, equal sizes: at least 95 % of the chunks where they were planned" in done.stdout


@pytest.mark.crash
@pytest.mark.skipif(not LONG, reason="five Java servers; SAFEKEEPER_TEST_LEVEL=long runs it")
def test_calibrating_finds_that_the_link_is_narrow(tmp_path):
    with ShapedNetwork({"/rack1": 2, "/rack2": 2}) as network:
        nodes = [HdfsNode(server.address, server.rack, server.prefix) for server in network.servers]
        with HdfsCluster(tmp_path / "hdfs", nodes, name_node=HdfsNode(network.host)) as cluster:
            network.shape(wire_mbit=80, link_mbit=10)
            command = [sys.executable, "-m", "safekeeper.cli", "peace", "calibrate", "--wire", "8"]
            done = subprocess.run(
                [*network.servers[0].prefix, *command, f"hdfs://{cluster.name_node.address}", "topology.json"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
    assert done.returncode == 0, done.stderr
    assert Topology.load(tmp_path / "topology.json").link in (1, 2)  # an eighth of a wire's 8, more or less
    assert "at least" not in done.stdout
