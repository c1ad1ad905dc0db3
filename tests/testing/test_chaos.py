"""The chaos harness does what it says, and does it again for the same seed."""

import multiprocessing
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from safekeeper.testing.chaos import DEEDS, Chaos, Victim
from safekeeper.testing.proxy import Proxy

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
PATIENCE = 60


def sleeper():
    return subprocess.Popen(SLEEPER)


def state_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def wait_for(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture
def victim():
    with closing(Victim("sleeper", sleeper)) as victim:
        yield victim


def test_a_killed_process_is_gone_and_another_one_is_started(victim):
    first = victim.process
    victim.kill()
    assert first.returncode == -signal.SIGKILL
    victim.start()
    assert victim.process.pid != first.pid
    assert victim.starts == 2


def test_a_stopped_process_stands_still_until_it_goes_on(victim):
    victim.stop()
    wait_for(lambda: state_of(victim.process.pid) == "T")
    victim.go_on()
    wait_for(lambda: state_of(victim.process.pid) != "T")


def test_a_replaced_process_goes_on_beside_its_successor():
    program = [sys.executable, "-c", "import time; end = time.time() + 1\nwhile time.time() < end: time.sleep(0.01)"]
    with closing(Victim("short", lambda: subprocess.Popen(program))) as victim:
        first = victim.process
        victim.replace()
        wait_for(lambda: state_of(first.pid) == "T")
        assert first.poll() is None
        assert victim.process is not first
        victim.wake()
        assert first.wait(PATIENCE) == 0
        victim.wake()
        assert victim.replaced == []


def test_processes_of_multiprocessing_are_victims_too():
    context = multiprocessing.get_context("forkserver")

    def start():
        process = context.Process(target=time.sleep, args=(600,))
        process.start()
        return process

    with closing(Victim("sleeper", start)) as victim:
        first = victim.process
        victim.kill()
        assert first.exitcode == -signal.SIGKILL
        assert victim.exit_code() == -signal.SIGKILL
        victim.start()
        assert victim.exit_code() is None


def test_what_ended_by_itself_is_started_again_unless_it_ended_well():
    with Chaos(seed=1) as chaos:
        bad = chaos.process("bad", lambda: subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
        good = chaos.process("good", lambda: subprocess.Popen([sys.executable, "-c", ""]))
        good.process.wait(PATIENCE)
        bad.process.wait(PATIENCE)
        chaos.see_to_it()
        assert (bad.starts, good.starts) == (2, 1)


class Recorded(Victim):
    """What would be done to a process, and nothing of it."""

    def __init__(self, name, said):
        self._said = said
        super().__init__(name, lambda: None)

    def __getattribute__(self, name):
        if name in ("kill", "stop", "go_on", "replace", "wake"):
            return lambda: self._said.append((self.name, name))
        return super().__getattribute__(name)


def history(seed):
    said, waited = [], []
    chaos = Chaos(seed=seed, say=lambda text: None)
    chaos._wait = lambda: waited.append(chaos.random.uniform(*chaos.pause))
    chaos._victims = {name: Recorded(name, said) for name in "abc"}
    for _ in range(200):
        chaos.strike()
    return said, waited, chaos.done


def test_the_same_seed_does_the_same():
    assert history(7) == history(7)
    assert history(7) != history(8)
    said, _, done = history(7)
    assert set(done) == {"kill", "stop", "replace"}
    assert {name for name, _ in said} == {"a", "b", "c"}


def test_the_seed_is_printed(capsys):
    with Chaos() as chaos:
        assert capsys.readouterr().out == f"chaos: seed {chaos.seed}\n"


def test_a_deed_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="there is no burn: there are kill"):
        Chaos(seed=1, deeds={"burn": 1})


def test_it_goes_on_until_it_is_enough_and_then_heals():
    with Chaos(seed=5, pause=(0.0, 0.05), deeds={"kill": 1, "stop": 1}) as chaos:
        victim = chaos.process("sleeper", sleeper)
        chaos.run(until=lambda: chaos.done.total() >= 6)
        assert chaos.done.total() == 6
        assert state_of(victim.process.pid) != "T"
        with pytest.raises(TimeoutError, match="seed 5"):
            chaos.run(until=lambda: False, timeout=0.2)
    assert victim.process.poll() is not None


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1000):
            self.request.sendall(data)


@pytest.fixture
def echo():
    """A server that answers what it is sent, and a proxy before it."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with closing(Proxy(server.server_address[1])) as proxy:
            yield proxy
        server.shutdown()


def connect(proxy):
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def test_a_proxy_passes_on_delays_cuts_and_parts(echo):
    with connect(echo) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        echo.delay(0.1)
        begun = time.monotonic()
        client.sendall(b"slow")
        assert client.recv(100) == b"slow"
        assert time.monotonic() - begun >= 0.2  # there and back
        echo.heal()
        echo.partition()
        client.sendall(b"lost?")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(100)
        echo.heal()
        client.settimeout(PATIENCE)
        assert client.recv(100) == b"lost?"
        echo.cut()
        assert client.recv(100) == b""
    with connect(echo) as client:
        client.sendall(b"again")
        assert client.recv(100) == b"again"


def test_links_are_harmed_and_healed(echo):
    with Chaos(seed=3, pause=(0.0, 0.05)) as chaos:
        chaos.link("echo", echo)
        for _ in range(10):
            chaos.strike()
        assert set(chaos.done) <= {"cut", "delay", "partition"} < set(DEEDS)
        chaos.heal()
    with connect(echo) as client:
        client.sendall(b"well")
        assert client.recv(100) == b"well"
