"""The crash explorer: what a store on a real ext4 is after a power cut at any moment, whatever its backend is.

Several processes write, are killed and begin again, on an ext4 whose disk (`disk`) remembers every write and flush.
Then power cuts are made up: at some position of the record, with the writes since the last flush lost, kept or torn.
For each the image is made and mounted, which replays the journal of ext4, and the store is opened by new processes, on
the same run of the kernel and on another one. What was acknowledged before the cut must be there, or something newer;
nothing may be there that was not written; the store must be sound, and go on taking writes. On what one more power cut
leaves the writers go on, and it is done again.

A failure names the folder in which the recording was kept. This tries one of its states again:

    unshare --mount --pid --fork --kill-child --mount-proc python -m tests.backends.crash.explorer FOLDER STATE
"""

from __future__ import annotations

import json
import os
import pickle
import select
import shutil
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import safekeeper
from safekeeper import Batch, CheckpointId, stores
from safekeeper.backend import SupportsAtomicBatch

from .disk import PATIENCE, FuseDisk, Record, open_control, position
from .mounts import another_boot, make_image, mounted, run
from .workload import Assignment, Done, History, be_a_writer

STORES = {
    "file": "file://{}",
    "lmdb": "lmdb://{}",
    "log": "log://{}?segment=16K&compact-dead=0.3",
}
"""The stores that are explored, as URLs of a folder. Small segments make the log rotate and compact often."""

LIVES = 2
"""How often writers begin; each time but the first on what a power cut has left."""

PRETENDING = {**STORES, "lmdb": "lmdb://{}?sync=none"}
"""The same without syncs: LMDB makes its own, so it is told; the others are made to pretend."""

_ENOUGH = 5  # bad states, then the rest is not looked at
_EXTRA = CheckpointId("extra", b"after the crash")


@dataclass(frozen=True, slots=True)
class Exploration:
    """What is to be explored."""

    scheme: str
    seed: int
    states: int
    turns: int
    """How often a writer is killed, or let go on, before the recording ends."""
    pretended: str = ""
    """What the writers only pretend to do, "syncs" or "folder syncs": then the explorer has to find something."""


@dataclass(slots=True)
class Explored:
    """What came out of it."""

    states: int = 0
    operations: int = 0
    records: int = 0
    flushes: int = 0
    kills: int = 0
    acknowledged: int = 0
    """How many operations were acknowledged at the positions of the cuts, together."""
    bad: list[str] = field(default_factory=list)
    """What was wrong, with the number of the state."""


def explore(memory: Path, what: Exploration, kept: Path) -> Explored:
    """Record, then look at power cuts; go on from one of them, record that, and look again. What was recorded is kept
    in *kept* if a state is bad."""
    explored = Explored()
    for life in range(LIVES):
        folder = memory / f"life-{life}"
        folder.mkdir()
        if life == 0:
            make_image("ext4", folder / "image")
            before, boot = list[Done](), 0
        else:
            before = _crash(memory / f"life-{life - 1}", folder / "image", Random(f"crash {what.seed}"))
            boot = what.seed % 2
        (folder / "life").write_bytes(pickle.dumps((what, before, boot, f"w{life}-")))
        with another_boot(memory, boot):
            explored.kills += _record(memory, folder)
            _look_at_states(memory, folder, range(life, what.states, LIVES), explored)
        if explored.bad:
            if not what.pretended:
                shutil.copytree(folder, kept, dirs_exist_ok=True)
            break
    return explored


# --- recording ---


def _record(memory: Path, folder: Path) -> int:
    """Let writers write; leave image, record and notes in *folder*. How many writers were killed."""
    what, _, _, names = pickle.loads((folder / "life").read_bytes())
    random, image = Random(f"record {names} {what.seed}"), folder / "image"
    (folder / "notes").mkdir()
    with FuseDisk(memory / f"disk-{names}", image) as disk:
        with mounted(disk.file, memory / "mounted", content=image.read_bytes()) as mount:
            url = (PRETENDING if what.pretended else STORES)[what.scheme].format(mount / "store")
            crew = _Crew(url, what, names, disk.control, folder / "notes", random)
            try:
                crew.work()
            finally:
                crew.end()
        (disk.control.parent / "record").rename(folder / "record")
    (folder / "deaths").write_text(json.dumps(crew.deaths))
    return crew.kills


