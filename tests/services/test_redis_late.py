"""A write that is held up on its way never undoes a newer one that was acknowledged."""

import os
import signal
import threading
import time

import pytest

import safekeeper
from safekeeper import Batch, CheckpointId, Unavailable
from safekeeper.dev.redis import RedisServer

A = CheckpointId("g", b"a")
TIMEOUT = 2.5


@pytest.fixture
def store(redis_always, fresh):
    with safekeeper.open(fresh(redis_always)) as store:
        yield store


@pytest.fixture
def proxy(redis_always, proxy_to):
    return proxy_to(redis_always)


@pytest.fixture
def behind_proxy(store, proxy):
    url = f"{proxy.url}?prefix={store._options.prefix}&timeout={TIMEOUT}"
    with safekeeper.open(url) as behind_proxy:
        behind_proxy.write(Batch({A: b"first"}))
        yield behind_proxy


def commands_processed(server):
    with server.client() as client:
        return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def wait_until_it_arrived(server, before):
    give_up = time.monotonic() + 60
    while commands_processed(server) == before:
        assert time.monotonic() < give_up, "the command that was held back never arrived"
        time.sleep(0.01)


@pytest.mark.parametrize("size", (5, 300_000), ids=("small", "in parts"))
def test_a_write_that_arrives_after_a_newer_one_does_nothing(redis_always, store, behind_proxy, proxy, size):
    proxy.hold()
    with pytest.raises(Unavailable, match="did not answer in time"):
        behind_proxy.write(Batch({A: b"x" * size}))
    store.write(Batch({A: b"newer"}))
    before = commands_processed(redis_always)
    proxy.release()
    wait_until_it_arrived(redis_always, before)
    assert store.read([A]) == [b"newer"]


def test_a_late_delete_does_nothing_either(redis_always, store, behind_proxy, proxy):
    late = Batch()
    late.delete(A)
    proxy.hold()
    with pytest.raises(Unavailable):
        behind_proxy.write(late)
    store.write(Batch({A: b"newer"}))
    before = commands_processed(redis_always)
    proxy.release()
    wait_until_it_arrived(redis_always, before)
    assert store.read([A]) == [b"newer"]


def test_a_write_whose_connection_breaks_raises_only_when_it_cannot_happen_any_more(
    redis_always, store, behind_proxy, proxy
):
    proxy.hold()
    threading.Thread(target=lambda: (proxy.wait_for_held(1), proxy.cut())).start()
    with pytest.raises(Unavailable):
        behind_proxy.write(Batch({A: b"late"}))
    store.write(Batch({A: b"newer"}))
    before = commands_processed(redis_always)
    proxy.release()
    wait_until_it_arrived(redis_always, before)
    assert store.read([A]) == [b"newer"]


def test_the_same_handle_goes_on_after_a_time_out(behind_proxy, proxy):
    proxy.hold()
    with pytest.raises(Unavailable):
        behind_proxy.write(Batch({A: b"late"}))
    proxy.release()
    behind_proxy.write(Batch({A: b"newer"}))
    assert behind_proxy.read([A]) == [b"newer"]


def test_a_server_that_was_stopped_does_not_catch_up_on_what_was_given_up(servers, fresh):
    with (
        RedisServer(servers / "stopped") as server,
        safekeeper.open(fresh(server, timeout=TIMEOUT)) as store,
    ):
        store.write(Batch({A: b"first"}))
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable, match="did not answer in time"):
                store.write(Batch({A: b"late"}))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert store.read([A]) == [b"first"]


def test_a_write_that_is_merely_slow_succeeds(behind_proxy, proxy):
    proxy.hold()
    threading.Thread(target=lambda: (proxy.wait_for_held(1), time.sleep(0.3), proxy.release())).start()
    behind_proxy.write(Batch({A: b"slow"}))
    assert behind_proxy.read([A]) == [b"slow"]
