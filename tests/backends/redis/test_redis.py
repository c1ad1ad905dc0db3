"""What the kit cannot know about `redis:`: its layout, its commands, its connections."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import safekeeper
from safekeeper import MAX_VALUE_BYTES, Batch, CheckpointId, Corruption, Survives, Unavailable
from safekeeper.backends.redis import server as redis_server
from safekeeper.backends.redis import transaction
from safekeeper.dev.redis import RedisServer

A, B = CheckpointId("g", b"a"), CheckpointId("g", b"b")
LARGE = b"large" * 200_000  # two chunks
CREATED = "03 c6d157e63065de24 30313233343536373839616263646566 76616c7565"
CREATED_HEAD = "04 3bdf3f8296c12800 30313233343536373839616263646566 303132333435363738396162636465660200"
TOKEN, OTHER_TOKEN = b"0123456789abcdef", b"another token..."
ON_DISK = Survives.PROCESS | Survives.OS | Survives.POWER


@pytest.fixture
def url(redis_always, fresh):
    return fresh(redis_always)


@pytest.fixture
def store(url):
    with safekeeper.open(url) as store:
        yield store


@pytest.fixture
def client(redis_always):
    """The driver's own client: looks at the server past the backend."""
    with redis_always.client() as client:
        yield client


@pytest.fixture
def names(url, client):
    """The names of the store's keys, without the prefix and without leases."""
    prefix = url.partition("prefix=")[2]

    def names():
        found = sorted(name.decode().removeprefix(f"{prefix}:") for name in client.scan_iter(f"{prefix}:*"))
        return [name for name in found if ":lease:" not in name]

    return names


def full_name(url, name):
    return f"{url.partition('prefix=')[2]}:{name}"


def delete(store, *ids):
    batch = Batch()
    for id in ids:
        batch.delete(id)
    store.write(batch)


class TestLayout:
    def test_a_group_is_a_hash_and_stands_in_the_list_of_its_bucket_while_it_has_an_id(self, store, names):
        store.write(Batch({A: b"1", B: b"2"}))
        assert names() == ["{97}:groups", "{97}:ids:g"]
        delete(store, A)
        assert names() == ["{97}:groups", "{97}:ids:g"]
        delete(store, B)
        assert names() == []

    def test_a_value_of_version_1_still_opens(self, store, url, client):
        client.hset(full_name(url, "{97}:ids:g"), b"a", bytes.fromhex("01 6d31eaa884d89562 76616c7565"))
        assert store.read([A]) == [b"value"]

    def test_every_flipped_byte_and_every_truncation_is_corruption(self, store, url, client):
        store.write(Batch({A: b"value"}))
        whole = client.hget(full_name(url, "{97}:ids:g"), b"a")
        damaged = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
        damaged += [whole[:i] for i in range(len(whole))] + [whole + b"\0"]
        for data in damaged:
            client.hset(full_name(url, "{97}:ids:g"), b"a", data)
            with pytest.raises(Corruption, match=r"g/a in the hash .*:\{97\}:ids:g: "):
                store.read([A])

    def test_a_value_under_another_ids_name_is_corruption(self, store, url, client):
        store.write(Batch({A: b"value"}))
        client.hset(full_name(url, "{97}:ids:g"), b"b", client.hget(full_name(url, "{97}:ids:g"), b"a"))
        with pytest.raises(Corruption, match=r"g/b in the hash .*: the checksum does not match"):
            store.read([B])

    def test_stores_with_different_prefixes_do_not_meet(self, store, redis_always, fresh):
        with safekeeper.open(fresh(redis_always)) as other:
            store.write(Batch({A: b"mine"}))
            other.write(Batch({A: b"theirs"}))
            assert (store.read([A]), other.read([A])) == ([b"mine"], [b"theirs"])
            delete(other, A)
            assert (list(store.groups()), list(other.groups())) == (["g"], [])


