"""A thread that waits for its save writes it itself where that makes no difference to anybody else."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from safekeeper import (
    Backoff,
    CheckpointId,
    Closed,
    Conflict,
    Receipt,
    SafeKeeper,
    SafekeeperError,
    Scope,
    Unavailable,
    claims,
)
from safekeeper.backends.memory import MemoryBackend
from safekeeper.keeper.stage import Stage
from safekeeper.keeper.writing import BatchWriter
from safekeeper.testing import Faulty

A, B, C = (CheckpointId("group", key) for key in (b"a", b"b", b"c"))


class Recording(MemoryBackend):
    """Remembers which thread made each write, and how many were at it at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[str] = []
        self.at_once = self.most_at_once = 0
        self.closed = threading.Event()

    def write(self, batch):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.writers.append(threading.current_thread().name)
        time.sleep(0)  # another thread may come now
        try:
            return super().write(batch)
        finally:
            self.at_once -= 1

    def close(self):
        super().close()
        self.closed.set()


@pytest.fixture
def inner():
    return Recording()


@pytest.fixture
def store(inner):
    return Faulty(inner)


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    """Lets the worker look for work, not before it is set: so it does not depend on luck who writes."""
    may_look, look = threading.Event(), Stage._next

    def next_(self):
        may_look.wait()
        return look(self)

    monkeypatch.setattr(Stage, "_next", next_)
    yield may_look
    may_look.set()


def in_thread(call, name="waiting"):
    """What *call* returns or raises, in another thread."""
    found: list = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.found = found
    thread.start()
    return thread


def result(thread):
    thread.join(60)
    (found,) = thread.found
    return found


def test_a_thread_that_waits_for_its_save_writes_it(inner, store, worker):
    with SafeKeeper(store) as keeper:
        assert isinstance(result(in_thread(lambda: keeper.save(A, [1]).result())), Receipt)
        assert keeper.metrics().stored == 1
        worker.set()
    assert inner.writers == ["waiting"]


@pytest.mark.parametrize(
    ("save", "options"),
    (
        (lambda keeper: keeper.save(A, [1]).result(timeout=60), {}),
        (lambda keeper: keeper.save(A, [1], deadline=60).result(), {}),
        (lambda keeper: keeper.save(A, [1]).result(), {"deadline": 30}),
        (lambda keeper: keeper.save(A, [1]).result(), {"storage_workers": 2}),
        (lambda keeper: keeper.save(A, [1], callback=lambda _: None).result(), {}),
        (lambda keeper: keeper.save(A, [1]).result(), {"listener": lambda _: None}),
    ),
    ids=("timeout", "deadline", "deadline of the keeper", "two workers", "callback", "listener"),
)
def test_whoever_asks_for_something_else_leaves_it_to_the_worker(inner, store, save, options, worker):
    with SafeKeeper(store, **options) as keeper:
        waiting = in_thread(lambda: save(keeper))
        waiting.join(0.2)
        assert waiting.is_alive()
        worker.set()
        assert isinstance(result(waiting), Receipt)
    assert inner.writers == ["safekeeper-store"]


def test_the_main_thread_leaves_it_to_the_worker(inner, store, worker):
    """Ctrl-C comes there, and no write is to be interrupted."""
    with SafeKeeper(store) as keeper:
        ticket = keeper.save(A, [1])
        threading.Timer(0.2, worker.set).start()
        ticket.result()
    assert inner.writers == ["safekeeper-store"]


def test_a_store_on_the_network_is_left_to_the_worker(inner, store, worker):
    store.scope = Scope.NETWORK
    with SafeKeeper(store) as keeper:
        waiting = in_thread(lambda: keeper.save(A, [1]).result())
        waiting.join(0.2)
        worker.set()
        assert isinstance(result(waiting), Receipt)
    assert inner.writers == ["safekeeper-store"]


def test_what_comes_meanwhile_is_written_afterwards_by_the_worker(inner, store, worker):
    with SafeKeeper(store, overflow="block") as keeper:
        with store.hold("write") as gate:
            first = in_thread(lambda: keeper.save(A, ["first"]).result())
            gate.wait_for(1)
            others = [keeper.save(A, ["second"]), keeper.save(B, ["b"])]
            waiting = in_thread(lambda: keeper.save(C, ["c"]).result(), "too late")
            worker.set()
            waiting.join(0.2)
            assert store.calls["write"] == 1, "one writer at a time"
        assert isinstance(result(first), Receipt)
        assert isinstance(result(waiting), Receipt)
        for ticket in others:
            ticket.result()
        assert keeper.fetch(A) == ["second"]
    assert inner.writers == ["waiting", "safekeeper-store"]


