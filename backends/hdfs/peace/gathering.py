"""Requests of one writer that come at about the same moment are one request to the coordinator.

The partitions of a Spark batch commit at nearly the same time, each in a write of its own; to the coordinator they are
one checkpoint. So whoever asks first waits a moment for others and asks for all of them. It is by the name of what has
waited longest, as a batch of several values is.

    gatherer = Gatherer(ask)
    with gatherer.join(count, replicas, checkpoint) as turns:    # in several threads
        with turns.take() as turn:
            ...
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from safekeeper.backends.hdfs.placement import MOST_CHUNKS, Turn

if TYPE_CHECKING:
    from safekeeper.backends.hdfs.peace.client import PeaceTurns

GATHER_SECONDS = 0.02
"""For how long the first one waits for others: little beside writing a chunk, much beside what threads differ by."""

Ask = Callable[[int, int, str], "PeaceTurns"]


class _Gathering:
    """Those who ask together."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.chunks = 0
        self.shares: list[TurnsShare] = []
        self.sent = threading.Event()
        self.turns: PeaceTurns | None = None
        """Those of all, from when it was sent."""


class Gatherer:
    """Joins the requests of a writer. *ask* asks the coordinator; it does not wait for turns."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._open: dict[int, _Gathering] = {}
        """Those that others may still join, by the replicas of their chunks."""

    def join(self, count: int, replicas: int, checkpoint: str) -> TurnsShare:
        """Turns for *count* chunks, asked for with those of others."""
        share = TurnsShare(count)
        with self._lock:
            gathering = self._open.get(replicas)
            is_first = gathering is None or gathering.chunks + count > MOST_CHUNKS
            if gathering is None or is_first:
                gathering = self._open[replicas] = _Gathering(checkpoint)
            gathering.chunks += count
            gathering.shares.append(share)
        try:
            if is_first:
                self._send(gathering, replicas)
            else:
                gathering.sent.wait()
            share.turns = gathering.turns or self._ask(count, replicas, checkpoint)
        except BaseException:  # a signal
            with self._lock:
                share.over, turns = True, gathering.turns
            if turns is not None:
                turns.leave(share)
            raise
        return share

    def _send(self, gathering: _Gathering, replicas: int) -> None:
        try:
            time.sleep(GATHER_SECONDS)
        finally:  # also when a signal comes: others wait for it
            try:
                self._send_now(gathering, replicas)
            finally:
                gathering.sent.set()

    def _send_now(self, gathering: _Gathering, replicas: int) -> None:
        with self._lock:
            if self._open.get(replicas) is gathering:
                del self._open[replicas]
        turns = self._ask(gathering.chunks, replicas, gathering.checkpoint)
        with self._lock:
            gathering.turns = turns
            gone = [share for share in gathering.shares if share.over]
        for share in gone:
            turns.leave(share)


class TurnsShare:
    """What one of them may take of the turns of all: `Turns`. The lock of these guards it."""

    def __init__(self, left: int) -> None:
        self.left = left
        """How many are still to be taken."""
        self.over = False
        """Whether nothing more is wanted."""
        self.turns: PeaceTurns | None = None

    def take(self) -> Turn:
        """Wait for the next turn."""
        assert self.turns is not None, "it was asked for"
        return self.turns.take(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.turns is not None:
            self.turns.leave(self)
