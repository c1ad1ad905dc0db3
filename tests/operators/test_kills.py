"""Operators with two inputs, killed and stopped at random moments: nothing is lost, nothing is twice.

What the sink has must be what a run without a failure emits over the order in which the inputs were taken, which the
operator emits, too.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from random import Random
from types import SimpleNamespace

import pytest

from safekeeper.dev.process import DevError
from safekeeper.dev.redis import RedisServer
from safekeeper.streams import StreamElement, open_inlet, open_outlet

from . import killed

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
RUNS = 250 if LONG else 10
COUNT = 800  # elements of each input
REPLACED = 3  # how an operator ends that finds another one in its place
STORES = ["log", "lmdb", "redis", "objects+file"]


class Zygote:
    """Starts operators, each in a process of its own."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, killed.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()

    def start(self, **settings):
        return int(self.ask(json.dumps(settings))[1])

    def poll(self, pid):
        """How it ended; None if it has not."""
        said = self.ask(f"wait? {pid}")
        return int(said[1]) if said[0] == "ended" else None

    def wait(self, pid):
        return int(self.ask(f"wait {pid}")[1])

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
    try:
        server = RedisServer(tmp_path, appendonly="yes", appendfsync="always")
    except DevError as error:
        pytest.skip(str(error))
    with server:
        yield lambda run: f"{server.url}?prefix={run}"


@pytest.mark.crash
@pytest.mark.timeout(7200 if LONG else 900)
def test_the_sink_has_what_a_run_without_a_failure_emits(zygote, store, tmp_path):
    for seed in range(RUNS):
        play(zygote, store(f"run{seed}"), f"store:log://{tmp_path}/streams{seed}?poll=0.01", seed)


def play(zygote, store, streams, seed):
    random = Random(seed)
    capture = random.choice(list(killed.CAPTURES))
    inputs = "a" if capture == "at-once" else "ab"
    values = {name: [random.randrange(1_000_000) for _ in range(COUNT)] for name in inputs}
    for name, numbers in values.items():
        with closing(open_outlet(f"{streams}&stream={name}", readers=["windows"])) as outlet:
            outlet.send([StreamElement(at, b"%d" % number) for at, number in enumerate(numbers, 1)])
    settings = {"store": store, "streams": streams, "count": COUNT, "capture": capture, "inputs": inputs}
    stopped, deaths = [], 0
    try:
        pid = zygote.start(**settings)
        while True:
            time.sleep(random.uniform(0.01, 0.2))
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
                os.kill(pid, signal.SIGKILL)
                assert zygote.wait(pid) in (-signal.SIGKILL, 0, REPLACED), f"seed {seed}"  # it may have ended before
            else:
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            pid = zygote.start(**settings)
            if stopped and random.random() < 0.5:
                time.sleep(random.uniform(0, 0.2))
                go_on(zygote, stopped, seed)
    finally:
        go_on(zygote, stopped, seed)
    check(streams, values, f"seed {seed}: {settings}, {deaths} disturbances")


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
