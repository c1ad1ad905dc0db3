"""Forks, the end of the process, and what may be left over."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Bounds, Checkpointed, CheckpointId, Closed, SafeKeeper
from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

A, B = (CheckpointId("group", key) for key in (b"a", b"b"))

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def in_child(check) -> None:
    """Run *check* in a forked child; fail here if it raises there or does not come to an end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
        finally:
            os._exit(code)
    until = time.monotonic() + 60
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < until, "the child hangs"
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(done[1]) == 0


def test_in_a_forked_child_the_keeper_is_closed_and_inherited_tickets_complete(store):
    heard = []
    with SafeKeeper(store, overflow="block") as keeper:
        done = keeper.save(A, 1)
        done.result()
        with store.hold("write") as gate:
            writing = keeper.save(A, 1, callback=heard.append)
            gate.wait_for(1)
            queued = keeper.save(B, "x" * 10_000, callback=heard.append)

            def check():
                done.result(timeout=0)
                for ticket in (writing, queued):
                    with pytest.raises(Closed, match="after a fork"):
                        ticket.result(timeout=0)
                for refused in (lambda: keeper.save(A, 2), lambda: keeper.forget(A), lambda: keeper.fetch(A)):
                    with pytest.raises(Closed, match="after a fork"):
                        refused()
                keeper.flush()
                keeper.close()
                assert keeper.metrics().pending == 0
                assert not heard, "the saves are the parent's: it calls them back"

            in_child(check)
            assert not writing.done()
        writing.result()
        queued.result()
        keeper.save(A, 3).result()
        keeper.flush()
    assert len(heard) == 2


def test_a_child_can_open_a_keeper_of_its_own(tmp_path):
    url = f"file://{tmp_path}/store"
    with SafeKeeper(url) as keeper:
        keeper.save(A, "parent").result()

        def check():
            with SafeKeeper(url) as own:
                assert own.fetch(A) == "parent"
                own.save(B, "child").result()

        in_child(check)
        assert keeper.fetch(B) == "child"


def test_forks_in_the_middle_of_everything_do_no_harm():
    """Other threads save, complete and call back while the process forks: no lock may be held in the child for ever."""
    stop = threading.Event()
    heard: list[object] = []
    tickets = []
    with SafeKeeper("memory:", serialization_workers=2, storage_workers=2) as keeper:

        def go_on_saving():
            while not stop.is_set():
                tickets.append(keeper.save(A, "x" * 5000, callback=heard.append))
                tickets.append(keeper.save(B, [1]))

        savers = [threading.Thread(target=go_on_saving) for _ in range(2)]
        for saver in savers:
            saver.start()
        try:
            for _ in range(20):
                in_child(lambda: [ticket.outcome(timeout=0) for ticket in tickets[-200:]])
        finally:
            stop.set()
            for saver in savers:
                saver.join()
        keeper.flush()
        keeper.close()
        assert len(heard) * 2 == len(tickets) == keeper.metrics().saves


def test_in_a_forked_child_the_elements_are_closed_although_other_threads_had_them(keeper_with_elements):
    group, held = keeper_with_elements

    def check():
        for refused in (lambda: group.event(b"a"), lambda: group.look(b"a")):
            with pytest.raises(Closed, match="after a fork"), refused():
                pass
        for refused in (lambda: group.forget(b"a"), group.checkpoint):
            with pytest.raises(Closed, match="after a fork"):
                refused()
        group.close()

    for lock in (held.lock, group._memory.lock):
        with lock:
            in_child(check)


@pytest.fixture
def keeper_with_elements():
    with SafeKeeper("memory:") as keeper, Checkpointed(keeper, "group", lambda: 0, trigger=None) as group:
        with group.event(b"a") as element:
            element.state += 1
        yield group, element


PROGRAM = """
import sys, threading, time
from safekeeper import CheckpointId, SafeKeeper
from safekeeper.testing import Slow
keeper = SafeKeeper(sys.argv[1])
keeper.save(CheckpointId("group", b"warm"), 0).result()
for n in range(50):
    keeper.save(CheckpointId("group", b"%d" % n), n)
{end}
"""


@pytest.mark.parametrize(
    "end",
    ("", "sys.exit(0)", "raise SystemExit", "threading.Thread(target=time.sleep, args=(0.1,)).start()"),
    ids=("falls off the end", "exit", "raise", "another thread lives on"),
)
def test_what_is_queued_is_stored_when_the_interpreter_ends(tmp_path, end):
    url = f"file://{tmp_path}/store"
    subprocess.run([sys.executable, "-c", PROGRAM.format(end=end), url], check=True, timeout=120, env=_environment())
    with safekeeper.open(url) as store:
        assert len(list(store.keys("group"))) == 51


