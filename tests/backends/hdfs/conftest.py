"""A real HDFS, started once a run."""

import secrets

import pytest

from safekeeper.dev.hdfs import HdfsCluster, HdfsNode

from .kerberos import KERBEROS, logged_in


@pytest.fixture(scope="session", autouse=True)
def _who_we_are(servers):
    """By our name, as the cluster believes it; or by a ticket."""
    if not KERBEROS:
        yield
        return
    with logged_in(servers / "kerberos"):
        yield


@pytest.fixture(scope="session")
def hdfs(servers, _who_we_are):
    """A NameNode and four DataNodes: one more than a file has replicas, so that one can be lost."""
    with HdfsCluster(servers / "hdfs", [HdfsNode()] * 4) as cluster:
        yield cluster


@pytest.fixture
def hdfs_url(hdfs):
    """The URL of a store in HDFS that nobody has written to yet."""
    return f"hdfs://{hdfs.name_node.address}/test-{secrets.token_hex(6)}"
