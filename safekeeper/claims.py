"""Who owns a name in a store, without a clock and without compare-and-set.

    claim = claims.take(store, "orders")    whoever had it before acknowledges nothing more from now on
    ...                                     read what is stored under the name
    store.write(batch)
    claim.check()                           acknowledged, unless this raises Conflict

A claim is an id that is written once. The highest counts: the highest epoch, of equal ones the highest owner. Owner and
claimant each write first and read afterwards, so one of them sees the other: either the owner's check finds the new
claim, or its write was there when the new owner began to read. This holds on every backend, and against a process that
was stopped at any moment and comes back.

    group NAME.claims     claim_EPOCH_OWNER    19 digits, 16 hex digits; JSON: who it is, for messages; written once
                          done_EPOCH_OWNER     its owner has ended: a hint for those who wait

The rules, which `tests/claims` checks in all orders:

1. **Take.** List the claims; write one with the highest epoch plus one, and write it until the write returns. List
   again. Whoever is not the highest has no claim.
2. **Check.** List the claims, then read one's own. It holds if none is higher *and* it is still there. A check begins
   after the writes that it is for have returned; one check can be for many.
3. **Clean.** Only who holds the name, and only claims below its own, the lowest first, each after the one before is
   deleted. A listing need not show what came and what went meanwhile. One that misses a claim in this way misses it
   because a higher owner has deleted it, and that one has deleted everything lower first, the reader's own too. The
   highest claim is never deleted, so epochs never go back.

Nothing here says whether an owner is alive. Taking a name from one that is alive is safe and stops it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safekeeper.backend import Batch, CheckpointId, check_group
from safekeeper.errors import BadState, Conflict, Unavailable

if TYPE_CHECKING:
    from safekeeper.backend import Backend

_KEY = re.compile(rb"(claim|done)_(\d{19})_([0-9a-f]{16})")
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """What claims are compared by: the higher one owns the name."""

    epoch: int
    owner: str
    """16 hex digits, never used twice."""

    def key(self, kind: str = "claim") -> bytes:
        """The key under which it stands."""
        return f"{kind}_{self.epoch:019}_{self.owner}".encode()


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """Who has the highest claim of a name."""

    mark: Mark
    about: dict[str, Any]
    """What it said of itself: `host`, `pid`, and what it was given to say."""
    done: bool
    """Whether it has ended properly, so that nobody need wait for it."""

    def __str__(self) -> str:
        return f"process {self.about.get('pid', '?')} on {self.about.get('host', '?')}, epoch {self.mark.epoch}"


class Claim:
    """The right to write under a name, until somebody else takes it. `take` makes one."""

    def __init__(self, store: Backend, name: str, mark: Mark) -> None:
        self._store = store
        self.name = name
        self.mark = mark

    def check(self) -> None:
        """Return if the name was still ours after the writes that returned before this call: they are acknowledged.

        Raise `Conflict` if it may not have been: they count as never acknowledged, and nothing more is to be written
        under the name. Raise `Unavailable` if the store did not answer: check again.
        """
        highest = max(_list(self._store, self.name)[0], default=self.mark)
        if highest <= self.mark and self._store.read([CheckpointId(_group(self.name), self.mark.key())]) != [None]:
            return
        raise Conflict(f"{self.name} was taken by {holder(self._store, self.name)}: what was written since is not ours")

    def release(self) -> None:
        """Say that the owner has ended: whoever waits for the name need not wait any longer."""
        self._store.write(Batch({CheckpointId(_group(self.name), self.mark.key("done")): b""}))


def take(store: Backend, name: str, **about: str) -> Claim:
    """Take *name*, whoever has it. *about* is for those who ask for the `holder`.

    What is stored under the name is to be read after this, not before. Raise `Conflict` if another claim came at the
    same moment: wait a while, and look who the holder is before trying again.
    """
    there, _ = _list(store, name)
    mark = Mark(max((mark.epoch for mark in there), default=0) + 1, secrets.token_hex(8))
    said = {"host": socket.gethostname(), "pid": os.getpid(), **about}
    _write_surely(store, Batch({CheckpointId(_group(name), mark.key()): json.dumps(said).encode()}))
    claim = Claim(store, name, mark)
    claim.check()
    with suppress(Unavailable):  # what is left is in nobody's way, and goes with the next claim
        _clean(store, name, mark)
    return claim


def holder(store: Backend, name: str) -> ClaimHolder | None:
    """Who has the highest claim of *name*; None if nobody ever had one."""
    while True:
        there, done = _list(store, name)
        if not there:
            return None
        mark = max(there)
        (value,) = store.read([CheckpointId(_group(name), mark.key())])
        if value is not None:  # else a higher one has come meanwhile
            return ClaimHolder(mark, json.loads(value), mark in done)


def _clean(store: Backend, name: str, mine: Mark) -> None:
    there, done = _list(store, name)
    for lower in sorted(mark for mark in there | done if mark < mine):
        batch = Batch()  # one claim at a time: rule 3
        batch.delete(CheckpointId(_group(name), lower.key()))
        batch.delete(CheckpointId(_group(name), lower.key("done")))
        store.write(batch)


def _write_surely(store: Backend, batch: Batch) -> None:
    """Write *batch* again until it returns, so that no earlier attempt can happen any more."""
    for attempt in range(_ATTEMPTS):
        try:
            store.write(batch)
            return
        except Unavailable:
            if attempt == _ATTEMPTS - 1:
                raise


def _list(store: Backend, name: str) -> tuple[set[Mark], set[Mark]]:
    """The claims of *name*, and those whose owners have ended."""
    there, done = set[Mark](), set[Mark]()
    group = _group(name)
    for key in store.keys(group):
        if not (found := _KEY.fullmatch(key)):
            raise BadState(f"{CheckpointId(group, key)} is not a claim: nothing else may be stored in {group}")
        (there if found[1] == b"claim" else done).add(Mark(int(found[2]), found[3].decode()))
    return there, done


def _group(name: str) -> str:
    check_group(group := f"{name}.claims")
    return group
