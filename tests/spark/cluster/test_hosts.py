"""Two hosts: network namespaces with addresses of their own, on which some of the files are hidden. Needs root."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from redis import Redis

import safekeeper
from safekeeper.bench.lab.shaped_network import ShapedNetwork
from safekeeper.dev.hdfs import HdfsCluster, HdfsNode
from safekeeper.dev.redis import RedisServer
from safekeeper.dev.spark import SparkCluster
from safekeeper.spark.build import spark_home
from safekeeper.testing.processes import AGENT, descendants

pytestmark = [
    pytest.mark.timeout(900),  # JVMs start by the dozen, on a machine that may be busy
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

HIDE = 'mount -t tmpfs none "$0" && exec "$@"'


class TwoHosts:
    """Two workers on a host each, in which *hidden* is an empty folder; the master and the Spark driver are on a third.

    What the hosts share besides is the disk: Spark, Java and Python are at the same path everywhere.
    """

    def __init__(self, network, cluster, hidden):
        self.cluster = cluster
        self.addresses = [server.address for server in network.servers]
        self._workers = [
            cluster.add_worker(
                server.address, prefix=(*server.prefix, "unshare", "--mount", "sh", "-c", HIDE, str(hidden))
            )
            for server in network.servers
        ]
        self.settings = {
            "spark_cores_max": "2",
            "spark_driver_bindAddress": network.host,
            "spark_driver_host": network.host,
            "spark_locality_wait": "0s",  # else a slow start of one host leaves all the work to the other
            "spark_scheduler_maxRegisteredResourcesWaitingTime": "10m",  # Spark begins when it has both
            "spark_scheduler_minRegisteredResourcesRatio": "1.0",
        }

    @property
    def pids(self):
        return [worker.pid for worker in self._workers]

    def agents(self):
        """The agents on each of the hosts."""
        return [descendants([pid], AGENT) for pid in self.pids]


@pytest.fixture
def network():
    with ShapedNetwork({"/rack1": 1, "/rack2": 1}) as network:
        yield network


@pytest.fixture
def two_hosts(environment, network, tmp_path):
    """Makes them, given what is hidden there."""
    with SparkCluster(tmp_path / "cluster", network.host) as cluster:
        yield lambda hidden: TwoHosts(network, cluster, hidden)


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """An environment with safekeeper and what it needs on executors, packed as the manual says. It has no PySpark."""
    folder = tmp_path_factory.mktemp("packed")
    environment, archive = folder / "env", folder / "env.tar.gz"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    shutil.copytree(Path(safekeeper.__file__).parent, site / "safekeeper", ignore=shutil.ignore_patterns("__pycache__"))
    for name in needed("safekeeper") | needed("redis") | needed("jpype1"):
        install(name, site)
    command = [sys.executable, "-m", "venv_pack", "-q", "-p", environment, "-o", archive, "--compress-level", "1"]
    subprocess.run(command, check=True)
    return archive


def test_executors_without_safekeeper_get_it_in_an_archive(packed, two_hosts, network, drive, stream, tmp_path):
    """And the state of an executor that is killed goes on from Redis, on the other host or in a new executor."""
    hosts = two_hosts(hidden=Path(safekeeper.__file__).parent)
    given = stream(tmp_path / "query", 4)
    server = RedisServer(tmp_path / "redis", bind=network.host, protected_mode="no", appendonly="yes")
    with server, Redis(network.host, server.port) as client:
        driver = drive(
            given,
            hosts.cluster.url,
            f"redis://{network.host}:{server.port}/0",
            **hosts.settings,
            spark_archives=f"{packed}#env",
            spark_pyspark_python="./env/bin/python",
        )
        driver.lives_below(hosts.pids)
        seen, pythons, killed = set(), set(), 0
        for batch in driver.batches():
            seen |= {line["addr"].rpartition(":")[0] for line in client.client_list()}
            pythons |= {command(agent)[0] for agents in hosts.agents() for agent in agents}
            if batch >= 2 and not killed and seen.issuperset(hosts.addresses):
                os.kill(killed := driver.executors()[0], signal.SIGKILL)
        driver.wait()
    assert given.found() == given.truth
    assert seen.issuperset(hosts.addresses), "not both hosts have written"
    assert pythons == {b"./env/bin/python"}
    assert killed


def test_hosts_that_share_no_folder_have_it_all_in_hdfs(packed, two_hosts, network, drive, stream, tmp_path):
    """State, checkpoint and inputs. The archive has no PySpark: the agents take Hadoop's client from `SPARK_HOME`."""
    given = stream(tmp_path / "query", 4)
    first, _ = network.servers
    nodes = [HdfsNode(first.address, prefix=first.prefix)]
    with HdfsCluster(tmp_path / "hdfs", nodes, name_node=HdfsNode(network.host)) as hdfs:
        hosts = two_hosts(hidden=given.folder)
        place = f"hdfs://{hdfs.name_node.address}/query"
        shell(hdfs, "-mkdir", place)
        shell(hdfs, "-put", "-p", given.folder / "left", given.folder / "right", place)
        driver = drive(
            given,
            hosts.cluster.url,
            hdfs.url,
            **hosts.settings,
            shared=place,
            spark_archives=f"{packed}#env",
            spark_pyspark_python="./env/bin/python",
        )
        driver.lives_below(hosts.pids)
        with_agents, killed = [False, False], 0
        for batch in driver.batches():
            with_agents = [was or bool(now) for was, now in zip(with_agents, hosts.agents(), strict=True)]
            if batch >= 2 and not killed and all(with_agents):
                os.kill(killed := driver.executors()[0], signal.SIGKILL)
        driver.wait()
    assert given.found() == given.truth
    assert with_agents == [True, True]
    assert killed


def shell(hdfs, *words):
    """Hadoop's `hdfs dfs`, which needs a `core-site.xml`: that of the NameNode."""
    path = f"{hdfs.name_node.folder}/conf:{spark_home()}/jars/*"
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", path, "org.apache.hadoop.fs.FsShell", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def command(pid):
    """The command line of a process that may have ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return [b"./env/bin/python"]


def needed(name):
    """The distributions that *name* depends on here, itself included if it is not safekeeper."""
    found, todo = set(), [name]
    while todo:
        one = todo.pop()
        for requirement in map(Requirement, metadata.requires(one) or ()):
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and requirement.name not in found:
                todo.append(requirement.name)
        found.add(one)
    return found - {"safekeeper"}


def install(name, site):
    """Copy a distribution from here to *site*, without its scripts."""
    for file in metadata.files(name):
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)
