"""The protocol of a journal, small enough to try it in every order, with the real `choose`.

Processes take the journal, read its chain, append blocks, several in flight, and acknowledge what is stored after one
check of the claim. Each may be stopped at any moment, for any time; one that died is one that takes no further step.
What it had begun to write or to delete is carried out at any later moment, or never, each id for itself: so a batch may
have holes. Claims are listed in one step here; `tests/claims` has listings that take time.

An owner acknowledges what it has found as well: it sends the outputs of those blocks. If nobody had the
journal between the newest block and itself, it may do so after one more check of its claim, else when a block of its
own is acknowledged.

What must never happen: an owner goes on from blocks that lack one which a lower owner has acknowledged, or acknowledges
later; or a chain that was chosen lacks a block that it needs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

from safekeeper.claims import Mark
from safekeeper.journal.chain import BlockKey, choose


@dataclass(frozen=True, slots=True, order=True)
class ModelKey(BlockKey):
    """As `BlockKey`, but two that name different parents are not the same: they are keys of different histories."""

    after: Mark | None = field(default=None)

    def next(self, mark: Mark) -> "ModelKey":
        return ModelKey(mark, self.number + 1, None if mark == self.mark else self.mark)


Lineage: TypeAlias = tuple[ModelKey, ...]


class Process(NamedTuple):
    """Where a process is."""

    step: str = "start"
    mark: Mark | None = None
    others: frozenset[Mark] = frozenset()
    """The other claims that it has seen."""
    lineage: Lineage = ()
    """All blocks that it builds on, its own included, the oldest first."""
    found: Lineage | None = None
    """What it built on when it took over."""
    written: int = 0
    acknowledged: int = 0
    """How much of its lineage it has acknowledged."""
    rubbish: tuple[ModelKey, ...] = ()


class World(NamedTuple):
    """Everything."""

    claims: frozenset[Mark]
    blocks: frozenset[ModelKey]
    puts: frozenset[ModelKey]
    """Begun and not yet carried out."""
    deletes: frozenset[ModelKey]
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Rules:
    """The protocol, and what can be wrong with it."""

    blocks: tuple[int, ...] = (2, 2)
    """How many blocks each process appends."""
    together: int = 1
    """How many of them are in flight."""
    check: bool = True
    """Whether the claims are checked after the write."""
    holes: bool = True
    """Whether a chain ends at a hole."""
    patient: bool = True
    """Whether rubbish is removed only when a block of one's own is acknowledged."""
    confirm: bool = True
    """Whether a block of one's own comes before what was found is acknowledged, if others had the journal between."""
    needs: int = 2
    """How many blocks a recovery needs."""


class Lost(AssertionError):
    """Something acknowledged that a successor did not build on, or a block that it needs and that is gone."""


def explore(rules: Rules) -> int:
    """Try every order; how many states there are. Raise `Lost` for the first that is wrong."""
    first = World(frozenset(), frozenset(), frozenset(), frozenset(), (Process(),) * len(rules.blocks))
    seen, todo = {first}, [first]
    while todo:
        for world in _next(rules, todo.pop()):
            if world not in seen:
                seen.add(world)
                todo.append(world)
    return len(seen)


def _next(rules: Rules, world: World) -> Iterator[World]:
    for key in world.puts:
        yield world._replace(puts=world.puts - {key}, blocks=world.blocks | {key})
    for key in world.deletes:
        yield world._replace(deletes=world.deletes - {key}, blocks=world.blocks - {key})
    for number, process in enumerate(world.processes):
        yield from _step(rules, world, number, process)


