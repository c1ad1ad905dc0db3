"""Where the elements of a group are, when owners follow each other and one of them may still be writing.

A claim keeps a former owner from acknowledging. It does not keep a write of its from happening late: a process that was
stopped in the middle of it goes on, a request that was sent is carried out. That write would replace what the new owner
has stored and acknowledged under the same id. So owners share ids only if it is certain that the former one writes no
more; otherwise the new owner copies the elements to a **place** of its own, a group that no former owner knows:

    group GROUP                         the elements, as long as no owner had to copy them
    group GROUP.owned.EPOCH_OWNER       the elements that this owner has copied
    group GROUP.places                  place_EPOCH_OWNER: the name of the group where this owner's elements are

The rules:

1. An owner writes `place_EPOCH_OWNER` after it has its claim, and saves nothing before that has returned. The highest
   one says where the elements are; without any they are in GROUP.
2. It keeps the place of the owner before it (it inherits) if three things are certain: that one had written its own
   record; it has ended, and none of its writes can happen any more; nobody else had a claim in between. Otherwise it
   copies: first the elements, then its record.
3. What is in other places is removed by the owner, after its record is there. No place is ever used again.
4. So an owner that does not find an element checks its claim before it says so: it may have lost the group, and its
   place was removed. Whoever reads without a claim looks afterwards whether the place is still the one that counts.

That an owner before the one before might still write does no harm: by rule 2 the one before it had copied, or had been
certain. Attacks on these rules, each with its test in `tests/elements/test_owner.py`: a save that was under way at the
take-over comes late; an owner ends while it copies; one is stopped between its claim and its record; two claim at once;
one reads when its successor has removed what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from safekeeper import large, stores
from safekeeper.backend import MAX_GROUP_BYTES, Backend, Batch, CheckpointId, check_group
from safekeeper.claims import Claim, Mark

_DELETED_AT_ONCE = 1000
_LONGEST = Mark(10**19 - 1, "f" * 16)


def check_name(group: str) -> None:
    """Raise `BadId` if *group* is too long for its places."""
    check_group(f"{_place(group, _LONGEST)}.parts")


def current(store: Backend, group: str) -> str:
    """The group in which the elements of *group* are now: *group* itself, unless an owner had to copy them."""
    if len(_records(group).encode()) > MAX_GROUP_BYTES:  # too long for an owner, see `check_name`
        return group
    seen: bytes | None = None
    while (newest := max(store.keys(_records(group)), default=None)) != seen:
        assert newest is not None
        (place,) = store.read([CheckpointId(_records(group), newest)])
        if place is not None:
            return place.decode()
        seen = newest  # another owner has come meanwhile, and has cleaned up: its record is there
    return group


def all_of(store: Backend, group: str) -> list[str]:
    """The groups in which elements of *group* are or were: itself and every place, also that of an owner that ended
    while it copied. It looks at the names of all groups."""
    place = re.compile(re.escape(f"{group}.owned.") + r"[0-9]+_[0-9a-f]{16}")
    return [group, *sorted({name for name in store.groups() if place.fullmatch(name)})]


def family(store: Backend, group: str) -> list[str]:
    """The groups to copy for the elements of *group* as they are now: where they are, and whose they are."""
    if (place := current(store, group)) == group:
        return [group]
    return [place, _records(group), f"{group}.claims"]


def has_record(store: Backend, group: str, mark: Mark) -> bool:
    """Whether the owner with *mark* had come as far as to save anything."""
    return store.read([_record(group, mark)]) != [None]


def inherit(store: Backend, claim: Claim) -> str:
    """Keep the place that there is; which one that is."""
    place = current(store, claim.name)
    _settle(store, claim, place)
    return place


def copy(store: Backend, claim: Claim) -> str:
    """Copy the elements to a place of the owner with *claim*; which one that is."""
    source, place = current(store, claim.name), _place(claim.name, claim.mark)
    for batch in stores.batches(_copied(store, source, place)):
        store.write(batch)
    claim.check()  # not for safety: whoever has lost it need not say where its copy is
    _settle(store, claim, place)
    return place


def _copied(store: Backend, source: str, place: str) -> Iterator[tuple[CheckpointId, bytes]]:
    """The values to write to *place*; large ones are written on the way."""
    for id, value in stores.values_of(store, [source]):
        target = CheckpointId(place, id.key)
        if not large.is_head(value):
            yield target, value
        elif (whole := large.open_value(store, id)) is not None:
            with whole:
                large.write(store, target, whole)


def _settle(store: Backend, claim: Claim, place: str) -> None:
    store.write(Batch({_record(claim.name, claim.mark): place.encode()}))
    claim.check()


def clean(store: Backend, claim: Claim, place: str) -> None:
    """Remove what is in other places than *place*, and the records of former owners."""
    records = sorted(store.keys(_records(claim.name)))
    mine = claim.mark.key("place")
    former = [key for key in records if key < mine]
    values = store.read([CheckpointId(_records(claim.name), key) for key in former])
    places = {value.decode() for value in values if value is not None}
    places |= {_place(claim.name, _mark(key)) for key in former} | {claim.name}
    for retired in sorted(places - {place}):
        for group in (retired, f"{retired}.parts"):
            _delete(store, (CheckpointId(group, key) for key in store.keys(group)))
    _delete(store, (CheckpointId(_records(claim.name), key) for key in former))


def _delete(store: Backend, ids: Iterator[CheckpointId]) -> None:
    while some := list(islice(ids, _DELETED_AT_ONCE)):
        batch = Batch()
        for id in some:
            batch.delete(id)
        store.write(batch)


def _records(group: str) -> str:
    return f"{group}.places"


def _record(group: str, mark: Mark) -> CheckpointId:
    return CheckpointId(_records(group), mark.key("place"))


def _mark(record: bytes) -> Mark:
    _, epoch, owner = record.decode().split("_")
    return Mark(int(epoch), owner)


def _place(group: str, mark: Mark) -> str:
    return f"{group}.owned.{mark.epoch}_{mark.owner}"
