"""What is special about a cluster: where groups lie, and what happens while they move."""

import threading
import time
from contextlib import ExitStack

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafekeeperError
from safekeeper.dev.process import free_port
from safekeeper.dev.redis import RedisCluster, RedisServer

from ..killing import when_it_works

GROUP = "g"  # bucket 97
SMALL, LARGE = CheckpointId(GROUP, b"small"), CheckpointId(GROUP, b"large")
LARGE_SIZE = 600_000
TOKEN = b"0123456789abcdef"


@pytest.fixture
def clients(redis_cluster):
    with ExitStack() as stack:
        yield [stack.enter_context(node.client()) for node in redis_cluster.nodes]


def names(client, url):
    return [name.decode() for name in client.scan_iter(f"{url.partition('prefix=')[2]}:*")]


def test_groups_spread_over_all_masters_and_each_lies_in_one_slot(redis_cluster, fresh, clients):
    url = fresh(redis_cluster)
    with safekeeper.open(url) as store:
        ids = [CheckpointId(f"group{n}", b"%d" % k) for n in range(60) for k in range(3)]
        store.write(Batch({id: bytes(600_000) if id.key == b"0" else b"" for id in ids}))
        assert set(store.groups()) == {id.group for id in ids}
    tags = [{name.partition("{")[2].partition("}")[0] for name in names(client, url)} for client in clients]
    assert all(len(found) > 5 for found in tags)
    assert sum(map(len, tags)) == len(set.union(*tags)), "a bucket lies on two nodes"


class Mover:
    """Moves a slot from one node to another as `redis-cli --cluster reshard` does, a key at a time."""

    def __init__(self, cluster, clients, slot):
        self.slot = slot
        self.nodes = dict(zip(clients, cluster.nodes, strict=True))
        self.names = {client: client.execute_command("CLUSTER", "MYID").decode() for client in clients}

    def begin(self, source, target):
        target.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.names[source])
        source.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.names[target])

    def move_keys(self, source, target):
        while keys := source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 10):
            port = self.nodes[target].port
            source.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 10_000, "KEYS", *keys)

    def end(self, source, target):
        for client in (target, source, *self.names):
            client.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", self.names[target])


@pytest.fixture
def mover(redis_cluster, clients, slot):
    return Mover(redis_cluster, clients, slot)


@pytest.fixture
def url(redis_cluster, fresh):
    return fresh(redis_cluster)


@pytest.fixture
def slot(url, clients):
    prefix = url.partition("prefix=")[2]
    return clients[0].execute_command("CLUSTER", "KEYSLOT", f"{prefix}:{{97}}:groups")


@pytest.fixture
def ends(slot, clients):
    """The node that has the slot, and another one."""
    for first, last, (_, port, *_) in clients[0].execute_command("CLUSTER", "SLOTS"):
        if first <= slot <= last:
            source = next(client for client in clients if client.connection_pool.connection_kwargs["port"] == port)
            return source, next(client for client in clients if client is not source)
    raise AssertionError("nobody has the slot")


def test_a_group_is_read_and_written_while_its_slot_moves(url, mover, ends):
    """At every stage: about to move, moved but not yet announced (ASK), and announced (MOVED)."""
    source, target = ends
    with safekeeper.open(f"{url}&timeout=60") as store:
        store.write(Batch({SMALL: b"before", LARGE: b"b" * LARGE_SIZE}))
        mover.begin(source, target)
        assert store.read([SMALL, LARGE]) == [b"before", b"b" * LARGE_SIZE]
        mover.move_keys(source, target)
        assert store.read([SMALL, LARGE]) == [b"before", b"b" * LARGE_SIZE]
        assert sorted(store.keys(GROUP)) == [b"large", b"small"]
        assert dict(pair for page in store.scan(GROUP) for pair in page) == {
            SMALL.key: b"before",
            LARGE.key: b"b" * LARGE_SIZE,
        }
        new = [CheckpointId(GROUP, b"new"), CheckpointId(GROUP, b"new and large")]
        creating = [
            threading.Thread(target=store.create, args=(id, b"n" * size, TOKEN))
            for id, size in zip(new, (1, LARGE_SIZE), strict=True)
        ]
        for thread in creating:
            thread.start()
        time.sleep(0.2)
        mover.end(source, target)
        for thread in creating:
            thread.join()
        assert store.read(new) == [b"n", b"n" * LARGE_SIZE]
        assert [store.create(id, b"", TOKEN) for id in new] == [True, True]
        store.write(Batch({SMALL: b"after", LARGE: b"a" * LARGE_SIZE}))
        assert store.read([SMALL, LARGE]) == [b"after", b"a" * LARGE_SIZE]
        assert list(store.groups()) == [GROUP]
    mover.begin(target, source)
    mover.move_keys(target, source)
    mover.end(target, source)


