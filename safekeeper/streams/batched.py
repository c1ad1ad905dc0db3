"""Producing a stream in batches: many tasks write pieces, one commit makes them a part of the stream.

    writer = BatchPieceWriter(store, "counts", producer, batch=7)          in each task
    pieces = [writer.write(keys, bodies), ...]

    with BatchOutlet(store, "counts", readers=["dashboard"]) as counts:     where the batch is committed
        counts.commit(producer, 7, pieces)                                  again and again, if it has to be: once

*producer* is 32 hex digits, and its batches are numbered 0, 1, 2 and so on. A batch that is done is not done again,
whoever asks, so a batch may be repeated with other pieces. `batches` has the format and why it holds.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Self

from safekeeper.backend import (
    MAX_VALUE_BYTES,
    TOKEN_BYTES,
    Backend,
    Batch,
    CheckpointId,
    SupportsCreate,
)
from safekeeper.errors import BadUrl, QueueFull, TooLarge, Unavailable
from safekeeper.streams.batches import Roll, RollId, column, encode_piece, piece_key
from safekeeper.streams.retained import Retention
from safekeeper.streams.store import StoredStream

_log = logging.getLogger("safekeeper")
_LOOK_AGAIN = 0.1

ListedPiece = tuple[bytes, int]
"""The key of a piece, and how many elements it has."""


class BatchPieceWriter:
    """Writes the pieces of one task: under ids that nobody else has, so nothing is ever overwritten."""

    def __init__(self, store: Backend, name: str, producer: str, batch: int) -> None:
        self._stream = StoredStream(store, name)
        self._producer, self._batch = producer, batch
        self._token = secrets.token_hex(8)
        self._count = 0

    def write(self, keys: Sequence[bytes], bodies: Sequence[bytes]) -> ListedPiece:
        """Store one piece; it is durable when this returns."""
        return self.write_columns(len(bodies), column(keys), column(bodies))

    def write_columns(self, count: int, keys: tuple[bytes, bytes], bodies: tuple[bytes, bytes]) -> ListedPiece:
        """The same for columns that are laid out as `encode_piece` takes them."""
        key = piece_key(self._producer, self._batch, self._token, self._count)
        value = encode_piece(count, keys, bodies)
        if len(value) > MAX_VALUE_BYTES:
            raise TooLarge(f"a piece of {self._stream.name} with {count} elements has {len(value)} bytes: split it")
        self._stream.store.write(Batch({CheckpointId(self._stream.book.pieces_group, key): value}))
        self._count += 1
        return key, count


class BatchOutlet:
    """The producing side of a stream in a store whose elements come in batches."""

    def __init__(
        self, store: Backend, name: str, readers: Sequence[str], retention: Retention | None = None, floor: int = 0
    ) -> None:
        if not isinstance(store, SupportsCreate):
            raise BadUrl(f"{type(store).__name__} cannot create an id once: batches need a store that can, as log:")
        self._store: Backend = store
        self._creator: SupportsCreate = store
        self._stream = StoredStream(store, name)
        self._readers = list(readers)
        self._retention = retention or Retention()
        self._floor = floor
        self._stream.declare(readers)

    @property
    def last(self) -> int:
        """The number of the last element that the stream has."""
        last = max((frame.last for frame in self._stream.frames()), default=self._floor)
        newest = self._stream.book.newest  # it may have come while the frames were listed again
        return max(last, newest.last) if newest else last

    def commit(self, producer: str, batch: int, pieces: Sequence[ListedPiece], patience: float = 60.0) -> bool:
        """Append the elements of *pieces*, in order, unless the batch is done. Whether it was done just now.

        After `Unavailable` it may or may not be done: commit it again. `QueueFull` if a reader is too far behind and
        does not get on within *patience* seconds.
        """
        while True:
            last, newest = self.last, self._stream.book.newest
            if newest is not None and newest.done.get(producer, -1) >= batch:
                return False
            if not sum(count for _, count in pieces):
                return False  # a batch without elements changes nothing, however often it comes
            roll = Roll(
                last + 1,
                secrets.token_bytes(TOKEN_BYTES),
                None if newest is None else RollId(newest.first, newest.id),
                {**(newest.done if newest else {}), producer: batch},
                [piece for piece in pieces if piece[1]],
            )
            self._make_room(roll.last, patience)
            if self._create(roll):
                return True

    def _create(self, roll: Roll) -> bool:
        """Whether *roll* is a part of the stream now. Not if another was first, perhaps so long ago that it is gone."""
        if not self._creator.create(CheckpointId(self._stream.group, roll.key), roll.encode(), roll.id):
            return False
        if roll.before is not None and self._stream.book.has(roll.before):
            return True  # rolls are deleted in order: while that one is there, none after it was
        return self._counts(roll) and self._counts(roll)  # one listing may miss two that come and go meanwhile

    def _counts(self, roll: Roll) -> bool:
        """Whether a listing shows that *roll* is the newest, or that a later one names it."""
        self._stream.frames()
        rolls = self._stream.book.rolls
        return roll.id in [*(later.id for later in rolls[-1:]), *(later.before.id for later in rolls if later.before)]

    def _make_room(self, last: int, patience: float) -> None:
        give_up = time.monotonic() + patience
        while True:
            try:
                for reader in self._retention.drop(self._stream.name, self.acknowledged(), last):
                    self._readers.remove(reader)
                    self._stream.declare(self._readers)
                return
            except QueueFull:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_LOOK_AGAIN)

    def acknowledged(self) -> dict[str, int]:
        """How far each reader is."""
        return dict.fromkeys(self._readers, 0) | self._stream.acknowledged(self._readers)

    def tidy(self, upto: int | None = None) -> None:
        """Delete what all readers have acknowledged, or everything up to *upto*, and what the dead have left behind.

        What cannot be deleted now is deleted by the next call.
        """
        try:
            frames = self._stream.frames()
            if upto is None:
                upto = min(self.acknowledged().values(), default=0)
            self._stream.forget([frame for frame in frames[:-1] if frame.last <= upto])
            self._stream.book.clean()
        except Unavailable as error:
            _log.warning("the stream %s is tidied up later: %s", self._stream.name, error)

    def close(self) -> None:
        """Give back the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