class TestLargeValues:
    @pytest.mark.parametrize("replace", ("small", "large", "delete"))
    def test_the_chunks_of_a_value_go_when_it_is_replaced_or_deleted(self, store, names, replace):
        store.write(Batch({A: LARGE}))
        before = [name for name in names() if ":part:" in name]
        assert len(before) == 2
        if replace == "delete":
            delete(store, A)
        else:
            store.write(Batch({A: b"small" if replace == "small" else LARGE[::-1]}))
        left = [name for name in names() if ":part:" in name or ":large:" in name]
        assert len(left) == (3 if replace == "large" else 0)
        assert not set(before) & set(left)

    def test_a_handle_that_does_not_know_of_large_values_cleans_up_after_them_too(self, store, url, names):
        with safekeeper.open(url) as other:
            other.write(Batch({B: b"small"}))
            store.write(Batch({A: LARGE}))
            other.write(Batch({A: b"small"}))
            assert [name for name in names() if ":part:" in name or ":large:" in name] == []

    def test_the_chunks_of_a_value_that_is_there_do_not_expire(self, store, url, client, names):
        store.write(Batch({A: LARGE}))
        assert [client.ttl(full_name(url, chunk)) for chunk in names() if ":part:" in chunk] == [-1, -1]

    def test_a_chunk_that_is_gone_is_corruption_not_an_absent_value(self, store, url, client, names):
        store.write(Batch({A: LARGE, B: b"well"}))
        client.delete(full_name(url, [name for name in names() if ":part:" in name][1]))
        with pytest.raises(Corruption, match=r"g/a in the hash .*: parts of the value are gone"):
            store.read([A])
        assert store.read([B]) == [b"well"]

    def test_a_chunk_that_was_changed_is_corruption(self, store, url, client, names):
        store.write(Batch({A: LARGE}))
        client.setrange(full_name(url, next(name for name in names() if ":part:" in name)), 7, b"?")
        with pytest.raises(Corruption, match="the checksum does not match"):
            store.read([A])

    def test_a_server_with_the_smallest_limits_takes_the_largest_value(self, servers, fresh):
        limits = {"proto_max_bulk_len": "1mb", "client_query_buffer_limit": "1mb"}
        with RedisServer(servers / "narrow", **limits) as server, safekeeper.open(fresh(server)) as store:
            value = bytes(range(256)) * (MAX_VALUE_BYTES // 256)
            store.write(Batch({A: value, B: b"small"}))
            assert store.read([B, A]) == [b"small", value]


class TestScan:
    def test_large_values_come_beside_small_ones(self, store):
        values = {b"%d" % n: LARGE + b"%d" % n if n % 50 == 0 else b"%d" % n for n in range(2000)}
        store.write(Batch({CheckpointId("g", key): value for key, value in values.items()}))
        assert dict(pair for page in store.scan("g") for pair in page) == values

    def test_a_large_value_that_goes_or_is_replaced_on_the_way_is_not_damage(self, store, url):
        ids = [CheckpointId("g", b"%d" % n) for n in range(60)]
        store.write(Batch(dict.fromkeys(ids, LARGE)))  # more than one page
        pages = store.scan("g")
        found = dict(next(pages))
        with safekeeper.open(url) as other:
            delete(other, *ids[::2])
            other.write(Batch(dict.fromkeys(ids[1::2], b"new")))
        for page in pages:
            found |= dict(page)
        assert {found[id.key] for id in ids[1::2]} == {LARGE, b"new"}

    def test_pages_are_small_where_values_are_large(self, store):
        """What a server answers at once is in memory whole, and others wait for it."""
        for start in range(0, 200, 20):
            store.write(Batch({CheckpointId("g", b"%d" % n): bytes(500_000) for n in range(start, start + 20)}))
        sizes = [len(page) for page in store.scan("g")]
        assert sum(sizes) >= 200
        assert max(sizes[1:]) < 40

    @pytest.mark.parametrize("damage", (b"\1" + bytes(20), b""), ids=("changed", "empty"))
    def test_damage_raises(self, store, url, client, damage):
        store.write(Batch({A: b"a", B: b"b"}))
        client.hset(full_name(url, "{97}:ids:g"), b"b", damage)
        with pytest.raises(Corruption, match=r"g/b in the hash .*:\{97\}:ids:g: "):
            list(store.scan("g"))

    def test_a_scan_goes_on_where_its_connection_breaks(self, store, redis_always, proxy_to):
        values = {b"%d" % n: bytes(2000) for n in range(3000)}
        store.write(Batch({CheckpointId("g", key): value for key, value in values.items()}))
        proxy = proxy_to(redis_always)
        with safekeeper.open(f"{proxy.url}?prefix={store._options.prefix}") as behind:
            pages = behind.scan("g")
            found = dict(next(pages))
            proxy.cut()
            found |= dict(pair for page in pages for pair in page)
        assert found == values


class TestCreate:
    def test_created_values_of_the_first_layout_still_open(self, store, url, client):
        client.hset(
            full_name(url, "{97}:ids:g"),
            b"a",
            bytes.fromhex(CREATED),
        )
        assert store.read([A]) == [b"value"]
        assert store.create(A, b"other", TOKEN)
        client.hset(full_name(url, "{97}:ids:g"), b"b", bytes.fromhex(CREATED_HEAD))
        client.set(full_name(url, "{97}:part:0123456789abcdef:0"), b"chunk 0, ")
        client.set(full_name(url, "{97}:part:0123456789abcdef:1"), b"chunk 1")
        assert store.read([B]) == [b"chunk 0, chunk 1"]
        assert store.create(B, b"other", TOKEN)
        assert not store.create(B, b"other", OTHER_TOKEN)

    @pytest.mark.parametrize("value", (b"value", LARGE), ids=("small", "large"))
    def test_every_flipped_byte_and_every_truncation_is_corruption(self, store, url, client, value):
        store.create(A, value, TOKEN)
        whole = client.hget(full_name(url, "{97}:ids:g"), b"a")
        damaged = [whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :] for i in range(len(whole))]
        damaged += [whole[:i] for i in range(len(whole))] + [whole + b"\0"]
        for data in damaged:
            client.hset(full_name(url, "{97}:ids:g"), b"a", data)
            with pytest.raises(Corruption, match=r"g/a in the hash .*:\{97\}:ids:g: "):
                store.read([A])

    def test_the_chunks_of_one_that_came_second_expire(self, store, url, client, names):
        assert store.create(A, LARGE, TOKEN)
        assert not store.create(A, LARGE[::-1], OTHER_TOKEN)
        chunks = [client.ttl(full_name(url, chunk)) for chunk in names() if ":part:" in chunk]
        assert sorted(left >= 0 for left in chunks) == [False, False, True, True]
        delete(store, A)
        assert [client.ttl(full_name(url, chunk)) >= 0 for chunk in names()] == [True, True]

    def test_chunks_that_go_before_their_head_comes_are_not_created(self, store, monkeypatch):
        bring = transaction.Creation.bringing_chunks
        monkeypatch.setattr(transaction.Creation, "bringing_chunks", lambda change: bring(change)[:1])
        with pytest.raises(Unavailable, match="LOST chunks of the value"):
            store.create(A, LARGE, TOKEN)
        assert store.read([A]) == [None]
        monkeypatch.undo()
        assert store.create(A, LARGE, TOKEN)
        assert store.read([A]) == [LARGE]

    def test_an_answer_that_is_lost_is_asked_for_again(self, store, redis_always, proxy_to):
        proxy = proxy_to(redis_always)
        url = f"{proxy.url}?prefix={store._options.prefix}&timeout=3"
        with safekeeper.open(url) as behind:
            behind.create(B, b"", TOKEN)  # now it has a lease
            proxy.cut_at_the_next_answer()
            with pytest.raises(Unavailable):
                behind.create(A, b"value", TOKEN)
        assert store.read([A]) == [b"value"], "the request was to arrive, and its answer was not"
        assert not store.create(A, b"theirs", OTHER_TOKEN)
        assert store.create(A, b"value", TOKEN)
        assert store.read([A]) == [b"value"]

    def test_a_connection_that_breaks_before_the_answer_comes_is_no_error(self, store, redis_always, proxy_to):
        """The handle asks again by itself, and finds what it has made."""
        proxy = proxy_to(redis_always)
        with safekeeper.open(f"{proxy.url}?prefix={store._options.prefix}&timeout=60") as behind:
            behind.create(B, b"", TOKEN)
            proxy.lose_the_next_answer()
            assert behind.create(A, b"value", TOKEN)
        assert store.read([A]) == [b"value"]


