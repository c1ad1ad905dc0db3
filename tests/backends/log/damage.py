"""A small store to damage, with everything in it that the format knows, and what it holds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from safekeeper import Batch, CheckpointId, Columns
from safekeeper.backends.log.backend import LogBackend
from safekeeper.backends.log.options import LogOptions

from .power import QuickFiles

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
OPTIONS = LogOptions(segment=4096)

Values = dict[CheckpointId, bytes | None]


def id_of(name: str) -> CheckpointId:
    return CheckpointId("group", name.encode())


STEPS = [
    Batch({id_of("a"): b"a" * 30, id_of("b"): b"", id_of("c"): b"c" * 77}),
    Batch.of_columns(Columns.of("columns", [b"x", b"yy", b"z"], [b"value of x", b"", b"z" * 50])),
    Batch({id_of("moved"): b"1"}),
    Batch({id_of("moved"): b"2"}),
]
TAIL: list[Values] = [{id_of("a"): b"newer", id_of("d"): b"d" * 20}, {id_of("b"): None}, {id_of("e"): b"e" * 33}]


def make(root: Path, killed: Path) -> list[Values]:
    """Write a store and a copy of it as a killed writer would leave it; the states after each block of the tail."""
    with LogBackend(root, OPTIONS, QuickFiles()) as store:
        for number, batch in enumerate(STEPS):
            store.write(batch)
            if number in (1, 3):
                store.compact()  # the first two are indexed where they are; the third is dead, so the fourth is moved
        state: Values = {id: value for batch in STEPS for id, value in batch.items()}
        states = [{**state, id_of("d"): None, id_of("e"): None}]
        for changes in TAIL:
            batch = Batch()
            for id, value in changes.items():
                batch.delete(id) if value is None else batch.put(id, value)
            store.write(batch)
            states.append(states[-1] | changes)
        shutil.copytree(root, killed)
    return states


def some(offsets: range) -> range:
    """All of *offsets* in the long form, else every seventh."""
    return offsets if LONG else offsets[::7]