def _read(folder: Path) -> tuple[Record, History]:
    what, before, _, _ = pickle.loads((folder / "life").read_bytes())
    deaths = json.loads((folder / "deaths").read_text())
    return Record.read(folder / "record"), History.read(folder / "notes", what.seed, deaths, before)


def _crash(folder: Path, image: Path, random: Random) -> list[Done]:
    """Make an image of a power cut in the later half of a recording; what was done until then."""
    record, history = _read(folder)
    at = random.randint(len(record) // 2, len(record))
    (state,) = record.states((folder / "image").read_bytes(), [(at, "torn", random)])
    image.write_bytes(state)
    return history.until(at)


class _Crew:
    """Two or three writer processes at a time, each killed sooner or later, or ended in good order."""

    def __init__(self, url: str, what: Exploration, names: str, control: Path, notes: Path, random: Random) -> None:
        self._url, self._what, self._names, self._random = url, what, names, random
        self._control, self._notes = control, notes
        self._position = open_control(control)
        self._pids: dict[int, str] = {}
        self._started = 0
        self.kills = 0
        self.deaths: dict[str, int] = {}

    def work(self) -> None:
        for _ in range(self._what.turns):
            wanted = self._random.choice((2, 3, 3))
            while len(self._pids) < wanted:
                self._start()
            self._wait_for(self._random.randint(30, 250))
            if self._pids and self._random.random() < 0.7:
                self._kill(self._random.choice(list(self._pids)))

    def end(self) -> None:
        for pid in list(self._pids):
            self._kill(pid)

    def _start(self) -> None:
        self._started += 1
        name = f"{self._names}{self._started}"
        most = self._random.choice((20, 1 << 30))
        assignment = Assignment(self._url, self._what.seed, name, most, self._control, self._notes)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                if self._what.pretended:
                    _pretend(self._what.pretended)
                be_a_writer(assignment)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        self._pids[pid] = name

    def _wait_for(self, more: int) -> None:
        """Return when so much more was done, or all writers have ended."""
        until, deadline = self._progress() + more, time.monotonic() + PATIENCE
        while self._pids and self._progress() < until:
            assert time.monotonic() < deadline, "the writers do not write"
            time.sleep(0.005)
            for pid in list(self._pids):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._gone(pid)

    def _progress(self) -> int:
        """Writes and flushes of the disk, and notes of the writers: those that do not sync leave the disk in peace."""
        return position(self._position) + sum(path.stat().st_size for path in self._notes.iterdir()) // 40

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.kills += 1
        self._gone(pid)

    def _gone(self, pid: int) -> None:
        self.deaths[self._pids.pop(pid)] = time.monotonic_ns()


def _pretend(what: str) -> None:
    """Let this process sync nothing more, or no folder: what a backend that is broken would do."""
    fsync, pwritev = os.fsync, os.pwritev
    if what == "folder syncs":
        os.fsync = lambda fd: None if stat.S_ISDIR(os.fstat(fd).st_mode) else fsync(fd)
        return
    os.fsync = os.fdatasync = lambda fd: None
    os.pwritev = lambda fd, buffers, offset, flags=0: pwritev(fd, buffers, offset)


# --- looking ---


def _look_at_states(memory: Path, folder: Path, wanted: Sequence[int], explored: Explored) -> None:
    what, _, boot, names = pickle.loads((folder / "life").read_bytes())
    (record, history), image = _read(folder), (folder / "image").read_bytes()
    explored.records += len(record)
    explored.operations += len(history.operations)
    explored.flushes += record.entries.count(None)
    cuts = sorted(_cut(what.seed, number, record, history) for number in wanted)
    plan = [(position, how, Random(f"tear {what.seed} {number}")) for position, number, how in cuts]
    for (at, number, how), state in zip(cuts, record.states(image, plan), strict=True):
        explored.states += 1
        explored.acknowledged += history.acknowledged(at)
        boots = (boot, boot + 1) if number // LIVES % 2 else (boot + 1, boot)
        if problems := _look_at(memory, what.scheme, state, boots, partial(_check, history, at)):
            place = f"{names[:-1]}, state {number} (cut at {at} of {len(record)}, {how})"
            explored.bad.append(f"{place}: " + "; ".join(problems))
        if len(explored.bad) == (1 if what.pretended else _ENOUGH):
            return


def _cut(seed: int, number: int, record: Record, history: History) -> tuple[int, int, str]:
    """Where and how the power fails for a state: anywhere, or just after something was acknowledged."""
    random = Random(f"cut {seed} {number}")
    at = random.randint(0, len(record))
    if random.random() < 0.5:
        later = [one.acknowledged_at for one in history.operations if at <= one.acknowledged_at <= len(record)]
        at = int(min(later, default=at))
    return at, number, random.choice(("lost", "kept", "torn", "torn", "torn"))


def _look_at(
    memory: Path, scheme: str, state: bytearray, boots: Sequence[int], check: Callable[[str, bool], list[str]]
) -> list[str]:
    """What is wrong with a disk, as seen by a process of each of *boots*, the last of which writes, too."""
    path, problems = memory / "state", list[str]()
    path.write_bytes(state)
    try:
        with mounted(path, memory / "found", content=state) as mount:
            url = STORES[scheme].format(mount / "store")
            for boot in boots:
                with another_boot(memory, boot):
                    found = _in_a_process(lambda boot=boot: check(url, boot == boots[-1]))
                problems += [f"boot {boot}: {problem}" for problem in found]
            return problems
    finally:
        path.unlink()


def _check(history: History, at: int, url: str, write: bool) -> list[str]:
    """What is wrong with a store that was found after a crash; with *write*, also after it was written to."""
    with safekeeper.open(url) as store:
        found = history.everything(store.read)
        listed = dict.fromkeys(stores.ids_of(store))
        problems = history.problems(found, at, isinstance(store, SupportsAtomicBatch))
        problems += [f"{id} is listed, but was never written" for id in listed if id not in found]
        problems += [f"{id} is there, but not listed" for id in found if id not in listed]
        problems += [f"verify: {damage}" for damage in stores.verify(store)]
        if not write:
            return problems
        replaced = next(iter(found), _EXTRA)
        store.write(Batch({_EXTRA: b"1", replaced: b"2"}))
    with safekeeper.open(url) as store:
        expected = {**found, _EXTRA: b"1", replaced: b"2"}
        if store.read(list(expected)) != list(expected.values()):
            problems.append("writing to it has changed something else")
        problems += [f"verify after a write: {damage}" for damage in stores.verify(store)]
    return problems


def _in_a_process(work: Callable[[], list[str]]) -> list[str]:
    """What *work* returns in a process of its own, or how that process failed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            answer = work()
        except BaseException as error:
            answer = [f"{type(error).__name__}: {error}\n{traceback.format_exc()}"]
        with suppress(BaseException), os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answered = bool(select.select([pipe], [], [], PATIENCE)[0])
        if not answered:
            os.kill(pid, signal.SIGKILL)
        answer_bytes = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not answered:
        return [f"no answer within {PATIENCE:g} s"]
    return pickle.loads(answer_bytes) if answer_bytes else [f"the process ended with {status}"]


def _again(folder: Path, number: int) -> None:
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "none", memory)
    _, _, boot, _ = pickle.loads((folder / "life").read_bytes())
    explored = Explored()
    with another_boot(memory, boot):
        _look_at_states(memory, folder, [number], explored)
    print("\n".join(explored.bad) or "nothing is wrong")


if __name__ == "__main__":
    _again(Path(sys.argv[1]), int(sys.argv[2]))
