"""The protocol of `safekeeper.claims`, small enough to try it in every order.

Processes claim a name, clean up, read the blocks that are there, and write blocks of their own, several at a time. Each
may be stopped at any moment, for any time; one that died is one that takes no further step. What it had begun to write
or to delete is carried out at any later moment, or never. A listing shows what was there from its beginning to its end,
and any part of what came or went meanwhile.

What must never happen: a block is acknowledged, and somebody with a higher claim has read the blocks without it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple, TypeAlias

Mark: TypeAlias = tuple[int, int]  # epoch, owner
Block: TypeAlias = tuple[Mark, int]


class Listing(NamedTuple):
    """A listing of the claims that is under way."""

    steady: frozenset[Mark]
    maybe: frozenset[Mark] = frozenset()

    def comes(self, mark: Mark) -> "Listing":
        return self._replace(maybe=self.maybe | {mark})

    def goes(self, mark: Mark) -> "Listing":
        return Listing(self.steady - {mark}, self.maybe | {mark}) if mark in self.steady else self

    def results(self) -> Iterator[frozenset[Mark]]:
        some = chain.from_iterable(combinations(self.maybe, size) for size in range(len(self.maybe) + 1))
        return (self.steady | set(chosen) for chosen in some)


class Process(NamedTuple):
    """Where a process is."""

    step: str = "start"
    mark: Mark | None = None
    listing: Listing | None = None
    doomed: tuple[Mark, ...] = ()
    """The lower claims that it has yet to delete."""
    read: frozenset[Block] | None = None
    """The blocks that it found when it took over."""
    written: int = 0
    acknowledged: int = 0


class World(NamedTuple):
    """Everything."""

    claims: frozenset[Mark]
    blocks: frozenset[Block]
    puts: frozenset[tuple[str, Mark | Block]]
    """Begun and not yet carried out."""
    deletes: frozenset[Mark]
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Rules:
    """The protocol, and what can be wrong with it."""

    blocks: tuple[int, ...] = (2, 2)
    """How many blocks each process writes."""
    together: int = 1
    """How many of them are written before one check."""
    check: bool = True
    """Whether there is a check after the write."""
    end_lower: bool = True
    """Whether the lower claims are deleted before anything is read."""
    lowest_first: bool = True


class Lost(AssertionError):
    """An acknowledged block that a successor did not find."""


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
    for kind, what in world.puts:
        yield _put(world, kind, what)
    for mark in world.deletes:
        yield _delete(world, mark)
    for number, process in enumerate(world.processes):
        yield from _step(rules, world, number, process)


def _step(rules: Rules, world: World, number: int, process: Process) -> Iterator[World]:
    """What process *number* can do next. It waits while what it has begun is not carried out."""
    match process.step:
        case "start":
            yield _set(world, number, process._replace(step="choose", listing=Listing(world.claims)))
        case "choose":
            for found in process.listing.results():
                mark = (max((epoch for epoch, _ in found), default=0) + 1, number)
                began = world._replace(puts=world.puts | {("claim", mark)})
                yield _set(began, number, process._replace(step="claimed", mark=mark, listing=None))
        case "claimed" if ("claim", process.mark) not in world.puts:
            yield _set(world, number, process._replace(step="confirm", listing=Listing(world.claims)))
        case "confirm":
            for found in process.listing.results():
                beaten = any(mark > process.mark for mark in found)
                confirmed = process._replace(step="look for its own", listing=None)
                yield _set(world, number, Process("beaten", process.mark) if beaten else confirmed)
        case "look for its own" | "check":
            if process.mark in world.claims:
                yield _holds(rules, world, number, process)
            else:
                yield _set(world, number, Process("beaten", process.mark))
        case "list lower":
            for found in process.listing.results():
                lower = sorted((mark for mark in found if mark < process.mark), reverse=not rules.lowest_first)
                yield _set(world, number, process._replace(step="clean", listing=None, doomed=tuple(lower)))
        case "clean" if not process.doomed:
            yield _set(world, number, process._replace(step="read"))
        case "clean":
            mark, *rest = process.doomed
            began = world._replace(deletes=world.deletes | {mark})
            yield _set(began, number, process._replace(step="deleting", doomed=(mark, *rest)))
        case "deleting" if process.doomed[0] not in world.deletes:
            yield _set(world, number, process._replace(step="clean", doomed=process.doomed[1:]))
        case "read":
            # what comes while it reads may be missed: that is as if it had read everything at the beginning
            step = "write" if rules.blocks[number] else "finished"
            yield _set(world, number, process._replace(step=step, read=world.blocks))
        case "write":
            last = min(process.acknowledged + rules.together, rules.blocks[number])
            new = {("block", (process.mark, n)) for n in range(process.written, last)}
            began = world._replace(puts=world.puts | new)
            yield _set(began, number, process._replace(step="written", written=last))
        case "written" if not any(kind == "block" and what[0] == process.mark for kind, what in world.puts):
            if rules.check:
                yield _set(world, number, process._replace(step="check"))
            else:
                yield _holds(rules, world, number, process._replace(step="check"))


def _holds(rules: Rules, world: World, number: int, process: Process) -> World:
    """The claim of a process was confirmed or checked."""
    if process.step == "look for its own":
        if rules.end_lower:
            return _set(world, number, process._replace(step="list lower", listing=Listing(world.claims)))
        return _set(world, number, process._replace(step="read"))
    acknowledged = {(process.mark, n) for n in range(process.written)}
    for other in world.processes:
        if other.read is not None and other.mark > process.mark and not acknowledged <= other.read:
            raise Lost(f"{acknowledged - other.read} of {process.mark} were not found by {other.mark}")
    step = "finished" if process.written == rules.blocks[number] else "write"
    return _set(world, number, process._replace(step=step, acknowledged=process.written))


def _put(world: World, kind: str, what: Mark | Block) -> World:
    world = world._replace(puts=world.puts - {(kind, what)})
    if kind == "block":
        return world._replace(blocks=world.blocks | {what})
    return _changed(world._replace(claims=world.claims | {what}), lambda listing: listing.comes(what))


def _delete(world: World, mark: Mark) -> World:
    world = world._replace(deletes=world.deletes - {mark}, claims=world.claims - {mark})
    return _changed(world, lambda listing: listing.goes(mark))


def _changed(world, change):
    """*world* after a change of the claims, which every listing under way may show or not."""
    processes = (p if p.listing is None else p._replace(listing=change(p.listing)) for p in world.processes)
    return world._replace(processes=tuple(processes))


def _set(world: World, number: int, process: Process) -> World:
    processes = list(world.processes)
    processes[number] = process
    return world._replace(processes=tuple(processes))
