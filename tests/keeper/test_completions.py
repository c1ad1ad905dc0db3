from __future__ import annotations

import logging
import signal
import threading
import time

import pytest

from safekeeper import (
    Backoff,
    BadState,
    Bounds,
    CheckpointId,
    Closed,
    Conflict,
    QueueFull,
    Receipt,
    SafeKeeper,
    SafekeeperError,
    Unavailable,
)
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

A, B, C = (CheckpointId("group", key) for key in (b"a", b"b", b"c"))
QUICK = Backoff(first=0.001, most=0.002)
LARGE = "x" * 10_000
"""Goes through the serialization queue."""


def test_unavailable_is_tried_again_until_the_store_answers(store):
    store.fail("write", times=5)
    with SafeKeeper(store, backoff=QUICK) as keeper:
        keeper.save(A, 1).result()
        assert keeper.fetch(A) == 1
        assert keeper.metrics().retries == 5


def test_unavailable_ends_at_the_deadline_with_what_the_store_said(store, eventually):
    store.fail("write", times=10**9, error=Unavailable("the disk is full"))
    keeper = SafeKeeper(store, backoff=QUICK)
    keeper.save(A, 1, deadline=1000)
    eventually(lambda: keeper.metrics().retries > 0)
    ticket = keeper.save(B, 1, deadline=0.05)
    with pytest.raises(Unavailable, match="the disk is full") as caught:
        ticket.result()
    assert isinstance(caught.value.__cause__, Unavailable)
    assert keeper.metrics().expired == 1
    with pytest.raises(Unavailable, match="1 saves were not stored"):
        keeper.close(0)


def test_a_newer_state_is_written_by_the_next_try(store):
    with store.hold("write") as gate, SafeKeeper(store, backoff=QUICK) as keeper:
        store.fail("write", times=1)
        old = keeper.save(A, "old")
        gate.wait_for(1)
        new = keeper.save(A, "new")
        gate.release()
        old.result()
        new.result()
        assert keeper.fetch(A) == "new"


def test_a_stuck_write_does_not_keep_a_ticket_past_its_deadline(store):
    heard = []
    with SafeKeeper(store) as keeper:
        with store.hold("write") as gate:
            writing = keeper.save(A, 1, deadline=0.05, callback=heard.append)
            gate.wait_for(1)
            queued = keeper.save(B, 1, deadline=0.05, callback=heard.append)
            for ticket in (writing, queued):
                with pytest.raises(Unavailable, match="deadline"):
                    ticket.result(timeout=60)
            later = keeper.save(A, 2)
        later.result()
        assert keeper.fetch(A) == 2, "the stuck write came back and did not win"
    assert sorted(ticket.id for ticket in heard) == [A, B]


def test_deadlines_are_watched_when_nobody_looks(store, eventually):
    heard = []
    with SafeKeeper(store) as keeper, store.hold("write"):
        keeper.save(A, 1, deadline=1000)
        keeper.save(B, 1, deadline=0.05, callback=heard.append)
        eventually(lambda: bool(heard))
        assert isinstance(heard[0].outcome(0), Unavailable)
        assert keeper.metrics().pending == 1


def test_a_superseded_save_has_its_own_deadline(store, eventually):
    """Newer saves of an id go on and on while the store is stuck: they must not put off the older ones for ever."""
    heard = []
    with SafeKeeper(store, serializer=None) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            called = keeper.save(A, b"1", deadline=0.05, callback=heard.append)
            waited = keeper.save(A, b"2", deadline=0.05)
            newest = keeper.save(A, b"3", deadline=1000)
            for ticket in (called, waited):
                with pytest.raises(Unavailable, match="deadline"):
                    ticket.result(timeout=60)
                assert ticket.superseded
            eventually(lambda: heard == [called])
            assert not newest.done()
        newest.result()
        assert keeper.fetch(A) == b"3"
    assert heard == [called]


def test_an_error_of_the_store_is_not_tried_again(store):
    store.fail("write", error=Conflict("another writer took over"))
    with SafeKeeper(store) as keeper:
        with pytest.raises(Conflict, match="took over"):
            keeper.save(A, 1).result()
        keeper.save(A, 2).result()
        assert keeper.metrics().failed == 1
        assert keeper.metrics().stored == 1


@pytest.mark.parametrize("broken", (RuntimeError("a bug"), SystemExit(1)), ids=["error", "exit"])
def test_a_backend_that_breaks_its_contract_fails_the_batch_and_nothing_else(broken):
    class Broken(MemoryBackend):
        def write(self, batch):
            if batch:
                super().write(batch)
            raise broken

    keeper = SafeKeeper(Broken())
    for _ in range(3):
        with pytest.raises(SafekeeperError, match="the backend failed") as caught:
            keeper.save(A, 1).result(timeout=60)
        assert caught.value.__cause__ is broken
    keeper.close()


