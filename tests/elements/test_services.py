"""The services of the docs, unchanged: one at work and one that waits, killed at random over and over."""

from __future__ import annotations

import importlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

import safekeeper
from safekeeper import Checkpointed, SafeKeeper
from safekeeper.dev.redis import RedisServer

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LIMIT = 120
pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]


@pytest.fixture
def kills(long_form) -> int:
    return 50 if long_form else 2


class Service:
    """A process of an example."""

    def __init__(self, url, *command):
        environment = {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent), "SAFEKEEPER_URL": url}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, env=environment
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


class Pair:
    """One that is at work and one that waits for it; whoever is killed is started again."""

    def __init__(self, start, is_at_work):
        self._start, self._is_at_work = start, is_at_work
        self.services = [start(), start()]
        self.ended = 0

    @property
    def at_work(self):
        """The one that is; wait for it."""
        until = time.monotonic() + LIMIT
        while True:
            for service in [service for service in self.services if service.process.poll() is not None]:
                # Two that begin at the same moment: one of them may have found out late that the other one was quicker.
                self.replace(service)
                self.ended += 1
            found = [service for service in self.services if self._is_at_work(service)]
            if len(found) == 1:
                return found[0]
            assert time.monotonic() < until, "nobody is at work, or both are"
            time.sleep(0.02)

    def kill(self, dice):
        """Mostly the one at work, now and then the one that waits."""
        victim = self.at_work
        if dice.random() < 0.2:
            (victim,) = [service for service in self.services if service is not victim]
        self.replace(victim)

    def replace(self, service):
        service.kill()
        self.services.remove(service)
        self.services.append(self._start())

    def end(self):
        for service in self.services:
            service.kill()


@contextmanager
def pair(start, is_at_work):
    both = Pair(start, is_at_work)
    try:
        yield both
    finally:
        both.end()


def wait_until(condition, both):
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until
        assert both.at_work
        time.sleep(0.01)


def states(url, group):
    with SafeKeeper(url) as keeper, Checkpointed(keeper, group, lambda: None) as elements:
        elements.recover()
        return {key: element.state for key, element in elements._memory.elements.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Client(threading.Thread):
    """Sends texts to whichever service answers, and remembers what was sent and what was answered."""

    def __init__(self, ports, seed):
        super().__init__()
        self.ports = ports
        self.dice = random.Random(seed)
        self.sent, self.answered = Counter(), Counter()
        self.stop = threading.Event()
        self.error = None

    def run(self):
        httpx = importlib.import_module("httpx")
        with httpx.Client(timeout=60) as client:
            while not self.stop.is_set():
                words = [f"w{self.dice.randrange(20)}" for _ in range(self.dice.randrange(1, 6))]
                for port in list(self.ports):
                    self.sent.update(words)  # nobody knows whether they count before there is an answer
                    try:
                        response = client.post(
                            f"http://127.0.0.1:{port}/text",
                            content=" ".join(words),
                            headers={"content-type": "text/plain"},
                        )
                    except httpx.HTTPError:
                        time.sleep(0.005)
                        continue
                    if response.status_code == 200:
                        self.answered.update(words)
                    elif response.status_code != 503:
                        self.error = response.text


def test_fastapi(tmp_path, kills):
    """Every text that was answered is counted."""
    for module in ("fastapi", "uvicorn", "httpx"):
        importlib.import_module(module)
    url, dice, ports = f"log://{tmp_path}/store", random.Random(1), []

    def start():
        port = free_port()
        service = Service(
            *(url, "-m", "uvicorn", "word_counter:app", "--app-dir", EXAMPLES),
            *("--port", port, "--log-level", "warning"),
        )
        service.port = port
        ports[:] = [*ports[-1:], port]
        return service

    def answers(service):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", service.port)) == 0

    with pair(start, answers) as both:
        clients = [Client(ports, seed) for seed in range(3)]
        for client in clients:
            client.start()
        try:
            for _ in range(kills):
                enough = sum(client.answered.total() for client in clients) + 60
                ports[:] = [service.port for service in both.services]
                wait_until(lambda enough=enough: sum(client.answered.total() for client in clients) > enough, both)
                time.sleep(dice.random() * 0.1)
                both.kill(dice)
                ports[:] = [service.port for service in both.services]
        finally:
            for client in clients:
                client.stop.set()
            for client in clients:
                client.join()
    assert not [client.error for client in clients if client.error]
    sent = sum((client.sent for client in clients), Counter())
    answered = sum((client.answered for client in clients), Counter())
    counted = Counter({key.decode(): count for key, count in states(url, "WordCounter").items()})
    assert answered <= counted <= sent
    assert answered.total() > 60 * kills


def test_redis_streams(tmp_path, kills):
    """Every entry is counted once."""
    url, dice, sent = f"log://{tmp_path}/store", random.Random(2), Counter()
    with RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        from redis import Redis

        redis = Redis.from_url(server.url)

        def send(number):
            with redis.pipeline() as pipeline:
                for _ in range(number):
                    word = f"w{dice.randrange(20)}"
                    sent[word] += 1
                    pipeline.xadd("words", {"word": word})
                pipeline.execute()

        def left() -> int:
            (group,) = redis.xinfo_groups("words")
            return group["pending"] + (group["lag"] or 0)

        with pair(
            lambda: Service(url, EXAMPLES / "stream_counter.py", server.url), lambda service: "owner" in service.lines
        ) as both:
            assert both.at_work
            for _ in range(kills):
                send(500)
                time.sleep(dice.random() * 0.2)
                both.kill(dice)
                assert both.at_work
            wait_until(lambda: left() == 0, both)
        redis.close()
    counted = Counter({key.decode(): state[0] for key, state in states(url, "StreamCounter").items()})
    assert counted == sent


def test_threads(tmp_path, kills):
    """Every line is counted, some perhaps twice."""
    url, dice, written = f"log://{tmp_path}/store", random.Random(3), Counter()
    path = tmp_path / "input"
    path.touch()

    def write(number):
        with path.open("a") as file:
            for _ in range(number):
                words = [f"w{dice.randrange(20)}" for _ in range(5)]
                written.update(words)
                file.write(" ".join(words) + "\n")

    with pair(lambda: Service(url, EXAMPLES / "log_worker.py", path), lambda service: "owner" in service.lines) as both:
        assert both.at_work
        for _ in range(kills):
            write(300)
            time.sleep(dice.random() * 0.2)
            both.kill(dice)
            assert both.at_work
        size = str(path.stat().st_size)
        wait_until(lambda: size in both.at_work.lines, both)
    counted = {key.decode(): count for key, count in states(url, "LogWorker").items()}
    assert int(size) == counted.pop("\0position")
    assert written <= Counter(counted)
    slice_words = 64 * 1024 // 3
    assert Counter(counted).total() <= written.total() + kills * slice_words
