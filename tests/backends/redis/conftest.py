"""Real Redis servers, started once a run."""

import secrets

import pytest

from safekeeper.dev.redis import RedisCluster, RedisServer, make_certificate

SYNCED = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": "0"}
"""Without rewrites of its own accord: whoever opens a store during one cannot tell what a write survives."""


@pytest.fixture(scope="session")
def redis_always(servers):
    with RedisServer(servers / "always", **SYNCED) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(servers):
    with RedisCluster(servers / "cluster", **SYNCED) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def certificate(servers):
    return make_certificate(servers)


@pytest.fixture(scope="session")
def redis_tls(servers, certificate):
    with RedisServer(servers / "tls", tls=certificate, password="a pass/word", **SYNCED) as server:
        yield server


@pytest.fixture(scope="session")
def valkey(servers):
    with RedisServer(servers / "valkey", program="valkey-server", **SYNCED) as server:
        yield server


@pytest.fixture
def fresh():
    """Makes the URL of a store in a server that nobody has written to yet."""

    def make(server, **options):
        words = [f"{name.replace('_', '-')}={value}" for name, value in options.items()]
        query = "&".join([f"prefix=test-{secrets.token_hex(6)}", *words])
        return f"{server.url}{'&' if '?' in server.url else '?'}{query}"

    return make