def test_a_backend_that_promises_nothing_is_an_error():
    class Silent(MemoryBackend):
        def write(self, batch):
            return None

    with SafeKeeper(Silent()) as keeper, pytest.raises(SafekeeperError, match="instead of a Receipt"):
        keeper.save(A, 1).result(timeout=60)


class Touchy:
    """A serializer that raises what it is given."""

    name = "touchy"

    def dumps(self, state):
        if isinstance(state, tuple):
            raise state[0]
        return b"fine"

    def loads(self, data):
        return data.decode()


@pytest.mark.parametrize("error", (ValueError("no"), MemoryError("full")), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("how", ("at once", "in a worker"))
def test_a_serializer_that_raises_fails_its_save_alone(store, error, how):
    with SafeKeeper(store, serializer=Touchy()) as keeper:
        lock = threading.Lock() if how == "in a worker" else None
        bad = keeper.save(A, (error,), lock=lock)
        good = keeper.save(B, "state", lock=lock)
        with pytest.raises(BadState, match="touchy cannot serialize this tuple"):
            bad.result()
        good.result()
        assert keeper.fetch(A) is None
        assert keeper.fetch(B) == "fine"
        if lock:
            assert lock.acquire(blocking=False), "the lock was given back"


def test_none_is_no_state(store):
    """Or it could not be told from an id that is not there."""
    with SafeKeeper(store) as keeper:
        for lock in (None, threading.Lock()):
            with pytest.raises(BadState, match="None is what fetch says"):
                keeper.save(A, None, lock=lock).result()


def test_a_worker_survives_a_serializer_that_exits(store):
    with SafeKeeper(store, serializer=Touchy()) as keeper:
        with pytest.raises(SafekeeperError, match="the serializer failed"):
            keeper.save(A, (SystemExit(1),), lock=threading.Lock()).result(timeout=60)
        keeper.save(A, "state", lock=threading.Lock()).result(timeout=60)


def test_an_error_that_cannot_be_shown_fails_its_save_alone(store):
    class Shy(BaseException):
        def __repr__(self):
            raise ValueError("not even that")

    with SafeKeeper(store, serializer=Touchy()) as keeper:
        with pytest.raises(SafekeeperError, match="the serializer failed: Shy"):
            keeper.save(A, (Shy(),), lock=threading.Lock()).result(timeout=60)
        keeper.save(A, "state", lock=threading.Lock()).result(timeout=60)


def test_a_log_handler_that_raises_harms_nobody(store, capfd):
    class Broken(logging.Handler):
        def emit(self, record):
            raise ZeroDivisionError(record.getMessage())

    def broken(ticket):
        raise ValueError("no")

    handler = Broken()
    logging.getLogger("safekeeper").addHandler(handler)
    try:
        with SafeKeeper(store, backoff=QUICK) as keeper:
            store.fail("write")
            keeper.save(A, 1, callback=broken).result(timeout=60)
            keeper.save(A, 2).result(timeout=60)
    finally:
        logging.getLogger("safekeeper").removeHandler(handler)
    shown = capfd.readouterr().err
    assert "ZeroDivisionError: the store does not answer" in shown
    assert "ZeroDivisionError: group/a: the callback of a save raised" in shown


@pytest.mark.parametrize(
    "error", (ValueError("no"), SystemExit(1), KeyboardInterrupt()), ids=lambda e: type(e).__name__
)
def test_a_callback_that_raises_is_logged_and_harms_nobody(store, error, caplog):
    def broken(ticket):
        raise error

    def save():
        with SafeKeeper(store) as keeper:
            for _ in range(3):
                keeper.save(A, 1, callback=broken).result(timeout=60)
            keeper.flush()
        errors.append(keeper.metrics().callback_errors)

    errors: list[int] = []
    saving = threading.Thread(target=save)  # in the main thread Ctrl-C is the caller's, who may call back as well
    saving.start()
    saving.join()
    assert errors == [3]
    assert "group/a: the callback of a save raised" in caplog.text


def test_an_interrupt_in_a_callback_reaches_the_caller_and_the_other_callbacks_are_called(store, eventually):
    """Ctrl-C comes to the main thread, and callbacks of rejected saves run there."""
    heard = []

    def interrupted(ticket):
        heard.append(ticket)
        raise KeyboardInterrupt

    with SafeKeeper(store, serializer=None, overflow="drop-oldest", storage_queue=Bounds(2, 100)) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            keeper.save(B, b"1", callback=interrupted)
            keeper.save(C, b"1", callback=heard.append)
            with pytest.raises(KeyboardInterrupt):
                keeper.save(A, bytes(98))
            eventually(lambda: [ticket.id for ticket in heard] == [B, C])
        keeper.save(A, b"2").result()


def test_a_save_that_is_interrupted_while_it_waits_for_room_holds_up_nobody(store, eventually):
    keeper = SafeKeeper(store, overflow="block", storage_queue=Bounds(count=1))
    queue = keeper._pipeline.storage.queue
    heard = []

    def interrupt() -> None:
        eventually(lambda: queue.blocked == 1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with store.hold("write") as gate:
        keeper.save(A, 1)
        gate.wait_for(1)
        keeper.save(B, 1)
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            keeper.save(C, 1, callback=heard.append)
        interrupting.join()
        assert queue.blocked == 0
        (ticket,) = heard
        with pytest.raises(Unavailable, match="interrupted"):
            ticket.result(timeout=0)
    keeper.close()
    assert store.inner.read([A, B, C])[2] is None
    assert (keeper.metrics().stored, keeper.metrics().failed) == (2, 1)


def test_callbacks_may_save_and_never_wait(store):
    """A worker that waited in a callback for room in its own queue would wait for itself."""
    outcomes = []

    def save_more(ticket):
        tickets = [keeper.save(id, b"1") for id in (A, B, C)]
        assert isinstance(tickets[2].outcome(), QueueFull)
        for wait in (keeper.flush, keeper.close, tickets[0].result):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                wait()
        outcomes.extend(tickets)

    keeper = SafeKeeper(store, serializer=None, overflow="block", storage_queue=Bounds(count=2))
    with store.hold("write") as gate:
        first = keeper.save(A, b"0", callback=save_more)
        gate.wait_for(1)
    first.result()
    keeper.flush()
    keeper.close()
    assert [isinstance(ticket.outcome(), Receipt) for ticket in outcomes] == [True, True, False]


def test_a_callback_that_saves_again_whatever_happens_does_not_stop_the_world(store, eventually):
    """With a full queue each of its saves is rejected at once, which calls it again."""
    calls = []

    def again(ticket):
        calls.append(ticket)
        if isinstance(ticket.outcome(), QueueFull) and len(calls) < 1000:
            keeper.save(A, b"1", callback=again)

    with SafeKeeper(store, serializer=None, overflow="reject", storage_queue=Bounds(count=1)) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, b"0")
            gate.wait_for(1)
            keeper.save(B, b"0")
            keeper.save(A, b"1", callback=again)
            eventually(lambda: len(calls) > 10)
        eventually(lambda: isinstance(calls[-1].outcome(), Receipt))


def test_a_timeout_of_result_leaves_the_save_alone(store):
    with SafeKeeper(store) as keeper:
        with store.hold("write"):
            ticket = keeper.save(A, 1)
            for _ in range(100):
                with pytest.raises(TimeoutError, match="still tried"):
                    ticket.result(timeout=0.0001)
            assert not ticket.carrier.waiters, "those who gave up are forgotten"
        ticket.result()


def test_many_threads_may_wait_for_one_ticket(store):
    with SafeKeeper(store) as keeper:
        receipts: list[Receipt] = []
        with store.hold("write") as gate:
            ticket = keeper.save(A, LARGE)
            gate.wait_for(1)
            waiting = [threading.Thread(target=lambda: receipts.append(ticket.result(60))) for _ in range(20)]
            for thread in waiting:
                thread.start()
        for thread in waiting:
            thread.join()
        assert len(receipts) == 20


def test_a_waiter_follows_a_save_that_is_coalesced_in_the_second_queue(store, eventually):
    lock = threading.Lock()
    with SafeKeeper(store) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, "0")
            gate.wait_for(1)
            keeper.save(A, "waits in the storage queue")
            with lock:
                ticket = keeper.save(A, ["newest"], lock=lock)
                waiting = threading.Thread(target=ticket.result)
                waiting.start()
                eventually(lambda: bool(ticket.carrier.waiters))
            eventually(lambda: keeper.metrics().superseded == 1)
            assert not ticket.done()
            assert not ticket.superseded
        waiting.join()
        assert keeper.fetch(A) == ["newest"]


