"""Whether what callers have seen of one id agrees with the contract's order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

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
    """Whether a write was acknowledged. One that was not may have happened, but not after its end."""


def problem(history: Iterable[Operation]) -> str | None:
    """What is wrong with a history of one id that began absent; None if there is an order that explains it.

    That order must keep the order in time of operations that did not overlap, and give each read what was written last.
    """
    operations = list(history)
    writes = [Operation("write", None, 0, 0), *(each for each in operations if each.kind == "write")]
    reads = [each for each in operations if each.kind == "read" and each.end < FOREVER]
    before = {at: {i for i, early in enumerate(writes) if early.end < write.start} for at, write in enumerate(writes)}
    sources = []
    for read in reads:
        source = [at for at, write in enumerate(writes) if _may_have_read(writes, write, read)]
        if not source:
            return f"{read} gives what was never written, or is overwritten"
        sources.append(source[0] if len(source) == 1 else None)
    for read, source in zip(reads, sources, strict=True):
        if source is None:  # one of several deletes: which one cannot be told
            continue
        early = {at for at, write in enumerate(writes) if write.certain and write.end < read.start}
        early |= {other for r, other in zip(reads, sources, strict=True) if other is not None and r.end < read.start}
        before[source] |= early - {source}
        for at, write in enumerate(writes):
            if read.end < write.start:
                before[at].add(source)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        return f"no order explains it: {[writes[at] for at in error.args[1]]}"
    return None


def _may_have_read(writes: Sequence[Operation], write: Operation, read: Operation) -> bool:
    if write.value != read.value or write.start >= read.end:
        return False
    return not any(each.certain and write.end < each.start and each.end < read.start for each in writes)
