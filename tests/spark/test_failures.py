"""What goes wrong between a query and its state, and that the result is the same all the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from safekeeper.spark import PREFIX

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def sums(left):
    return left.groupBy("key").agg(F.count("*"), F.sum("number"))


@pytest.fixture
def watched(ours, tmp_path):
    """The settings of our store on a backend that can be watched and told to die, and the path of its files."""
    path = tmp_path / "store"
    return {**ours(), PREFIX + "url": f"watched://{path}"}, path


@pytest.fixture(scope="module")
def expected(runner, events, hdfs):
    return runner(sums, {"left": events(1)}, hdfs, "update").run(0, 1, 2)


@pytest.fixture
def agents(spark, agents_of):
    """Finds the processes of the agents that this Spark has started."""
    return lambda: agents_of(spark.sparkContext._gateway.proc.pid)


@pytest.mark.parametrize("moment", ("before", "after"))
def test_an_agent_that_is_killed_in_a_commit_is_started_again(moment, watched, runner, events, expected):
    """Before the write nothing is there when the commit is sent again; after it, everything is."""
    settings, path = watched
    armed = Path(f"{path}.{moment}")
    query = runner(sums, {"left": events(1)}, settings, "update", lambda rows, batch: armed.touch())
    assert query.run(0, 1, 2) == expected
    assert not armed.exists()  # it took effect


def test_an_agent_that_is_killed_between_commits_is_started_again(agents, ours, runner, events, expected):
    killed = []

    def kill(rows, batch):
        for pid in agents():
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    query = runner(sums, {"left": events(1)}, ours(), "update", kill)
    query.run(0)
    assert query.run(1, 2) == expected
    assert len(set(killed)) >= 2


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_agents_that_are_killed_at_any_moment_do_no_harm(agents, ours, runner, events, hdfs):
    """While they start, too: up to three kills for each batch, so that a slow machine still gets on."""
    batches = 100 if LONG else 6
    inputs = {"left": events(3, rows=40, batches=batches)}
    expected = runner(sums, inputs, hdfs, "update").run(*range(batches))
    query = runner(sums, inputs, ours(), "update")
    chance, over, killed = random.Random(4), threading.Event(), []

    def kill_now_and_then():
        while not over.wait(chance.uniform(0.1, 1)):
            for pid in agents():
                if len(killed) < 3 * (len(query.results) + 1):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        found = query.run(*range(batches))
    finally:
        over.set()
        killer.join()
    assert found == expected
    assert killed


def test_a_checkpoint_folder_that_is_made_anew_never_shows_old_state(ours, runner, events, expected):
    query = runner(sums, {"left": events(1)}, ours(), "update")
    query.run(0, 1)
    shutil.rmtree(query.checkpoint)
    shutil.rmtree(Path(query.checkpoint).with_name("inputs"))
    query.results.clear()
    assert query.run(0, 1, 2) == expected


def test_state_lies_in_the_backend_and_not_in_the_checkpoint(watched, runner, events):
    settings, path = watched
    query = runner(sums, {"left": events(1)}, settings, "update")
    query.run(0)
    assert len(list(path.glob("*/*.ckpt"))) >= 2  # one commit of each partition
    kept = {file.name for file in Path(query.checkpoint, "state").rglob("*") if file.is_file()}
    assert not [name for name in kept if name.endswith((".delta", ".snapshot", ".changelog", ".zip"))]


@pytest.mark.parametrize(
    ("url", "says"),
    (("fil:///x", "did you mean 'file'"), ("file:///x?speed=9", "no option 'speed'")),
    ids=("scheme", "option"),
)
def test_a_wrong_url_fails_the_query_with_a_sentence(url, says, ours, runner, events):
    with pytest.raises(StreamingQueryException, match=says):
        runner(sums, {"left": events(1)}, {**ours(), PREFIX + "url": url}, "update").run(0)
