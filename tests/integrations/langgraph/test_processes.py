"""Kill -9 at any moment, two processes on one thread, and a thousand threads at once."""

import asyncio
import os
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from safekeeper.testing.peer import start_python

from ..conftest import KINDS
from .checkpoints import chat_graph, config, put, values_of
from .worker import THREAD, values

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
WORKER = "tests.integrations.langgraph.worker"


def start(url, who, first, steps, prune=0):
    return start_python(WORKER, url, who, str(first), str(steps), str(prune), stdout=subprocess.PIPE)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_moment_the_latest_checkpoint_is_whole(make_saver, new_url, kind):
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance, url, last = random.Random(seed), new_url(kind), -1
    for turn in range(60 if LONG else 4 if kind == "log" else 2):
        with start(url, "a", last + 1, 1000, prune=7 if turn % 2 else 0) as process:
            process.stdout.readline()
            time.sleep(chance.random() * 0.5)
            process.kill()
            acknowledged = [int(line) for line in process.stdout.read().splitlines()]
        saver = make_saver(url)
        for one in saver.list(config(THREAD)):
            assert one.checkpoint["channel_values"] == values("a", one.metadata["step"])
        found = values_of(saver, THREAD)
        if found is not None:
            assert found["step"] in (max([last, *acknowledged]), max([last, *acknowledged]) + 1)
            last = found["step"]
        else:
            assert not acknowledged
        saver.close()
    saver = make_saver(url)
    put(saver, THREAD, values("a", last + 1))
    saver.prune([THREAD])
    assert values_of(saver, THREAD) == values("a", last + 1)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_write_one_thread_and_one_of_them_prunes(make_saver, new_url, kind):
    url, steps = new_url(kind), 400 if LONG else 20
    with start(url, "a", 0, steps) as one, start(url, "b", 0, steps, prune=9) as other:
        assert one.stdout.read().count(b"\n") == other.stdout.read().count(b"\n") == steps + 1
    assert one.returncode == other.returncode == 0
    saver = make_saver(url)
    found = list(saver.list(config(THREAD)))
    for checkpoint in found:
        who, step = checkpoint.metadata["who"], checkpoint.metadata["step"]
        assert checkpoint.checkpoint["channel_values"] == values(who, step)
    assert found[0].metadata["step"] == steps - 1


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_processes_with_the_same_task_the_first_counts(make_saver, new_url, kind):
    url = new_url(kind)
    savers = [make_saver(url) for _ in range(2)]
    at = [put(savers[0], THREAD, {}, id=f"{n:04}") for n in range(20)]

    def write(who):
        for one in at:
            savers[who].put_writes(one, [("a", who), ("b", who)], "task")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    for one in at:
        first, second = (saver.get_tuple(one).pending_writes for saver in savers)
        assert first == second
        assert [value for _, _, value in first] in ([0, 0], [1, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_threads_at_once(make_saver, kind):
    graph = chat_graph(make_saver(kind), 300)
    threads = 1000 if LONG or kind == "log" else 100

    async def one(number):
        for turn in range(2):
            said = await graph.ainvoke({"messages": [("user", f"{number}/{turn}")]}, config(f"thread {number}"))
        return [message.content for message in said["messages"]]

    async def everyone():
        return await asyncio.gather(*map(one, range(threads)))

    for number, said in enumerate(asyncio.run(everyone())):
        assert (said[0], said[2], len(said)) == (f"{number}/0", f"{number}/1", 4)
    for number in range(0, threads, threads // 10):
        assert len(graph.get_state(config(f"thread {number}")).values["messages"]) == 4
