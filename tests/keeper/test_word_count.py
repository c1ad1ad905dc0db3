"""Services that are killed with their work half done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import safekeeper
from safekeeper import SafeKeeper
from safekeeper.registry import BUNDLED

NODE = Path(__file__).with_name("word_count_node.py")
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
