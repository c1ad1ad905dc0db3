"""The protocol of several writers ("Several writers" in `docs/format.md`) as a small model, explored exhaustively.

Each process is a generator that yields between any two steps that others can come between. `explore` tries every order
of steps, with kills where a scenario allows them, and checks each history against the contract's order. A power cut is
a process of one step, which ends all others, and so is a file system that is mounted again. `Mistakes` are the steps
left out or done in the wrong order; each must be caught by some scenario.

One id is enough: what is promised is the order of the writes of one id.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from itertools import count

from .history import FOREVER, Operation, problem

Value = str | None
Record = tuple[int, int, Value]
"""Sequence, epoch, value; None is a tombstone."""
Steps = Generator[None, None, None]

NOTHING: Record = (0, 0, None)


def _stamp(record: Record) -> tuple[int, int]:
    return record[:2]


class Mistake(enum.Enum):
    """What a careless implementation would do."""

    NONE = "nothing wrong"
    NO_LOOK = "a writer does not look at what others have taken"
    TAKE_LATE = "a writer says what it has taken after it wrote, not before"
    ANSWER_BEFORE_WRITE = "a writer answers before its block is there"
    ANSWER_BEFORE_SYNC = "a writer answers before its block is durable"
    SHOW_LATE = "a writer answers before readers can see the block"
    NO_FENCE_CHECK = "a writer does not look whether it was taken over"
    TAIL_BEFORE_FENCE = "a claim reads the tail and sets the fence then"
    TAIL_NOT_SYNCED = "a claim shows a tail that is not durable"
    TAIL_NOT_WRITTEN_AGAIN = "a claim syncs a tail whose sync has failed before, and does not write it again"
    ANSWER_BEFORE_MANIFEST = "a claim is written to before the manifest that names its segment is durable"
    OLD_LISTING = "nobody lists the folders again when one was claimed"
    DROP_BLINDLY = "a tombstone is dropped although another folder has something older"
    DROP_UNSETTLED = "a tombstone is dropped although a writer may still bring something older"
    SETTLED_TOO_LATE = "whether writers are settled is looked at after their folders were"
    DROP_EARLY = "a tombstone is dropped although what it hides would be back after a power cut"
    COPY_NOT_SYNCED = "a manifest names a copy that is not durable"
    LOOK_ONCE = "a reader does not look again when a folder has changed meanwhile"
    BELIEVE_HEAD = "who opens a log takes a status for the truth that may be older than the segments"
    NO_CATCHING_UP = "a reader does not catch up"


_serial = count()


def _number() -> int:
    return next(_serial)


@dataclass
class Status:
    """What a writer shows to others."""

    number: int = field(default_factory=_number)
    visible: int = 0
    taken: int = 0
    choosing: bool = False
    fenced: bool = False
    generation: int = 0


@dataclass
class Segment:
    """A file; a writer that was taken over still has it open."""

    number: int = field(default_factory=_number)
    records: list[Record] = field(default_factory=list)
    synced: int = 0
    """How many of the records are durable."""

    clean: bool = False
    """Whether a sync has failed: what is not durable counts as if it were, and no sync writes it."""

    def sync(self, end: int | None = None) -> None:
        if not self.clean:
            self.synced = max(self.synced, len(self.records) if end is None else end)

    def fail_to_sync(self) -> None:
        self.clean = True

    def write_again(self) -> None:
        self.clean = False


Manifest = list[tuple[Segment, int | None]]
"""The segments, each with its end if it is sealed."""


@dataclass
class Folder:
    """A writer's folder: what its manifest names, and how often that has changed."""

    epoch: int
    status: Status = field(default_factory=Status)
    manifest: Manifest = field(default_factory=lambda: [(Segment(), None)])
    durable: Manifest = field(default_factory=list)
    """What a power cut leaves."""
    generation: int = 0
    status_on_disk: Status = field(default_factory=Status)
    """The status as the kernel has last written it back."""

    def __post_init__(self) -> None:
        self.durable = self.manifest

    def stored(self) -> list[Record]:
        """What is there."""
        return [record for segment, end in self.manifest for record in segment.records[:end]]

    def records(self) -> list[Record]:
        """What readers may see."""
        return [record for record in self.stored() if record[0] <= self.status.visible]

    def replace(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.generation += 1

    def sync(self) -> None:
        self.durable, self.status.generation = self.manifest, self.generation

    def mark(self) -> tuple[int, int, int]:
        """What tells a reader whether anything has changed."""
        return self.status.number, self.status.visible, self.generation


@dataclass
class World:
    """Everything that the processes share, and what their callers have seen."""

    mistake: Mistake
    folders: list[Folder]
    history: list[Operation] = field(default_factory=list)
    clock: Callable[[], int] = field(default_factory=lambda: count(1).__next__)
    powerless: bool = False
    first: list[Folder] = field(default_factory=list, repr=False)
    """The folders that were there in the beginning."""

    epochs: list[int] = field(default_factory=list, repr=False)
    """Whose they were."""

    def __post_init__(self) -> None:
        self.first, self.epochs = list(self.folders), [folder.epoch for folder in self.folders]

    def listed(self) -> list[Folder]:
        """The folders as a process knows them."""
        return self.first if self.mistake is Mistake.OLD_LISTING else self.folders

    def begin(self, kind: str, value: Value = None) -> Operation:
        operation = Operation(kind, value, self.clock())
        self.history.append(operation)
        return operation

    def end(self, operation: Operation, certain: bool = True) -> None:
        operation.end, operation.certain = self.clock(), certain


def write(world: World, folder: Folder, epoch: int, value: Value, failing: bool = False) -> Steps:
    """One write by the writer with that epoch, as in "Append"; a *failing* one has a sync that fails."""
    operation = world.begin("write", value)
    if folder.epoch != epoch:  # taken over before it began: its file is sealed, and its status says so
        world.end(operation, certain=False)
        return
    status, segment, wrong = folder.status, folder.manifest[-1][0], world.mistake
    status.choosing = True
    yield
    others = [other.status.taken for other in world.listed() if other.status is not status]
    sequence = max([status.taken, *([] if wrong is Mistake.NO_LOOK else others)]) + 1
    yield
    if wrong is not Mistake.TAKE_LATE:
        status.taken, status.choosing = sequence, False
        yield
    if wrong is Mistake.ANSWER_BEFORE_WRITE:
        world.end(operation)
        yield
    segment.records.append((sequence, epoch, value))
    yield
    if wrong is Mistake.ANSWER_BEFORE_SYNC:
        world.end(operation)
        yield
    if failing:
        segment.fail_to_sync()
        yield
        world.end(operation, certain=False)
        return
    segment.sync()
    yield
    if status.fenced and wrong is not Mistake.NO_FENCE_CHECK:
        if operation.end == FOREVER:
            world.end(operation, certain=False)
        return
    yield
    if wrong is Mistake.SHOW_LATE:
        world.end(operation)
        yield
    status.taken, status.choosing, status.visible = max(sequence, status.taken), False, max(sequence, status.visible)
    yield
    if operation.end == FOREVER:
        world.end(operation)


def read(world: World) -> Steps:
    """One read, as in "Read"."""
    operation = world.begin("read")
    while True:
        folders, marks, records = world.listed(), [], [NOTHING]
        for folder in tuple(folders):
            marks.append(folder.mark())
            records += folder.records()
            yield
        if world.mistake is Mistake.LOOK_ONCE or marks == [folder.mark() for folder in folders]:
            break
    operation.value = max(records, key=_stamp)[2]
    world.end(operation)


def read_twice(world: World) -> Steps:
    """Two reads of a process that keeps what it has read for the second one."""
    yield from read(world)
    yield
    if world.mistake is Mistake.NO_CATCHING_UP:
        again = world.begin("read")
        again.value = world.history[-2].value
        world.end(again)
    else:
        yield from read(world)


def compact(world: World, folder: Folder) -> Steps:
    """One pass over a folder: what is replaced becomes a tombstone, a tombstone that hides nothing goes."""
    wrong = world.mistake
    others = [other for other in world.folders if other is not folder]
    if not folder.records():
        return
    last = max(folder.records(), key=_stamp)
    settled = all(_settled(other) for other in others)
    yield
    while True:
        marks, found = [], []
        for other in others:
            marks.append(other.mark())
            found += other.records()
            yield
        if marks == [other.mark() for other in others]:
            break
    if wrong is Mistake.SETTLED_TOO_LATE:
        yield
        settled = all(_settled(other) for other in others)
    lasting = wrong is Mistake.DROP_EARLY or all(other.status.generation == other.generation for other in others)
    replaced = any(_stamp(record) > _stamp(last) for record in found)
    hides = any(_stamp(record) < _stamp(last) for record in found) and wrong is not Mistake.DROP_BLINDLY
    may_hide = hides or not lasting or (not settled and wrong is not Mistake.DROP_UNSETTLED)
    is_tombstone = last[2] is None or replaced
    kept = [] if is_tombstone and (replaced or not may_hide) else [last]
    yield
    copy = Segment(records=kept)
    if wrong is not Mistake.COPY_NOT_SYNCED:
        copy.sync()
    folder.replace([(copy, len(kept)), (Segment(), None)])
    yield
    folder.sync()
    yield


def _settled(folder: Folder) -> bool:
    return not folder.status.choosing and folder.status.taken == folder.status.visible


def take_over(world: World, folder: Folder, epoch: int) -> Steps:
    """One claim of the folder of a writer that is taken for dead, as in "Claim"."""
    old, wrong = folder.status, world.mistake
    if wrong is not Mistake.TAIL_BEFORE_FENCE:
        old.fenced = True
        yield
    *sealed, (tail, _) = folder.manifest
    end = len(tail.records)
    yield
    if wrong is Mistake.TAIL_BEFORE_FENCE:
        old.fenced = True
        yield
    if wrong is not Mistake.TAIL_NOT_WRITTEN_AGAIN:
        tail.write_again()
    if wrong is not Mistake.TAIL_NOT_SYNCED:
        tail.sync(end)
    last = max([record[0] for record in folder.stored()[: sum(at or 0 for _, at in sealed) + end]], default=0)
    folder.epoch = epoch
    folder.status = Status(visible=last, taken=last)
    folder.replace([*sealed, (tail, end), (Segment(), None)])
    yield
    if wrong is not Mistake.ANSWER_BEFORE_MANIFEST:
        folder.sync()
        yield


def join(world: World, value: Value) -> Steps:
    """A process that comes later, claims a folder of its own and writes to it."""
    world.folders.append(Folder(max(folder.epoch for folder in world.folders) + 1))
    yield
    yield from write(world, world.folders[-1], world.folders[-1].epoch, value)


def cut_power(world: World) -> Steps:
    """The end of everything that is not durable, and of all processes."""
    for folder in world.folders:
        _lose_what_is_not_durable(folder)
        last = max([record[0] for record in folder.stored()], default=0)
        folder.status = Status(visible=last, taken=last, generation=folder.generation)  # of another boot: not believed
    world.powerless = True
    yield


def mount_again(world: World) -> Steps:
    """The same for a file system that is shut down and comes back: the kernel runs on, so that statuses look new."""
    for folder in world.folders:
        _lose_what_is_not_durable(folder)
        folder.status = replace(folder.status_on_disk)
    world.powerless = True
    yield


def _lose_what_is_not_durable(folder: Folder) -> None:
    folder.manifest = folder.durable
    for segment, _ in folder.manifest:
        del segment.records[segment.synced :]


def write_back(world: World, folder: Folder) -> Steps:
    """What the kernel does with a status now and then."""
    folder.status_on_disk = replace(folder.status)
    yield


def open_and_read(world: World) -> Steps:
    """A read by somebody who comes when all others are gone, and who takes over what they have left open."""
    for folder in world.folders:
        if folder.records() != folder.stored() and world.mistake is not Mistake.BELIEVE_HEAD:
            yield from take_over(world, folder, max(other.epoch for other in world.folders) + 1)
    yield from read(world)


# --- exploring --------------------------------------------------------------------------------------------------------

Program = Callable[[World], Steps]


@dataclass(frozen=True)
class Scenario:
    """Processes that run beside each other, on folders with these epochs."""

    epochs: tuple[int, ...]
    programs: tuple[Program, ...]
    killable: frozenset[int] = frozenset()
    """Which of the processes may be killed at any moment."""


def explore(scenario: Scenario, mistake: Mistake) -> tuple[str | None, int]:
    """What goes wrong in some order of the steps, None if nothing does in any; and how many states were tried."""
    seen: set[str] = set()
    schedules: list[tuple[int, ...]] = [()]
    while schedules:
        schedule = schedules.pop()
        world, running = _replay(scenario, mistake, schedule)
        state = _state(world, running)
        if state in seen:
            continue
        seen.add(state)
        if not running:
            for _ in open_and_read(world):
                pass
            if (found := problem(world.history)) is not None:
                return f"{found} after {schedule}", len(seen)
        for process in running:
            schedules.append((*schedule, process))
            if process in scenario.killable:
                schedules.append((*schedule, ~process))
    return None, len(seen)


def _replay(scenario: Scenario, mistake: Mistake, schedule: tuple[int, ...]) -> tuple[World, dict[int, Steps]]:
    """The world after some steps: each number is that of the process that takes one, or its complement for a kill."""
    global _serial
    _serial = count()
    world = World(mistake, [Folder(epoch) for epoch in scenario.epochs])
    running = {number: program(world) for number, program in enumerate(scenario.programs)}
    for choice in schedule:
        process = choice if choice >= 0 else ~choice
        if choice < 0:
            _kill(world, running.pop(process))
        elif next(running[process], "over") == "over":
            del running[process]
        if world.powerless:
            for steps in running.values():
                _kill(world, steps)
            running.clear()
    return world, running


def _kill(world: World, steps: Steps) -> None:
    frame: Steps | None = steps
    while frame is not None:
        operation = frame.gi_frame.f_locals.get("operation") if frame.gi_frame else None
        if operation is not None and operation.kind == "write" and operation.end == FOREVER:
            world.end(operation, certain=False)
        frame = frame.gi_yieldfrom  # type: ignore[assignment]
    steps.close()


def _state(world: World, running: dict[int, Steps]) -> str:
    """All that decides what happens next, as a string."""
    parts = [repr(world.folders), repr(world.history)]
    for number, steps in running.items():
        frame: Steps | None = steps
        while frame is not None:
            local = {name: value for name, value in frame.gi_frame.f_locals.items() if name != "world"}
            parts.append(f"{number} {frame.gi_frame.f_lasti} {local!r}")
            frame = frame.gi_yieldfrom  # type: ignore[assignment]
    return "\n".join(parts)
