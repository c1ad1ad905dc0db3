"""Stores for integrations: two embedded ones, and a real Redis server that is started once a run."""

from pathlib import Path

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


@pytest.fixture(autouse=True)
def _modules_of_these_tests_for_peers(monkeypatch, tmp_path_factory):
    """Processes that a test starts find what runs inside of them."""
    folder = tmp_path_factory.getbasetemp() / "modules-for-integrations"
    folder.mkdir(exist_ok=True)
    if not (folder / "tests").exists():
        (folder / "tests").symlink_to(Path(__file__).parents[1])
    monkeypatch.syspath_prepend(folder)
