"""`redis:` carries streams, on servers of all kinds."""

import json
import secrets
import threading
import time
from contextlib import closing

import msgpack
import pytest

from safekeeper import BadState, BadUrl, Gone, TooLarge, Unavailable
from safekeeper.dev.redis import RedisServer
from safekeeper.streams import StreamElement, open_inlet, open_outlet
from safekeeper.streams.registry import carrier_of
from safekeeper.testing import StreamContract
from safekeeper.testing.sending import drain, numbered

SYNCED = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": "0"}


def fresh_stream(server, **options):
    """The URL of a stream that nobody has written to yet; its name comes last."""
    words = [f"{name.replace('_', '-')}={value}" for name, value in options.items()]
    query = "&".join([*words, f"stream=test-{secrets.token_hex(6)}"])
    return f"{server.url}{'&' if '?' in server.url else '?'}{query}"


def name_of(url):
    return url.rpartition("=")[2]


class TestOnOneServer(StreamContract):
    @pytest.fixture
    def url(self, redis_always):
        return fresh_stream(redis_always)


class TestOnACluster(StreamContract):
    kills = 1

    @pytest.fixture
    def url(self, redis_cluster):
        return fresh_stream(redis_cluster)


@pytest.fixture
def url(redis_always):
    return fresh_stream(redis_always)


@pytest.fixture
def client(redis_always):
    with redis_always.client() as client:
        yield client


def test_the_entries_and_the_readers_lie_where_the_page_says(url, client):
    with closing(open_outlet(url, readers=["a", "b"])) as outlet, closing(open_inlet(url, reader="a")) as inlet:
        outlet.send([StreamElement(1, b"body", b"key"), StreamElement(2, b"")])
        inlet.acknowledge(1)
        assert client.xrange(name_of(url)) == [
            (b"1-0", {b"key": b"key", b"body": b"body"}),
            (b"2-0", {b"body": b""}),
        ]
        readers = client.hgetall(f"{{{name_of(url)}}}:readers")
        assert json.loads(readers[b""]) == ["a", "b"]
        assert readers[b"a"] == b"1"


def test_what_all_have_acknowledged_is_trimmed(url, client):
    with closing(open_outlet(url, readers=["a"])) as outlet, closing(open_inlet(url, reader="a")) as inlet:
        outlet.send(numbered(1, b"a", b"b", b"c"))
        inlet.acknowledge(2)
        outlet.acknowledged()
        assert client.xrange(name_of(url)) == [(b"3-0", {b"body": b"c"})]


@pytest.mark.parametrize(
    ("settings", "retains"),
    [
        ({"appendonly": "yes", "appendfsync": "always"}, True),
        ({"appendonly": "yes", "appendfsync": "no"}, True),
        ({"appendonly": "yes", "appendfsync": "everysec"}, False),
        ({"appendonly": "no"}, False),
    ],
    ids=["always", "no", "everysec", "in memory"],
)
def test_it_retains_what_the_servers_settings_let_survive_a_kill(tmp_path, settings, retains):
    with RedisServer(tmp_path, auto_aof_rewrite_percentage="0", **settings) as server:
        with closing(open_outlet(fresh_stream(server))) as outlet:
            assert outlet.retains is retains
        with closing(open_outlet(fresh_stream(server, **{"assert": "process"}))) as outlet:
            assert outlet.retains


def test_settings_that_change_are_noticed_by_a_send(tmp_path):
    with (
        RedisServer(tmp_path, **SYNCED) as server,
        server.client() as client,
        closing(open_outlet(fresh_stream(server), readers=["r"])) as outlet,
    ):
        assert outlet.retains
        client.config_set("appendfsync", "everysec")
        give_up = time.monotonic() + 60
        while outlet.retains:
            assert time.monotonic() < give_up
            outlet.send(numbered(outlet.last + 1, b"x"))
            time.sleep(0.1)


def restart(server):
    server.kill()
    server.start()


def test_a_server_that_has_lost_everything_is_filled_again(tmp_path):
    """It keeps nothing on disk. What no reader has acknowledged, the outlet still has."""
    with RedisServer(tmp_path) as server:
        url = fresh_stream(server)
        with closing(open_outlet(url, readers=["a", "b"])) as outlet, closing(open_inlet(url, reader="a")) as inlet:
            outlet.send(sent := numbered(1, *(b"%d" % n for n in range(1000))))
            drain(inlet, 1000)
            inlet.acknowledge(900)
            with closing(open_inlet(url, reader="b")) as other:
                other.acknowledge(400)
            assert outlet.acknowledged() == {"a": 900, "b": 400}
            restart(server)
            send_when_it_works(outlet, numbered(1001, b"new"))
            assert drain_when_it_works(inlet, 1) == numbered(1001, b"new")
            with closing(open_inlet(url, reader="b", after=400)) as other:
                assert drain(other, 601) == [*sent[400:], *numbered(1001, b"new")]


