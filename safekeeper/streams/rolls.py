"""The batches of a stream in a store: which of them count, where their pieces are, and taking them away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.streams.batches import PIECES, Roll, RollId, batch_of, decode_roll, in_order, is_roll, roll_key
from safekeeper.streams.frames import GROUP, Frame


class RollBook:
    """The rolls of the stream *name*, as the last listing of its ids showed them."""

    def __init__(self, store: Backend, name: str) -> None:
        self._store, self._group, self.pieces_group = store, name + GROUP, name + PIECES
        self._known: dict[bytes, Roll] = {}
        self.rolls: Sequence[Roll] = ()
        """Those that count, in order."""
        self._pieces: dict[Frame, bytes] = {}

    @property
    def newest(self) -> Roll | None:
        """The last one, which is never trimmed: it says which batches are done."""
        return self.rolls[-1] if self.rolls else None

    def look(self, keys: Iterable[bytes]) -> Collection[Frame]:
        """The elements of all pieces, when *keys* are the ids of the stream. A roll that is new is read."""
        listed = set(filter(is_roll, keys))
        known = {key: roll for key, roll in self._known.items() if key in listed}
        new = sorted(listed - known.keys())
        for key, value in zip(new, self._store.read([CheckpointId(self._group, key) for key in new]), strict=True):
            if value is not None:
                known[key] = decode_roll(self._group, key, value)
        self._known = known
        self.rolls = in_order(known.values())
        self._pieces = {frame: key for roll in self.rolls for frame, key in roll.frames().items()}
        return self._pieces.keys()

    def has(self, wanted: RollId) -> bool:
        """Whether this roll is there, by a read."""
        key = roll_key(wanted.first)
        (value,) = self._store.read([CheckpointId(self._group, key)])
        return value is not None and decode_roll(self._group, key, value).id == wanted.id

    def piece(self, frame: Frame) -> bytes | None:
        """The key of the piece that has these elements; None if they are not in a piece."""
        return self._pieces.get(frame)

    def forget(self, frames: Collection[Frame]) -> None:
        """Delete the batches whose elements are all in *frames*, but not the newest."""
        self.delete([roll for roll in self.rolls if roll.frames().keys() <= set(frames)])

    def delete(self, rolls: Sequence[Roll]) -> None:
        """Delete *rolls*, the oldest first, and their pieces, but not the newest. If we die between, `clean` finds the
        pieces.

        It also finds those of a roll that no later one names: it may have come late, and whoever created it lists the
        same pieces in another.
        """
        gone = [roll for roll in rolls if roll is not self.newest]
        named = {later.before for later in self.rolls}
        sure = [roll for roll in gone if RollId(roll.first, roll.id) in named]
        for roll in gone:  # one after the other: `BatchOutlet._create` counts on it
            self._delete([CheckpointId(self._group, roll.key)])
        self._delete(CheckpointId(self.pieces_group, key) for roll in sure for key, _ in roll.pieces)

    def clean(self) -> int:
        """Delete the pieces of done batches that no roll lists, and the rolls that do not count. Return how many.

        Whoever wrote such a piece died, or lost against another who did the same batch; it can never be listed. A
        listing may have missed a roll that came while it was made. So the rolls are listed again before any piece is
        deleted: all up to the newest that was known were there before that.
        """
        if (newest := self.newest) is None:
            return 0
        done = {key for key in self._store.keys(self.pieces_group) if _is_done(newest, key)}
        if done - self._listed():
            self.look(self._store.keys(self._group))
        late = [key for key, roll in self._known.items() if roll not in self.rolls]
        pieces = done - self._listed()
        self._delete(CheckpointId(self._group, key) for key in late)
        self._delete(CheckpointId(self.pieces_group, key) for key in pieces)
        return len(late) + len(pieces)

    def _listed(self) -> set[bytes]:
        return {key for roll in self.rolls for key, _ in roll.pieces}

    def _delete(self, ids: Iterable[CheckpointId]) -> None:
        batch = Batch()
        for id in ids:
            batch.delete(id)
        if len(batch):
            self._store.write(batch)


def _is_done(newest: Roll, key: bytes) -> bool:
    found = batch_of(key)
    return found is not None and found[1] <= newest.done.get(found[0], -1)
