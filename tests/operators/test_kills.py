"""Operators with two inputs, killed and stopped at random moments: nothing is lost, nothing is twice.

What the sink has must be what a run without a failure emits over the order in which the inputs were taken, which the
operator emits, too. SAFEKEEPER_KILL_SEEDS=100-199 runs these seeds instead of the first ones.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from random import Random
from types import SimpleNamespace

import pytest

from safekeeper.dev.redis import RedisServer
from safekeeper.streams import StreamElement, open_inlet, open_outlet

from . import killed

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
FIRST, LAST = map(int, os.environ.get("SAFEKEEPER_KILL_SEEDS", "0-249" if LONG else "0-9").split("-"))
COUNT = 800  # elements of each input
REPLACED = 3  # how an operator ends that finds another one in its place
STORES = ["log", "lmdb", "redis", "objects+file"]


class Zygote:
    """Starts operators, each in a process of its own."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, killed.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ended = {}

    def ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def start(self, **settings):
        pid = int(self.ask(json.dumps(settings))[1])
        self._ended.pop(pid, None)  # another one of long ago
        return pid

    def poll(self, pid, word="wait?"):
        """How it ended; None if it has not."""
        if pid not in self._ended:
            said = self.ask(f"{word} {pid}")
            if said[0] != "ended":
                return None
            self._ended[pid] = int(said[1])
        return self._ended[pid]

    def wait(self, pid):
        return self.poll(pid, "wait")

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def zygote():
    with closing(Zygote()) as zygote:
        yield zygote


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    if request.param != "redis":
        yield lambda run: f"{request.param}://{tmp_path}/{run}"
        return
    with RedisServer(tmp_path, appendonly="yes", appendfsync="always") as server:
        yield lambda run: f"{server.url}?prefix={run}"


@pytest.mark.crash
@pytest.mark.timeout(7200 if LONG else 900)
def test_the_sink_has_what_a_run_without_a_failure_emits(zygote, store, tmp_path):
    done = Counter()
    for seed in range(FIRST, LAST + 1):
        streams, notes = f"store:log://{tmp_path}/streams{seed}?poll=0.01", tmp_path / f"notes{seed}"
        done += play(zygote, store(f"run{seed}"), streams, notes, seed)
        done.update(f"begun {line}" for line in notes.read_text().splitlines())
    print(f"{LAST + 1 - FIRST} runs, seeds {FIRST} to {LAST}: {dict(done)}")  # shown with -rP


def play(zygote, store, streams, notes, seed):
    random = Random(seed)
    capture = random.choice(list(killed.CAPTURES))
    inputs = "a" if capture == "at-once" else "ab"
    values = {name: [random.randrange(1_000_000) for _ in range(COUNT)] for name in inputs}
    for name, numbers in values.items():
        with closing(open_outlet(f"{streams}&stream={name}", readers=["windows"])) as outlet:
            outlet.send([StreamElement(at, b"%d" % number) for at, number in enumerate(numbers, 1)])
    settings = {"store": store, "streams": streams, "capture": capture, "inputs": inputs}
    settings |= {"count": COUNT, "notes": str(notes)}
    stopped, deaths, done = [], 0, Counter()
    try:
        pid = zygote.start(**settings)
        while True:
            wait_for_a_moment(zygote, pid, notes, random)
            if deaths == 4:
                go_on(zygote, stopped, seed)  # one that was stopped in a write keeps all others out of lmdb
            code = zygote.wait(pid) if deaths == 4 else zygote.poll(pid)
            if code == REPLACED:  # by one that was stopped before it had claimed, and went on
                pid = zygote.start(**settings)
                continue
            if code is not None:
                assert code == 0, f"seed {seed}: {settings}"
                break
            deaths += 1
            if random.random() < 0.6:
                done["kills"] += 1
                os.kill(pid, signal.SIGKILL)
                assert zygote.wait(pid) in (-signal.SIGKILL, 0, REPLACED), f"seed {seed}"  # it may have ended before
            else:
                done["stops"] += 1
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            pid = zygote.start(**settings)
            if stopped and random.random() < 0.5:
                time.sleep(random.uniform(0, 0.2))
                go_on(zygote, stopped, seed)
    finally:
        go_on(zygote, stopped, seed)
    check(streams, values, f"seed {seed}: {settings}, {deaths} disturbances")
    done[capture] += 1
    return done


def wait_for_a_moment(zygote, pid, notes, random):
    """Most moments are in the work, the others in the opening, which takes long on a busy machine."""
    if random.random() < 0.75:
        lines, give_up = noted(notes), time.monotonic() + 10
        while noted(notes) == lines and zygote.poll(pid) is None and time.monotonic() < give_up:
            time.sleep(0.005)
    time.sleep(random.uniform(0.0, 0.2))


def noted(notes):
    return notes.stat().st_size if notes.exists() else 0


def go_on(zygote, stopped, seed):
    """Continue the stopped ones: each finds that it was fenced; or takes the journal, if it was stopped before that."""
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    while stopped:
        assert zygote.wait(stopped.pop()) in (0, REPLACED), f"seed {seed}: a stopped operator failed"


def check(streams, values, message):
    order = [body.split() for body in read(streams, "order")]
    for name, numbers in values.items():
        positions = [int(position) for source, position in order if source == name.encode()]
        assert positions == list(range(1, len(numbers) + 1)), message
    reference = Reference()
    for source, position in order:
        event = SimpleNamespace(source=source.decode(), body=b"%d" % values[source.decode()][int(position) - 1])
        killed.window(reference, event)
    assert read(streams, "windows") == reference.emitted, message


def read(streams, name):
    with closing(open_inlet(f"{streams}&stream={name}", after=0)) as inlet:
        bodies = []
        while found := inlet.read(timeout=0):
            bodies += [element.body for element in found]
        return bodies


class Reference:
    """An operator that never fails and keeps nothing."""

    def __init__(self):
        self.emitted, self._parts = [], {}

    def part(self, key, new):
        state = self._parts.setdefault(key, new())
        return SimpleNamespace(key=key, state=state, close=lambda: self._parts.pop(key))

    def emit(self, stream, body):
        self.emitted.append(body)
