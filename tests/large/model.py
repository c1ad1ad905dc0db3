"""How `safekeeper.large` writes, small enough to try it in every order.

Writers write one id, each several times, in one part. A write may raise and happen all the same, at once or later, but
not any more when a later write of the same id has returned. Whoever dies takes no further step.

What must never happen: there is a head, and its part is not there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Name = tuple[int, int]  # writer, attempt


class Head(NamedTuple):
    """A head that is being written."""

    name: Name
    raised: bool = False
    after: frozenset[Name] = frozenset()
    """The heads that had raised when this one was begun: they cannot come any more once it has returned."""
    done: bool = False


class Writer(NamedTuple):
    """Where a writer is."""

    step: str = "part"
    attempt: int = 0
    failed: frozenset[Name] = frozenset()
    replaced: Name | None = None
    written: int = 0


class World(NamedTuple):
    """Everything."""

    head: Name | None
    parts: frozenset[Name]
    heads: frozenset[Head]
    writers: tuple[Writer, ...]
    failures: int


@dataclass(frozen=True)
class Rules:
    """The protocol, and what can be wrong with it."""

    writes: tuple[int, ...] = (2, 2)
    failures: int = 2
    """How many writes of a head raise, at most."""
    head_last: bool = True
    new_name: bool = True
    """Whether an attempt after a failed one has a name of its own."""
    delete_after: bool = True
    """Whether old parts are deleted after the new head is there."""


class Torn(AssertionError):
    """A head without its part."""


def explore(rules: Rules) -> int:
    """Try every order; how many states there are. Raise `Torn` for the first that is wrong."""
    first = World(None, frozenset(), frozenset(), (Writer(),) * len(rules.writes), rules.failures)
    seen, todo = {first}, [first]
    while todo:
        for world in _next(rules, todo.pop()):
            if world.head is not None and world.head not in world.parts:
                raise Torn(f"{world.head} has no part: {world}")
            if world not in seen:
                seen.add(world)
                todo.append(world)
    return len(seen)


def _next(rules: Rules, world: World) -> Iterator[World]:
    for head in world.heads:
        if not head.done:
            happened = world._replace(head=head.name, heads=world.heads - {head})
            yield happened if head.raised else _with(happened, head._replace(done=True))
    for number, writer in enumerate(world.writers):
        yield from _step(rules, world, number, writer)


def _with(world: World, head: Head) -> World:
    return world._replace(heads=world.heads | {head})


def _step(rules: Rules, world: World, number: int, writer: Writer) -> Iterator[World]:
    name = (number, writer.attempt)

    def goes_on(world: World, **changes: object) -> World:
        writers = list(world.writers)
        writers[number] = writer._replace(**changes)
        return world._replace(writers=tuple(writers))

    match writer.step:
        case "part" if not rules.head_last:
            yield goes_on(world, step="look")
        case "part":
            yield goes_on(world._replace(parts=world.parts | {name}), step="look")
        case "look":
            step = "head" if rules.delete_after else "delete"
            yield goes_on(world, step=step, replaced=world.head if world.head != name else None)
        case "head":
            raised = frozenset(head.name for head in world.heads if head.raised)
            yield goes_on(_with(world, Head(name, after=raised)), step="wait")
        case "wait":
            (mine,) = [head for head in world.heads if head.name == name and not head.raised]
            if mine.done and world.head not in mine.after:
                gone = {head for head in world.heads if head.raised and head.name in mine.after} | {mine}
                returned = world._replace(heads=world.heads - gone)
                yield goes_on(returned, step="delete" if rules.delete_after else "end")
            if world.failures:
                left = world.heads - {mine} | (set() if mine.done else {mine._replace(raised=True)})
                raised_ = world._replace(heads=frozenset(left), failures=world.failures - 1)
                if rules.new_name:
                    failed = writer.failed | {name}
                    yield goes_on(raised_, step="part", attempt=writer.attempt + 1, failed=failed)
                else:
                    yield goes_on(raised_, step="head")
        case "delete":
            stale = writer.failed | ({writer.replaced} if writer.replaced else set())
            step = "end" if rules.delete_after else "head"
            yield goes_on(world._replace(parts=world.parts - stale), step=step)
        case "end" if writer.written + 1 < rules.writes[number]:
            yield goes_on(
                world, step="part", attempt=writer.attempt + 1, failed=frozenset(), written=writer.written + 1
            )
