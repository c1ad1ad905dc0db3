"""LangGraph's checkpoints: ours beside the savers for SQLite and PostgreSQL.

    python -m safekeeper.bench.studies.langgraph_savers [--quick] [--turns 200] [--steps 2000] [--processor]

Two threads are written to each saver by the calls that a graph makes, with messages of 2 KB:

- a conversation: in each turn the latest state is read, a message comes in, one goes out. That are three checkpoints.
- one long run: every step adds a message, with one checkpoint and the writes of one task.

The savers take turns after some steps each. What is compared: the time that all calls of a step take together, the time
to read the latest state afterwards (round by round, the median), by the saver that has written it and by one that has
nothing in memory ("first"), and the bytes in the store's folder. All are as durable as their defaults make them, which
is a sync for each call that stores something. PostgreSQL is measured if its programs are there. On a busy machine
`--processor` compares the processor time of this process instead, without PostgreSQL, which works in others.
"""

from __future__ import annotations

import argparse
import base64
import os
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from rich.console import Console
from rich.table import Table

import safekeeper
from safekeeper.bench.harness.goals import Goal
from safekeeper.dev.postgres import PostgresServer
from safekeeper.dev.process import DevError
from safekeeper.langgraph import SafeKeeperSaver

OURS, SQLITE, POSTGRES = "safekeeper", "SQLite saver", "Postgres saver"
MESSAGE = 2048
READS = 31
AT_MOST = 1.1
"""Of the SQLite saver's time."""
BYTES_AT_MOST = 1 / 50
"""Of the SQLite saver's bytes, with the threads as long as they are without options."""


@dataclass
class SaverArm:
    """A saver that is measured, and what was found."""

    name: str
    saver: BaseCheckpointSaver[Any]
    stored: Callable[[], int]
    anew: Callable[[], BaseCheckpointSaver[Any]]
    """Another saver on the same store, which has nothing in memory."""
    seconds: list[float] = field(default_factory=list)
    """For each step."""
    reads: list[float] = field(default_factory=list)
    first_reads: list[float] = field(default_factory=list)
    """With another saver each time."""
    work: Iterator[None] = field(default_factory=lambda: iter(()))


def text(number: int) -> str:
    """A message of its own, of 2 KB; no store can make it much smaller."""
    return f"{number} {base64.b64encode(os.urandom(MESSAGE)).decode()}"[:MESSAGE]


class StudiedThread:
    """Makes the calls that a graph makes."""

    def __init__(self, saver: BaseCheckpointSaver[Any], name: str) -> None:
        self._saver = saver
        self.config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        self._versions: dict[str, Any] = {}
        self._at: Any = self.config
        self._step = 0

    def put(self, source: str, values: dict[str, Any]) -> None:
        """A checkpoint in which all channels of *values* have changed that are not what they were."""
        checkpoint: Checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self._step))
        new = {name: self._saver.get_next_version(self._versions.get(name), None) for name in values}
        self._versions |= new
        checkpoint["channel_values"] = values
        checkpoint["channel_versions"] = dict(self._versions)
        checkpoint["versions_seen"] = {"__input__": {}, "answer": dict(self._versions)}
        about: Any = {"source": source, "step": self._step, "parents": {}}
        self._at = self._saver.put(self._at, checkpoint, about, new)
        self._step += 1

    def write(self, message: AnyMessage) -> None:
        """What a task has written."""
        self._saver.put_writes(self._at, [("messages", [message])], str(uuid.uuid4()), "~__pregel_pull, answer")

    def read(self) -> list[AnyMessage]:
        """The messages of the latest state."""
        found = self._saver.get_tuple(self.config)
        if found is None:
            return []
        messages: list[AnyMessage] = found.checkpoint["channel_values"].get("messages", [])
        return messages


def conversation(saver: BaseCheckpointSaver[Any], turns: int) -> Iterator[None]:
    """A turn at each step."""
    thread = StudiedThread(saver, "conversation")
    for turn in range(turns):
        messages = thread.read()
        asked: AnyMessage = HumanMessage(text(turn), id=str(uuid.uuid4()))
        thread.put("input", {"__start__": {"messages": [asked]}, "messages": messages})
        messages = [*messages, asked]
        thread.put("loop", {"messages": messages, "branch:to:answer": None})
        answer: AnyMessage = AIMessage(text(turn), id=str(uuid.uuid4()))
        thread.write(answer)
        thread.put("loop", {"messages": [*messages, answer]})
        yield


def long_run(saver: BaseCheckpointSaver[Any], steps: int) -> Iterator[None]:
    """A message at each step."""
    thread = StudiedThread(saver, "long run")
    messages: list[AnyMessage] = []
    thread.put("input", {"messages": messages})
    for step in range(steps):
        message: AnyMessage = AIMessage(text(step), id=str(uuid.uuid4()))
        thread.write(message)
        messages = [*messages, message]
        thread.put("loop", {"messages": messages})
        yield