def send_when_it_works(outlet, elements):
    give_up = time.monotonic() + 60
    while True:
        try:
            outlet.send(elements)
            return
        except Unavailable:
            assert time.monotonic() < give_up


def drain_when_it_works(inlet, count):
    give_up = time.monotonic() + 60
    while True:
        try:
            return drain(inlet, count)
        except Unavailable:
            assert time.monotonic() < give_up


def test_a_new_producer_fills_a_server_that_has_lost_everything(tmp_path):
    """It knows what was acknowledged by all, and has the rest: an operator's journal does."""
    with RedisServer(tmp_path) as server:
        url = fresh_stream(server)
        with closing(open_outlet(url, readers=["r"], floor=40)) as outlet:
            outlet.send(numbered(41, b"a", b"b"))
        with closing(open_inlet(url, reader="r", after=41)) as inlet:
            assert drain(inlet, 1) == numbered(42, b"b")


def test_a_server_that_was_to_retain_and_did_not_is_an_error(url, client):
    with closing(open_outlet(url, readers=["r"])) as outlet:
        assert outlet.retains
        outlet.send(numbered(1, b"a", b"b", b"c"))
        client.delete(name_of(url))
        with pytest.raises(Gone, match="ends at 0, and the next element is 4: the server has lost"):
            outlet.send(numbered(4, b"d"))
        assert client.exists(name_of(url)) == 0


def test_elements_that_somebody_deleted_are_an_error(url, client):
    with closing(open_outlet(url, readers=["r"])) as outlet, closing(open_inlet(url, reader="r")) as inlet:
        outlet.send(numbered(1, *(b"x" for _ in range(300))))
        seen = inlet.read()
        client.xdel(name_of(url), f"{len(seen) + 1}-0")
        with pytest.raises(Gone, match=f"the elements {len(seen) + 1} to {len(seen) + 1} of"):
            inlet.read()
        client.xtrim(name_of(url), maxlen=0, approximate=False)
        with pytest.raises(Gone, match="begin after 300"):
            inlet.read(timeout=0)


def test_a_send_that_comes_late_adds_nothing_twice(url, redis_always, proxy_to):
    proxy = proxy_to(redis_always)
    behind = url.replace(f":{redis_always.port}/", f":{proxy.port}/").replace("?", "?timeout=1&")
    with closing(open_outlet(behind, readers=["r"])) as stopped, closing(open_outlet(url, readers=["r"])) as successor:
        stopped.send(numbered(1, b"a"))
        proxy.hold()
        with pytest.raises(Unavailable):
            stopped.send(numbered(2, b"b", b"c"))
        successor.send(numbered(1, b"a", b"b"))
        proxy.release_and_wait()
        successor.send(numbered(3, b"c", b"d"))
        with closing(open_inlet(url, reader="r")) as inlet:
            assert drain(inlet, 4) == numbered(1, b"a", b"b", b"c", b"d")


def test_an_answer_that_is_lost_is_no_reason_to_send_twice(url, redis_always, proxy_to):
    proxy = proxy_to(redis_always)
    behind = url.replace(f":{redis_always.port}/", f":{proxy.port}/")
    with closing(open_outlet(behind, readers=["r"])) as outlet, closing(open_inlet(behind, reader="r")) as inlet:
        for number in range(1, 4):
            proxy.lose_the_next_answer()
            outlet.send(numbered(number, b"%d" % number))
        assert drain(inlet, 3) == numbered(1, b"1", b"2", b"3")


def test_a_producer_waits_for_its_replicas(url):
    with closing(open_outlet(url.replace("?", "?replicas=1&timeout=1&"), readers=["r"])) as outlet:
        for _ in range(2):  # also when an earlier attempt has added it
            with pytest.raises(Unavailable, match="not enough replicas"):
                outlet.send(numbered(1, b"a"))


