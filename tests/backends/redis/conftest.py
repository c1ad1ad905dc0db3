"""Real Redis servers, started once a run."""

import secrets

import pytest

from safekeeper.dev.redis import RedisCluster, RedisServer, make_certificate


@pytest.fixture(scope="session")
def redis_always(servers):
    with RedisServer(servers / "always", appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(servers):
    with RedisCluster(servers / "cluster", appendonly="yes", appendfsync="always") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def certificate(servers):
    return make_certificate(servers)


@pytest.fixture(scope="session")
def redis_tls(servers, certificate):
    with RedisServer(
        servers / "tls", tls=certificate, password="a pass/word", appendonly="yes", appendfsync="always"
    ) as server:
        yield server


@pytest.fixture(scope="session")
def valkey(servers):
    with RedisServer(servers / "valkey", program="valkey-server", appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def fresh():
    """Makes the URL of a store in a server that nobody has written to yet."""

    def make(server, **options):
        words = [f"{name.replace('_', '-')}={value}" for name, value in options.items()]
        query = "&".join([f"prefix=test-{secrets.token_hex(6)}", *words])
        return f"{server.url}{'&' if '?' in server.url else '?'}{query}"

    return make
