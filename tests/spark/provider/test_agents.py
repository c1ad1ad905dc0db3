"""The agent as the provider sees it: started, killed at any moment, started again, and never left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from safekeeper.spark.build import find_tool
from safekeeper.testing.entry_point import write_entry_points

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def kill(pid: int) -> None:
    assert pid > 0
    os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_agent_killed_before_a_commit_is_started_again(world: Any, items: Any) -> None:
    provider = world.provider()
    store = provider.open(0, None).put(1, 1, "a")
    kill(provider.agentPid())
    store.commit()
    assert store.metric("safekeeperAgentRestarts") == 1
    assert items(world.provider().open(1, None).items()) == {"1:1": "a"}


def test_an_agent_killed_in_a_commit_gets_it_again(world: Any, items: Any, eventually: Any) -> None:
    provider = world.provider()
    store = provider.open(0, None).put(1, 1, "a")
    pid = provider.agentPid()
    os.kill(pid, signal.SIGSTOP)  # so that the commit is under way when it dies
    committing = provider.commitInBackground(store)
    eventually(lambda: is_waiting_for_the_agent(world.jvm))
    assert not committing.isDone()
    kill(pid)
    committing.get()
    assert store.hasCommitted()
    assert len(world.keys()) == 1
    assert items(world.provider().open(1, None).items()) == {"1:1": "a"}


def is_waiting_for_the_agent(jvm: Any) -> bool:
    return bool(jvm.TestProvider.someThreadIsIn("agent.AgentConnection", "receive"))


def test_an_agent_that_hangs_in_a_commit_is_replaced(world: Any, items: Any, eventually: Any) -> None:
    """It lives, and takes no more than the socket holds."""
    provider = world.provider(agentSilentMs=3000)
    store = provider.open(0, None).putMany(5000, 1000, 1)
    expected = items(store.items())
    pid = provider.agentPid()
    os.kill(pid, signal.SIGSTOP)
    store.commit()
    assert provider.agentPid() != pid
    eventually(lambda: not is_alive(pid))
    assert store.metric("safekeeperAgentRestarts") == 1
    assert items(world.provider().open(1, None).items()) == expected


def test_an_agent_that_hangs_in_a_load_is_replaced(world: Any, items: Any) -> None:
    world.provider().open(0, None).put(1, 1, "a").commit()
    provider = world.provider(agentSilentMs=3000)
    os.kill(provider.agentPid(), signal.SIGSTOP)
    assert items(provider.open(1, None).items()) == {"1:1": "a"}


def test_a_request_to_agents_that_all_hang_ends_with_a_sentence(world: Any, fake_agent: Any) -> None:
    provider = world.provider(python=fake_agent(3), agentSilentMs=3000, retryMs=1000)
    with pytest.raises(Py4JJavaError, match="said nothing for 3000 ms in the middle of a request: it hangs"):
        provider.open(0, None)


def test_an_agent_of_another_version_is_refused_with_what_to_do(world: Any, fake_agent: Any) -> None:
    with pytest.raises(Py4JJavaError, match=r"speaks version 1 of .* this jar version 3: install the same safekeeper"):
        world.provider(python=fake_agent(1))


@pytest.fixture
def fake_agent(tmp_path: Path) -> Callable[[int], Path]:
    """An interpreter whose agent says that it is ready, of some version, and then nothing."""

    def make(version: int) -> Path:
        code = (
            "import json, os, socket, sys\n"
            "listener = socket.socket(socket.AF_UNIX)\n"
            "listener.bind(sys.argv[1])\n"
            "listener.listen()\n"
            f"print(json.dumps({{'ready': True, 'version': {version}, 'scope': 'HOST', 'survives': []}}), flush=True)\n"
            "while os.read(0, 65536): pass\n"
        )
        (tmp_path / "fake.py").write_text(code)
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {tmp_path}/fake.py "$3"\n')
        script.chmod(0o700)
        return script

    return make


@pytest.fixture
def slow_store(tmp_path: Path, world: Any) -> Callable[..., Any]:
    """Makes providers on a store that takes seconds for each commit."""
    folder = tmp_path / "slow"
    folder.mkdir()
    (folder / "slow.py").write_text(
        "import time\n"
        "from safekeeper.backends.file import FileBackend\n"
        "class SlowBackend(FileBackend):\n"
        "    def write(self, batch):\n"
        "        if any(id.key.startswith(b'commit') for id, _ in batch.items()):\n"
        "            time.sleep(4)\n"
        "        return super().write(batch)\n"
    )
    write_entry_points(folder, {"slow": "slow:SlowBackend"})
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return lambda **settings: world.provider(url=f"slow://{tmp_path}/store", python=script, **settings)


def test_a_store_that_takes_longer_than_an_agent_may_be_silent_is_waited_for(slow_store: Any, items: Any) -> None:
    provider = slow_store(agentSilentMs=3000)
    pid = provider.agentPid()
    provider.open(0, None).put(1, 1, "a").commit()
    assert provider.agentPid() == pid
    assert items(provider.open(1, None).items()) == {"1:1": "a"}


def test_a_request_that_gets_on_is_sent_again_for_longer_than_one_that_does_not(world: Any) -> None:
    """Eight attempts take at least 2.4 s, which is longer than a request may take that does not get on."""
    provider = world.provider(retryMs=2000)
    assert provider.ask(8, 300, True) == 8
    with pytest.raises(Py4JJavaError, match="UNAVAILABLE: attempt"):
        provider.ask(1000, 300, False)


def test_a_commit_that_waits_for_another_one_is_slow_and_not_failed(slow_store: Any, eventually: Any) -> None:
    """Each takes 4 s, so the second one is done after more than it may be without progress."""
    first, second = slow_store(retryMs=6000), slow_store(retryMs=6000)
    stores = [provider.open(0, None).put(1, 1, "a") for provider in (first, second)]
    committing = first.commitInBackground(stores[0])
    eventually(lambda: is_in_a_commit(first))
    time.sleep(0.5)
    stores[1].commit()
    committing.get()
    assert all(store.hasCommitted() for store in stores)


def test_whoever_waits_for_a_partition_whose_commit_takes_long_waits_on(slow_store: Any, eventually: Any) -> None:
    provider = slow_store(leaseMs=500)
    committing = provider.commitInBackground(provider.open(0, None).put(1, 1, "a"))
    eventually(lambda: is_in_a_commit(provider))
    assert provider.open(1, None).get(1, 1) == "a"
    committing.get()


def is_in_a_commit(provider: Any) -> bool:
    return bool(provider.someThreadIsIn("commits.CommitWriter", "put"))


def test_an_agent_killed_after_a_commit_has_lost_nothing(world: Any, items: Any) -> None:
    provider = world.provider()
    provider.open(0, None).put(1, 1, "a").commit()
    kill(provider.agentPid())
    provider.open(1, None).put(2, 2, "b").commit()
    assert items(world.provider().open(2, None).items()) == {"1:1": "a", "2:2": "b"}


@pytest.mark.crash
def test_agents_killed_at_random_lose_no_commit(world: Any, items: Any) -> None:
    provider = world.provider()
    expected = {}
    for version in range(200 if LONG else 8):
        store = provider.open(version, None).putMany(200, 100, version)
        expected = items(store.items())
        committing = provider.commitInBackground(store)
        if pid := provider.agentPid():
            kill(pid)
        committing.get()
    assert items(world.provider().open(version + 1, None).items()) == expected


def test_an_agent_killed_in_a_load_is_asked_for_the_rest_only(world: Any, items: Any, eventually: Any) -> None:
    provider = world.provider(cleanAt=1000)
    for version in range(5):
        store = provider.open(version, None).putMany(100, 50, version)
        expected = items(store.items())
        store.commit()
    fresh = world.provider()
    pid = fresh.agentPid()
    os.kill(pid, signal.SIGSTOP)
    loading = fresh.openInBackground(5)
    eventually(lambda: is_waiting_for_the_agent(world.jvm))
    kill(pid)
    assert items(loading.get().items()) == expected


def test_the_agent_ends_with_the_jvm_even_if_that_is_killed(class_path: str, world: Any, eventually: Any) -> None:
    command = [
        find_tool("java"),
        "-XX:TieredStopAtLevel=1",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "-cp",
        class_path,
    ]
    command += ["io.safekeeper.spark.TestMain", str(world.checkpoint), *(f"{k}={v}" for k, v in world.settings.items())]
    for end in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as jvm:
            assert jvm.stdout
            agent = int(jvm.stdout.readline())
            assert is_alive(agent)
            jvm.send_signal(end)
            jvm.wait(60)
        eventually(lambda pid=agent: not is_alive(pid))


def test_an_interpreter_that_does_not_exist_is_named_with_what_to_do(world: Any) -> None:
    with pytest.raises(Py4JJavaError, match=r"/nowhere/python does not start: set .*safekeeper\.python"):
        world.provider(python="/nowhere/python")


def test_an_interpreter_without_safekeeper_is_an_error_that_says_so(world: Any, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n')
    bare.chmod(0o700)
    with pytest.raises(Py4JJavaError, match="is safekeeper installed for that interpreter"):
        world.provider(python=bare)


@pytest.mark.parametrize(
    ("url", "problem"), (("nonsense:", "no backend for nonsense"), ("file://host/x", "names a host"))
)
def test_a_wrong_url_shows_before_the_first_batch(world: Any, url: str, problem: str) -> None:
    with pytest.raises(Py4JJavaError, match=f"cannot be opened: .*{problem}"):
        world.provider(url=url)


def test_without_a_url_the_error_says_what_to_set(world: Any) -> None:
    del world.settings["spark.sql.streaming.stateStore.safekeeper.url"]
    with pytest.raises(Py4JJavaError, match=r"set spark\.sql\.streaming\.stateStore\.safekeeper\.url"):
        world.provider()


def test_whoever_is_interrupted_while_an_agent_starts_gives_up(world: Any, tmp_path: Path, eventually: Any) -> None:
    """A query that is stopped, say. Else it would wait for one agent after the other."""
    slow = tmp_path / "slow"
    slow.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(tmp_path))}\n[ -e started ] && exec sleep 600\ntouch started\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    slow.chmod(0o700)
    provider = world.provider(python=slow, agentStartMs=600_000, retryMs=600_000)
    store = provider.open(0, None).put(1, 1, "a")
    kill(provider.agentPid())
    committing = provider.commitInBackground(store)
    eventually(lambda: bool(world.jvm.TestProvider.someThreadIsIn("agent.Agent", "awaitReady")))
    world.jvm.TestProvider.interruptThreadsIn("agent.Agent", "awaitReady")
    eventually(committing.isDone)
    with pytest.raises(Py4JJavaError, match="CANNOT_COMMIT"):
        committing.get()
    assert provider.agentPid() == 0


def test_whoever_waits_for_an_agent_whose_store_is_away_does_not_wait_for_another_one(
    world: Any, tmp_path: Path, eventually: Any
) -> None:
    """Each start waits for the store; those of all tasks of an executor one after the other would take minutes."""
    answer = '{"ready": false, "away": true, "error": "nobody answers"}'
    script = tmp_path / "python"
    script.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(tmp_path))}\n"
        f"[ -e gone ] && {{ echo . >> starts; sleep 1; echo '{answer}'; exit 1; }}\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    script.chmod(0o700)
    provider = world.provider(python=script, retryMs=1)
    (tmp_path / "gone").touch()
    kill(provider.agentPid())
    eventually(lambda: provider.agentPid() == 0)

    def ask(_: int) -> str:
        with pytest.raises(Py4JJavaError) as refused:
            provider.ask(1, 0, False)
        return str(refused.value)

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(ask, range(8)))
    assert [one for one in said if "the backend cannot be opened: nobody answers" not in one] == []
    assert len((tmp_path / "starts").read_text().split()) <= 4, "two attempts each, all at about the same time"
    (tmp_path / "gone").unlink()
    assert provider.ask(1, 0, False) == 1


def test_a_store_that_stays_unavailable_fails_the_commit_and_keeps_the_state(world: Any, items: Any) -> None:
    url = f"file://{world.folder}/store"
    provider = world.provider(url=url, retryMs=200)
    provider.open(0, None).put(1, 1, "a").commit()
    store = provider.open(1, None).put(2, 2, "b")
    folder = world.folder / "store"
    folder.rename(world.folder / "away")
    folder.write_text("in the way")
    with pytest.raises(Py4JJavaError, match="CANNOT_COMMIT"):
        store.commit()
    assert not store.hasCommitted()
    store.abort()
    folder.unlink()
    (world.folder / "away").rename(folder)
    assert items(provider.open(1, None).items()) == {"1:1": "a"}
