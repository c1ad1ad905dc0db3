"""How long nothing comes when the owner of an operator is killed or stopped, and a warm standby takes over.

    python -m safekeeper.bench.studies.takeover [--kills 100] [--stops 20] [--cuts 0] [--rate 500] [--quick]

Two processes run the same operator with `standby="warm"`, on `log:`, with TCP streams. This process sends elements at a
steady rate, reads what comes out, kills or stops the owner, and waits for the first output that is new. Then it starts
another standby. Every output is checked: its number, and what it has counted. A stopped owner is continued when it has
been replaced; it has to end with `Conflict`. With *cuts* the two are on hosts of their own, which are network
namespaces, and the owner's wire is pulled as often as that: it is alive, and nobody hears of it. That needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Self

from safekeeper import Every
from safekeeper.bench.harness.goals import Goal
from safekeeper.bench.harness.laboratory import needs_laboratory
from safekeeper.errors import Conflict
from safekeeper.operators import Operator
from safekeeper.streams import StreamElement, open_inlet, open_outlet

if TYPE_CHECKING:
    from safekeeper.bench.lab.shaped_network import ShapedNetwork, ShapedServer

KEYS = 7
REPLACED = 3
"""How an owner ends that finds another one in its place."""
PATIENCE = 60.0
LEASE = 1.5


def expected(number: int) -> bytes:
    """The output for input *number*: how many of its key there were."""
    return b"%d %d" % (number, (number - 1) // KEYS + 1)


def work(
    store: str, inputs: str, outputs: str, lease: float, every: float | None, told: int, watch: str = "127.0.0.1:0"
) -> None:
    """Count for ever, or stand by. With *every*, a block is appended every so many seconds and outputs do not wait."""

    def tell(what: str) -> None:
        os.write(told, f"{os.getpid()} {what} {time.monotonic()}\n".encode())

    follows = threading.Event()

    def on_lag(lag: object) -> None:
        if not follows.is_set():
            follows.set()
            tell("follows")

    with Operator(
        *("counter", store),
        inputs={"in": inputs},
        outputs={"out": outputs},
        readers={"out": ["sink"]},
        kind="deterministic",
        release="durable" if every is None else "at-once",
        capture=None if every is None else Every(seconds=every),
        standby="warm",
        lease=lease,
        watch=watch,
        on_lag=on_lag,
    ) as counter:
        tell("owns")
        for event in counter:
            part = counter.part(b"%d" % (int(event.body) % KEYS), int)
            part.state += 1
            counter.emit("out", b"%d %d" % (int(event.body), part.state), key=b"%d" % os.getpid())


def zygote(settings: dict[str, Any]) -> None:
    """Fork a worker for each line on standard input: they start quickly. What they tell goes to standard output.

    One that is to be *cold* is started as anybody would start it."""
    for line in sys.stdin:
        if line.startswith("wait"):
            _, status = os.waitpid(int(line.split()[1]), 0)
            code = os.waitstatus_to_exitcode(status)
            print(f"{line.split()[1]} ended {code} {time.monotonic()}", flush=True)
        elif line.startswith("cold"):
            began = time.monotonic()
            cold = [sys.executable, "-m", "safekeeper.bench.studies.takeover", "--worker", json.dumps(settings)]
            pid = os.posix_spawn(sys.executable, cold, os.environ)
            print(f"{pid} started {began}", flush=True)
        elif not (pid := os.fork()):
            code = 1
            try:
                if where := line.split()[1:]:
                    from safekeeper.bench.lab.shaped_network import ShapedServer

                    namespace, address = where
                    ShapedServer(namespace, address, rack="").enter()
                    settings["watch"] = f"{address}:0"
                work(**settings, told=1)
            except Conflict:
                code = REPLACED
            finally:
                os._exit(code)
        else:
            print(f"{pid} started {time.monotonic()}", flush=True)


@dataclass(frozen=True, slots=True)
class Takeover:
    """What one failure cost."""

    how: str
    seconds: float
    """From the signal to the first output that the standby has made."""
    owned: float
    """Until the standby owned the journal and had opened everything."""


class Pair:
    """An owner and its standby, somebody who sends and somebody who reads."""

    def __init__(
        self,
        folder: str,
        rate: float,
        lease: float = LEASE,
        every: float | None = None,
        network: ShapedNetwork | None = None,
    ) -> None:
        ports = [_free_port() for _ in range(3)]
        self._network = network
        here = "127.0.0.1" if network is None else network.host
        there = [here, here] if network is None else [server.address for server in network.servers]
        options = f"?beat={lease / 3}" + ("" if network is None else f"&secret={secrets.token_hex(16)}")
        self._inputs = f"tcp://{here}:{ports[0]}/in{options}"
        self._outputs = f"tcp://{there[0]}:{ports[1]},{there[1]}:{ports[2]}/out{options}"
        self._places: dict[int, ShapedServer] = {}
        self.store = f"log://{folder}/store"
        settings: dict[str, Any] = {"store": self.store, "inputs": self._inputs, "outputs": self._outputs}
        settings |= {"lease": lease, "every": every}
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "safekeeper.bench.studies.takeover", "--zygote", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._said: list[tuple[int, str, float]] = []
        self._rest = b""
        self.alive: set[int] = set()
        self._rate = rate
        self._ending = threading.Event()
        self.sent = 0
        self.seen = 0
        """How many outputs have come, each of them right."""
        self.wrong: list[StreamElement] = []
        self.by = b""
        """Which process has made the last of them."""
        self._came = threading.Condition()
        self._threads = [threading.Thread(target=call, daemon=True) for call in (self._send, self._read)]

    def __enter__(self) -> Self:
        self._outlet = open_outlet(self._inputs, readers=["counter"])
        self._inlet = open_inlet(self._outputs, reader="sink", after=0)
        for thread in self._threads:
            thread.start()
        owner = self.start()
        self.hear(owner, "owns")
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.close()
        self._zygote.wait(PATIENCE)
        self._zygote.stdout.close()
        for thread in self._threads:
            thread.join()
        self._outlet.close()
        self._inlet.close()

    def _send(self) -> None:
        begun = time.monotonic()
        while not self._ending.wait(0.002):
            upto = int((time.monotonic() - begun) * self._rate)
            self._outlet.send([StreamElement(n, b"%d" % n) for n in range(self.sent + 1, upto + 1)])
            self.sent = max(upto, self.sent)

    def _read(self) -> None:
        while not self._ending.is_set():
            elements = self._inlet.read(timeout=0.1)
            if not elements:
                continue
            with self._came:
                for element in elements:
                    if element.number != self.seen + 1 or element.body != expected(self.seen + 1):
                        self.wrong.append(element)
                    self.seen += 1
                    self.by = element.key
                self._came.notify_all()
            self._inlet.acknowledge(elements[-1].number)

    def start(self, how: str = "fork") -> int:
        """Start another process, a "cold" one with an interpreter of its own; its id."""
        assert self._zygote.stdin is not None
        place = None
        if self._network is not None:  # where the other one is not
            place = next(server for server in self._network.servers if server not in self._places.values())
            how = f"{how} {place.namespace} {place.address}"
        self._zygote.stdin.write(f"{how}\n".encode())
        self._zygote.stdin.flush()
        pid = self._wait_for(lambda pid, what: what == "started")[0]
        self.alive.add(pid)
        if place is not None:
            self._places[pid] = place
        return pid

    def ended(self, pid: int) -> int:
        """How a process ended."""
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(f"wait {pid}\n".encode())
        self._zygote.stdin.flush()
        self.alive.discard(pid)
        self._places.pop(pid, None)
        return int(self._wait_for(lambda who, what: who == pid and what.startswith("ended"))[1].split()[1])

    def hear(self, pid: int, what: str) -> float:
        """Wait until a process has told it; when it did."""
        return self._wait_for(lambda who, said: (who, said) == (pid, what))[2]

    def _wait_for(self, check: Callable[[int, str], bool]) -> tuple[int, str, float]:
        assert self._zygote.stdout is not None
        give_up = time.monotonic() + PATIENCE
        while True:
            for found in self._said:
                if check(*found[:2]):
                    self._said.remove(found)
                    return found
            if time.monotonic() > give_up or not select.select([self._zygote.stdout], [], [], PATIENCE)[0]:
                raise TimeoutError(f"nobody said it; heard: {self._said}")
            *lines, self._rest = (self._rest + os.read(self._zygote.stdout.fileno(), 1 << 16)).split(b"\n")
            for pid, *what, at in (line.decode().split() for line in lines):
                self._said.append((int(pid), " ".join(what), float(at)))

    def wait_for_outputs(self, upto: int) -> None:
        """Wait until so many outputs have come."""
        with self._came:
            if not self._came.wait_for(lambda: self.seen >= upto, PATIENCE):
                raise TimeoutError(f"only {self.seen} of {upto} outputs came")

    def finish(self) -> None:
        """Wait for all that was sent. Raise `AssertionError` if an output is missing, double or wrong."""
        self.wait_for_outputs(self.sent)
        assert not self.wrong, f"not what was expected: {self.wrong[:3]}"

    def fail(self, owner: int, how: str, standby: int) -> Takeover:
        """Kill or stop the owner, or cut the way to it, and wait until the standby has taken over."""
        begun = time.monotonic()
        if how == "cut":
            assert self._network is not None
            self._network.cut(self._places[owner])
        else:
            os.kill(owner, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        came = self.wait_for_output_of(standby)
        return Takeover(how, came - begun, self.hear(standby, "owns") - begun)

    def go_on(self, owner: int, how: str) -> None:
        """Let an owner that was stopped or cut off go on. Raise `AssertionError` if it does not notice that it was
        replaced."""
        if how == "cut":
            assert self._network is not None
            self._network.mend(self._places[owner])
        elif how == "stop":
            os.kill(owner, signal.SIGCONT)
        code = self.ended(owner)
        assert how == "kill" or code == REPLACED, f"an owner went on after a {how} and ended with {code}"

    def wait_for_output_of(self, pid: int) -> float:
        """Wait until there is an output that a process has made; when it came."""
        with self._came:
            if not self._came.wait_for(lambda: self.by == b"%d" % pid, PATIENCE):
                raise TimeoutError(f"{pid} has not taken over")
            return time.monotonic()


def run(
    folder: str,
    failures: Sequence[str],
    rate: float,
    seed: int,
    lease: float = LEASE,
    network: ShapedNetwork | None = None,
) -> list[Takeover]:
    """Let the owner fail again and again. Raise `AssertionError` if an output is missing, double or wrong."""
    random = Random(seed)  # noqa: S311
    found: list[Takeover] = []
    with Pair(folder, rate, lease, network=network) as pair:
        (owner,) = pair.alive
        for how in failures:
            standby = pair.start()
            pair.hear(standby, "follows")
            pair.wait_for_outputs(pair.seen + 1)
            time.sleep(0.1 + 0.2 * random.random())
            found.append(pair.fail(owner, how, standby))
            pair.go_on(owner, how)
            owner = standby
        pair.finish()
    return found


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--cuts", type=int, default=0, help="between hosts, and as many kills there; needs root")
    parser.add_argument("--rate", type=float, default=500.0, help="elements a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="where to write; on the disk that is to be measured")
    parser.add_argument("--quick", action="store_true", help="a tenth of the kills and stops; goals are not measured")
    parser.add_argument("--zygote", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.zygote:
        zygote(json.loads(options.zygote))
        return
    if options.worker:
        work(**json.loads(options.worker), told=1)
        return
    share = 10 if options.quick else 1
    goals = []
    for where, counts in (
        ("on one host", {"kill": options.kills // share, "stop": options.stops // share}),
        ("between hosts", {"kill": options.cuts // share, "cut": options.cuts // share}),
    ):
        failures = [how for how, count in counts.items() for _ in range(count)]
        if not failures:
            continue
        Random(options.seed).shuffle(failures)  # noqa: S311
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder))
            network = None
            if where == "between hosts":
                with needs_laboratory():
                    from safekeeper.bench.lab.shaped_network import ShapedNetwork
                network = stack.enter_context(ShapedNetwork({"/owner": 1, "/standby": 1}))
            found = run(folder, failures, options.rate, options.seed, network=network)
        for how in counts:
            goals += _report(where, how, [takeover for takeover in found if takeover.how == how])
        print(f"nothing double, missing or wrong after {len(found)} failures {where}", flush=True)
    for goal in goals:
        print(Goal(goal.text, None) if options.quick else goal)


def _report(where: str, how: str, found: Sequence[Takeover]) -> list[Goal]:
    """Print what failures of one kind have cost; what is wanted of them."""
    if not found:
        return []
    times, owned = [takeover.seconds for takeover in found], [takeover.owned for takeover in found]
    p50, p95 = statistics.median(times), _percentile(times, 0.95)
    print(
        f"{how} {where}: {len(times)} times, until the first new output p50 {1e3 * p50:.0f} ms, "
        f"p95 {1e3 * p95:.0f} ms, worst {1e3 * max(times):.0f} ms"
    )
    print(
        f"  of that until the standby owned the journal p50 {1e3 * statistics.median(owned):.0f} ms, "
        f"p95 {1e3 * _percentile(owned, 0.95):.0f} ms"
    )
    if how == "kill":
        text = f"takeover of a killed owner {where}"
        return [
            Goal(f"{text}: p50 {1e3 * p50:.0f} ms, at most 100", p50 <= 0.1),
            Goal(f"{text}: p95 {1e3 * p95:.0f} ms, at most 250", p95 <= 0.25),
        ]
    most = LEASE + 0.25
    text = f"takeover after a {how} {where}: p95 {1e3 * p95:.0f} ms, at most the lease and 250, {1e3 * most:.0f}"
    return [Goal(text, p95 <= most)]


if __name__ == "__main__":
    main()
