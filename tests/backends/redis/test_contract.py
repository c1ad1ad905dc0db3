import pytest
import redis

from safekeeper.testing import BackendContract
from safekeeper.url import Url


class RedisContract(BackendContract):
    """The contract on a server that all tests share, each with a prefix of its own."""

    @pytest.fixture
    def url(self, server, fresh):
        return fresh(server)

    @pytest.fixture
    def unreachable_url(self, url):
        return url.replace(f":{Url.parse(url).port}/", ":1/") + "&timeout=2"

    def traces(self, url):
        parsed = Url.parse(url)
        tls = {"ssl": True, "ssl_ca_certs": parsed.query["ca-file"]} if parsed.scheme == "rediss" else {}
        found = []
        for port in self.ports(parsed):
            with redis.Redis(parsed.host, port, password=parsed.password, **tls) as client:
                found += client.scan_iter(f"{parsed.query['prefix']}:*")
        return found

    def ports(self, url):
        return [url.port]


class TestSingle(RedisContract):
    long_kills = 200

    @pytest.fixture
    def server(self, redis_always):
        return redis_always


class TestCluster(RedisContract):
    @pytest.fixture
    def server(self, redis_cluster):
        return redis_cluster

    def ports(self, url):
        with redis.Redis(url.host, url.port, protocol=2) as client:
            return [port for _, _, (_, port, *_) in client.execute_command("CLUSTER", "SLOTS")]


class TestTls(RedisContract):
    @pytest.fixture
    def server(self, redis_tls):
        return redis_tls


class TestValkey(RedisContract):
    @pytest.fixture
    def server(self, valkey):
        return valkey