def measure(
    arms: list[SaverArm],
    make: Callable[[BaseCheckpointSaver[Any]], Iterator[None]],
    thread: str,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Let the *arms* take turns until all is written, and then read the latest state of *thread*."""
    for arm in arms:
        arm.work, arm.seconds, arm.reads, arm.first_reads = make(arm.saver), [], [], []
    done, turn = False, 0
    while not done:
        for arm in _rotated(arms, turn):
            for _ in range(5):
                started = clock()
                done = next(arm.work, arm) is arm
                if done:
                    break
                arm.seconds.append(clock() - started)
        turn += 1
    for turn in range(READS):
        for arm in _rotated(arms, turn):
            for saver, taken in (arm.saver, arm.reads), (arm.anew(), arm.first_reads):
                started = clock()
                if not StudiedThread(saver, thread).read():
                    raise AssertionError(f"{arm.name} has no state")
                taken.append(clock() - started)


def _rotated(arms: list[SaverArm], turn: int) -> list[SaverArm]:
    shift = turn % len(arms)
    return arms[shift:] + arms[:shift]


def folder_bytes(folder: Path) -> int:
    """What all files in *folder* have."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def arms_in(folder: Path, scheme: str, with_postgres: bool, stack: ExitStack) -> list[SaverArm]:
    """The savers, each with an empty store."""
    ours, sqlite, postgres = (folder / name for name in ("ours", "sqlite", "postgres"))
    sqlite.mkdir(parents=True)
    connection = sqlite3.connect(sqlite / "checkpoints.sqlite", check_same_thread=False)
    stack.callback(connection.close)
    store = stack.enter_context(safekeeper.open(f"{scheme}://{ours}"))
    arms = [
        SaverArm(OURS, SafeKeeperSaver(store), lambda: folder_bytes(ours), lambda: SafeKeeperSaver(store)),
        SaverArm(SQLITE, SqliteSaver(connection), lambda: folder_bytes(sqlite), lambda: SqliteSaver(connection)),
    ]
    if not with_postgres:
        return arms
    try:
        server = stack.enter_context(PostgresServer(postgres))
    except DevError as error:
        print(f"PostgreSQL is not measured: {error}")
        return arms
    from langgraph.checkpoint.postgres import PostgresSaver

    saver = stack.enter_context(PostgresSaver.from_conn_string(server.url))
    saver.setup()
    return [*arms, SaverArm(POSTGRES, saver, server.stored, lambda: PostgresSaver(saver.conn))]


def report(title: str, arms: list[SaverArm], before: dict[str, int], full: bool) -> Iterator[Goal]:
    """A table, and whether the goals are met."""
    ours, sqlite, *_ = arms
    table = Table(title=title, title_justify="left")
    for column in ("saver", "ms a step", "ours is", "ms to read", "ours is", "first", "ours is", "MB", "ours is"):
        table.add_column(column, justify="left" if column == "saver" else "right")
    found: dict[str, tuple[float, float, float, float]] = {}
    for arm in arms:
        step, read = sum(arm.seconds) / len(arm.seconds), statistics.median(arm.reads)
        # A short thread may fit into what a store has set aside before.
        stored = max(arm.stored() - before[arm.name], 4096) / 1e6
        found[arm.name] = step, read, statistics.median(arm.first_reads), stored
    for name, figures in found.items():
        mine = found[OURS]
        table.add_row(
            name,
            f"{figures[0] * 1e3:.2f}",
            f"{mine[0] / figures[0]:.2f}",
            f"{figures[1] * 1e3:.2f}",
            f"{mine[1] / figures[1]:.2f}",
            f"{figures[2] * 1e3:.2f}",
            f"{mine[2] / figures[2]:.2f}",
            f"{figures[3]:.1f}",
            f"1/{figures[3] / mine[3]:.0f}",
        )
    Console(width=110).print(table)
    (step, _, _, stored), (their_step, _, _, their_stored) = found[ours.name], found[sqlite.name]
    read = statistics.median(mine / theirs for mine, theirs in zip(ours.reads, sqlite.reads, strict=True))
    for what, ratio in ("time a step", step / their_step), ("reading the latest state", read):
        yield Goal(f"{title}: {what} at most {AT_MOST} of the SQLite saver's: {ratio:.2f}", ratio <= AT_MOST)
    said = f"{title}: bytes at most 1/50 of the SQLite saver's: 1/{their_stored / stored:.0f}"
    yield Goal(said, stored / their_stored <= BYTES_AT_MOST if full else None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter threads")
    parser.add_argument("--turns", type=int, help="of the conversation")
    parser.add_argument("--steps", type=int, help="of the long run")
    parser.add_argument("--no-postgres", action="store_true", help="only SQLite to compare with")
    parser.add_argument("--processor", action="store_true", help="processor time; without PostgreSQL")
    parser.add_argument("--scheme", default="log", help="our backend: one that takes a folder")
    parser.add_argument("--folder", type=Path, help="where to write; on the disk that is to be measured")
    options = parser.parse_args()
    turns = options.turns or (50 if options.quick else 200)
    steps = options.steps or (200 if options.quick else 2000)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, ExitStack() as stack:
        arms = arms_in(Path(folder), options.scheme, not (options.no_postgres or options.processor), stack)
        before = {arm.name: arm.stored() for arm in arms}
        for title, full, thread, make in (
            (f"{turns} turns", turns >= 200, "conversation", lambda saver: conversation(saver, turns)),
            (f"{steps} steps", steps >= 2000, "long run", lambda saver: long_run(saver, steps)),
        ):
            measure(arms, make, thread, time.process_time if options.processor else time.perf_counter)
            for goal in report(title, arms, before, full):
                print(goal)
            before = {arm.name: arm.stored() for arm in arms}


if __name__ == "__main__":
    main()
