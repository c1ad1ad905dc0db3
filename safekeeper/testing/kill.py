"""A process that writes until it is killed, and the states in which its store may then be.

It reports when it is about to open the store. Then each of its threads writes an endless sequence of batches that
follows from a seed, to ids of its own, and reports each batch when its write has returned. So whoever knows the seed
and has counted the reports knows what must be there: the state after the last reported batch, or for the ids of the
one batch after it, the state after that.
"""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.testing.peer import PATIENCE, start_python

THREADS = 2
_ABOUT_TO_OPEN = bytes([THREADS])
_SIZES = (0, 1, 20, 20, 500, 500, 5_000, 40_000, 100_000)

State: TypeAlias = Mapping[CheckpointId, bytes | None]


@dataclass(frozen=True, slots=True)
class Story:
    """What one process writes."""

    group: str
    """How the names of its groups begin."""
    seed: int

    def ids(self, thread: int) -> list[CheckpointId]:
        """The ids that *thread* writes, and nobody else."""
        return [CheckpointId(f"{self.group}-{thread}-{n % 3}", b"%d" % n) for n in range(8)]

    def steps(self, thread: int) -> Iterator[dict[CheckpointId, bytes | None]]:
        """The batches of *thread*, in order, without end."""
        random = Random(f"{self.seed}/{thread}")  # noqa: S311 - it has to be repeatable
        ids = self.ids(thread)
        while True:
            chosen = random.sample(ids, random.choice((1, 1, 2, 5)))
            yield {id: None if random.random() < 0.2 else random.randbytes(random.choice(_SIZES)) for id in chosen}

    def states_after(self, thread: int, acknowledged: int, before: State) -> tuple[State, State]:
        """The state after so many steps of *thread*, and the state after one more."""
        steps = self.steps(thread)
        state = {id: before.get(id) for id in self.ids(thread)}
        for step in itertools.islice(steps, acknowledged):
            state.update(step)
        return state, state | next(steps)


def write_until_killed(store: Backend, story: Story) -> None:
    """Write what *story* says from several threads; report each step as one byte, the number of its thread."""
    threads = [threading.Thread(target=_write_steps, args=(store, story, number)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _write_steps(store: Backend, story: Story, thread: int) -> None:
    for step in story.steps(thread):
        batch = Batch()
        for id, value in step.items():
            batch.delete(id) if value is None else batch.put(id, value)
        store.write(batch)
        os.write(sys.stdout.fileno(), bytes([thread]))


def run_and_kill(url: str, story: Story, random: Random) -> list[int]:
    """Let a process write and kill it at a random moment; how many steps of each thread it has acknowledged."""
    with start_python(__name__, url, story.group, str(story.seed), stdout=subprocess.PIPE) as process:
        try:
            reports = _watch(process, random)
        finally:
            process.kill()
        assert process.stdout is not None
        reports += process.stdout.read()
    return [reports.count(thread) for thread in range(THREADS)]


def _watch(process: subprocess.Popen[bytes], random: Random) -> bytes:
    """Wait for some reports and a part of the time that a step takes, so that the kill falls anywhere in a step."""
    assert process.stdout is not None
    wanted = int(100 ** random.random())  # 1 to 99, the small numbers more often; 1 falls into the opening
    fd, reports = process.stdout.fileno(), b""
    started = time.perf_counter()
    while len(reports) < wanted:
        if not select.select([fd], [], [], PATIENCE)[0]:
            raise TimeoutError(f"no write returned within {PATIENCE:g} s")
        if not (arrived := os.read(fd, 1 << 16)):
            raise AssertionError("the writing process ended by itself: its standard error says why")
        if not reports:
            started = time.perf_counter()
        reports += arrived
    per_step = (time.perf_counter() - started) / wanted
    time.sleep(random.random() * 3 * max(per_step, 0.002))
    return reports


if __name__ == "__main__":
    os.write(sys.stdout.fileno(), _ABOUT_TO_OPEN)
    with safekeeper.open(sys.argv[1]) as opened:
        write_until_killed(opened, Story(sys.argv[2], int(sys.argv[3])))
