"""Large values: parts in files of their own, written and read several at once. What names them is a head in a segment.

The parts are there, on disks, before the head is; until the head is acknowledged nobody looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from safekeeper.backends.hdfs.client import Client
from safekeeper.backends.hdfs.layout import Head
from safekeeper.backends.hdfs.placement import Placement, Turns
from safekeeper.backends.log.format import check_value
from safekeeper.errors import Corruption, Unavailable

T = TypeVar("T")
R = TypeVar("R")


class Parallel(Protocol):
    """Whoever has threads for it."""

    client: Client

    def in_parallel(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """*work* on all *items*, several at once."""


def write_chunks(
    by: Parallel, placement: Placement, folder: str, head: Head, value: bytes, group: str, replication: int, sync: str
) -> None:
    """Write the chunks of *value* that *head* names. What was written is removed again if one of them fails."""
    parts = [(name, n * head.chunk) for n, name in enumerate(head.names())]
    try:
        with placement.chunks(len(parts), replication, group) as turns:

            def write(part: tuple[str, int]) -> None:
                name, start = part
                _write_chunk(by.client, turns, f"{folder}/{name}", value, start, head.chunk, replication, sync)

            by.in_parallel(write, parts)
    except BaseException:
        remove_chunks(by.client, folder, head)
        raise


def _write_chunk(
    client: Client, turns: Turns, path: str, value: bytes, start: int, block: int, replication: int, sync: str
) -> None:
    with turns.take() as turn:
        # A block that is full does not tell its pipeline any more: this one has room for one more checksum.
        out = client.create(path, replication=replication, block_size=block + 512, favoured=turn.favoured)
        try:
            out.write(value, start, start + block)
            # Before closing: a file that is complete for the NameNode but not on a disk is lost whole in a power cut.
            out.hsync() if sync == "hsync" else out.hflush()
            turn.written_to(out.pipeline())
            out.close()
        except BaseException:
            out.abandon()
            raise


def read_chunks(by: Parallel, folder: str, heads: Sequence[Head]) -> list[bytes]:
    """The values that *heads* stand for."""
    names = [(f"{folder}/{name}", head) for head in heads for name in head.names()]
    parts = iter(by.in_parallel(lambda pair: _read_chunk(by.client, pair[0]), names))
    values = []
    for head in heads:
        value = b"".join(next(parts) for _ in head.names())
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


def remove_chunks(client: Client, folder: str, head: Head) -> None:
    """Remove the chunks of *head*, as far as that can be done now: what is left is found by a compaction."""
    with suppress(Unavailable):
        for name in head.names():
            client.delete(f"{folder}/{name}")
