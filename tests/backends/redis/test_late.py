"""A write that is held up on its way never undoes a newer one that was acknowledged."""

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial

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


@pytest.fixture
def let_it_arrive(redis_always, proxy):
    """Releases what the proxy holds back, and returns when the server has carried out, or refused, a command of it."""

    def calls(command):
        with redis_always.client() as client:
            return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]

    def let_it_arrive(command):
        before = calls(command)
        proxy.release()
        give_up = time.monotonic() + 60
        while calls(command) == before:
            assert time.monotonic() < give_up, "the command that was held back never arrived"
            time.sleep(0.01)

    return let_it_arrive


@pytest.fixture
def give_up_on(behind_proxy, proxy):
    """Makes a change that does not arrive. The lease is from an earlier one, so it is the change that is held back."""

    def give_up_on(change, sent, break_it=None):
        if isinstance(change, Batch):
            change = partial(behind_proxy.write, change)
        while True:
            behind_proxy.write(Batch({A: b"first"}))
            proxy.hold()
            if break_it:
                threading.Thread(target=break_it).start()
            with pytest.raises(Unavailable):
                change()
            if sent.upper().encode() in proxy.held:
                return
            proxy.release()  # the machine was so slow that the lease was over

    return give_up_on


FORMS = pytest.mark.parametrize(
    ("late", "sent"), ((b"late", "evalsha"), (b"late" * 5000, "exec")), ids=("as a script", "as a transaction")
)


@FORMS
def test_a_write_that_arrives_after_a_newer_one_does_nothing(store, give_up_on, let_it_arrive, late, sent):
    give_up_on(Batch({A: late}), sent)
    store.write(Batch({A: b"newer" * 5000}))
    let_it_arrive(sent)
    assert store.read([A]) == [b"newer" * 5000]


def test_a_late_delete_does_nothing_either(store, give_up_on, let_it_arrive):
    late = Batch()
    late.delete(A)
    give_up_on(late, "evalsha")
    store.write(Batch({A: b"newer"}))
    let_it_arrive("evalsha")
    assert store.read([A]) == [b"newer"]


def test_a_late_create_does_nothing_either(store, behind_proxy, give_up_on, let_it_arrive):
    id = CheckpointId("g", b"created")
    give_up_on(partial(behind_proxy.create, id, b"late", b"0123456789abcdef"), "eval")
    store.write(Batch({id: b"written"}))
    gone = Batch()
    gone.delete(id)
    store.write(gone)
    let_it_arrive("eval")
    assert store.read([id]) == [None]


def test_chunks_that_arrive_late_do_nothing_and_expire(redis_always, store, behind_proxy, proxy, let_it_arrive):
    proxy.hold()
    with pytest.raises(Unavailable, match="did not answer in time"):
        behind_proxy.write(Batch({A: bytes(600_000)}))
    store.write(Batch({A: b"newer"}))
    let_it_arrive("set")
    assert store.read([A]) == [b"newer"]
    with redis_always.client() as client:
        chunks = list(client.scan_iter(f"{store._options.prefix}:*:part:*"))
        assert chunks
        assert all(0 < client.ttl(chunk) <= 3600 for chunk in chunks)


def test_a_write_whose_connection_breaks_raises_when_it_cannot_happen_any_more(store, proxy, give_up_on, let_it_arrive):
    """Nobody else can be reached either, so its lease has to expire."""
    give_up_on(Batch({A: b"late"}), "evalsha", break_it=lambda: (proxy.wait_for_held(), proxy.cut()))
    store.write(Batch({A: b"newer"}))
    let_it_arrive("evalsha")
    assert store.read([A]) == [b"newer"]


@FORMS
def test_a_write_whose_connection_breaks_is_made_again_where_its_lease_can_be_taken_away(
    store, proxy, let_it_arrive, late, sent
):
    with safekeeper.open(f"{proxy.url}?prefix={store._options.prefix}&timeout=200") as patient:
        patient.write(Batch({A: b"first"}))
        proxy.hold()

        def break_it():
            proxy.wait_for_held(sent.upper().encode())
            proxy.let_others_through()
            proxy.cut()

        threading.Thread(target=break_it).start()
        patient.write(Batch({A: late}))  # were it to wait for its lease to expire, the test would be killed
        assert store.read([A]) == [late]
        store.write(Batch({A: b"newer"}))
        let_it_arrive(sent)
        assert store.read([A]) == [b"newer"]


@pytest.fixture
def login(redis_always):
    """A user who may not delete keys but by a script."""
    rights = ["+@read", "+@write", "+@transaction", "+@scripting", "-del"]
    with redis_always.client() as client:
        client.acl_setuser("user", enabled=True, reset=True, passwords=["+p"], keys=["*"], commands=rights)
        yield "user:p@"
        client.acl_deluser("user")


def test_a_lease_that_cannot_be_taken_away_has_to_expire(store, proxy, login, let_it_arrive):
    url = f"{proxy.url}?prefix={store._options.prefix}&timeout={TIMEOUT}"
    with safekeeper.open(url.replace("://", f"://{login}")) as behind:
        while True:
            behind.write(Batch({A: b"first"}))
            proxy.hold()
            breaking = threading.Thread(target=lambda: (proxy.wait_for_held(), proxy.let_others_through(), proxy.cut()))
            breaking.start()
            with suppress(Unavailable):
                behind.write(Batch({A: b"late"}))
            breaking.join()
            if b"EVALSHA" in proxy.held:
                break
            proxy.release()  # as in `give_up_on`
        store.write(Batch({A: b"newer"}))
        let_it_arrive("evalsha")
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
    threading.Thread(target=lambda: (proxy.wait_for_held(), time.sleep(0.3), proxy.release())).start()
    behind_proxy.write(Batch({A: b"slow"}))
    assert behind_proxy.read([A]) == [b"slow"]
