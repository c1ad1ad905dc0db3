"""Where the backend's files go: who is asked before a file is created, and told where it went.

    with placement.chunks(len(values), replicas=3, checkpoint=group) as turns:
        for value in values:                       # or in several threads at once
            with turns.take() as turn:             # waits until this chunk may be written
                stream = client.create(path, favoured=turn.favoured)
                ...
                turn.written_to(stream.pipeline())

`placement=hdfs` leaves everything to the NameNode (`StockPlacement`); `placement=peace` asks a coordinator
(`safekeeper.backends.hdfs.peace.client`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Protocol, Self

from safekeeper.backend import PlacementCounts

MOST_CHUNKS = 4096
"""Of one request."""


class Tally:
    """`PlacementCounts` that several threads add to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = PlacementCounts()

    def add(self, favoured: Sequence[str], pipeline: Sequence[str]) -> None:
        """Count a file that was to go to *favoured* and went to *pipeline*."""
        with self._lock:
            before = self._counts
            if not favoured:
                self._counts = replace(before, unplanned=before.unplanned + 1)
                return
            self._counts = replace(
                before,
                planned=before.planned + 1,
                hits=before.hits + (set(favoured) == set(pipeline)),
                in_order=before.in_order + (tuple(favoured) == tuple(pipeline)),
            )

    def counts(self) -> PlacementCounts:
        """The numbers now."""
        with self._lock:
            return self._counts


class Turn:
    """Leave to write one file, from its creation until this is left."""

    def __init__(self, tally: Tally, favoured: tuple[str, ...] = ()) -> None:
        self.favoured = favoured
        """The DataNodes it should go to, `ip:port`, in pipeline order; empty where HDFS decides."""
        self._tally = tally

    def written_to(self, pipeline: Sequence[str]) -> None:
        """Tell where the file really went, as read from the open stream; of a chunk, when all of it is there.

        A chunk is done with the network then: completing the file keeps nobody else from writing.
        """
        self._tally.add(self.favoured, pipeline)
        self.done()

    def done(self) -> None:
        """The file needs the network no more. Called on leaving, too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.done()


class Turns(Protocol):
    """The turns of one request for chunks. For several threads."""

    def take(self) -> Turn:
        """Wait until the next chunk may be written. It never fails and never waits for ever: at worst HDFS decides."""


class Placement(Protocol):
    """Decides where files go, and when. For several threads."""

    def chunks(self, count: int, replicas: int, checkpoint: str) -> AbstractContextManager[Turns]:
        """Ask for turns to write *count* chunks, at most `MOST_CHUNKS`. On leaving, those not taken are given back.

        Requests with the same *checkpoint*, the name of a group, are served one after the other. What is asked for at
        about the same time, also of other checkpoints, may become one request.
        """

    def ahead(self, count: int, replicas: int, checkpoint: str, *, wait: bool = True) -> AbstractContextManager[None]:
        """Ask for *count* turns and wait until the first may begin, or do not *wait*.

        While the block lasts, `chunks` of the same checkpoint uses them before it asks for others; on leaving, those
        that were not taken are given back.

        Without *wait*, turns count that the checkpoint has already waited for."""

    def segment(self, replicas: int) -> Turn:
        """A turn for a file that stays open and is written a little at a time. It does not wait."""

    def counts(self) -> PlacementCounts:
        """What became of the files so far."""

    def last_heard(self) -> float:
        """When whoever gives out turns last said anything, as `time.monotonic` tells it; 0.0 if never."""

    def close(self) -> None:
        """Give back what is held. Closing twice is not an error."""


class StockPlacement:
    """HDFS decides, at once. Also the `Turns` of all its requests."""

    def __init__(self) -> None:
        self._tally = Tally()

    def chunks(self, count: int, replicas: int, checkpoint: str) -> Self:
        return self

    def ahead(self, count: int, replicas: int, checkpoint: str, *, wait: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def segment(self, replicas: int) -> Turn:
        return Turn(self._tally)

    def take(self) -> Turn:
        """A turn, now."""
        return Turn(self._tally)

    def counts(self) -> PlacementCounts:
        return self._tally.counts()

    def last_heard(self) -> float:
        return 0.0

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass
