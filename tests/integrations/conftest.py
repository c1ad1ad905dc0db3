"""Stores for integrations: two embedded ones, and a real Redis server that is started once a run."""

import pytest

from safekeeper.dev.redis import RedisServer

KINDS = ("log", "redis", "lmdb")


@pytest.fixture(scope="session")
def redis_of_integrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("redis-of-integrations")
    with RedisServer(folder, appendonly="yes", appendfsync="always", auto_aof_rewrite_percentage="0") as server:
        yield server


@pytest.fixture
def new_url(request, tmp_path):
    """Makes the URLs of empty stores of a kind."""
    made = 0

    def url(kind):
        nonlocal made
        made += 1
        if kind != "redis":
            return f"{kind}://{tmp_path}/{made}"
        server = request.getfixturevalue("redis_of_integrations")
        with server.client() as client:
            client.flushall()
        return server.url

    return url
