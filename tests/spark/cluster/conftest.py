"""Queries on clusters of several processes, and what is done to these processes meanwhile."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from safekeeper.dev.redis import RedisServer
from safekeeper.dev.spark import SparkCluster
from safekeeper.spark.build import spark_home
from safekeeper.testing.processes import AGENT, descendants

START = datetime(2024, 1, 1)
SIDES = ("left", "right")
EXECUTOR = b"CoarseGrainedExecutorBackend"

Counts = Counter[tuple[str, str]]


@dataclass(frozen=True)
class Stream:
    """The input of a query, and what must come out of it."""

    folder: Path
    truth: Counts
    """How many pairs of each key began in each minute."""

    @classmethod
    def write(cls, folder: Path, batches: int, rows: int = 60, seed: int = 0) -> Stream:
        """One file of each side in a batch; the last lets the watermark pass everything, so that all comes out."""
        chance = random.Random(seed)
        events: dict[str, list[tuple[str, datetime]]] = {side: [] for side in SIDES}
        (folder / "out").mkdir(parents=True)
        for side in SIDES:
            (folder / side).mkdir()
            for batch in range(batches):
                times = (START + timedelta(minutes=batch, seconds=chance.randrange(60)) for _ in range(rows))
                some = [(f"key {chance.randrange(10)}", time) for time in times]
                events[side] += some
                cls._add(folder / side, batch, some)
            cls._add(folder / side, batches, [("end", START + timedelta(days=1))])
        near = timedelta(minutes=1)
        pairs = (
            (time.replace(second=0).isoformat(), key)
            for key, time in events["left"]
            for other, later in events["right"]
            if key == other and time <= later <= time + near
        )
        return cls(folder, Counter(pairs))

    @staticmethod
    def _add(folder: Path, batch: int, events: list[tuple[str, datetime]]) -> None:
        path = folder / f"{batch:04}.json"
        path.write_text("\n".join(json.dumps({"key": key, "time": time.isoformat()}) for key, time in events))
        os.utime(path, (batch, batch))  # the order in which Spark takes them

    def found(self) -> Counts:
        """What the query has put out so far."""
        counts: Counts = Counter()
        for file in (self.folder / "out").glob("*.json"):
            for minute, key, count in json.loads(file.read_text()):
                counts[minute, key] += count
        return counts


class Driver:
    """A running driver, and the executors and agents that work for it."""

    def __init__(self, stream: Stream, master: str, url: str, settings: dict[str, str]) -> None:
        self._log = stream.folder / "driver.log"
        command = [sys.executable, str(Path(__file__).with_name("driver.py")), str(stream.folder), master, url]
        given = map("=".join, settings.items())
        surroundings = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, *given], env=surroundings, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._roots: list[int] = []
        """The processes that executors descend from, besides its own JVM."""
        self._application = ""
        self.jvm = 0

    def batches(self) -> Iterator[int]:
        """The number of each batch as it begins, until the driver ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self.jvm = told.get("jvm", self.jvm)
            self._application = told.get("application", self._application)
            if "batch" in told:
                yield told["batch"]

    def wait(self) -> None:
        """Wait until it has put out everything."""
        for _ in self.batches():
            pass
        assert self._process.wait() == 0, self.said()

    def said(self) -> str:
        """The end of what it has written to standard error."""
        return self._log.read_text()[-20_000:]

    def lives_below(self, pids: list[int]) -> None:
        """Its executors are children of these processes, not of its own."""
        self._roots = pids

    def executors(self) -> list[int]:
        """The processes of its executors, oldest first."""
        return descendants([self.jvm, *self._roots], EXECUTOR)

    def agents(self) -> list[int]:
        """The processes of the agents of its executors, oldest first."""
        return descendants(self.executors(), AGENT)

    def kill(self) -> None:
        """End it the hard way. That it has ended is not an error."""
        for pid in (self.jvm, self._process.pid):
            if pid:
                send(pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._application:  # where `local-cluster` has its executors' files
            shutil.rmtree(spark_home() / "work" / self._application, ignore_errors=True)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process. That it is gone is not an error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.fixture
def drive(environment: None) -> Iterator[Callable[..., Driver]]:
    """Starts drivers; none is left when the test ends."""
    drivers = []

    def drive(stream: Stream, master: str, url: str, **settings: str) -> Driver:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        drivers.append(Driver(stream, master, url, named))
        return drivers[-1]

    yield drive
    for driver in drivers:
        driver.kill()


@pytest.fixture
def cluster(environment: None, tmp_path: Path) -> Iterator[SparkCluster]:
    """A standalone cluster without workers."""
    with SparkCluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Gives the URL of an empty store by its scheme, with a server for it if it needs one."""
    with ExitStack() as servers:

        def store_url(scheme: str) -> str:
            if scheme != "redis":
                return f"{scheme}://{tmp_path}/store"
            return servers.enter_context(RedisServer(tmp_path / "redis", appendonly="yes", appendfsync="always")).url

        yield store_url


@pytest.fixture(scope="session")
def stream() -> Any:
    """Makes streams: `stream(folder, batches)`."""
    return Stream.write


@dataclass(frozen=True)
class Blow:
    """Something that happens to a process while a batch runs."""

    batch: int
    delay: float
    """Seconds after the batch began."""
    kind: str
    """`kill executor`, `kill agent`, or `pause executor`: it is late, but will try to finish what it began."""
    which: float
    """Which of them, from 0 for the oldest to just below 1 for the youngest."""

    def strike(self, driver: Driver) -> None:
        """Let it happen. That there is nobody to hit, since a blow before was recent, is not an error."""
        time.sleep(self.delay)
        found = driver.agents() if self.kind == "kill agent" else driver.executors()
        if not found:
            return
        victim = found[int(self.which * len(found))]
        if self.kind == "pause executor":
            send(victim, signal.SIGSTOP)
            time.sleep(3)
            send(victim, signal.SIGCONT)
        else:
            send(victim, signal.SIGKILL)


@pytest.fixture(scope="session")
def blows() -> Callable[[int, int], list[Blow]]:
    """Draws one or two blows for about every second of so many batches, by a seed."""

    def blows(seed: int, batches: int) -> list[Blow]:
        chance = random.Random(seed)
        kinds = ("kill executor", "kill agent", "pause executor")
        return [
            Blow(batch, chance.uniform(0, 2), kind, chance.random())
            for batch in range(batches)
            for kind in chance.sample(kinds, chance.choice((0, 1, 1, 2)))
        ]

    return blows