def _step(rules: Rules, world: World, who: int, process: Process) -> Iterator[World]:
    match process.step:
        case "start":
            mark = Mark(max((mark.epoch for mark in world.claims), default=0) + 1, f"{who:016x}")
            yield _set(world, who, process._replace(step="chosen", mark=mark, others=world.claims))
        case "chosen":  # another may have chosen the same epoch
            yield _set(world._replace(claims=world.claims | {process.mark}), who, process._replace(step="claimed"))
        case "claimed":
            beaten = max(world.claims) > process.mark
            others = process.others | world.claims - {process.mark}
            yield _set(world, who, process._replace(step="beaten" if beaten else "highest", others=others))
        case "highest":  # it ends the lower claims
            claims = frozenset(mark for mark in world.claims if mark >= process.mark)
            yield _set(world._replace(claims=claims), who, process._replace(step="read"))
        case "read":
            yield _set(world, who, _read(rules, world, process))
        case "found":
            yield from _check(rules, world, who, process, len(process.lineage))
        case "confirm":
            key = process.lineage[-1].next(process.mark)
            confirmed = process._replace(step="written", lineage=(*process.lineage, key))
            yield _set(world._replace(puts=world.puts | {key}), who, confirmed)
        case "append" if process.written < rules.blocks[who]:
            key = process.lineage[-1].next(process.mark) if process.lineage else ModelKey(process.mark, 1)
            appended = process._replace(lineage=(*process.lineage, key), written=process.written + 1)
            in_flight = len(appended.lineage) - max(appended.acknowledged, len(appended.found))
            step = "append" if in_flight < rules.together and appended.written < rules.blocks[who] else "written"
            yield _set(world._replace(puts=world.puts | {key}), who, appended._replace(step=step))
        case "written":
            mine = process.lineage[len(process.found) :]
            stored = next((n for n, key in enumerate(mine) if key in world.puts), len(mine))
            if len(process.found) + stored > process.acknowledged and stored:
                yield from _check(rules, world, who, process, len(process.found) + stored)
        case "clean":
            doomed = (*process.rubbish, *process.lineage[: max(process.acknowledged - rules.needs, 0)])
            world = world._replace(deletes=world.deletes | (world.blocks & set(doomed)))
            left = process.written < rules.blocks[who] or process.acknowledged < len(process.lineage)
            step = "append" if process.written < rules.blocks[who] else "written"
            yield _set(world, who, process._replace(step=step if left else "finished", rubbish=()))


def _read(rules: Rules, world: World, process: Process) -> Process:
    """What a process finds when it has ended the lower claims."""
    written = frozenset(key for other in world.processes for key in other.lineage)
    lineage = _with_ancestors(_chosen(world.blocks, written, rules), written)
    for other in world.processes:
        if other.mark is not None and other.mark < process.mark and other.acknowledged:
            acknowledged = other.lineage[: other.acknowledged]
            if lineage[: len(acknowledged)] != acknowledged:
                raise Lost(f"{process.mark} builds on {lineage}, not on {acknowledged}")
    if lineage and not set(lineage[max(len(lineage) - rules.needs, 0) :]) <= world.blocks:
        raise Lost(f"{process.mark} needs what is not there of {lineage}")
    rubbish = tuple(sorted(world.blocks - set(lineage)))
    found = process._replace(lineage=lineage, found=lineage, rubbish=rubbish)
    if not rules.patient:
        return found._replace(step="clean")
    if lineage and rules.confirm and max(process.others, default=None) != lineage[-1].mark:
        return found._replace(step="confirm")
    return found._replace(step="found" if lineage else "append")


def _check(rules: Rules, world: World, who: int, process: Process, up_to: int) -> Iterator[World]:
    """Check the claim, in one step with what follows: whoever ends it between them reads afterwards."""
    if rules.check and process.mark not in world.claims:
        yield _set(world, who, process._replace(step="beaten"))
        return
    acknowledged = process.lineage[:up_to]
    for other in world.processes:
        if other.found is not None and other.mark > process.mark and other.found[:up_to] != acknowledged:
            raise Lost(f"{process.mark} acknowledges {acknowledged}, {other.mark} went on from {other.found}")
    step = "append" if process.step == "found" else "clean"
    yield _set(world, who, process._replace(step=step, acknowledged=up_to))


@cache
def _chosen(blocks: frozenset[ModelKey], written: frozenset[ModelKey], rules: Rules) -> Lineage:
    if not rules.holes:
        blocks = blocks | {key for end in blocks for key in _with_ancestors((end,), written)}
    return tuple(choose(blocks, lambda key: max(key.number - rules.needs + 1, 1)))


@cache
def _with_ancestors(chain: Lineage, written: frozenset[ModelKey]) -> Lineage:
    """*chain* with everything before it of what was ever *written*, also what is deleted."""
    parents = {(key.number, key.mark): key for key in written}
    found = list(chain)
    while found and (parent := parents.get(found[0].parent)) is not None:
        found.insert(0, parent)
    return tuple(found)


def _set(world: World, who: int, process: Process) -> World:
    processes = list(world.processes)
    processes[who] = process
    return world._replace(processes=tuple(processes))