class TestSurvives:
    @pytest.mark.parametrize(
        ("settings", "survives"),
        (
            ({"appendonly": "yes", "appendfsync": "always"}, ON_DISK),
            ({"appendonly": "yes", "appendfsync": "always", "no_appendfsync_on_rewrite": "yes"}, Survives.PROCESS),
            ({"appendonly": "yes", "appendfsync": "no"}, Survives.PROCESS),
            ({"appendonly": "yes", "appendfsync": "everysec"}, Survives.NOTHING),
            ({"appendonly": "no", "appendfsync": "always"}, Survives.NOTHING),
        ),
        ids=("always", "always, not during a rewrite", "no", "everysec", "off"),
    )
    def test_what_a_write_survives_follows_from_the_servers_settings(self, tmp_path, fresh, settings, survives):
        with RedisServer(tmp_path, **settings) as server, safekeeper.open(fresh(server)) as store:
            assert store.survives == survives
            assert store.write(Batch({A: b""})).survives == survives

    def test_a_receipt_follows_a_server_that_came_back_with_other_settings(self, tmp_path, fresh):
        settings = {"appendonly": "yes", "appendfsync": "always"}
        with RedisServer(tmp_path, **settings) as server, safekeeper.open(fresh(server)) as store:
            assert store.write(Batch({A: b""})).survives == ON_DISK
            with server.client() as client:
                client.config_set("appendfsync", "everysec")
                client.client_kill_filter(_type="normal", skipme=True)
            assert store.write(Batch({A: b""})).survives == Survives.NOTHING

    def test_all_masters_of_a_cluster_count(self, redis_cluster, fresh):
        with redis_cluster.nodes[2].client() as client:
            client.config_set("appendfsync", "no")
            try:
                with safekeeper.open(fresh(redis_cluster)) as store:
                    assert store.survives == Survives.PROCESS
            finally:
                client.config_set("appendfsync", "always")


