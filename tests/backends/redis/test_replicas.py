"""Replicas, WAIT and WAITAOF: a write counts when as many as were asked for have it."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, SafekeeperError, Survives, Unavailable
from safekeeper.dev.redis import RedisServer

A = CheckpointId("g", b"a")
ON_DISK = Survives.PROCESS | Survives.OS | Survives.POWER
SYNCED = {"appendonly": "yes", "appendfsync": "always"}


@contextmanager
def master_and_replica(folder, program="redis-server", of_replica=SYNCED):
    with (
        RedisServer(folder / "master", program=program, **SYNCED, repl_diskless_sync_delay="0") as master,
        RedisServer(folder / "replica", program=program, replicaof=f"127.0.0.1 {master.port}", **of_replica) as replica,
        replica.client() as client,
    ):
        wait_until_in_touch(client)
        yield master, replica


def wait_until_in_touch(replica):
    give_up = time.monotonic() + 60
    while replica.info("replication")["master_link_status"] != "up":
        assert time.monotonic() < give_up, "the replica did not find its master"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def pair(servers):
    with master_and_replica(servers / "pair") as pair:
        yield pair


@contextmanager
def stopped(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_write_waits_for_the_replicas_that_were_asked_for(pair, fresh):
    master, replica = pair
    url = fresh(master, replicas=1)
    with safekeeper.open(url) as store, safekeeper.open(url.replace(str(master.port), str(replica.port))) as copy:
        assert store.survives == ON_DISK | Survives.HOST
        for turn in range(50):
            assert store.write(Batch({A: b"%d" % turn})).survives == ON_DISK | Survives.HOST
            assert copy.read([A]) == [b"%d" % turn]


def test_without_being_asked_nobody_waits_and_the_loss_of_a_host_is_not_survived(pair, fresh):
    master, replica = pair
    with safekeeper.open(fresh(master)) as store, stopped(replica):
        assert store.write(Batch({A: b"value"})).survives == ON_DISK


def test_a_replica_that_does_not_confirm_is_unavailable(pair, fresh):
    master, replica = pair
    with safekeeper.open(fresh(master, replicas=1, timeout=2)) as store:
        store.write(Batch({A: b"1"}))
        with (
            stopped(replica),
            pytest.raises(Unavailable, match=r"not enough replicas .* \(\[0\] instead of \[1\]\)"),
        ):
            store.write(Batch({A: b"2"}))
        store.write(Batch({A: b"3"}))


@pytest.mark.parametrize("program", ("redis-server", "valkey-server"))
def test_a_create_waits_for_the_replicas_also_if_only_its_answer_was_lost(tmp_path, fresh, program):
    with master_and_replica(tmp_path, program) as (master, replica):
        url, token = fresh(master), b"0123456789abcdef"
        with (
            safekeeper.open(url) as careless,
            safekeeper.open(f"{url}&replicas=1&timeout=2") as store,
            safekeeper.open(url.replace(str(master.port), str(replica.port))) as copy,
        ):
            store.write(Batch({CheckpointId("g", b"other"): b""}))  # from here on it has a lease
            with stopped(replica):
                assert careless.create(A, b"value", token)
                with pytest.raises(Unavailable, match="not enough replicas"):
                    store.create(A, b"value", token)
            assert store.create(A, b"value", token)
            assert copy.read([A]) == [b"value"]


@pytest.mark.crash
def test_what_was_acknowledged_is_on_the_replica_when_the_master_is_lost_for_good(tmp_path, fresh):
    with master_and_replica(tmp_path) as (master, replica):
        url = fresh(master, replicas=1, timeout=3)
        acknowledged = 0

        def write(store):
            nonlocal acknowledged
            try:
                while True:
                    store.write(Batch({A: b"%d" % (acknowledged + 1)}))
                    acknowledged += 1
            except SafekeeperError:
                pass

        with safekeeper.open(url) as store:
            writing = threading.Thread(target=write, args=[store])
            writing.start()
            while acknowledged < 100 and writing.is_alive():  # it may give up by itself on a slow machine
                time.sleep(0.001)
            master.kill()
            writing.join()
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        prefix = url.partition("prefix=")[2].partition("&")[0]
        with safekeeper.open(f"{replica.url}?prefix={prefix}") as store:
            assert acknowledged <= int(store.read([A])[0] or b"0") <= acknowledged + 1


def test_a_replica_that_is_promoted_while_it_begins_its_file_anew_declares_nothing(tmp_path, fresh):
    """A replica gives up its append-only file when it gets everything from its master, and then writes a new one."""
    with (
        RedisServer(tmp_path / "master", repl_diskless_sync_delay="0") as master,
        RedisServer(tmp_path / "replica", rdb_key_save_delay="100000", **SYNCED) as replica,
        master.client() as old,
        replica.client() as new,
    ):
        old.mset({f"something else {n}": b"" for n in range(3000)})
        new.replicaof("127.0.0.1", master.port)
        wait_until_in_touch(new)
        new.replicaof("NO", "ONE")
        with safekeeper.open(fresh(replica)) as store:
            assert new.info("persistence")["aof_rewrite_in_progress"] == 1
            assert store.write(Batch({A: b"value"})).survives == Survives.NOTHING


def test_a_handle_leaves_a_master_that_became_a_replica_and_follows_the_name_that_led_to_it(tmp_path, fresh, proxy_to):
    """Also with connections that were idle when it happened."""
    with master_and_replica(tmp_path) as (master, replica), master.client() as old, replica.client() as new:
        proxy = proxy_to(master)
        url = fresh(master, replicas=1, timeout=30).replace(str(master.port), str(proxy.port))
        with safekeeper.open(url) as store, ThreadPoolExecutor(4) as pool:
            barrier = threading.Barrier(4)

            def write(number):
                barrier.wait()
                store.write(Batch({CheckpointId("g", b"%d" % number): b"before"}))

            list(pool.map(write, range(4)))
            new.replicaof("NO", "ONE")
            old.replicaof("127.0.0.1", replica.port)
            wait_until_in_touch(old)
            proxy.lead_to(replica.port)
            with pytest.raises(Unavailable, match="is a read-only replica"):
                store.write(Batch({A: b"after"}))
            store.write(Batch({A: b"after"}))
            assert store.read([A, CheckpointId("g", b"0")]) == [b"after", b"before"]


@pytest.mark.parametrize(
    ("appendfsync", "survives", "confirmed"),
    (("always", ON_DISK, True), ("everysec", Survives.NOTHING, True), ("no", Survives.PROCESS, False)),
)
def test_waiting_for_the_file_raises_nothing_above_what_the_server_is_set_to(
    tmp_path, fresh, appendfsync, survives, confirmed
):
    """With everysec the server confirms at once, without having synced: that must not be believed."""
    with (
        RedisServer(tmp_path, program="valkey-server", appendonly="yes", appendfsync=appendfsync) as server,
        safekeeper.open(fresh(server, aof="yes", timeout=1 if not confirmed else 30)) as store,
    ):
        assert store.survives == survives
        if confirmed:
            assert store.write(Batch({A: b"value"})).survives == survives
        else:
            with pytest.raises(Unavailable, match=r"append-only files have it \(\[0, 0\] instead of \[1, 0\]\)"):
                store.write(Batch({A: b"value"}))


@pytest.mark.parametrize("of_replica", (SYNCED, {"appendonly": "no"}), ids=("appends", "does not"))
def test_the_files_of_the_replicas_count_too(tmp_path, fresh, of_replica):
    with (
        master_and_replica(tmp_path, "valkey-server", of_replica) as (master, _),
        safekeeper.open(fresh(master, aof="yes", replicas=1, timeout=30 if of_replica is SYNCED else 2)) as store,
    ):
        if of_replica is SYNCED:
            assert store.write(Batch({A: b"value"})).survives == ON_DISK | Survives.HOST
        else:
            with pytest.raises(Unavailable, match=r"\(\[1, 0\] instead of \[1, 1\]\)"):
                store.write(Batch({A: b"value"}))