def test_a_server_that_throws_data_away_is_refused(tmp_path):
    settings = {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"}
    with RedisServer(tmp_path, **settings) as server, pytest.raises(BadUrl, match="throws data away"):
        open_outlet(fresh_stream(server))


def test_entries_of_somebody_else_are_read_with_their_own_ids(url, client):
    foreign = url.replace("?", "?foreign=yes&")
    ids = [client.xadd(name_of(url), {"word": word, "n": number}) for number, word in enumerate(("to", "be", "or"))]
    positions = [tuple(map(int, id.split(b"-"))) for id in ids]
    with closing(open_inlet(foreign, reader="r")) as inlet:
        found = drain(inlet, 3)
        assert [element.number for element in found] == positions
        assert msgpack.unpackb(found[0].body) == {b"word": b"to", b"n": b"0"}
        inlet.acknowledge(positions[1])
        inlet.acknowledge(positions[0])
        assert inlet.last() == positions[2]
    with closing(open_inlet(foreign.replace("?", "?body=word&key=n&"), reader="r")) as inlet:
        assert drain(inlet, 1) == [StreamElement(positions[2], b"or", b"2")]
    with closing(open_inlet(foreign, reader="r", after=positions[0])) as inlet:
        assert len(drain(inlet, 2)) == 2


def test_entries_of_somebody_else_that_are_gone_are_an_error(url, client):
    foreign = url.replace("?", "?foreign=yes&")
    ids = [client.xadd(name_of(url), {"n": number}) for number in range(5)]
    positions = [tuple(map(int, id.split(b"-"))) for id in ids]
    client.xtrim(name_of(url), maxlen=2, approximate=False)
    with closing(open_inlet(foreign, reader="r", after=positions[1])) as inlet, pytest.raises(Gone, match="after"):
        inlet.read(timeout=0)
    with closing(open_inlet(foreign, reader="r", after=positions[3])) as inlet:
        assert len(drain(inlet, 1)) == 1
    with closing(open_inlet(foreign)) as inlet:
        assert len(drain(inlet, 2)) == 2
    carrier_of(foreign).trim(foreign, positions[4])
    with closing(open_inlet(foreign, reader="r", after=positions[4])) as inlet:
        assert inlet.read(timeout=0) == []


def test_whoever_takes_foreign_entries_for_ours_is_told(url, client):
    client.xadd(name_of(url), {"n": 1}, id="5-1")
    with closing(open_inlet(url)) as inlet, pytest.raises(BadState, match="read it with foreign=yes"):
        inlet.read(timeout=0)
    with pytest.raises(BadState, match="written by somebody else"):
        open_outlet(url)
    with (
        closing(open_inlet(url.replace("?", "?foreign=yes&body=text&"))) as inlet,
        pytest.raises(BadState, match="text"),
    ):
        inlet.read(timeout=0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "names no stream: add stream=NAME"),
        ("?prefix=x&stream=a", "prefix= is for stores"),
        ("?stream=a&body=b", "are for foreign=yes"),
        ("?stream=a}b", "braces in a name"),
        ("?stream=a&max-elements=-1", "takes a number over 0"),
    ],
)
def test_a_bad_url_is_refused_with_one_line(redis_always, options, says):
    for opener in (open_outlet, open_inlet):
        with pytest.raises(BadUrl, match=says) as caught:
            opener(f"{redis_always.url}{options}")
        assert "\n" not in str(caught.value)


def test_a_name_with_a_tag_keeps_it(redis_cluster):
    url = f"{redis_cluster.url}?stream={{user}}:{secrets.token_hex(4)}"
    with closing(open_outlet(url, readers=["r"])) as outlet, closing(open_inlet(url, reader="r")) as inlet:
        outlet.send(numbered(1, b"a"))
        assert drain(inlet, 1) == numbered(1, b"a")
        inlet.acknowledge(1)


def test_an_element_over_the_limit_is_refused(url):
    with closing(open_outlet(url)) as outlet:
        with pytest.raises(TooLarge, match="the element 1 of"):
            outlet.send(numbered(1, bytes(64 * 1024 * 1024 + 1)))
        assert outlet.last == 0


def test_readers_wait_on_the_server_and_not_in_a_loop(url, client):
    """A read that waits for a while asks a few times a second, and hears of an element at once."""
    before = client.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"]
    with closing(open_outlet(url)) as outlet, closing(open_inlet(url)) as inlet:
        outlet.send(numbered(1, b"a"))
        drain(inlet, 1)
        threading.Timer(1.0, outlet.send, [numbered(2, b"b")]).start()
        assert inlet.read(timeout=60) == numbered(2, b"b")
    assert client.info("commandstats")["cmdstat_xread"]["calls"] - before < 100
