"""A group of elements belongs to one process at a time.

Whose it is say claims (`safekeeper.claims`), and the keeper checks them after each batch (`safekeeper.keeper.guards`):
a process that has lost the group acknowledges nothing more. That is what makes it safe, and no clock is in it. When a
process that waits may *take* the group is another question, and a wrong answer costs a `Conflict`, never an event.

**What counts as gone.** An owner is gone when
- it has said so: it has closed its elements (`done` in its claim);
- its process has ended: the file that it had locked on this host is unlocked (`life`), so a service that was killed is
  followed at once; or it ran before this host was started, if the store is seen by this host only;
- it is silent: it changes its `beat` in the store every second or so, and did not for *patience* seconds by the clock
  of who waits. This is a guess. A process that is stopped, or cut off from the store, is not gone, and finds out that
  it has lost the group.

**What becomes of its elements.** `places` says when they are taken as they are, and when they are copied: copying takes
the time of reading and writing all of them. They are taken as they are after an owner that has closed, and after one
that was killed, if the store is of this host (`log:`, `lmdb:`, `file:`): then nothing of it is still on its way.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress
from math import inf
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Literal, TypeAlias

from safekeeper import claims, places
from safekeeper.backend import Batch, CheckpointId, Scope
from safekeeper.elements.life import Life, look, of_this_process
from safekeeper.errors import Closed, Conflict, SafekeeperError, Unavailable
from safekeeper.keeper.notices import log_safely

if TYPE_CHECKING:
    from safekeeper.keeper import SafeKeeper
    from safekeeper.keeper.guards import Guard

_log = logging.getLogger("safekeeper")

OwnerMode: TypeAlias = Literal["fail", "wait", "take"]
_MODES = ("fail", "wait", "take")
_BEAT = 1.0  # seconds between two beats at most
_BEATS = 5  # so many have to be missing
_SETTLE = 0.05  # seconds in which others who have seen that a group is free make their claims
_GRACE = 1.0  # seconds for the thread that beats to end
_LOOK = 0.25  # seconds between two looks at who has the group at most


class Ownership:
    """The claim of one process to one group."""

    def __init__(self, keeper: SafeKeeper, group: str, mode: OwnerMode, patience: float) -> None:
        if mode not in _MODES:
            raise ValueError(f"owner= is one of {', '.join(map(repr, _MODES))}, or None, not {mode!r}")
        if patience <= 0:
            raise ValueError(f"patience= is more than 0 s, not {patience}")
        places.check_name(group)
        self._keeper = keeper
        self._store = keeper.backend
        self._group = group
        self._mode = mode
        self._patience = patience
        self._beat = min(_BEAT, patience / _BEATS)
        self._lock = Lock()
        self._ended = Event()
        self._resting = Event()
        self._released = False
        self._beater: Thread | None = None
        self.guard: Guard | None = None
        """None until the group belongs to us."""

    def check(self) -> None:
        """Raise `Closed` if the group was given back, `Conflict` if somebody has taken it."""
        if self._ended.is_set():
            raise Closed(f"the elements of {self._group} were closed: make new ones")
        if self.guard is not None and self.guard.lost is not None:
            raise Conflict(str(self.guard.lost))

    def confirm(self) -> None:
        """As `check`, and ask the store: what was not found before this call is not there, and was not removed by a
        later owner that has copied it (rule 4 of `places`)."""
        if self.guard is not None:
            self.guard.check()
        self.check()

    @property
    def lost(self) -> bool:
        """Whether somebody has taken it."""
        return self.guard is not None and self.guard.lost is not None

    @property
    def holds(self) -> bool:
        """Whether it belongs to us as far as is known."""
        return self.guard is not None and self.guard.lost is None and not self._ended.is_set()

    def take(self, timeout: float | None) -> str:
        """See to it that the group belongs to this process; where its elements are.

        Raise `Conflict` if it belongs to another one and is not to be waited for, or not for longer than *timeout*.
        """
        until = time.monotonic() + (inf if timeout is None else timeout)
        while not self._lock.acquire(timeout=_LOOK):  # another thread waits already
            self._check_time(until, None)
        try:
            while self.guard is None:
                self._try(self._wait(until))
            return self.guard.groups[0]
        finally:
            self._lock.release()

    def _wait(self, until: float) -> claims.ClaimHolder | None:
        """Wait until the group may be taken; who had it."""
        seen, since, looks = None, 0.0, 0
        while True:
            holder = self._holder()
            now = time.monotonic()
            if holder is None or holder.done or self._mode == "take":
                return holder
            life = look(holder.about)
            if life is Life.ENDED or (life is Life.EARLIER and self._store.scope < Scope.NETWORK):
                return holder
            if (holder.mark, holder.beat) != seen:
                seen, since, looks = (holder.mark, holder.beat), now, looks + 1
            if now - since >= max(self._patience, _BEATS * float(holder.about.get("beat", 0))):
                return holder
            if self._mode == "fail" and (life is Life.HERE or looks > 1):
                raise Conflict(
                    f"{self._group} belongs to {holder}, which is at work: let this one wait (owner='wait') or take it"
                    " (owner='take'), or give each process its own group"
                )
            self._check_time(until, holder)
            self._ended.wait(min(_LOOK, self._patience / 10))

    def _holder(self) -> claims.ClaimHolder | None:
        try:
            return claims.holder(self._store, self._group)
        except Unavailable:
            if self._mode != "wait":
                raise
            self._ended.wait(_LOOK)
            return self._holder()

    def _check_time(self, until: float, holder: claims.ClaimHolder | None) -> None:
        if self._ended.is_set():
            raise Closed(f"the elements of {self._group} were closed while they waited for their owner to be gone")
        if time.monotonic() >= until:
            raise Conflict(f"{self._group} still belongs to {holder or 'nobody: another thread is about to take it'}")

    def _try(self, holder: claims.ClaimHolder | None) -> None:
        """Take the group after *holder*, unless another process does so just now."""
        # The first write of a process may take long. It is this one, so that the claim is there soon after the last
        # look at who has the group: whoever begins at the same moment sees it before it has acknowledged anything.
        warm = Batch()
        warm.delete(CheckpointId(f"{self._group}.places", b""))
        self._store.write(warm)
        claim = None
        after: claims.Mark | Literal["whoever"] | None = None if holder is None else holder.mark
        if self._mode == "take":
            after = "whoever"
        try:
            claim = claims.take(self._store, self._group, after=after, beat=str(self._beat), **of_this_process())
            certain = self._is_certain(holder, claim)
            place = (places.inherit if certain else places.copy)(self._store, claim)
            self._settle(holder, claim)
        except BaseException as error:
            if claim is not None:
                with suppress(SafekeeperError):
                    claim.release()
            if not isinstance(error, Conflict):
                raise
            self._ended.wait(random.random() * _LOOK)  # noqa: S311
            return
        try:
            self.guard = self._keeper.guard(claim, place)
        except BaseException:
            with suppress(SafekeeperError):
                claim.release(quiet=True)
            raise
        self._beater = Thread(target=self._be_at_work, name=f"safekeeper-owner-{self._group}", daemon=True)
        self._beater.start()

    def _settle(self, holder: claims.ClaimHolder | None, claim: claims.Claim) -> None:
        """Let those who have looked at the same moment make their claims, before anything is acknowledged. Raise
        `Conflict` if one of them is higher: it would take the group from us soon after."""
        if holder is None or self._mode == "take":
            return
        self._ended.wait(_SETTLE)
        if (highest := self._holder()) is None or highest.mark != claim.mark:
            raise Conflict(f"{self._group} was taken by {highest} at the same moment")

    def _is_certain(self, holder: claims.ClaimHolder | None, claim: claims.Claim) -> bool:
        """Whether no former owner can write any more to where the elements are: rule 2 of `places`."""
        if any(holder is None or other > holder.mark for other in claim.others):
            return False  # somebody came in between
        if holder is None:
            return True
        if not places.has_record(self._store, self._group, holder.mark):
            return False
        if holder.done:
            return holder.quiet
        return self._store.scope < Scope.NETWORK and look(holder.about) in (Life.ENDED, Life.EARLIER)

    def _be_at_work(self) -> None:
        """Show others that we are, and find out when we are not the owner any more."""
        guard = self.guard
        assert guard is not None
        number, cleaned = 0, False
        while not self._resting.wait(self._beat) and not self._keeper.closed:
            number += 1
            try:
                guard.claim.beat(number)
                guard.check()
                if not cleaned and guard.lost is None:
                    places.clean(self._store, guard.claim, guard.groups[0])
                    cleaned = True
            except Unavailable:
                continue
            except Closed:
                return
            except Exception:
                log_safely(_log.exception, "%s: its owner could not show that it is at work", self._group)
            if guard.lost is not None:
                log_safely(_log.error, "%s: nothing of it is acknowledged any more: %s", self._group, guard.lost)
                return

    def rest(self) -> None:
        """Show no more that we are at work: who waits takes the group after its patience."""
        self._resting.set()
        if self._beater is not None:
            self._beater.join(_GRACE)  # it may be stuck in the store, and ends when it is not

    def release(self) -> None:
        """Give the group back, after everything was stored; wait for it no more, if another thread does so. Nothing may
        be saved after this."""
        self._ended.set()
        self.rest()
        guard = self.guard
        if guard is None or self._released:
            return
        quiet = not guard.unsure
        try:
            if guard.lost is None:
                guard.claim.release(quiet=quiet)
        except Unavailable as error:
            log_safely(_log.warning, "%s: others have to find out that its owner has ended: %s", self._group, error)
        self._released = True
        if quiet:  # else not before the process ends: what is under way may still happen
            guard.end()