NO_MORE_THREADS = """
def no_thread(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")
at_the_end = threading.Event()
@atexit.register  # what Python 3.12 does from then on
def forbid_threads():
    threading.Thread.start = no_thread
    at_the_end.set()
"""


def test_what_is_still_to_be_serialized_when_the_interpreter_ends_is_stored(tmp_path):
    program = f"""
import atexit, sys, threading, time
from safekeeper import CheckpointId, SafeKeeper
{NO_MORE_THREADS}
class Late:
    name = "late"
    def dumps(self, state):
        at_the_end.wait()
        time.sleep(0.1)
        return state
    def loads(self, data):
        return data
keeper = SafeKeeper(sys.argv[1], serializer=Late(), keep_alive=0.01)
keeper.save(CheckpointId("group", b"large"), bytes(100_000))
time.sleep(0.1)
"""
    url = f"file://{tmp_path}/store"
    subprocess.run([sys.executable, "-c", program, url], check=True, timeout=120, env=_environment())
    with safekeeper.open(url) as store:
        assert list(store.keys("group")) == [b"large"]


@pytest.mark.parametrize("threads", ("", NO_MORE_THREADS), ids=("", "no more threads"))
def test_a_stuck_store_does_not_keep_the_interpreter_from_ending(tmp_path, threads):
    program = f"""
import atexit, threading, time, safekeeper
from safekeeper import registry
from safekeeper.testing import Faulty
{threads}
store = Faulty(safekeeper.open("memory:"))
registry.open = lambda url: store  # so that it is the keeper's to close
holding = store.hold("write")
gate = holding.__enter__()
keeper = safekeeper.SafeKeeper("stuck:", close_deadline=0.1)
ticket = keeper.save(safekeeper.CheckpointId("group", b"a"), 1, callback=lambda t: print(repr(t.outcome()), flush=True))
gate.wait_for(1)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=120, env=_environment(), capture_output=True, text=True
    )
    assert "Closed" in ended.stdout, "its save has completed"
    assert "1 saves were not stored" in ended.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent)}


def test_closing_leaves_no_threads_and_no_descriptors(tmp_path):
    descriptors, threads = os.listdir("/proc/self/fd"), threading.active_count()
    for n in range(10):
        with SafeKeeper(f"file://{tmp_path}/store", serialization_workers=3, storage_workers=3) as keeper:
            keeper.save(A, "x" * 10_000)
            keeper.save(B, n)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_a_keeper_that_was_forgotten_is_collected():
    keeper = SafeKeeper("memory:", keep_alive=0.01, deadline=2.0)
    keeper.save(A, "x" * 10_000).result()
    pipeline = weakref.ref(keeper._pipeline)
    del keeper
    until = time.monotonic() + 60
    while pipeline() is not None:
        assert time.monotonic() < until, "something holds it"
        gc.collect()
        time.sleep(0.01)


@pytest.mark.parametrize("overflow", ("coalesce", "drop-oldest", "reject"))
def test_a_stuck_store_costs_no_more_memory_than_the_bounds(overflow):
    """Also the tickets of superseded and dropped saves that nobody keeps are gone."""
    bounds = Bounds(count=10, nbytes=100_000)
    with Faulty(MemoryBackend()) as store, SafeKeeper(store, overflow=overflow, storage_queue=bounds) as keeper:
        with store.hold("write") as gate:
            keeper.save(A, bytes(1000))
            gate.wait_for(1)
            tracemalloc.start()
            for n in range(20_000):
                keeper.save(CheckpointId("group", b"%d" % (n % 10)), [bytes(1000)])
            used, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert used < 1_000_000


def test_superseded_saves_with_a_callback_still_count():
    """Their callbacks must be kept, so they must be bounded."""
    with Faulty(MemoryBackend()) as store, SafeKeeper(store, storage_queue=Bounds(count=5), deadline=0.05) as keeper:
        heard: list[object] = []
        with store.hold("write") as gate:
            keeper.save(A, 0)
            gate.wait_for(1)
            for n in range(10):
                keeper.save(B, n, callback=heard.append)
                assert keeper.metrics().storage_queue_entries <= 5
        keeper.flush()
        keeper.close()
        assert len(heard) == 10


class State(list):
    """A list that can be referred to weakly."""


def test_a_ticket_does_not_keep_its_state(store):
    with SafeKeeper(store, serializer="pickle") as keeper:
        state = State([1])
        gone = weakref.ref(state)
        tickets = [keeper.save(A, state, lock=threading.Lock()) for _ in range(3)]
        for ticket in tickets:
            ticket.result()
        del state
        gc.collect()
        assert gone() is None