REWRITES_FOR = 3000
"""How many keys the server needs some seconds to rewrite, where it waits a little at each."""


@pytest.fixture(params=("redis-server", "valkey-server"))
def turned_on_later(request, tmp_path):
    """A server without an append-only file, with keys that take long to write to one when it is turned on."""
    with RedisServer(tmp_path, program=request.param, appendonly="no", appendfsync="always") as server:
        with server.client() as client:
            client.mset({f"something else {n}": b"" for n in range(REWRITES_FOR)})
        yield server


def rewrite_slowly(client, seconds):
    """Let a rewrite that is begun from now on take about so long."""
    client.config_set("rdb-key-save-delay", round(seconds * 1_000_000 / REWRITES_FOR))


def eventually(condition):
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up, "it did not come about"
        time.sleep(0.05)


class TestSurvivesChanges:
    """`survives` and receipts follow the server for as long as a handle is open, on the connections that it has."""

    @pytest.fixture(autouse=True)
    def ask_often(self, monkeypatch):
        monkeypatch.setattr(redis_server, "ASK_AGAIN_AFTER", 0.1)

    def test_what_is_written_during_the_first_rewrite_is_not_declared_and_is_lost(self, turned_on_later, fresh):
        url = fresh(turned_on_later)
        with safekeeper.open(url) as before, turned_on_later.client() as client:
            rewrite_slowly(client, 600)
            client.config_set("appendonly", "yes")
            with safekeeper.open(url) as during:
                assert during.survives == before.survives == Survives.NOTHING
                assert during.write(Batch({A: b"value"})).survives == Survives.NOTHING
                assert before.write(Batch({B: b"value"})).survives == Survives.NOTHING
            assert client.info("persistence")["aof_rewrite_in_progress"] == 1
            turned_on_later.kill()
            turned_on_later.start()
        with safekeeper.open(url) as after:
            assert after.read([A, B]) == [None, None]

    def test_the_first_rewrite_counts_when_it_is_done(self, turned_on_later, fresh):
        with safekeeper.open(fresh(turned_on_later)) as store, turned_on_later.client() as client:
            client.config_set("appendonly", "yes")
            eventually(lambda: store.write(Batch({A: b""})).survives == ON_DISK)
            assert store.survives == ON_DISK

    def test_a_later_rewrite_changes_nothing_for_whoever_saw_the_file_before_it(self, turned_on_later, fresh):
        url = fresh(turned_on_later)
        with safekeeper.open(url) as store, turned_on_later.client() as client:
            client.config_set("appendonly", "yes")
            rewrite_slowly(client, 600)
            eventually(lambda: store.write(Batch({A: b""})).survives == ON_DISK)
            client.bgrewriteaof()
            eventually(lambda: client.info("persistence")["aof_rewrite_in_progress"])
            for _ in range(3):  # the server is asked each time
                time.sleep(0.15)
                assert store.write(Batch({A: b"value"})).survives == ON_DISK
            with safekeeper.open(url) as newcomer:  # cannot tell it from a first one
                assert newcomer.survives == Survives.NOTHING
            client.config_set("appendonly", "no")
            client.config_set("appendonly", "yes")
            eventually(lambda: store.write(Batch({A: b"value"})).survives == Survives.NOTHING)
            assert store.survives == Survives.NOTHING

    def test_settings_that_change_are_noticed_on_connections_that_stay(self, tmp_path, fresh):
        with (
            RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server,
            server.client() as client,
            safekeeper.open(fresh(server)) as store,
        ):
            assert store.write(Batch({A: b""})).survives == ON_DISK
            for appendfsync, survives in (("no", Survives.PROCESS), ("always", ON_DISK)):
                client.config_set("appendfsync", appendfsync)
                eventually(lambda survives=survives: store.write(Batch({A: b""})).survives == survives)
                assert store.survives == survives
            client.config_set("appendonly", "no")
            eventually(lambda: store.write(Batch({A: b""})).survives == Survives.NOTHING)

    def test_what_was_asserted_stays_asserted(self, tmp_path, fresh):
        with RedisServer(tmp_path, appendonly="yes", appendfsync="no") as server, server.client() as client:
            url = f"{fresh(server)}&assert=host,process"
            with safekeeper.open(url) as store:
                assert store.survives == Survives.PROCESS | Survives.HOST
                client.config_set("appendfsync", "always")
                eventually(lambda: store.write(Batch({A: b""})).survives == ON_DISK | Survives.HOST)
                assert store.asserted == Survives.HOST

    def test_a_server_that_begins_to_throw_data_away_gets_no_more_writes(self, tmp_path, fresh):
        with RedisServer(tmp_path) as server, server.client() as client, safekeeper.open(fresh(server)) as store:
            store.write(Batch({A: b""}))
            client.config_set("maxmemory", "1gb")
            client.config_set("maxmemory-policy", "allkeys-lru")

            def is_refused():
                try:
                    store.write(Batch({A: b""}))
                except Unavailable as error:
                    return "throws data away when its memory is full" in str(error)
                return False

            eventually(is_refused)

    def test_one_master_of_a_cluster_that_changes_later_counts(self, redis_cluster, fresh):
        everywhere = Batch({CheckpointId(f"group{n}", b""): b"" for n in range(60)})
        with redis_cluster.nodes[2].client() as client, safekeeper.open(fresh(redis_cluster)) as store:
            assert store.write(everywhere).survives == ON_DISK
            client.config_set("appendfsync", "no")
            try:
                eventually(lambda: store.write(everywhere).survives == Survives.PROCESS)
                assert store.survives == Survives.PROCESS
            finally:
                client.config_set("appendfsync", "always")
            eventually(lambda: store.write(everywhere).survives == ON_DISK)


