"""How an agent starts and ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from safekeeper.dev.redis import RedisServer

DONE = 65
LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


def field(data):
    return len(data).to_bytes(4, "little") + data


def test_it_says_that_it_is_ready_and_what_the_backend_promises(agent):
    assert agent.ready["ready"] is True
    assert agent.ready["version"] == 3
    assert agent.ready["scope"] == "HOST"
    assert "PROCESS" in agent.ready["survives"]
    assert agent.ready["pid"] == agent.process.pid


def test_only_its_user_may_open_the_socket(agent):
    assert stat.S_IMODE(os.stat(agent.path).st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to be somebody else")
def test_another_user_is_refused_even_if_the_socket_lets_him_in(start):
    folder = tempfile.mkdtemp()
    try:
        agent = start(socket=f"{folder}/agent.sock")
        os.chmod(folder, 0o755)
        os.chmod(agent.path, 0o666)
        ask = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({agent.path!r}); print(s.recv(1))"
        nobody = subprocess.run(
            ["/usr/bin/env", "-i", shutil.which("python3", path="/usr/bin") or sys.executable, "-c", ask],
            user=65534,
            capture_output=True,
            text=True,
            check=False,
        )
        if "Permission denied" in nobody.stderr and "python" in nobody.stderr.split("Permission")[0]:
            pytest.skip("there is no Python that another user may run")
        assert nobody.stdout.strip() == "b''", nobody.stderr
        with agent.peer() as peer:
            assert peer.keys() == []
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("first_line", "says"),
    (
        pytest.param('{"url": "flie:///tmp/x"}', "did you mean 'file'", id="unknown scheme"),
        pytest.param('{"url": "file:///tmp/x?speed=9"}', "no option 'speed'", id="unknown option"),
        pytest.param('{"url": "not a url"}', "no URL", id="no URL"),
        pytest.param('{"url": 5}', "url is a string", id="not a string"),
        pytest.param('{"url": "memory:", "queue_bytes": 0}', "positive", id="no memory"),
        pytest.param('{"url": "memory:", "retry_seconds": 0}', "positive", id="no time"),
        pytest.param('{"url": "memory:", "queue_bites": 1}', "first line", id="unknown setting"),
        pytest.param("file:///tmp/x", "first line", id="no JSON"),
        pytest.param("[1]", "first line", id="no object"),
        pytest.param("", "first line", id="nothing"),
    ),
)
def test_when_it_cannot_start_it_says_why_in_one_line(start, first_line, says):
    agent = start(first_line=first_line)
    assert agent.ready["ready"] is False
    assert says in agent.ready["error"]
    assert agent.ready["away"] is False
    assert "\n" not in agent.ready["error"]
    assert agent.ended() == 1


def test_a_store_that_is_away_is_waited_for(start, tmp_path):
    with RedisServer(tmp_path / "redis") as server:
        server.kill()
        starting = ThreadPoolExecutor().submit(start, server.url)
        time.sleep(3)
        server.start()
        agent = starting.result()
        assert agent.ready["ready"] is True, agent.ready
        with agent.peer() as peer:
            assert peer.put(b"a", b"1").kind == DONE


def test_a_store_that_stays_away_is_told_apart_from_what_is_wrong(start, tmp_path):
    with RedisServer(tmp_path / "redis") as server:
        url = server.url
    agent = start(first_line=json.dumps({"url": url, "retry_seconds": 1}))
    assert (agent.ready["ready"], agent.ready["away"]) == (False, True)
    assert "nothing listens there" in agent.ready["error"]
    assert agent.ended() == 1


def test_a_password_in_a_first_line_that_makes_no_sense_is_not_repeated(start):
    agent = start(first_line='{"url": "redis://:secret@host", "oops": 1}')
    assert "secret" not in json.dumps(agent.ready)


@pytest.mark.parametrize(
    ("path", "says"),
    (("missing/agent.sock", "No such file"), ("x" * 120, "too long")),
    ids=("no folder", "long path"),
)
def test_a_socket_that_cannot_be_made_is_one_line_too(start, path, says):
    agent = start(socket=path)
    assert agent.ready["ready"] is False
    assert says in agent.ready["error"]


def test_end_of_file_on_standard_input_ends_it_and_removes_the_socket(agent):
    with agent.peer() as peer:
        assert peer.put(b"a", b"1").kind == DONE
        agent.hang_up()
        assert agent.ended() == 0
        assert peer.is_hung_up_on()
    assert not os.path.exists(agent.path)


def test_a_folder_that_was_made_for_the_socket_goes_with_it(start, tmp_path):
    (tmp_path / "own").mkdir()
    agent = start(socket="own/agent.sock")
    agent.hang_up()
    assert agent.ended() == 0
    assert not (tmp_path / "own").exists()


def test_it_ends_with_its_parent_however_that_dies(tmp_path):
    line = json.dumps({"url": f"file://{tmp_path}/store"})
    parent_code = (
        "import subprocess, sys, time\n"
        "agent = subprocess.Popen([sys.executable, '-m', 'safekeeper.agent', sys.argv[1]], stdin=subprocess.PIPE)\n"
        "agent.stdin.write(sys.argv[2].encode() + b'\\n'); agent.stdin.flush()\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code, str(tmp_path / "agent.sock"), line], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline())["ready"]
        parent.kill()
        assert parent.stdout.read() == b""  # the pipe's last writer is gone: the agent has ended
    deadline = time.monotonic() + 60
    while (tmp_path / "agent.sock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sigterm_ends_it_cleanly(agent):
    agent.process.send_signal(signal.SIGTERM)
    assert agent.ended() == 0
    assert not os.path.exists(agent.path)


def test_control_c_is_not_meant_for_it(agent):
    agent.process.send_signal(signal.SIGINT)
    with agent.peer() as peer:
        assert peer.put(b"a", b"1").kind == DONE


def test_a_request_that_was_sent_before_the_end_is_answered(agent):
    with agent.peer() as peer:
        value = bytes(32 << 20)
        peer.send(peer.frame(1, 7, field(b"g") + field(b"k") + field(value)))
        agent.hang_up()
        try:
            acknowledged = peer.reply().kind == DONE
        except EOFError:  # it was cut off before the agent had read it all
            acknowledged = False
        assert agent.ended() == 0
    stored = next(Path(agent.path).parent.glob("store/g/*.ckpt"), None)
    assert not acknowledged or stored is not None


def test_a_socket_left_by_a_killed_agent_is_taken_over(start):
    first = start()
    first.kill()
    assert os.path.exists(first.path)
    second = start()
    assert second.ready["ready"] is True
    with second.peer() as peer:
        assert peer.put(b"a", b"1").kind == DONE


def test_the_socket_of_a_living_agent_is_not(start):
    with start().peer() as peer:
        assert start().ready["ready"] is False
        assert peer.put(b"a", b"1").kind == DONE


@pytest.mark.crash
def test_what_was_acknowledged_before_a_kill_is_there_and_sending_the_rest_again_is_harmless(start):
    """The kill comes at another moment each time: before, in and after the write of one of the values."""
    value = os.urandom(4 << 20)
    acknowledged = set()
    for round in range(200 if LONG else 6):
        agent, key = start(), b"%d" % round
        with agent.peer() as peer:
            peer.send(peer.frame(1, 7, field(b"g") + field(key) + field(value)))
            peer.socket.settimeout(round * 0.0005)
            try:
                assert peer.reply().kind == DONE
                acknowledged.add(key)
            except (TimeoutError, BlockingIOError):
                pass
            agent.kill()
        with (again := start()).peer() as peer:
            present = peer.keys()
            assert acknowledged <= set(present)
            assert all(found == value for found in peer.read(present[:4]))
            assert peer.put(key, value).kind == DONE
            assert peer.read([key]) == [value]
            if len(present) > 8:
                peer.delete(present)
                acknowledged.clear()
        again.kill()


def test_a_socket_address_is_not_left_to_the_next_process(agent):
    with socket.socket(socket.AF_UNIX) as probe:
        assert probe.connect_ex(agent.path) == 0
    agent.hang_up()
    agent.ended()
    with socket.socket(socket.AF_UNIX) as probe:
        assert probe.connect_ex(agent.path) != 0
