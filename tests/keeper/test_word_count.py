"""Services that are killed with their work half done."""

from __future__ import annotations

import importlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import safekeeper
from safekeeper import SafeKeeper
from safekeeper.registry import BUNDLED

NODE = Path(__file__).with_name("word_count_node.py")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DURABLE = [scheme for scheme in ("file", "log") if scheme in BUNDLED]
NODES = 3


def start(*command: object, **environment: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(safekeeper.__file__).parent.parent), **environment}
    return subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, env=environment)


def words_of(seed: int, length: int) -> Counter[bytes]:
    source = random.Random(seed)
    return Counter(b"word-%d" % int(150 * source.random() ** 3) for _ in range(length))


@pytest.mark.crash
@pytest.mark.parametrize("scheme", DURABLE)
def test_word_count_is_right_although_nodes_are_killed(scheme, tmp_path, long_form):
    """Three processes on one root, killed and started again in the middle, over and over."""
    url, seed, length = f"{scheme}://{tmp_path}/store", 5, 20_000 if long_form else 2000
    dice = random.Random(f"{seed}/{scheme}")
    stored = [0] * NODES
    for _ in range(30 if long_form else 3):
        processes = [start(NODE, url, node, NODES, seed, length, stored[node]) for node in range(NODES)]
        for process in processes:
            process.stdout.readline()
        time.sleep(dice.random() * 0.3)
        for node, process in enumerate(processes):
            process.send_signal(signal.SIGKILL)
            reports, _ = process.communicate()
            stored[node] = max([stored[node], *map(int, reports.split())])
    processes = [start(NODE, url, node, NODES, seed, length, stored[node]) for node in range(NODES)]
    for process in processes:
        reports, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        assert reports.endswith(f"{length}\n")
    with SafeKeeper(url) as keeper:
        counted = {word: count for word, (count, _) in keeper.recover("WordCounter")}
    assert counted == words_of(seed, length)


@pytest.mark.crash
def test_word_count_is_right_although_one_of_three_nodes_on_one_log_is_killed_and_restarted(tmp_path, long_form):
    """The others go on meanwhile, and write to the same root."""
    url, seed, length = f"log://{tmp_path}/store", 6, 40_000 if long_form else 8000
    dice, stored = random.Random(seed), 0
    others = [start(NODE, url, node, NODES, seed, length, 0) for node in range(1, NODES)]
    for _ in range(30 if long_form else 3):
        victim = start(NODE, url, 0, NODES, seed, length, stored)
        victim.stdout.readline()
        time.sleep(dice.random() * 0.3)
        victim.send_signal(signal.SIGKILL)
        reports, _ = victim.communicate()
        stored = max([stored, *map(int, reports.split())])
    for process in [start(NODE, url, 0, NODES, seed, length, stored), *others]:
        reports, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        assert reports.endswith(f"{length}\n")
    with SafeKeeper(url) as keeper:
        counted = {word: count for word, (count, _) in keeper.recover("WordCounter")}
    assert counted == words_of(seed, length)
    assert 2 <= len(list((tmp_path / "store").glob("writer-*"))) <= NODES


class Client(threading.Thread):
    """Sends texts until told to stop, and remembers what was sent and what was answered."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__()
        self.address = f"http://127.0.0.1:{port}"
        self.dice = random.Random(seed)
        self.sent: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.stop = threading.Event()

    def run(self) -> None:
        httpx = importlib.import_module("httpx")
        with httpx.Client(base_url=self.address, timeout=60) as client:
            while not self.stop.is_set():
                words = [f"w{self.dice.randrange(20)}" for _ in range(self.dice.randrange(1, 6))]
                self.sent.update(words)
                try:
                    response = client.post("/text", content=" ".join(words), headers={"content-type": "text/plain"})
                except httpx.HTTPError:  # the service was killed: nobody knows whether these words count
                    time.sleep(0.02)
                    continue
                assert response.status_code == 200, response.text
                self.answered.update(words)


def serve(url: str, port: int) -> subprocess.Popen[str]:
    httpx = importlib.import_module("httpx")
    os.environ["SAFEKEEPER_URL"] = url
    process = start(
        "-m", "uvicorn", "word_counter:app", "--app-dir", EXAMPLES, "--port", port, "--log-level", "warning"
    )
    until = time.monotonic() + 120
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/metrics")
            return process
        except httpx.HTTPError:
            assert process.poll() is None, "it did not start"
            assert time.monotonic() < until
            time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.crash
def test_the_example_service_is_killed_and_has_lost_nothing(tmp_path, long_form):
    for module in ("fastapi", "uvicorn", "httpx"):
        importlib.import_module(module)
    url, port = f"{DURABLE[-1]}://{tmp_path}/store", free_port()
    process = serve(url, port)
    clients = [Client(port, seed) for seed in range(3)]
    for client in clients:
        client.start()
    try:
        for _ in range(10 if long_form else 2):
            answered = sum(client.answered.total() for client in clients)
            while sum(client.answered.total() for client in clients) < answered + 60:
                assert process.poll() is None
                time.sleep(0.01)
            process.kill()
            process.communicate()
            process = serve(url, port)
    finally:
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join()
        process.terminate()
        process.communicate()
    sent = sum((client.sent for client in clients), Counter[str]())
    answered_words = sum((client.answered for client in clients), Counter[str]())
    with SafeKeeper(url) as keeper:
        counted = {key.decode(): count for key, count in keeper.recover("WordCounter")}
    assert set(counted) <= set(sent)
    for word in sent:
        assert answered_words[word] <= counted.get(word, 0) <= sent[word]