@pytest.mark.parametrize("when", ("before", "after"))
def test_a_store_that_is_away_is_tried_again_by_the_worker(inner, store, when, worker, eventually):
    store.fail("write", when=when, times=2)
    with SafeKeeper(store, backoff=Backoff(first=0.001)) as keeper:
        waiting = in_thread(lambda: keeper.save(A, [1]).result())
        eventually(lambda: keeper.metrics().retries == 1)
        worker.set()
        assert isinstance(result(waiting), Receipt)
        metrics = keeper.metrics()
        assert (metrics.retries, metrics.stored, metrics.storage_queue_entries) == (2, 1, 0)
    assert inner.writers[-1] == "safekeeper-store"


@pytest.mark.parametrize("error", (Conflict("somebody else's"), ValueError("broken")), ids=("Conflict", "ValueError"))
def test_what_the_store_says_is_the_outcome(store, error, worker):
    store.fail("write", error=error)
    with SafeKeeper(store) as keeper:
        found = result(in_thread(lambda: keeper.save(A, [1]).result()))
        assert isinstance(found, SafekeeperError)
        assert str(error) in str(found)
        assert keeper.metrics().failed == 1
        assert isinstance(result(in_thread(lambda: keeper.save(A, [2]).result())), Receipt)
        worker.set()


def test_a_guarded_group_that_somebody_took_acknowledges_nothing(store, worker):
    with SafeKeeper(store) as keeper:
        claim = claims.take(store, "group")
        keeper.guard(claim, "group")
        assert isinstance(result(in_thread(lambda: keeper.save(A, [1]).result())), Receipt)
        claims.take(store, "group")
        assert isinstance(result(in_thread(lambda: keeper.save(A, [2]).result())), Conflict)
        worker.set()


def test_when_the_store_hangs_everybody_else_is_told_in_time(store, monkeypatch, eventually, worker):
    monkeypatch.setattr("safekeeper.keeper.writing._PATIENT", 0.1)
    keeper = SafeKeeper(store, deadline=0.2)
    with store.hold("write") as gate:
        stuck = in_thread(lambda: keeper.save(A, [1]).result())
        gate.wait_for(1)
        worker.set()
        with pytest.raises(Unavailable, match="within its deadline"):
            keeper.save(A, [2]).result()
        with pytest.raises(Unavailable, match="within its deadline"):
            keeper.save(B, [3]).result(timeout=60)
        eventually(lambda: keeper.metrics().pending == 0)
        assert stuck.is_alive(), "it comes back with the store"
    found = result(stuck)
    assert isinstance(found, Unavailable)
    keeper.close()


def test_closing_does_not_close_the_store_under_somebody_who_writes(inner, store, monkeypatch, worker):
    monkeypatch.setattr("safekeeper.registry.open", lambda url: store)  # so that it is the keeper's to close
    keeper = SafeKeeper("stuck:")
    with store.hold("write") as gate:
        stuck = in_thread(lambda: keeper.save(A, [1]).result())
        gate.wait_for(1)
        worker.set()
        with pytest.raises(Unavailable):
            keeper.close(0.1)
        assert not inner.closed.wait(0.1)
    assert isinstance(result(stuck), Closed)
    assert inner.closed.wait(60)


def test_closing_waits_for_somebody_who_has_written_and_is_about_to_leave(inner, store, monkeypatch, worker):
    """Else the store would be closed in the background, and whoever opens it next would find it in use."""
    monkeypatch.setattr("safekeeper.registry.open", lambda url: store)
    monkeypatch.setattr("safekeeper.keeper.pipeline._GRACE", 60.0)
    may_leave, write = threading.Event(), BatchWriter._write

    def write_and_wait(self, entries, again):
        found = write(self, entries, again)
        may_leave.wait()
        return found

    monkeypatch.setattr(BatchWriter, "_write", write_and_wait)
    keeper = SafeKeeper("left:")
    ticket = keeper.save(A, [1])
    waiting = in_thread(ticket.result)
    assert isinstance(ticket.result(timeout=60), Receipt)
    worker.set()
    threading.Timer(0.2, may_leave.set).start()
    keeper.close()
    assert inner.closed.is_set()
    assert isinstance(result(waiting), Receipt)


