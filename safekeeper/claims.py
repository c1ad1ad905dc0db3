"""Who owns a name in a store, without a clock and without compare-and-set.

    claim = claims.take(store, "orders")    whoever had it before acknowledges nothing more from now on
    ...                                     read what is stored under the name
    store.write(batch)
    claim.check()                           acknowledged, unless this raises Conflict

A claim is an id that is written once. The highest counts: the highest epoch, of equal ones the highest owner. An owner
writes first and looks for its claim afterwards; a claimant first deletes that claim and reads afterwards. So one of
them sees the other: either the owner's check misses its claim, or its write was there when the new owner began to read.
This holds on every backend, and against a process that was stopped at any moment and comes back.

    group NAME.claims     claim_EPOCH_OWNER    19 digits, 16 hex digits; JSON: who it is, for messages; written once
                          done_EPOCH_OWNER     its owner has ended: a hint for those who wait; "quiet" if it has said
                                               that none of its writes is still under way
                          beat_EPOCH_OWNER     changes while its owner is at work: a hint, too

The rules, which `tests/claims` checks in all orders:

1. **Take.** List the claims; write one with the highest epoch plus one, and write it until the write returns. List
   again, then read one's own. Whoever is not the highest, or is not there any more, has no claim.
2. **End the lower ones.** List again, and delete every claim below one's own, the lowest first, each after the one
   before is deleted. When all of that has returned, and not before, the name is taken. A lower claim that none of these
   listings shows came later, and its own listing shows this one; or somebody higher has deleted it. The highest claim
   is never deleted, so epochs never go back.
3. **Check.** Read one's own claim. It holds if it is still there. A check begins after the writes that it is for have
   returned; one check can be for many.

A claimant that dies before it has ended the lower claims has taken nothing: the owner goes on until the next one comes.

Nothing here says whether an owner is alive. Taking a name from one that is alive is safe and stops it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from safekeeper.backend import Batch, CheckpointId, check_group
from safekeeper.errors import BadState, Conflict, Unavailable

if TYPE_CHECKING:
    from safekeeper.backend import Backend

_KEY = re.compile(rb"(claim|done|beat)_(\d{19})_([0-9a-f]{16})")
_ATTEMPTS = 3
_QUIET = b"quiet"


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
    quiet: bool
    """Whether it has ended and none of its writes can happen any more."""
    beat: bytes | None
    """What it has last said to show that it is at work; None if it does not do that."""

    def __str__(self) -> str:
        return f"process {self.about.get('pid', '?')} on {self.about.get('host', '?')}, epoch {self.mark.epoch}"


class Claim:
    """The right to write under a name, until somebody else takes it. `take` makes one."""

    def __init__(self, store: Backend, name: str, mark: Mark, others: frozenset[Mark] = frozenset()) -> None:
        self._store = store
        self.name = name
        self.mark = mark
        self.others = others
        """The other claims that were there when this one was taken. Whoever has written under the name is among them,
        or was before them."""
        self._id = CheckpointId(_group(name), mark.key())

    def check(self) -> None:
        """Return if the name was still ours after the writes that returned before this call: they are acknowledged.

        Raise `Conflict` if it may not have been: they count as never acknowledged, and nothing more is to be written
        under the name. Raise `Unavailable` if the store did not answer: check again.
        """
        if self._store.read([self._id]) == [None]:
            who = holder(self._store, self.name) or "somebody who has removed all claims"
            raise Conflict(f"{self.name} was taken by {who}: what was written since is not ours")

    def beat(self, number: int) -> None:
        """Say that the owner is at work; *number* is another one each time. For those who wait and see nothing else."""
        self._store.write(Batch({CheckpointId(_group(self.name), self.mark.key("beat")): b"%d" % number}))

    def release(self, *, quiet: bool = False) -> None:
        """Say that the owner has ended: whoever waits for the name need not wait any longer. *quiet* says, too, that
        all its writes have returned, so that none of them can happen later."""
        value = _QUIET if quiet else b""
        self._store.write(Batch({CheckpointId(_group(self.name), self.mark.key("done")): value}))


def take(store: Backend, name: str, *, after: Mark | Literal["whoever"] | None = "whoever", **about: str) -> Claim:
    """Take *name*, whoever has it, or only *after* a certain holder (None: after nobody). *about* is for those who ask
    for the `holder`.

    With *after* somebody else who takes the name just before this is mostly noticed, and then left alone: `Conflict`.
    What is stored under the name is to be read after this, not before. Raise `Conflict` if another claim came at the
    same moment: wait a while, and look who the holder is before trying again.
    """
    there = _list(store, name)["claim"]
    if after != "whoever" and max(there, default=None) != after:
        raise Conflict(f"{name} was taken by somebody else just now")
    mark = Mark(max((mark.epoch for mark in there), default=0) + 1, secrets.token_hex(8))
    said = {"host": socket.gethostname(), "pid": os.getpid(), **about}
    _write_surely(store, Batch({CheckpointId(_group(name), mark.key()): json.dumps(said).encode()}))
    seen = _list(store, name)["claim"]
    if max(seen, default=mark) > mark:
        raise Conflict(f"{name} was taken by {holder(store, name)} at the same moment")
    claim = Claim(store, name, mark, frozenset(there | seen) - {mark})
    claim.check()
    _end_lower(store, name, mark)
    return claim


def holder(store: Backend, name: str) -> ClaimHolder | None:
    """Who has the highest claim of *name*; None if nobody ever had one."""
    while True:
        there = _list(store, name)["claim"]
        if not there:
            return None
        mark = max(there)
        ids = [CheckpointId(_group(name), mark.key(kind)) for kind in ("claim", "done", "beat")]
        value, done, beat = store.read(ids)
        if value is not None:  # else a higher one has come meanwhile
            return ClaimHolder(mark, json.loads(value), done is not None, done == _QUIET, beat)


def _end_lower(store: Backend, name: str, mine: Mark) -> None:
    """Let nobody with a claim below *mine* acknowledge anything any more."""
    marks = set[Mark]().union(*_list(store, name).values())
    for lower in sorted(mark for mark in marks if mark < mine):
        batch = Batch()  # one claim at a time: rule 2
        for kind in ("claim", "done", "beat"):
            batch.delete(CheckpointId(_group(name), lower.key(kind)))
        _write_surely(store, batch)


def _write_surely(store: Backend, batch: Batch) -> None:
    """Write *batch* again until it returns, so that no earlier attempt can happen any more."""
    for attempt in range(_ATTEMPTS):
        try:
            store.write(batch)
            return
        except Unavailable:
            if attempt == _ATTEMPTS - 1:
                raise


def _list(store: Backend, name: str) -> dict[str, set[Mark]]:
    """The claims of *name*, and the hints that there are about them."""
    found_there = {kind: set[Mark]() for kind in ("claim", "done", "beat")}
    group = _group(name)
    for key in store.keys(group):
        if not (found := _KEY.fullmatch(key)):
            raise BadState(f"{CheckpointId(group, key)} is not a claim: nothing else may be stored in {group}")
        found_there[found[1].decode()].add(Mark(int(found[2]), found[3].decode()))
    return found_there


def _group(name: str) -> str:
    check_group(group := f"{name}.claims")
    return group
