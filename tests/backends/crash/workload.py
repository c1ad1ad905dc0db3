"""What the writers of the crash explorer write, what they note of it, and what may be found after a crash.

Nothing here knows a backend: only the contract counts.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from mmap import mmap
from pathlib import Path
from random import Random

import safekeeper
from safekeeper import Batch, CheckpointId, Columns
from safekeeper.backend import Backend, SupportsCompaction

from .disk import open_control, position

THREADS = 2
_SIZES = (0, 8, 100, 100, 400, 400, 2_000, 9_000)

Found = Mapping[CheckpointId, bytes | None]


def changes_of(seed: int, writer: str, number: int) -> tuple[str, dict[CheckpointId, bytes | None]]:
    """What an operation of a writer is, "batch" or "columns", and what it changes. Writers share all ids."""
    random = Random(f"{seed}/{writer}/{number}")
    mark = f"{writer}.{number}:".encode()

    def value() -> bytes:
        size = random.choice(_SIZES)
        return mark + random.randbytes(size) if size else b""

    if random.random() < 0.1:
        return "columns", {CheckpointId("columns", b"%d" % n): value() for n in random.sample(range(10), 4)}
    ids = [CheckpointId(f"group{n % 3}", b"%d" % n) for n in random.sample(range(20), random.choice((1, 1, 2, 5)))]
    return "batch", {id: None if random.random() < 0.25 else value() for id in ids}


def write(store: Backend, kind: str, changes: Found) -> None:
    """Do one operation."""
    if kind == "columns":
        keys, values = [id.key for id in changes], [value or b"" for value in changes.values()]
        store.write(Batch.of_columns(Columns.of("columns", keys, values)))
        return
    batch = Batch()
    for id, value in changes.items():
        batch.delete(id) if value is None else batch.put(id, value)
    store.write(batch)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one writer process is to do."""

    url: str
    seed: int
    writer: str
    most: int
    """After so many operations of a thread it ends in good order."""
    control: Path
    """Of the disk."""
    notes: Path
    """The folder for its notes, which is not on the disk."""


def be_a_writer(assignment: Assignment) -> None:
    """Write until everything is done or somebody kills this process. What goes wrong is noted."""
    control = open_control(assignment.control)
    with safekeeper.open(assignment.url) as store:
        threads = [
            threading.Thread(target=_write_all, args=(store, assignment, f"{assignment.writer}{thread}", control))
            for thread in "ab"[:THREADS]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _write_all(store: Backend, assignment: Assignment, name: str, control: mmap) -> None:
    notes = os.open(assignment.notes / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    random = Random(f"{assignment.seed}/{name}")

    def note(word: str, number: int) -> None:
        os.write(notes, f"{word} {number} {time.monotonic_ns()} {position(control)}\n".encode())

    try:
        for number in range(assignment.most):
            kind, changes = changes_of(assignment.seed, name, number)
            note("begin", number)
            write(store, kind, changes)
            note("done", number)
            if random.random() < 0.03 and isinstance(store, SupportsCompaction):
                store.compact()
    except BaseException:
        (assignment.notes / f"{name}.failed").write_text(traceback.format_exc())
        raise


@dataclass(slots=True)
class Done:
    """One operation as it went. Times are of one clock; positions are those of the disk's record."""

    name: str
    changes: Found
    begun: int
    begun_at: int
    ended: float = inf
    """When it had returned or its process was dead: from then on it cannot happen any more."""
    acknowledged_at: float = inf
    """The position at which it was acknowledged."""


class History:
    """What all writers did, and so what may be found after a crash at any position."""

    def __init__(self, operations: list[Done]) -> None:
        self.operations = operations
        nothing = Done("nothing", {}, -1, -1, -1, -1)
        self._of_id: dict[CheckpointId, list[Done]] = defaultdict(lambda: [nothing])
        for operation in operations:
            for id in operation.changes:
                self._of_id[id].append(operation)

    @classmethod
    def read(cls, notes: Path, seed: int, deaths: Mapping[str, int], before: Sequence[Done] = ()) -> History:
        """Put the notes together. *deaths* says when each writer was gone, *before* what had been done before all."""
        operations = [*before]
        for path in sorted(notes.iterdir()):
            assert not path.name.endswith(".failed"), f"a writer failed on a disk without faults:\n{path.read_text()}"
            of_writer: dict[int, Done] = {}
            for line in path.read_text().splitlines():
                word, number, at, place = line.split()
                if word == "begin":
                    changes = changes_of(seed, path.name, int(number))[1]
                    of_writer[int(number)] = Done(f"{path.name}.{number}", changes, int(at), int(place))
                else:
                    of_writer[int(number)].ended = int(at)
                    of_writer[int(number)].acknowledged_at = int(place)
            for operation in of_writer.values():
                operation.ended = min(operation.ended, deaths[path.name[:-1]])
                operations.append(operation)
        return cls(operations)

    def until(self, position: int) -> list[Done]:
        """What was done before a crash at *position*, for those who go on after it."""
        return [
            replace(one, begun_at=-1, acknowledged_at=-1 if one.acknowledged_at <= position else inf)
            for one in self.operations
            if one.begun_at <= position
        ]

    def acknowledged(self, position: int) -> int:
        """How many operations were acknowledged before *position*."""
        return sum(operation.acknowledged_at <= position for operation in self.operations)

    def problems(self, found: Found, position: int, atomic: bool) -> list[str]:
        """What is wrong with what was *found* after a crash at *position*; *found* leaves out what is absent."""
        problems = [f"{id} was never written" for id in found if id not in self._of_id]
        seen: dict[CheckpointId, list[Done]] = {}
        for id, operations in self._of_id.items():
            value = found.get(id)
            last_begun = max((one.begun for one in operations if one.acknowledged_at <= position), default=-1)
            matching = [one for one in operations if one.begun_at <= position and one.changes.get(id) == value]
            seen[id] = [one for one in matching if one.ended >= last_begun]
            if not seen[id]:
                why = f"older than an acknowledged one: {matching[-1].name}" if matching else "never written"
                problems.append(f"{id} is {_short(value)}, which is {why}")
        if atomic and not problems:
            problems += self._halves(seen)
        return problems

    def _halves(self, seen: Mapping[CheckpointId, list[Done]]) -> list[str]:
        """Operations of which one id is there and another one is not, though nothing later has replaced it."""
        problems = []
        for id, matching in seen.items():
            if len(matching) != 1:
                continue  # which one it was cannot be told
            (whole,) = matching
            for other in whole.changes:
                if all(one.ended < whole.begun for one in seen[other]):
                    problems.append(f"{whole.name} is there at {id}, but not at {other}")
        return problems

    def everything(self, found: Callable[[list[CheckpointId]], list[bytes | None]]) -> dict[CheckpointId, bytes]:
        """What *found* gives for all ids that were ever written; those that are absent left out."""
        ids = list(self._of_id)
        return {id: value for id, value in zip(ids, found(ids), strict=True) if value is not None}


def _short(value: bytes | None) -> str:
    return "absent" if value is None else f"{value[:24]!r} ({len(value)} bytes)"
