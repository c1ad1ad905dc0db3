"""What a store has in journals, for people who look at them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from safekeeper import claims
from safekeeper.backend import Backend, CheckpointId
from safekeeper.errors import BadState
from safekeeper.journal.follow import Follow
from safekeeper.journal.reading import ReadBlocks

_CLAIMS = ".claims"
STANDBYS = ".standbys"
"""Group NAME.standbys: a key for each standby, JSON as in `StandbyStatus`; a hint for people."""


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """What a standby has said of itself, every few seconds."""

    host: str
    pid: int
    blocks: int
    """How many blocks it was behind."""
    seconds: float
    """For how long it was behind."""
    when: int
    """When it said so, by its clock. One that was killed says nothing more."""


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """One operator's journal, as it is now."""

    name: str
    owner: str
    """Who had it last, by host and process."""
    epoch: int
    """How many owners it had."""
    ended: bool
    """Whether the owner has ended properly. If not, it may be alive or not: nobody can tell from here."""
    blocks: int
    """How many blocks are needed."""
    nbytes: int
    """How many bytes they have."""
    parts: int
    """How many parts the operator has."""
    extent: int
    """How many records of parts recovery has to load."""
    events: int
    """How many events the operator has taken."""
    replay: int
    """How many of them recovery has to replay."""
    outputs: int
    """How many outputs are kept for readers."""
    recovery_seconds: float
    """How long a recovery will take: what loading took here just now, and the replay at the owner's rate."""
    standbys: tuple[StandbyStatus, ...] = ()
    """Who follows it, and takes over when its owner is gone."""


def journals(store: Backend) -> Iterator[JournalStatus]:
    """The journals of *store*, by name. They may be in use."""
    groups = set(store.groups())
    for name in sorted(group.removesuffix(_CLAIMS) for group in groups if group.endswith(_CLAIMS)):
        if name in groups and (found := status(store, name)) is not None:
            yield found


def status(store: Backend, name: str) -> JournalStatus | None:
    """What there is to say about the journal *name*; None if there is none."""
    holder = claims.holder(store, name)
    try:
        ReadBlocks(store, name).listed()
    except BadState:  # a group of something else that is claimed, too
        return None
    follow = Follow(store, name)
    begun = time.monotonic()
    follow.poll()
    loading = time.monotonic() - begun
    image, last = follow.image, follow.image.last
    if last is None or holder is None:
        return None
    replay = image.at.events - image.replay.events
    emitted = sum(number - last.confirmed.get(stream, 0) for stream, number in last.numbers.items())
    return JournalStatus(
        name=name,
        owner=f"process {holder.about.get('pid', '?')} on {holder.about.get('host', '?')}",
        epoch=holder.mark.epoch,
        ended=holder.done,
        blocks=image.extent.blocks,
        nbytes=image.nbytes,
        parts=len(image.parts),
        extent=image.extent.records,
        events=image.at.events,
        replay=replay,
        outputs=emitted,
        recovery_seconds=loading + (replay / last.rates[1] if last.rates[1] else 0.0),
        standbys=tuple(_standbys(store, name)),
    )


def _standbys(store: Backend, name: str) -> Iterator[StandbyStatus]:
    group = f"{name}{STANDBYS}"
    for value in store.read([CheckpointId(group, key) for key in sorted(store.keys(group))]):
        if value is not None:
            yield StandbyStatus(**json.loads(value))