@pytest.mark.crash
def test_nothing_acknowledged_is_lost_by_moving_a_slot_back_and_forth_under_writers(url, mover, ends):
    ids = [CheckpointId(GROUP, b"%d" % n) for n in range(4)]
    acknowledged = dict.fromkeys(ids, 0)
    done = threading.Event()

    def write(store, id):
        while not done.is_set():
            number = acknowledged[id] + 1
            store.write(Batch({id: b"%d".ljust(600_000 if number % 3 == 0 else 10) % number}))
            acknowledged[id] = number

    with safekeeper.open(f"{url}&timeout=120") as store:
        writers = [threading.Thread(target=write, args=(store, id)) for id in ids]
        for writer in writers:
            writer.start()
        source, target = ends
        for _ in range(4):
            mover.begin(source, target)
            mover.move_keys(source, target)
            mover.end(source, target)
            source, target = target, source
            time.sleep(0.2)
        done.set()
        for writer in writers:
            writer.join()
        assert [int(value) for value in store.read(ids)] == list(acknowledged.values())
        assert all(acknowledged.values())


def test_a_cluster_of_which_a_node_is_gone_says_so_and_recovers(tmp_path, fresh):
    with RedisCluster(tmp_path, appendonly="yes", appendfsync="always", cluster_node_timeout="500") as cluster:
        url = fresh(cluster, timeout=2)
        ids = [CheckpointId(f"group{n}", b"key") for n in range(50)]
        with safekeeper.open(url) as store:
            store.write(Batch(dict.fromkeys(ids, b"before")))
            cluster.nodes[2].kill()
            with pytest.raises(
                SafekeeperError, match=r"nothing listens there|does not serve all slots|cannot be reached|hung up"
            ):
                store.write(Batch(dict.fromkeys(ids, b"during")))
            cluster.nodes[2].start()
            when_it_works(lambda: store.write(Batch(dict.fromkeys(ids, b"after"))))
            assert store.read(ids) == [b"after"] * 50


@pytest.mark.parametrize("masters", (1, 3))
def test_a_handle_finds_the_replica_that_has_taken_the_place_of_its_master(tmp_path, fresh, masters):
    """By itself where a majority of masters is left to elect it, else by hand. Not before: the machine may be slow."""
    settings = {"appendonly": "yes", "appendfsync": "always", "cluster_node_timeout": "2000"}
    settings["repl_diskless_sync_delay"] = "0"
    of_replica = {**settings, "cluster_enabled": "yes", "cluster_replica_no_failover": "yes"}
    with (
        RedisCluster(tmp_path, masters=masters, **settings) as cluster,
        RedisServer(tmp_path / "replica", cluster_port=str(free_port()), **of_replica) as replica,
        replica.client() as client,
    ):
        make_replica(client, cluster.nodes[-1])
        ids = [CheckpointId(f"group{n}", b"key") for n in range(50)]
        with safekeeper.open(fresh(cluster)) as store:
            when_it_works(lambda: store.write(Batch(dict.fromkeys(ids, b"before"))))
            wait_for(lambda: in_step(client, cluster.nodes[-1]))
            cluster.nodes[-1].kill()
            if masters == 1:
                client.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
            else:
                client.config_set("cluster-replica-no-failover", "no")
            assert when_it_works(lambda: store.read(ids)) == [b"before"] * 50
            when_it_works(lambda: store.write(Batch(dict.fromkeys(ids, b"after"))))
            assert when_it_works(lambda: store.read(ids)) == [b"after"] * 50


def make_replica(client, master):
    """Make the server of *client* a replica of *master*, and return when it has its data and the master knows it."""
    with master.client() as of_master:
        name = of_master.execute_command("CLUSTER", "MYID")
        bus_port = of_master.config_get("cluster-port")["cluster-port"]
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", master.port, bus_port)
        wait_for(lambda: name in client.execute_command("CLUSTER", "NODES"))
        client.execute_command("CLUSTER", "REPLICATE", name)
        wait_for(lambda: client.info("replication").get("master_link_status") == "up")
        wait_for(lambda: any(len(servers) == 2 for _, _, *servers in of_master.execute_command("CLUSTER", "SLOTS")))


def in_step(replica, master):
    with master.client() as of_master:
        offset = of_master.info("replication")["master_repl_offset"]
    return replica.info("replication")["slave_repl_offset"] >= offset


def wait_for(condition):
    give_up = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.02)
