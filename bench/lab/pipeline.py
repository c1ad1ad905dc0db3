"""A chain of eight operators in four processes, over TCP, to kill and to measure: the set-up of sweeping checkpoints.

    source -> 0 1 | 2 3 | 4 5 | 6 7 -> sink          | is a border between processes; each has a `log:` of its own

Each operator keeps the last elements of its input as its state, and sends each element on with a checksum over that
state, so the sink's bytes depend on every state and every order. `expected` says what they have to be.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from safekeeper import Conflict, Every, SafeKeeper
from safekeeper.journal import Block, Journal
from safekeeper.keeper.lanes import Bounds
from safekeeper.operators import Operator, pump
from safekeeper.operators.core import Core
from safekeeper.operators.outputs import Emitted
from safekeeper.policy import Capture, EveryWhole, Sweep, Together, Trigger
from safekeeper.streams import StreamElement, open_inlet, open_outlet

OPERATORS, PROCESSES = 8, 4
REPLACED = 3
"""How a process ends that finds another one in its place."""
STATE = 20
"""Elements that an operator keeps."""
ELEMENT_BYTES = 100
PATIENCE = 120.0
HOLD = 60
"""Outputs that an operator keeps in memory, where they are to be spilled."""
SELDOM = 300
"""Elements after which the sink acknowledges, where outputs are to be spilled."""
LEASE = 2.0
Arm: TypeAlias = Literal["together", "individual", "sweep", "sweep changes"]
Form: TypeAlias = Literal["plain", "spilling", "standbys"]
"""plain: whoever is killed is started again. spilling: more outputs wait than fit into memory. standbys: each process
runs twice, and the second one takes over."""


ADDRESSES: dict[Form, int] = {"plain": 2, "spilling": 2, "standbys": 5}
"""At so many each process may listen: of two that are there, and those that were replaced and do not know it yet."""


def first(number: int) -> bytes:
    """What the source sends."""
    return (b"%d " % number).ljust(ELEMENT_BYTES, b".")


def advance(state: list[bytes], body: bytes) -> bytes:
    """What an operator makes of one element: its state, and what it sends."""
    state.append(body)
    del state[:-STATE]
    return (body.split(b" ")[0] + b" %08x" % zlib.crc32(b"".join(state))).ljust(ELEMENT_BYTES, b".")


def expected(operators: int = OPERATORS) -> Iterator[bytes]:
    """What the sink has to get."""
    states: list[list[bytes]] = [[] for _ in range(operators)]
    number = 0
    while True:
        number += 1
        body = first(number)
        for state in states:
            body = advance(state, body)
        yield body


def capture_of(arm: Arm, interval: float, is_last: bool) -> Capture | Trigger:
    """When an operator appends a block."""
    if arm == "together":
        return Together(interval, whole=True)
    if arm == "individual" or (is_last and arm == "sweep"):
        return EveryWhole(Every(seconds=interval))
    if is_last:
        return Every(seconds=interval)
    return Sweep(whole=arm == "sweep")


class Counted:
    """What the operators of this process have written."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may come while it is held
        self.reset()
        append, capture, spill = Journal.append, Core.capture, Emitted.spill

        def timed(core: Core, number: int, *, now: bool = False) -> Block | None:
            begun, used = time.perf_counter(), time.thread_time()
            block = capture(core, number, now=now)
            if block is not None:
                with self._lock:
                    self.seconds += time.perf_counter() - begun
                    self.processor += time.thread_time() - used
            return block

        def counted(journal: Journal, block: Block) -> int:
            begun, begun_at, used = time.perf_counter(), time.monotonic(), time.thread_time()
            size = len(block.encode())
            spent, used = time.perf_counter() - begun, time.thread_time() - used
            with self._lock:
                self.blocks += 1
                self.nbytes += size
                self.seconds += spent
                self.processor += used
                elements = sum(len(some.bodies) for some in block.out.values()) + STATE * len(block.keys)
                self.elements += elements
                self.captures.append((journal.name, round(begun_at, 4), elements))
            return append(journal, block)

        def spilled(emitted: Emitted, *args: int) -> int:
            before, upto = emitted.spilled.last, spill(emitted, *args)
            with self._lock:
                self.spilled += upto > before
            return upto

        setattr(Emitted, "spill", spilled)  # noqa: B010
        setattr(Core, "capture", timed)  # noqa: B010 - what operators do is measured from outside
        setattr(Journal, "append", counted)  # noqa: B010

    def reset(self) -> None:
        """Count from now on."""
        with self._lock:
            self.blocks = self.nbytes = self.elements = self.spilled = 0
            self.seconds = self.processor = 0.0
            self.captures: list[tuple[str, float, int]] = []
            """Of each block: whose it is, when it was captured by a clock that all processes have, its elements."""

    def __str__(self) -> str:
        numbers = self.blocks, self.nbytes, self.elements, self.seconds, self.processor, self.spilled
        return json.dumps([*numbers, self.captures])


