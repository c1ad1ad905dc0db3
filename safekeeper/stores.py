"""What can be done with whole stores, whatever their backends are: copy, verify, salvage, repair.

Everything is done in pieces whose size is bounded whatever the values are. A copy can be made again: an id that is
already there is replaced. Whoever writes to the source meanwhile is not waited for, so stop the writers first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from safekeeper.backend import (
    Backend,
    Batch,
    CheckpointId,
    Damage,
    Intact,
    SupportsSalvage,
    SupportsScan,
    SupportsVerify,
)
from safekeeper.errors import Corruption
from safekeeper.large import with_parts

_PIECE_BYTES = 16 << 20
_FIRST_READ = 16
_MOST_READ = 1024


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied."""

    ids: int
    nbytes: int
    """Of values."""

    def __add__(self, other: Copied) -> Copied:
        return Copied(self.ids + other.ids, self.nbytes + other.nbytes)


def copy(
    source: Backend,
    target: Backend,
    groups: Iterable[str] | None = None,
    progress: Callable[[int], object] = lambda ids: None,
) -> Copied:
    """Write every id of *source*, or of some of its *groups*, to *target*; durable as *target* declares on return.

    What *target* has besides stays. *progress* is called with the number of ids copied since the last call.
    """
    return _copy(values_of(source, groups and with_parts(groups)), target, progress)


def copy_ids(
    source: Backend,
    target: Backend,
    ids: Iterable[CheckpointId],
    progress: Callable[[int], object] = lambda ids: None,
) -> Copied:
    """Write *ids*, those of them that *source* has, to *target*."""
    return _copy(read_in_pieces(source, ids), target, progress)


def _copy(values: Iterable[tuple[CheckpointId, bytes]], target: Backend, progress: Callable[[int], object]) -> Copied:
    copied = Copied(0, 0)
    for batch in batches(values):
        target.write(batch)
        progress(len(batch))
        copied += Copied(len(batch), sum(len(value or b"") for _, value in batch.items()))
    return copied


def ids_of(store: Backend, groups: Iterable[str] | None = None) -> Iterator[CheckpointId]:
    """Every id of a store, or of some of its groups, once."""
    for group in dict.fromkeys(store.groups() if groups is None else groups):
        yield from (CheckpointId(group, key) for key in dict.fromkeys(store.keys(group)))


def values_of(store: Backend, groups: Iterable[str] | None = None) -> Iterator[tuple[CheckpointId, bytes]]:
    """Every id of a store, or of some of its groups, once, with its value."""
    if not isinstance(store, SupportsScan):
        yield from read_in_pieces(store, ids_of(store, groups))
        return
    for group in dict.fromkeys(store.groups() if groups is None else groups):
        seen: set[bytes] = set()
        for key, value in chain.from_iterable(store.scan(group)):
            if key not in seen:
                seen.add(key)
                yield CheckpointId(group, key), value


def read_in_pieces(store: Backend, ids: Iterable[CheckpointId]) -> Iterator[tuple[CheckpointId, bytes]]:
    """The values of *ids*, of those that are there, several in one call but not too many.

    How many fit is not known before they are read: no more are read at once than would fit if all were as large as the
    largest so far.
    """
    largest, most = 1, _FIRST_READ
    piece: list[CheckpointId] = []

    def read() -> Iterator[tuple[CheckpointId, bytes]]:
        nonlocal largest, most
        found = [(id, value) for id, value in zip(piece, store.read(piece), strict=True) if value is not None]
        largest = max([largest, *(len(value) for _, value in found)])
        most = max(1, min(2 * most, _PIECE_BYTES // largest, _MOST_READ))
        piece.clear()
        yield from found

    for id in ids:
        piece.append(id)
        if len(piece) >= most:
            yield from read()
    yield from read()


def batches(puts: Iterable[tuple[CheckpointId, bytes]]) -> Iterator[Batch]:
    """*puts* as batches that are large enough for a store to be quick, and not much larger."""
    batch = Batch()
    for id, value in puts:
        batch.put(id, value)
        if batch.nbytes >= _PIECE_BYTES:
            yield batch
            batch = Batch()
    if len(batch):
        yield batch


def slices(ids: Iterable[CheckpointId], size: int) -> Iterator[tuple[CheckpointId, ...]]:
    """*ids* in tuples of at most *size* each."""
    rest = iter(ids)
    while piece := tuple(islice(rest, size)):
        yield piece


def verify(store: Backend, checked: Callable[[int], object] = lambda nbytes: None) -> Iterator[Damage]:
    """Read and check everything in *store*; yield what is damaged. *checked* gets the bytes since the last call."""
    if isinstance(store, SupportsVerify):
        yield from store.verify(checked)
        return
    for found in _read_one_by_one(store, checked):
        if isinstance(found, Damage):
            yield found


def salvage(store: Backend, checked: Callable[[int], object] = lambda nbytes: None) -> Iterator[Intact | Damage]:
    """Every id of *store* whose last value is intact, and what is lost; the store itself is not changed."""
    yield from store.salvage(checked) if isinstance(store, SupportsSalvage) else _read_one_by_one(store, checked)


def _read_one_by_one(store: Backend, checked: Callable[[int], object]) -> Iterator[Intact | Damage]:
    """What shows by reading every id, for a backend that has nothing better."""
    for id in ids_of(store):
        try:
            (value,) = store.read([id])
        except Corruption as error:
            yield Damage(str(id), str(error), id)
            continue
        if value is not None:
            checked(len(value))
            yield Intact(id, value)


@dataclass(frozen=True, slots=True)
class Repaired:
    """What became of a damaged store."""

    copied: int
    """How many ids are in the new store."""
    lost: list[Damage]


def repair(source: Backend, target: Backend, checked: Callable[[int], object] = lambda nbytes: None) -> Repaired:
    """Write what is intact of *source* to *target*, which should be empty; say what is lost.

    An id whose last value is damaged is lost; an older value does not take its place.
    """
    copied, lost = 0, list[Damage]()

    def intact() -> Iterator[tuple[CheckpointId, bytes]]:
        for found in salvage(source, checked):
            if isinstance(found, Damage):
                lost.append(found)
            else:
                yield found.id, found.value

    for batch in batches(intact()):
        target.write(batch)
        copied += len(batch)
    return Repaired(copied, lost)