def test_close_stores_what_is_queued(store):
    keeper = SafeKeeper(store)
    tickets = [keeper.save(CheckpointId("group", b"%d" % n), LARGE) for n in range(100)]
    keeper.close()
    assert all(ticket.done() for ticket in tickets)
    assert len(list(store.keys("group"))) == 100
    for refused in (lambda: keeper.save(A, 1), lambda: keeper.forget(A), lambda: keeper.fetch(A)):
        with pytest.raises(Closed, match="was closed"):
            refused()
    keeper.close()


def test_close_gives_up_after_its_deadline_and_says_so(store):
    keeper = SafeKeeper(store, overflow="block", storage_queue=Bounds(count=1))
    heard = []
    with store.hold("write") as gate:
        tickets = [keeper.save(A, 1, callback=heard.append)]
        gate.wait_for(1)
        tickets.append(keeper.save(B, 1, callback=heard.append))
        blocked = threading.Thread(target=lambda: tickets.append(keeper.save(C, 1, callback=heard.append)))
        blocked.start()
        while not keeper._pipeline.storage.queue.blocked:
            time.sleep(0.001)
        with pytest.raises(Unavailable, match="3 saves were not stored"):
            keeper.close(0.05)
        blocked.join()
        for ticket in tickets:
            with pytest.raises(Closed):
                ticket.result(timeout=0)
    assert len(heard) == 3
    assert keeper.metrics().closed == 3


