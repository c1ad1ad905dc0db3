"""A real HBase with its Thrift server, started once a run."""

import secrets

import pytest

from safekeeper.dev.hbase import HBaseServer


@pytest.fixture(scope="session")
def hbase(servers):
    with HBaseServer(servers / "hbase") as server:
        yield server


@pytest.fixture
def hbase_url(hbase):
    """The URL of a store in HBase that nobody has written to yet."""
    return f"hbase://127.0.0.1:{hbase.port}/test_{secrets.token_hex(6)}"


@pytest.fixture
def hbase_behind(proxy_to, hbase, hbase_url):
    """Makes a `Proxy` in front of HBase's Thrift server, and the URL of the same store through it."""

    def make(**options):
        proxy = proxy_to(hbase)
        query = "&".join(f"{name.replace('_', '-')}={value}" for name, value in options.items())
        return proxy, f"hbase://127.0.0.1:{proxy.port}/{hbase_url.rpartition('/')[2]}?{query}"

    return make