class TestLeases:
    def test_a_lease_expires_within_seconds(self, store, url, client):
        store.write(Batch({A: b"value"}))
        (lease,) = client.scan_iter(full_name(url, "*:lease:*"))
        assert 0 < client.pttl(lease) <= 6250

    @pytest.mark.parametrize("size", (1, 10_000), ids=("as a script", "as a transaction"))
    def test_a_write_whose_lease_was_taken_away_goes_on_with_another(self, store, url, client, size):
        store.write(Batch({A: b"1" * size}))
        client.delete(*client.scan_iter(full_name(url, "*:lease:*")))
        store.write(Batch({A: b"2" * size}))
        assert store.read([A]) == [b"2" * size]
        assert list(client.scan_iter(full_name(url, "*:lease:*")))

    def test_a_write_after_a_pause_gets_a_new_lease(self, redis_always, fresh):
        with safekeeper.open(fresh(redis_always, timeout=2)) as store:
            for turn in range(3):
                store.write(Batch({A: b"%d" % turn}))
                assert store.read([A]) == [b"%d" % turn]
                time.sleep(0.6 * turn)


class TestCommands:
    @pytest.fixture
    def count(self):
        """Runs a function and gives the commands that a server carried out meanwhile, and the bytes it sent."""

        def run(server, function):
            with server.client() as client:
                client.config_resetstat()
                function()
                calls = {
                    name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()
                }
                return calls, client.info("stats")["total_net_output_bytes"]

        return run

    @pytest.mark.parametrize(("name", "listing"), (("redis_always", "hkeys"), ("valkey", "hscan")))
    def test_listing_one_group_among_many_costs_as_much_as_the_group(self, request, fresh, count, name, listing):
        server = request.getfixturevalue(name)
        with safekeeper.open(fresh(server)) as store:
            store.write(Batch({CheckpointId(f"group{n}", b"key"): b"" for n in range(2000)}))
            store.write(Batch({CheckpointId("mine", b"%d" % n): bytes(20_000) for n in range(100)}))
            calls, sent = count(server, lambda: list(store.keys("mine")))
            assert calls == {"config|resetstat": 1, listing: 1}
            assert sent < 20_000, "values were sent too"
            calls, _ = count(server, lambda: list(store.groups()))
            assert calls == {"config|resetstat": 1, "smembers": 256}

    def test_the_keys_of_a_large_group_stream_where_the_server_can(self, valkey, fresh, count):
        with safekeeper.open(fresh(valkey)) as store:
            store.write(Batch({CheckpointId("g", b"%d" % n): b"" for n in range(10_000)}))
            keys = store.keys("g")
            calls, _ = count(valkey, lambda: list(itertools.islice(keys, 100)))
            assert calls["hscan"] == 1
            calls, _ = count(valkey, lambda: list(keys))
            assert calls["hscan"] > 5

    def test_a_batch_of_many_groups_takes_few_syncs(self, redis_always, store):
        with redis_always.client() as client:
            before = client.info("stats")["total_reads_processed"]
            store.write(Batch({CheckpointId(f"group{n}", b"key"): bytes(100) for n in range(500)}))
            assert client.info("stats")["total_reads_processed"] - before < 50