def test_a_keeper_closes_the_backend_that_it_opened_and_no_other():
    with SafeKeeper("memory:") as keeper:
        opened = keeper.backend
    with pytest.raises(Closed):
        opened.read([])
    with MemoryBackend() as mine:
        SafeKeeper(mine).close()
        mine.read([])


def test_flush_waits_for_what_was_saved_before_and_not_for_what_comes(store):
    stop = threading.Event()
    with SafeKeeper(store) as keeper:

        def go_on_saving():
            while not stop.is_set():
                keeper.save(A, 1)

        saver = threading.Thread(target=go_on_saving)
        saver.start()
        ticket = keeper.save(B, 1)
        keeper.flush(timeout=60)
        assert ticket.done()
        stop.set()
        saver.join()
        with store.hold("write"):
            keeper.save(A, 1)
            with pytest.raises(TimeoutError):
                keeper.flush(timeout=0.01)


def test_idle_threads_end_and_come_back(store, eventually):
    with SafeKeeper(store, keep_alive=0.02) as keeper:
        stages = (keeper._pipeline.serialization, keeper._pipeline.storage)
        for _ in range(3):
            keeper.save(A, LARGE).result()
            eventually(lambda: not any(stage.threads for stage in stages))


def test_without_threads_a_save_fails_and_says_why(store, monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    keeper = SafeKeeper(store)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for state in (1, LARGE):
            with pytest.raises(Unavailable, match="no thread to store it"):
                keeper.save(A, state).result(timeout=0)
    keeper.save(A, 2).result()
    keeper.close()


def test_a_lock_that_is_not_free_in_time_fails_the_save_and_says_what_to_do(store):
    lock = threading.Lock()
    with SafeKeeper(store, lock_timeout=0.02) as keeper:
        with lock, pytest.raises(Unavailable, match="call save after giving the lock back"):
            keeper.save(A, [1], lock=lock).result()
        keeper.save(A, [2], lock=lock).result()
        assert keeper.fetch(A) == [2]


def test_warnings_say_what_to_do_and_do_not_repeat_themselves(store, caplog):
    caplog.set_level(logging.WARNING, "safekeeper")
    store.fail("write", times=20)
    bounds = Bounds(count=1)
    with SafeKeeper(store, serializer=None, overflow="reject", backoff=QUICK, storage_queue=bounds) as keeper:
        keeper.save(A, b"1").result()
        with store.hold("write") as gate:
            keeper.save(A, b"1")
            gate.wait_for(1)
            for _ in range(100):
                keeper.save(B, b"1")
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "the store does not answer" in line]) == 1
    assert len([line for line in lines if "the store answers again, after 20 failed tries" in line]) == 1
    assert len([line for line in lines if "rejected" in line and "overflow='coalesce'" in line]) == 1


@pytest.mark.parametrize(
    "settings",
    (
        {"overflow": "sometimes"},
        {"serializer": "xml"},
        {"compression": "zip"},
        {"schema": 70_000},
        {"storage_workers": 0},
        {"serialization_workers": 0},
        {"fetch_threads": 0},
    ),
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_make_no_sense_are_refused_and_leave_nothing_open(settings, monkeypatch):
    opened: list[MemoryBackend] = []
    monkeypatch.setattr("safekeeper.registry.open", lambda url: opened.append(MemoryBackend()) or opened[0])
    with pytest.raises(ValueError, match=r"\w"):
        SafeKeeper("memory:", **settings)
    for backend in opened:
        with pytest.raises(Closed):
            backend.read([])


def test_saves_from_many_threads_all_complete():
    with Faulty(MemoryBackend()) as store, SafeKeeper(store, backoff=QUICK, storage_workers=2) as keeper:
        heard: list[object] = []

        def save_many(thread: int) -> None:
            for n in range(500):
                state = LARGE if n % 3 == 0 else n
                keeper.save(CheckpointId("group", b"%d" % (n % 7)), state, callback=heard.append)
                if n % 50 == thread:
                    store.fail("write")

        threads = [threading.Thread(target=save_many, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keeper.flush()
        keeper.close()
        assert len(heard) == len(set(map(id, heard))) == 4000
        metrics = keeper.metrics()
        assert metrics.saves == metrics.stored + metrics.superseded == 4000