@dataclass(frozen=True, slots=True)
class ChainCounts:
    """What the processes of a chain have counted."""

    blocks: int
    nbytes: int
    elements: int
    seconds: float
    processor: float
    """How many of them the processor took."""
    spilled: int
    """How often outputs have left memory."""
    captures: list[tuple[str, float, int]]
    """As in `Counted`, of all operators in the order of time."""


def work(folder: str, process: int, streams: list[str], arm: Arm, interval: float, form: Form) -> None:
    """Be one of the processes, until it is killed or replaced."""
    pump._CHECK = 0.2  # one that was replaced and gets nothing need not take five seconds to notice
    counted = Counted()
    signal.signal(signal.SIGTERM, lambda *_: (os.write(1, f"{os.getpid()} {counted}\n".encode()), os._exit(0)))
    signal.signal(signal.SIGUSR1, lambda *_: counted.reset())
    with SafeKeeper(f"log://{folder}/{process}", serializer=None) as keeper:
        own = range(process * 2, process * 2 + 2)
        threads = [threading.Thread(target=_operate, args=(keeper, n, streams, arm, interval, form)) for n in own]
        for thread in threads:
            thread.start()
        while all(thread.is_alive() for thread in threads):
            time.sleep(0.05)


def _operate(keeper: SafeKeeper, number: int, streams: list[str], arm: Arm, interval: float, form: Form) -> None:
    settings: dict[str, Any] = {}
    if form == "spilling":
        settings["hold"] = Bounds(HOLD)
    if form == "standbys":
        settings |= {"standby": "warm", "lease": LEASE}
    try:
        with Operator(
            *(f"o{number}", keeper),
            inputs={"in": streams[number]},
            outputs={"out": streams[number + 1]},
            readers={"out": ["sink" if number + 1 == OPERATORS else f"o{number + 1}"]},
            kind="deterministic",
            release="at-once",
            capture=capture_of(arm, interval, number + 1 == OPERATORS),
            want="precise",
            **settings,
        ) as operator:
            for event in operator:
                part = operator.part(b"state", list)
                operator.emit("out", advance(part.state, event.body))
    except Conflict:
        os._exit(REPLACED)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def zygote(settings: dict[str, Any]) -> None:
    """Fork a process for each line on standard input, so that they start quickly."""
    for line in sys.stdin:
        what, number = line.split()
        if what == "wait":
            _, status = os.waitpid(int(number), 0)
            print(f"{number} {os.waitstatus_to_exitcode(status)}", flush=True)
        elif not (pid := os.fork()):
            try:
                work(process=int(number), **settings)
            finally:
                os._exit(1)
        else:
            print(f"{pid} started", flush=True)