class TestConnections:
    def test_connections_that_the_server_dropped_are_replaced_before_they_are_used(self, store, client):
        store.write(Batch({A: b"1"}))
        client.client_kill_filter(_type="normal", skipme=True)
        store.write(Batch({A: b"2"}))
        client.client_kill_filter(_type="normal", skipme=True)
        assert store.read([A]) == [b"2"]

    def test_a_read_whose_connection_breaks_is_asked_again(self, redis_always, store, url, proxy_to):
        proxy = proxy_to(redis_always)
        store.write(Batch({A: b"value"}))
        with safekeeper.open(f"{proxy.url}?prefix={url.partition('prefix=')[2]}&timeout=60") as behind:
            proxy.hold()

            def break_it():
                proxy.wait_for_held()
                proxy.cut()
                proxy.release()

            breaking = threading.Thread(target=break_it)
            breaking.start()
            assert behind.read([A]) == [b"value"]
            breaking.join()

    def test_after_a_time_out_idle_connections_are_not_tried_one_by_one(self, redis_always, store, url, proxy_to):
        """A network that forgets connections in silence forgets all that were idle."""
        proxy = proxy_to(redis_always)
        store.write(Batch({A: b"value"}))
        with safekeeper.open(f"{proxy.url}?prefix={url.partition('prefix=')[2]}&timeout=4") as behind:
            with ExitStack() as busy:
                for _ in range(4):
                    busy.enter_context(behind._router.node_of(0).connection())
            proxy.hold()
            with pytest.raises(Unavailable, match="did not answer in time"):
                behind.read([A])
            proxy.let_others_through()
            assert behind.read([A]) == [b"value"]

    def test_idle_connections_are_kept_up_to_the_number_that_was_given(self, redis_always, fresh, client):
        before = client.info("clients")["connected_clients"]
        with safekeeper.open(fresh(redis_always, connections=2)) as store:
            barrier = threading.Barrier(8)

            def write(number):
                barrier.wait()
                for _ in range(10):
                    store.write(Batch({CheckpointId("g", b"%d" % number): b""}))

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(write, range(8)))
            (node,) = store._router._nodes.values()
            assert len(node._idle) <= 2
        for _ in range(1000):  # the server notices a moment later
            if client.info("clients")["connected_clients"] <= before:
                break
        assert client.info("clients")["connected_clients"] <= before

    def test_a_unix_socket_will_do(self, tmp_path):
        path = tmp_path / "socket"
        with RedisServer(tmp_path, unixsocket=str(path)), safekeeper.open(f"redis+unix://{path}?db=3") as store:
            store.write(Batch({A: b"value"}))
            assert store.read([A]) == [b"value"]
