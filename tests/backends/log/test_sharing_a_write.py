"""Callers that write at the same time share a write, and count on each other for it."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from safekeeper import Batch, CheckpointId, Columns, Unavailable
from safekeeper.backends.log.backend import LogBackend

from .power import QuickFiles

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


class HeldFiles(QuickFiles):
    """Lets the first block through only when it is told to, so that others queue up behind it."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.go = threading.Event()
        self.blocks = 0
        self.error: OSError | None = None

    def write_synced(self, fd, parts, offset):
        if offset > 0 and len(b"".join(parts)) > 100:
            self.blocks += 1
            self.arrived.set()
            assert self.go.wait(60)
            if self.blocks > 1 and self.error:
                raise self.error
        super().write_synced(fd, parts, offset)


def id_of(number: int) -> CheckpointId:
    return CheckpointId("group", b"%d" % number)


def wait_until_queued(store: LogBackend, members: int) -> None:
    writer = store._log._writing.writer
    while writer._forming is None or len(writer._forming.gates) < members:
        threading.Event().wait(0.005)


@pytest.mark.parametrize("members", (1, 2, 3, 4, 7, 20))
def test_all_who_come_during_a_write_share_the_next_one(tmp_path, members):
    files = HeldFiles()
    with LogBackend(tmp_path / "store", None, files) as store, ThreadPoolExecutor(members + 1) as pool:
        first = pool.submit(store.write, Batch({id_of(0): bytes(100)}))
        assert files.arrived.wait(60)
        others = [pool.submit(store.write, Batch({id_of(n): b"%d" % n})) for n in range(1, members)]
        columns = Columns.of("columns", [b"key"], [b"value"])
        others.append(pool.submit(store.write, Batch.of_columns(columns)))
        wait_until_queued(store, members)
        files.go.set()
        assert {future.result(60).survives for future in (first, *others)} == {store.survives}
        assert files.blocks == 2
        assert store.read([id_of(n) for n in range(1, members)]) == [b"%d" % n for n in range(1, members)]
        assert store.read([CheckpointId("columns", b"key")]) == [b"value"]


def test_a_write_that_fails_fails_for_all_who_share_it_and_for_nobody_else(tmp_path):
    files = HeldFiles()
    with LogBackend(tmp_path / "store", None, files) as store, ThreadPoolExecutor(6) as pool:
        first = pool.submit(store.write, Batch({id_of(0): bytes(100)}))
        assert files.arrived.wait(60)
        files.error = OSError(5, "bad disk")
        others = [pool.submit(store.write, Batch({id_of(n): bytes(100)})) for n in range(1, 6)]
        wait_until_queued(store, 5)
        files.go.set()
        assert first.result(60).survives == store.survives
        errors = [future.exception(60) for future in others]
        assert {type(error) for error in errors} == {Unavailable}
        assert len({id(error) for error in errors}) == 5  # an exception object belongs to one thread
        files.error = None
        store.write(Batch({id_of(9): b"after"}))
        assert store.read([id_of(0), id_of(9)]) == [bytes(100), b"after"]


@pytest.mark.crash
@pytest.mark.parametrize("segment", (64 << 20, 8192), ids=("one segment", "many segments"))
def test_a_signal_at_any_moment_leaves_nobody_waiting(tmp_path, segment):
    seconds = 30 if LONG else 2
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "store"), str(seconds), str(segment)],
        capture_output=True,
        text=True,
        timeout=seconds + 120,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0


INTERRUPTED = """
import faulthandler, random, signal, sys, threading, time
import safekeeper
from safekeeper import Batch, CheckpointId
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.options import LogOptions
from safekeeper.backends.log.files import Files

class Interrupted(BaseException): pass

class EvenFiles(Files):
    def write_synced(self, fd, parts, offset):
        self.write(fd, parts, offset)
        time.sleep(0.0005)

def interrupt(*_):
    if armed:
        raise Interrupted

def id_of(number):
    return CheckpointId("group", b"%d" % number)

def work(number):
    turn = 0
    while not stop:
        turn += 1
        try:
            store.write(Batch({id_of(number): b"%d" % turn}))
            last[number] = turn
        except safekeeper.Unavailable as error:
            assert "interrupted" in str(error), error

faulthandler.dump_traceback_later(float(sys.argv[2]) + 60, exit=True)
armed = stop = False
last = {}
interrupted = turn = 0
signal.signal(signal.SIGALRM, interrupt)
store = LogBackend(sys.argv[1], LogOptions(segment=int(sys.argv[3])), EvenFiles())
threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 16)]
for thread in threads:
    thread.start()
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    turn += 1
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.002))
        store.write(Batch({id_of(0): b"%d" % turn}))
        armed = False
        last[0] = turn
    except Interrupted:
        armed = False
        interrupted += 1
signal.setitimer(signal.ITIMER_REAL, 0)
stop = True
for thread in threads:
    thread.join()
found = {number: int(store.read([id_of(number)])[0]) for number in last}
assert all(found[number] >= last[number] for number in last), (found, last)
store.close()
with LogBackend(sys.argv[1]) as store:
    assert {number: int(store.read([id_of(number)])[0]) for number in last} == found
    assert list(store.verify()) == []
print(interrupted)
"""
