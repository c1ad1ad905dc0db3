import secrets
from contextlib import closing

import pytest

from safekeeper.backends.hdfs.client import Client
from safekeeper.testing import BackendContract
from safekeeper.url import Url


class TestHdfs(BackendContract):
    """The contract on a real cluster."""

    examples = 4
    long_examples = 100
    kills = 2
    long_kills = 50

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, hdfs):
        return f"hdfs://{hdfs.name_node.address}/contract-{secrets.token_hex(6)}"

    @pytest.fixture
    def unreachable_url(self):
        return "hdfs://127.0.0.1:1/safekeeper?timeout=2"

    def traces(self, url):
        parsed = Url.parse(url)
        with closing(Client(f"hdfs://{parsed.host}:{parsed.port}", {})) as client:
            folders = [status.name for status in client.listing(parsed.path) or ()]
            return [[status.name for status in client.listing(f"{parsed.path}/{name}")] for name in folders]
