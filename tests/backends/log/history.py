"""Whether what callers have seen of one id agrees with the contract's order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate

FOREVER = float("inf")


@dataclass(slots=True)
class Operation:
    """What a caller did, and when. Every write has a value of its own; that of a delete is None."""

    kind: str
    """"read" or "write"."""
    value: object
    start: float
    end: float = FOREVER
    certain: bool = True
    """Whether a write was acknowledged. One that was not may have happened, but before all writes that began later."""


@dataclass(slots=True)
class _Cluster:
    """A write and the reads that have seen it."""

    write: Operation
    reads: list[Operation] = field(default_factory=list)

    def first_end(self) -> float:
        """When it had certainly happened."""
        written = self.write.end if self.write.certain else FOREVER
        return min([written, *(read.end for read in self.reads)])

    def last_read(self) -> float:
        """When a read began that still saw it."""
        return max([0.0, *(read.start for read in self.reads)])


def problem(history: Iterable[Operation]) -> str | None:
    """What is wrong with a history of one id that began absent; None if there is an order that explains it.

    That order must keep the order in time of operations that did not overlap, and give each read what was written last.
    A read of an absent id that may have seen any of several deletes says nothing more.
    """
    operations = list(history)
    writes = [Operation("write", None, 0, 0), *(each for each in operations if each.kind == "write")]
    clusters = [_Cluster(write) for write in writes]
    find = _Sources(clusters)
    for read in operations:
        if read.kind == "read" and read.end < FOREVER:
            sources = find.of(read)
            if not sources:
                return f"{read} gives what was never written, or is overwritten"
            if len(sources) == 1:
                sources[0].reads.append(read)
    try:
        TopologicalSorter(_order(clusters)).prepare()
    except CycleError as error:
        cycle = [clusters[node] for node in error.args[1] if isinstance(node, int)]
        return f"no order explains it: {[(cluster.write, cluster.reads[-1:]) for cluster in cycle]}"
    return None


class _Sources:
    """Finds the writes that a read may have seen: begun before it ended, and not overwritten when it began."""

    def __init__(self, clusters: Sequence[_Cluster]) -> None:
        self._by_value = {cluster.write.value: cluster for cluster in clusters}
        self._deletes = sorted((each for each in clusters if each.write.value is None), key=lambda it: it.write.start)
        self._starts = [cluster.write.start for cluster in self._deletes]
        self._last_ends = list(accumulate((cluster.write.end for cluster in self._deletes), max))
        certain = sorted((each.write for each in clusters if each.write.certain), key=lambda write: write.end)
        self._ends = [write.end for write in certain]
        self._last_starts = list(accumulate((write.start for write in certain), max))

    def of(self, read: Operation) -> list[_Cluster]:
        """Up to two of them."""
        over = bisect_left(self._ends, read.start)  # so many writes were
        overwritten = self._last_starts[over - 1] if over else 0.0  # what had ended before this
        found: list[_Cluster] = []
        if read.value is not None:
            source = self._by_value.get(read.value)
            if source and source.write.start < read.end and source.write.end >= overwritten:
                found.append(source)
            return found
        at = bisect_left(self._starts, read.end) - 1
        while at >= 0 and self._last_ends[at] >= overwritten and len(found) < 2:
            if self._deletes[at].write.end >= overwritten:
                found.append(self._deletes[at])
            at -= 1
        return found


Node = int | tuple[str, int]
"""A write, by its number; or a moment, with all that must have happened by then before it."""


def _order(clusters: Sequence[_Cluster]) -> dict[Node, set[Node]]:
    """What must stand before what.

    Moments keep it small: whatever is over by a moment stands before it, and it before all that begins later.
    """
    before: dict[Node, set[Node]] = {number: set() for number in range(len(clusters))}
    ends = [(operation.end, n) for n, each in enumerate(clusters) for operation in (each.write, *each.reads)]
    times, _ = _chain(before, "over", ends)
    for number, cluster in enumerate(clusters):
        if at := bisect_left(times, cluster.write.start):
            before[number].add(("over", at - 1))
    times, order = _chain(before, "seen", [(cluster.first_end(), n) for n, cluster in enumerate(clusters)])
    places = {number: at for at, number in enumerate(order)}
    for number, cluster in enumerate(clusters):
        end = bisect_left(times, cluster.last_read())
        own = min(places[number], end)  # all of them but itself
        before[number] |= {*([("seen", own - 1)] if own else []), *order[own + 1 : end]}
    return before


def _chain(before: dict[Node, set[Node]], name: str, ends: list[tuple[float, int]]) -> tuple[list[float], list[int]]:
    """Add moments at which writes had happened; the times, and the writes in that order."""
    ends = sorted(ends)
    for at, (_, number) in enumerate(ends):
        before[name, at] = {number, *([(name, at - 1)] if at else [])}
    return [time for time, _ in ends], [number for _, number in ends]
