"""What the tests of all backends have: a folder for real servers, and a proxy to stand in front of one.

Servers are started once a run on loopback. A server that cannot be had fails the tests that need it.
"""

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from safekeeper.testing.proxy import Proxy

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _modules_of_these_tests_for_peers(monkeypatch, tmp_path_factory):
    """Processes that a test starts find what runs inside of them: this package, and nothing else of the clone."""
    folder = tmp_path_factory.getbasetemp() / "modules-for-peers"
    folder.mkdir(exist_ok=True)
    if not (folder / "tests").exists():
        (folder / "tests").symlink_to(TESTS)
    monkeypatch.syspath_prepend(folder)


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Where the servers keep their data."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture
def proxy_to():
    """Starts a `Proxy` in front of a server."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(closing(Proxy(server.port)))