@pytest.mark.parametrize("where", ("_refuse", "_count_batch"), ids=("before", "after"))
def test_a_thread_that_is_ended_around_its_write_leaves_the_save_to_the_worker(store, monkeypatch, worker, where):
    """As those do who raise an exception in the threads of others, to limit their time."""

    class Ended(BaseException):
        pass

    def end(self, *_):
        monkeypatch.undo()
        raise Ended

    with SafeKeeper(store) as keeper:
        first = keeper.save(A, [1])
        keeper.guard(claims.take(store, "group"), "group")
        monkeypatch.setattr(BatchWriter, where, end)
        assert isinstance(result(in_thread(first.result)), Ended)
        worker.set()
        assert isinstance(first.result(timeout=60), Receipt)
        assert isinstance(keeper.save(A, [2]).result(timeout=60), Receipt)
        assert keeper.fetch(A) == [2]


def test_a_child_that_is_forked_meanwhile_can_tell(store, worker):
    with SafeKeeper(store) as keeper:
        with store.hold("write") as gate:
            writing = in_thread(lambda: keeper.save(A, [1]).result())
            gate.wait_for(1)
            worker.set()
            child = os.fork()
            if child == 0:
                try:
                    keeper.save(B, [2])
                except Closed:
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        assert isinstance(result(writing), Receipt)


@pytest.mark.parametrize("overflow", ("coalesce", "block", "drop-oldest", "reject"))
def test_many_threads_keep_the_order_of_each_id(overflow, long_form, worker):
    """Each thread has ids of its own, waits for some of its saves, and finds what it saved last."""
    worker.set()
    inner = Recording()
    store = Faulty(inner)
    rounds = 2000 if long_form else 200

    def work(keeper, number):
        dice = random.Random(number)
        saved = Counter()
        for n in range(rounds):
            id = CheckpointId("group", b"%d-%d" % (number, dice.randrange(3)))
            ticket = keeper.save(id, [n])
            saved[id] = n
            if dice.random() < 0.7:
                assert isinstance(ticket.result(), Receipt)
            if dice.random() < 0.1:
                store.fail("write", times=1)
            if dice.random() < 0.2:
                assert keeper.fetch(id) == [n]
        return saved

    with SafeKeeper(store, overflow=overflow, backoff=Backoff(first=0.0001, most=0.001)) as keeper:
        with ThreadPoolExecutor(4, thread_name_prefix="waiting") as pool:
            results = list(pool.map(lambda number: work(keeper, number), range(4)))
        keeper.flush()
        for saved in results:
            for id, n in saved.items():
                assert keeper.fetch(id) == [n]
        metrics = keeper.metrics()
        assert metrics.saves == metrics.stored + metrics.superseded == 4 * rounds
    assert inner.most_at_once == 1
    assert {name.partition("_")[0] for name in inner.writers} >= {"waiting"}


@pytest.fixture
def used_to_it(store, worker, eventually, monkeypatch):
    """A keeper whose worker is not woken by a save, since those who saved before waited and wrote it themselves."""
    monkeypatch.setattr("safekeeper.keeper.stage._LENT_AGAIN", 60.0)
    worker.set()
    with SafeKeeper(store) as keeper:

        def looks() -> bool:
            assert isinstance(result(in_thread(lambda: keeper.save(A, [0]).result())), Receipt)
            return keeper._pipeline.storage.looks

        eventually(looks)
        yield keeper


def test_a_save_that_nobody_waits_for_is_stored_all_the_same(used_to_it, eventually):
    ticket = used_to_it.save(B, [1])
    eventually(ticket.done)
    assert isinstance(ticket.result(), Receipt)


def test_several_saves_that_nobody_waits_for_are_stored_all_the_same(used_to_it, eventually):
    tickets = [used_to_it.save(id, [1]) for id in (A, B, C, A)]
    eventually(lambda: all(ticket.done() for ticket in tickets))
    assert used_to_it.fetch(A) == [1]


@pytest.mark.parametrize("wait", (None, 60), ids=("", "timeout"))
def test_whoever_waits_and_does_not_write_wakes_the_worker(used_to_it, wait, monkeypatch, eventually):
    """Also if the worker would not look by itself for a long time."""
    monkeypatch.setattr("safekeeper.keeper.stage._LOOK", 3600.0)
    time.sleep(0.02)  # it looks once more, and then waits so long
    eventually(lambda: used_to_it._pipeline.storage.looks)
    used_to_it.save(B, [1]).result(wait)
    eventually(lambda: used_to_it._pipeline.storage.looks)

    async def save():
        await used_to_it.save(C, [1])

    asyncio.run(save())
    used_to_it.save(A, [1])
    used_to_it.flush()
    monkeypatch.setattr("safekeeper.keeper.stage._LENT_AGAIN", 0.0)


def test_closing_stores_what_nobody_waits_for(store, used_to_it):
    used_to_it.save(B, [1])
    used_to_it.close()
    assert store.read([B]) != [None]
