"""Two subjobs of two operators each, over TCP, with an active standby of one, of both, or of none: to count messages.

    source -> a (2 operators) -> b (2 operators) -> sink            each subjob is a process, or two that do the same

Every copy of a subjob gets each element from every copy of the one before it, and takes the first that comes. Active
standbys have no journal on disk and write no blocks. In the arm *passive* there is one copy of each, and checkpoints
sweep through all four operators, on a `log:` for each process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, Self, TypeAlias

from safekeeper import Closed, Every, SafeKeeper, Unavailable
from safekeeper.bench.lab.pipeline import PATIENCE, Counted, advance, expected, first, free_port
from safekeeper.operators import Operator
from safekeeper.policy import Sweep
from safekeeper.streams import Inlet, Position, StreamElement, open_inlet, open_outlet

SUBJOBS, IN_EACH = 2, 2
OPERATORS = SUBJOBS * IN_EACH
StandbyArm: TypeAlias = Literal["none", "none-active", "active-active", "passive"]
COPIES: dict[StandbyArm, tuple[int, int]] = {
    "none": (1, 1),
    "none-active": (1, 2),
    "active-active": (2, 2),
    "passive": (1, 1),
}
"""How many copies of each subjob there are."""
_ACKNOWLEDGE = 0.1  # seconds between blocks in memory: what they cover is acknowledged


class FirstCopy:
    """An inlet over *inlets* that all have the same elements: the first copy of each is given, once and in order.

    To a producer only what it has sent itself is acknowledged: it may be behind the others.
    """

    def __init__(self, inlets: Sequence[Inlet], after: Position | None) -> None:
        self.received = 0
        """How many elements have come, copies and all."""
        self._inlets, self._highest = inlets, _number(after)
        self._acknowledged = 0
        self._sent = dict.fromkeys(map(id, inlets), 0)  # by each
        self._came: queue.Queue[Sequence[StreamElement]] = queue.Queue(16)
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(inlet,), daemon=True) for inlet in inlets]
        for thread in self._threads:
            thread.start()

    def _read(self, inlet: Inlet) -> None:
        while not self._ending.is_set():
            try:
                elements = inlet.read(timeout=0.1)
            except Unavailable:
                self._ending.wait(0.05)
                continue
            except Closed:
                return
            while elements and not self._ending.is_set():
                with suppress(queue.Full):
                    self._came.put(elements, timeout=0.1)
                    self._sent[id(inlet)] = _number(elements[-1].number)
                    self._acknowledge(inlet)
                    break

    def read(self, timeout: float | None = None) -> Sequence[StreamElement]:
        """As `Inlet.read`."""
        with suppress(queue.Empty):
            elements = self._came.get(timeout=timeout)
            self.received += len(elements)
            fresh = [element for element in elements if _number(element.number) > self._highest]
            self._highest = max(self._highest, _number(elements[-1].number))
            return fresh
        return []

    def acknowledge(self, upto: Position) -> None:
        """As `Inlet.acknowledge`."""
        self._acknowledged = _number(upto)
        for inlet in self._inlets:
            self._acknowledge(inlet)

    def _acknowledge(self, inlet: Inlet) -> None:
        with suppress(Unavailable):
            inlet.acknowledge(min(self._acknowledged, self._sent[id(inlet)]))

    def last(self) -> Position | None:
        """As `Inlet.last`."""
        return self._highest or None

    def close(self) -> None:
        """As `Inlet.close`."""
        self._ending.set()
        for inlet in self._inlets:
            inlet.close()
        for thread in self._threads:
            thread.join()


def _number(position: Position | None) -> int:
    assert not isinstance(position, tuple), "a stream of ours has numbers"
    return position or 0


@dataclass(frozen=True, slots=True)
class CopySettings:
    """What a process of a subjob has to know."""

    name: str
    subjob: int
    sources: list[str]
    """The streams of all copies of what comes before it."""
    port: int
    readers: list[str]
    """Who reads what it sends."""
    store: str
    passive: bool
    interval: float


def work(settings: CopySettings) -> None:
    """Be a copy of a subjob, until a signal comes; then say what was received and what was written."""
    counted, inlets = Counted(), list[FirstCopy]()

    def end(*_: object) -> None:
        received = inlets[0].received if inlets else 0
        os.write(1, json.dumps([received, counted.blocks, counted.nbytes]).encode())
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    with SafeKeeper(settings.store, serializer=None) as keeper:
        streams = [f"tcp://127.0.0.1:{settings.port}/{settings.name}{n}?beat=0.2" for n in range(IN_EACH)]

        def open_first(after: Position | None) -> Inlet:
            sources = [open_inlet(source, reader=settings.name, after=after or 0) for source in settings.sources]
            inlets.append(FirstCopy(sources, after))
            return inlets[-1]

        def operate(number: int) -> None:
            is_last = number + 1 == IN_EACH
            ends = is_last and settings.subjob + 1 == SUBJOBS
            every = Every(seconds=settings.interval if settings.passive else _ACKNOWLEDGE)
            with Operator(
                *(f"{settings.name}.{number}", keeper),
                inputs={"in": open_first if number == 0 else streams[number - 1]},
                outputs={"out": streams[number]},
                readers={"out": settings.readers if is_last else [f"{settings.name}.{number + 1}"]},
                kind="deterministic",
                release="at-once",
                capture=every if ends or not settings.passive else Sweep(),
            ) as operator:
                for event in operator:
                    operator.emit("out", advance(operator.part(b"state", list).state, event.body))

        threads = [threading.Thread(target=operate, args=(number,), daemon=True) for number in range(IN_EACH)]
        for thread in threads:
            thread.start()
        while all(thread.is_alive() for thread in threads):
            time.sleep(0.05)


class CopiedPair:
    """The two subjobs, their source and their sink."""

    def __init__(self, folder: str, rate: float, arm: StandbyArm, interval: float = 0.5) -> None:
        self._folder, self._rate, self._arm, self._interval = folder, rate, arm, interval
        self._names = [[f"{job}{copy}" for copy in range(n)] for job, n in zip("ab", COPIES[arm], strict=True)]
        self._ports = {name: free_port() for names in self._names for name in names}
        self._source = f"tcp://127.0.0.1:{free_port()}/source"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        """The processes, by the names of their copies: a0, a1, b0, b1."""
        self.sent = self.seen = 0
        self.arrivals: list[tuple[float, int]] = []
        """When how many elements were at the sink."""
        self._sending, self._ending = True, threading.Event()
        self._wrong: list[StreamElement] = []
        self._came = threading.Condition()
        self._expected = expected(OPERATORS)
        self._threads = [threading.Thread(target=call, daemon=True) for call in (self._send, self._read)]

    def __enter__(self) -> Self:
        self._outlet = open_outlet(self._source, readers=self._names[0])
        for names in self._names:
            for name in names:
                self.start(name)
        self._inlet = FirstCopy([open_inlet(url, reader="sink", after=0) for url in self._streams(1)], 0)
        for thread in self._threads:
            thread.start()
        self.wait_for(1)
        return self

    def _streams(self, subjob: int) -> list[str]:
        return [f"tcp://127.0.0.1:{self._ports[name]}/{name}{IN_EACH - 1}?beat=0.2" for name in self._names[subjob]]

    def start(self, name: str) -> None:
        """Start a copy, or start it anew."""
        subjob = 0 if name in self._names[0] else 1
        passive = self._arm == "passive"
        settings = CopySettings(
            name=name,
            subjob=subjob,
            sources=[self._source] if subjob == 0 else self._streams(0),
            port=self._ports[name],
            readers=self._names[1] if subjob == 0 else ["sink"],
            store=f"log://{self._folder}/{name}" if passive else "memory:",
            passive=passive,
            interval=self._interval,
        )
        command = [sys.executable, "-m", "safekeeper.bench.lab.copies", json.dumps(asdict(settings))]
        self.running[name] = subprocess.Popen(command, stdout=subprocess.PIPE)

    def kill(self, name: str) -> None:
        """Kill a copy."""
        process = self.running.pop(name)
        process.kill()
        process.communicate()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        for name in list(self.running):
            self.kill(name)
        self._inlet.close()
        self._outlet.close()

    def _send(self) -> None:
        begun = time.monotonic()
        while not self._ending.wait(0.002):
            upto = int((time.monotonic() - begun) * self._rate) if self._sending else self.sent
            self._outlet.send([StreamElement(n, first(n)) for n in range(self.sent + 1, upto + 1)])
            self.sent = max(upto, self.sent)

    def _read(self) -> None:
        while not self._ending.is_set():
            if not (elements := self._inlet.read(timeout=0.1)):
                continue
            with self._came:
                for element in elements:
                    if element.number != self.seen + 1 or element.body != next(self._expected):
                        self._wrong.append(element)
                    self.seen += 1
                self.arrivals.append((time.monotonic(), self.seen))
                self._came.notify_all()
            self._inlet.acknowledge(elements[-1].number)

    def wait_for(self, count: int) -> None:
        """Wait until the sink has so many elements, all of them right."""
        with self._came:
            if not self._came.wait_for(lambda: self.seen >= count or bool(self._wrong), PATIENCE):
                raise TimeoutError(f"the sink has {self.seen} of {count} elements")
        assert not self._wrong, f"not what one copy alone gives: {self._wrong[:2]}"

    def _wait_for_copies(self) -> None:
        """Second copies may still be on their way: wait until the sink has had everything from everybody."""
        give_up = time.monotonic() + PATIENCE
        while self._inlet.received < self.sent * len(self._names[1]):
            if time.monotonic() > give_up:
                raise TimeoutError(f"{self._inlet.received} of {self.sent} elements from {self._names[1]}")
            time.sleep(0.01)
        time.sleep(0.2)  # and between the subjobs

    def finish(self) -> tuple[int, int, int]:
        """Send nothing more and wait until all copies have everything; what was received between the subjobs, and how
        many blocks and bytes of blocks were written."""
        self._sending = False
        time.sleep(0.01)
        self.wait_for(self.sent)
        self._wait_for_copies()
        counted: list[list[int]] = []
        for name, process in self.running.items():
            process.terminate()
            received, blocks, nbytes = json.loads(process.communicate(timeout=PATIENCE)[0])
            counted.append([received if name in self._names[1] else 0, blocks, nbytes])
        self.running.clear()
        received, blocks, nbytes = (sum(column) for column in zip(*counted, strict=True))
        return received, blocks, nbytes


if __name__ == "__main__":
    work(CopySettings(**json.loads(sys.argv[1])))
