"""Large values: chunks in files of their own, written and read several at once. What names them is a head in a segment.

The chunks are there, on disks, before the head is; until the head is acknowledged nobody looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from safekeeper.backends.hdfs.client import Client
from safekeeper.backends.hdfs.layout import HdfsLargeValue, block_for
from safekeeper.backends.hdfs.placement import Placement, Turn
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


def write_chunks(
    by: Parallel, placement: Placement, how: ChunkFiles, head: HdfsLargeValue, value: bytes, group: str
) -> None:
    """Write the chunks of *value* that *head* names. What was written is removed again if one of them fails."""
    chunks = [(name, n * head.chunk) for n, name in enumerate(head.names())]
    try:
        with placement.chunks(len(chunks), how.replication, group) as turns:

            def write(chunk: tuple[str, int]) -> None:
                name, start = chunk
                with turns.take() as turn:
                    _write_chunk(by.client, turn, how, name, value, start, start + head.chunk)

            by.in_parallel(write, chunks)
    except BaseException:
        remove_chunks(by.client, how.folder, head)
        raise


def _write_chunk(client: Client, turn: Turn, how: ChunkFiles, name: str, value: bytes, start: int, end: int) -> None:
    out = client.create(
        f"{how.folder}/{name}",
        replication=how.replication,
        block_size=block_for(end - start),
        favoured=turn.favoured,
        to_disk=how.to_disk,
    )
    try:
        out.write(value, start, end)
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


def remove_chunks(client: Client, folder: str, head: HdfsLargeValue) -> None:
    """Remove the chunks of *head*, as far as that can be done now: what is left is found by a compaction."""
    with suppress(Unavailable):
        for name in head.names():
            client.delete(f"{folder}/{name}")
