"""Large values: chunks in files of their own, written and read several at once. What names them is a head in a segment.

The chunks are there, on disks, before the head is; until the head is acknowledged nobody looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Protocol, TypeVar

from safekeeper.backends.hdfs.client import Client
from safekeeper.backends.hdfs.layout import HdfsLargeValue, block_for
from safekeeper.backends.hdfs.placement import MOST_CHUNKS, Placement, Turn, Turns
from safekeeper.backends.shared.records import check_value
from safekeeper.errors import Corruption, Unavailable

T = TypeVar("T")
R = TypeVar("R")


class Parallel(Protocol):
    """Whoever has threads for it."""

    client: Client

    def in_parallel(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """*work* on all *items*, several at once."""


@dataclass(frozen=True, slots=True)
class ChunkFiles:
    """How chunks are written."""

    folder: str
    replication: int
    needed: int
    """How many DataNodes must have one."""
    to_disk: bool


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A part of a value, and the file that it goes to."""

    name: str
    value: bytes
    start: int
    end: int


def write_chunks(
    by: Parallel, placement: Placement, how: ChunkFiles, values: Sequence[tuple[HdfsLargeValue, bytes]], checkpoint: str
) -> None:
    """Write the chunks of all *values* that their heads name: one request for turns, several chunks under way.

    If one of them fails, no other is begun, and what was written is removed again.
    """
    chunks = [
        _Chunk(name, value, n * head.chunk, (n + 1) * head.chunk)
        for head, value in values
        for n, name in enumerate(head.names())
    ]
    over = Event()
    """Set when one has failed, or the caller was interrupted."""

    def write(chunk: _Chunk, turns: Turns) -> None:
        if over.is_set():
            return
        with _set_on_error(over), turns.take() as turn:
            if not over.is_set():
                _write_chunk(by.client, turn, how, chunk)

    try:
        for first in range(0, len(chunks), MOST_CHUNKS):  # mostly it is one request
            some = chunks[first : first + MOST_CHUNKS]
            with placement.chunks(len(some), how.replication, checkpoint) as turns, _set_on_error(over):
                by.in_parallel(partial(write, turns=turns), some)
    except BaseException:
        remove_chunks(by.client, how.folder, [head for head, _ in values])
        raise


@contextmanager
def _set_on_error(event: Event) -> Iterator[None]:
    try:
        yield
    except BaseException:
        event.set()
        raise


def _write_chunk(client: Client, turn: Turn, how: ChunkFiles, chunk: _Chunk) -> None:
    out = client.create(
        f"{how.folder}/{chunk.name}",
        replication=how.replication,
        block_size=block_for(chunk.end - chunk.start),
        favoured=turn.favoured,
        to_disk=how.to_disk,
    )
    try:
        out.write(chunk.value, chunk.start, chunk.end)
        # Before closing: a file that is complete for the NameNode but not on a disk is lost whole in a power cut.
        out.hsync() if how.to_disk else out.hflush()
        if out.replicas() < how.needed:
            raise Unavailable(f"{out.path}: only {out.replicas()} DataNode has it: start another one")
        turn.written_to(out.pipeline())
        out.close()
    except BaseException:
        out.abandon()
        raise


def read_chunks(by: Parallel, folder: str, heads: Sequence[HdfsLargeValue]) -> list[bytes]:
    """The values that *heads* stand for."""
    names = [(f"{folder}/{name}", head) for head in heads for name in head.names()]
    chunks = iter(by.in_parallel(lambda pair: _read_chunk(by.client, pair[0]), names))
    values = []
    for head in heads:
        value = b"".join(next(chunks) for _ in head.names())
        if len(value) != head.size or check_value(value) != head.check:
            raise Corruption(f"{folder}/{head.names()[0]}: the chunks are not those that were written")
        values.append(value)
    return values


def _read_chunk(client: Client, path: str) -> bytes:
    stream = client.open(path)
    try:
        return stream.read(0, stream.length)
    finally:
        stream.close()


def remove_chunks(client: Client, folder: str, heads: Sequence[HdfsLargeValue]) -> None:
    """Remove the chunks of *heads*, as far as that can be done now: what is left is found by a compaction.

    A NameNode that is away is waited for once, not once for each of them.
    """
    with suppress(Unavailable):
        for head in heads:
            for name in head.names():
                client.delete(f"{folder}/{name}")
