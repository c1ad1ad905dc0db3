"""Groups that belong to somebody: what is saved in them is acknowledged if they still do afterwards.

    claim = claims.take(keeper.backend, "orders")
    guard = keeper.guard(claim, "orders", "orders.index")   any number of groups under one claim

A save of a guarded group travels as any other and shares batches with all others. When its batch is stored the claim is
checked once, however many saves of it were in the batch, and the saves complete after that:

    write(batch) -> claim.check()  holds:       acknowledged
                                   Conflict:    these saves fail with it; from now on every save of these groups does,
                                                before it is written
                                   Unavailable: the batch is written again and then checked again, until the deadlines

What a batch holds besides, of groups that are not guarded or are under another claim, is acknowledged all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import TYPE_CHECKING

from safekeeper.backend import CheckpointId, check_group
from safekeeper.errors import Conflict

if TYPE_CHECKING:
    from safekeeper.claims import Claim


class Guard:
    """A claim that stands over some groups of a keeper. `SafeKeeper.guard` makes one."""

    def __init__(self, claim: Claim, groups: tuple[str, ...], end: Callable[[Guard], None]) -> None:
        self.claim = claim
        self.groups = groups
        self.lost: Conflict | None = None
        """Why nothing is acknowledged any more; None while the claim holds as far as is known."""
        self.unsure: set[CheckpointId] = set()
        """What is being written, or was written without an answer: it may still happen."""
        self._end = end

    def check(self) -> None:
        """Look whether the claim still holds; if not, `lost` says so. Raise `Unavailable` if the store does not say."""
        if self.lost is None:
            try:
                self.claim.check()
            except Conflict as error:
                self.lost = error

    def end(self) -> None:
        """Guard these groups no more. Whoever has them next saves without a check, or makes another guard."""
        self._end(self)


class Guards:
    """The guards of one keeper, by group."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._guards: dict[str, Guard] = {}  # never changed, only replaced: workers look at it without the lock

    def __bool__(self) -> bool:
        return bool(self._guards)

    def add(self, claim: Claim, groups: tuple[str, ...]) -> Guard:
        """Guard *groups* by *claim*."""
        for group in groups:
            check_group(group)
        guard = Guard(claim, groups, self._remove)
        with self._lock:
            if taken := [group for group in groups if group in self._guards]:
                raise Conflict(f"{taken[0]} is guarded by this keeper already: end that guard first")
            self._guards = {**self._guards, **dict.fromkeys(groups, guard)}
        return guard

    def _remove(self, guard: Guard) -> None:
        with self._lock:
            self._guards = {group: other for group, other in self._guards.items() if other is not guard}

    def of(self, ids: Iterable[CheckpointId]) -> set[Guard]:
        """The guards over *ids*."""
        guards = self._guards
        return {guards[group] for group in {id.group for id in ids} if group in guards}