class OperatorChain:
    """The chain, its source and its sink. Each process listens at one of several addresses: a stopped one keeps its
    own."""

    def __init__(
        self, folder: str, rate: float, arm: Arm = "sweep changes", interval: float = 0.1, form: Form = "plain"
    ) -> None:
        streams = [f"tcp://127.0.0.1:{free_port()}/s0"]
        for _ in range(PROCESSES):
            at = ",".join(f"127.0.0.1:{free_port()}" for _ in range(ADDRESSES[form]))
            streams += [f"tcp://{at}/s{len(streams)}?beat=0.2", f"tcp://{at}/s{len(streams) + 1}?beat=0.2"]
        settings = {"folder": folder, "streams": streams, "arm": arm, "interval": interval, "form": form}
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "safekeeper.bench.lab.pipeline", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._streams, self._rate, self._form = streams, rate, form
        self._heard: deque[tuple[int, str]] = deque()
        self._rest = b""
        self._ending = threading.Event()
        self.sending = True
        self.sent = self.seen = 0
        self.wrong: list[StreamElement] = []
        self._expected = expected()
        self._came = threading.Condition()
        self.running: dict[int, int] = {}
        """The process id of each process of the chain; of two, that which was started first."""
        self.standbys: dict[int, int] = {}
        """That of the other one."""
        self._threads = [threading.Thread(target=call, daemon=True) for call in (self._send, self._read)]

    def __enter__(self) -> Self:
        self._outlet = open_outlet(self._streams[0], readers=["o0"])
        self._inlet = open_inlet(self._streams[-1], reader="sink", after=0)
        for process in range(PROCESSES):
            self.start(process)
            if self._form == "standbys":
                self.stand_by(process)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for pid in (*self.running.values(), *self.standbys.values()):
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
        """Send one element, and the others when the whole chain is there: it need not begin with a backlog."""
        self._outlet.send([StreamElement(1, first(1))])
        self.sent = 1
        while not self.seen and not self._ending.wait(0.002):
            pass
        begun = time.monotonic()
        while not self._ending.wait(0.002):
            upto = 1 + int((time.monotonic() - begun) * self._rate) if self.sending else self.sent
            self._outlet.send([StreamElement(n, first(n)) for n in range(self.sent + 1, upto + 1)])
            self.sent = max(upto, self.sent)

    def _read(self) -> None:
        acknowledged = 0
        while not self._ending.is_set():
            elements = self._inlet.read(timeout=0.1)
            if not elements:
                continue
            with self._came:
                for element in elements:
                    if element.number != self.seen + 1 or element.body != next(self._expected):
                        self.wrong.append(element)
                    self.seen += 1
                self._came.notify_all()
            acknowledged = self._acknowledge(self.seen, acknowledged)

    def _acknowledge(self, number: int, before: int) -> int:
        """Say that the sink has everything up to *number*; up to where it has said so."""
        if self._form == "spilling" and self.sending and number - before < SELDOM:
            return before
        self._inlet.acknowledge(number)
        return number

    def start(self, process: int) -> int:
        """Start a process of the chain, whether or not there is one; its id."""
        pid, _ = self._ask(f"start {process}", "started")
        self.running[process] = pid
        return pid

    def stand_by(self, process: int) -> None:
        """Start the standby of a process of the chain."""
        self.standbys[process], _ = self._ask(f"start {process}", "started")

    def look_after(self) -> None:
        """Start what has ended again, as whatever runs a program does: an owner that was replaced, also for nothing,
        since the machine was too busy to hear of it in time."""
        for process in range(PROCESSES if self._form == "standbys" else 0):
            if _has_ended(self.running[process]):
                self.ended(self.running[process])
                self.running[process] = self.standbys[process]
                self.stand_by(process)
            if _has_ended(self.standbys[process]):
                self.ended(self.standbys[process])
                self.stand_by(process)

    def ended(self, pid: int) -> int:
        """How a process has ended, when it has."""
        return int(self._ask(f"wait {pid}", "", pid)[1])

    def count_anew(self) -> None:
        """Let all processes count from now on."""
        for pid in self.running.values():
            os.kill(pid, signal.SIGUSR1)

    def counted(self) -> ChainCounts:
        """End all processes; what they have counted together."""
        found = []
        for process in sorted(self.running):
            pid = self.running.pop(process)
            os.kill(pid, signal.SIGTERM)
            found.append(json.loads(self._hear("[", pid)[1]))
            self.ended(pid)
        *numbers, captures = zip(*found, strict=True)
        moments = sorted((tuple(moment) for some in captures for moment in some), key=lambda moment: moment[1])
        blocks, nbytes, elements, seconds, processor, spilled = map(sum, numbers)
        return ChainCounts(blocks, nbytes, elements, seconds, processor, spilled, moments)

    def _ask(self, line: str, answer: str, pid: int | None = None) -> tuple[int, str]:
        assert self._zygote.stdin is not None
        self._zygote.stdin.write(f"{line}\n".encode())
        self._zygote.stdin.flush()
        return self._hear(answer, pid)

    def _hear(self, answer: str, pid: int | None) -> tuple[int, str]:
        assert self._zygote.stdout is not None
        while True:
            for found in self._heard:
                if found[1].startswith(answer) and pid in (None, found[0]):
                    self._heard.remove(found)
                    return found
            if not select.select([self._zygote.stdout], [], [], PATIENCE)[0]:
                raise TimeoutError(f"nobody said {answer}: {self._heard}")
            *lines, self._rest = (self._rest + os.read(self._zygote.stdout.fileno(), 1 << 16)).split(b"\n")
            for line in lines:
                who, _, what = line.decode().partition(" ")
                self._heard.append((int(who), what))

    def wait_for(self, count: int) -> None:
        """Wait until the sink has so many elements, all of them right."""
        give_up, before = time.monotonic() + PATIENCE, self.seen
        while self.seen < count and not self.wrong:
            with self._came:
                self._came.wait_for(lambda: self.seen >= count or bool(self.wrong), 0.5)
            self.look_after()
            if self.seen > before:  # PATIENCE is for one that is stuck, not for a machine that is busy
                give_up, before = time.monotonic() + PATIENCE, self.seen
            if time.monotonic() > give_up:
                raise TimeoutError(f"the sink has {self.seen} of {count} elements")
        assert not self.wrong, f"not what a run without a failure gives: {self.wrong[:2]}"

    def finish(self) -> None:
        """Send nothing more, and wait for everything that was sent."""
        self.sending = False
        time.sleep(0.01)
        self.wait_for(self.sent)


def _has_ended(pid: int) -> bool:
    """Whether a process of the zygote's has ended, and was not waited for."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def free_port() -> int:
    """A port at which nobody listens just now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    zygote(json.loads(sys.argv[1]))
