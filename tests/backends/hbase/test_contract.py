import secrets
from contextlib import closing

import pytest

from safekeeper.testing import BackendContract
from safekeeper.url import Url


class TestHBase(BackendContract):
    """The contract on a real server, in a table that all tests share: creating one takes as long as many tests."""

    examples = 5
    long_examples = 100
    kills = 3
    long_kills = 200

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, hbase):
        return hbase.url.replace("/safekeeper", f"/test_{secrets.token_hex(6)}")

    @pytest.fixture
    def unreachable_url(self):
        return "hbase://127.0.0.1:1/safekeeper?timeout=2"

    def traces(self, url):
        parsed = Url.parse(url)
        with closing(self.server.client()) as client:
            table = parsed.path[1:].encode()
            if table not in client.tables():
                return []
            # Without values: of other tests there are more than the server can hold at a time.
            return [table, *client.table(table).scan(filter=b"KeyOnlyFilter()", include_timestamp=True)]

    @pytest.fixture(autouse=True)
    def _server(self, hbase):
        self.server = hbase
