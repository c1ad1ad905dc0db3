"""Waiting for one's turn: follow the journal, watch its owner, and say when it is time to claim."""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from typing import TypeAlias

from safekeeper import claims
from safekeeper.backend import Backend, Batch, CheckpointId, Scope
from safekeeper.claims import ClaimHolder, Mark
from safekeeper.errors import Closed, Unavailable, one_line
from safekeeper.journal.follow import Follow
from safekeeper.journal.survey import STANDBYS, StandbyStatus
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.notices import log_safely
from safekeeper.policy.capture import PasteTurns
from safekeeper.standby.received import ReceivedBlocks
from safekeeper.standby.watch import OwnerWatch

_log = logging.getLogger("safekeeper")

_QUICK = {True: (0.001, 0.02), False: (0.005, 0.1)}  # seconds between polls: the shortest and the longest, by locality
_TELL = 5.0  # seconds
_LATELY = 10.0  # seconds, in which owners are counted
_CALM = 2  # so many changes of owner in that time are nothing special
_FLAPPING = Backoff(first=0.2, most=5.0)
_LAST_WORDS = 0.5  # seconds
_APART = 0.02  # seconds
_SETTLED = 0.1  # seconds
_AWAY = Backoff(first=0.02, most=1.0)


@dataclass(frozen=True, slots=True)
class StandbyLag:
    """How far a standby is behind."""

    blocks: int
    """Blocks that the owner had acknowledged and that are not here yet, when it last spoke."""
    seconds: float
    """For how long that has been so; 0 if it is not."""
    waiting: int = 0
    """Blocks that are here and not pasted yet: it is the turn of something else."""


@dataclass(frozen=True, slots=True)
class TakeoverTurn:
    """It is time to claim."""

    after: Mark | None
    """The claim that is to be ended; None if nobody has one. If another stands there by now, it is not our turn."""
    follow: Follow
    """What the journal says, as far as it was followed."""
    watched: bool
    """Whether an owner was watched until it was gone. If not, others may have been started just now, as this was."""


OnLag: TypeAlias = Callable[[StandbyLag], object]


class Follower:
    """Follows the journal *name* of *store* until its owner is gone.

    *lease* is for how many seconds an owner may be silent. *on_lag* is called when the lag may have changed. Blocks are
    pasted as they come, or when it is their turn by *turns*.
    """

    def __init__(
        self,
        store: Backend,
        name: str,
        *,
        lease: float,
        on_lag: OnLag = lambda lag: None,
        turns: PasteTurns | None = None,
    ) -> None:
        self.lag = StandbyLag(0, 0.0)
        self.follow = Follow(store, name)
        self._received = ReceivedBlocks(self.follow)
        self._store, self._name, self._lease, self._on_lag, self._turns = store, name, lease, on_lag, turns
        self._polls = _QUICK[store.scope < Scope.NETWORK]
        self._ending = threading.Event()
        self._id = CheckpointId(f"{name}{STANDBYS}", secrets.token_hex(8).encode())
        self._told = -_TELL
        self._current = time.monotonic()  # when nothing was missing
        self._seen: Mark | None = None
        self._changes: deque[float] = deque()  # when another owner was seen
        self._failures = 0  # one after the other
        self._warned = False

    def stop(self) -> None:
        """Let `wait` end with `Closed`; any thread may call it."""
        self._ending.set()

    def wait(self) -> TakeoverTurn:
        """Return when the journal has no owner any more: end the claim that it had, if that still stands."""
        while True:
            self._check_ending()
            try:
                if (turn := self._stand_by()) is not None:
                    return turn
                self._failures = 0
            except Unavailable as error:
                self.put_off(error)

    def put_off(self, error: Exception) -> None:
        """It went wrong because of *error*: wait a while, longer each time, before it is tried again."""
        self._ending.wait(self._failed(error))

    def _failed(self, error: Exception) -> float:
        """Tell people, once; for how many seconds to wait."""
        self._failures += 1
        if self._failures == 1:
            log_safely(_log.warning, "standby of %s: it is tried again: %s", self._name, one_line(str(error)))
        return _AWAY.delay(self._failures)

    def _check_ending(self) -> None:
        if self._ending.is_set():
            raise Closed(f"the standby of {self._name} was stopped while it waited")

    def _stand_by(self) -> TakeoverTurn | None:
        """Be the standby of whoever owns the journal now; None if that is somebody else by now."""
        holder = claims.holder(self._store, self._name)
        if holder is None or holder.done:
            return TakeoverTurn(None if holder is None else holder.mark, self.follow, watched=False)
        self._count(holder.mark)
        watch = OwnerWatch(holder.mark, holder.about, self._lease)
        try:
            return self._watch(holder, watch)
        finally:
            watch.close()

    def _watch(self, holder: ClaimHolder, watch: OwnerWatch) -> TakeoverTurn | None:
        self._received.owner = f"{holder.about.get('host', '')} {holder.about.get('pid', holder.mark.owner)}"
        if not watch.is_watched and not self._warned:
            self._warned = True
            text = "%s, which owns %s, cannot be watched: start it with standby= too"
            log_safely(_log.warning, text, holder, self._name)
        shortest, longest = self._polls
        pause, looked = 0.0, -inf
        while not watch.gone:
            self._check_ending()
            watch.wait(pause)
            look = time.monotonic() - looked > self._lease / 3
            looked = time.monotonic() if look else looked
            came, failure = self._tried(partial(self._take_and_tell, look=look))
            if look and not came:  # also if nothing can be taken: an owner without a door ends only so
                replaced, another = self._tried(partial(self._is_replaced, holder.mark))
                if replaced:
                    return None
                failure = failure or another
            if failure is None:
                pause = shortest if came else min(max(2 * pause, shortest), longest)
                self._failures = 0 if look else self._failures  # without a look less is asked of the store
            else:
                pause = min(self._failed(failure), self._lease / 3)
            self._measure(watch, came)
        self._calm_down()
        if watch.watching > 1:  # of two that claim at the same moment one would stop for nothing
            self._ending.wait(random.uniform(0, _APART * watch.watching))  # noqa: S311
        return TakeoverTurn(holder.mark, self.follow, watched=True)

    def let_others_claim(self) -> None:
        """Return when a claim has stood for a moment: whoever looked before it was there, and claimed after it, has
        done so by now. To be checked then."""
        time.sleep(_SETTLED)  # whether or not it is told to stop waiting: it waits no more

    def _tried(self, work: Callable[[], int]) -> tuple[int, Exception | None]:
        """What *work* says; 0 and the error if it raises: whatever that is, the owner is watched, and replaced when it
        is gone."""
        try:
            return work(), None
        except Closed:
            raise
        except Exception as error:
            return 0, error

    def _take_and_tell(self, *, look: bool) -> int:
        """As `_take`, and with *look* say that there is a standby."""
        came = self._take(look=False)
        if look:
            self._tell()
            came = came or self._take(look=True)
        return came

    def _is_replaced(self, mark: Mark) -> bool:
        now = claims.holder(self._store, self._name)
        return now is None or now.mark != mark or now.done

    def _take(self, *, look: bool) -> int:
        """Receive what has come, and paste it if it is time for that; how many blocks came or were pasted."""
        received = self._received
        came = received.receive(look=look)
        if self._turns is None or received.is_full or self._turns.may_paste(received):
            return max(received.paste(), came)
        return came

    def _measure(self, watch: OwnerWatch, came: int) -> None:
        number = self.follow.newest.number if self.follow.newest is not None else 0
        behind = max(watch.number - number, 0)
        now = time.monotonic()
        if not behind:
            self._current = now
        lag = StandbyLag(behind, now - self._current, self.follow.waiting)
        if came or lag != self.lag:
            self.lag = lag
            try:
                self._on_lag(lag)
            except Exception as error:
                log_safely(_log.warning, "standby of %s: on_lag= has raised %r", self._name, error)

    def _tell(self) -> None:
        """Say that there is a standby, for people. The first write also makes the store ready for a takeover."""
        if time.monotonic() - self._told < _TELL:
            return
        self._told = time.monotonic()
        behind = self.lag.blocks, round(self.lag.seconds, 3)
        said = StandbyStatus(socket.gethostname(), os.getpid(), *behind, round(time.time()))
        self._store.write(Batch({self._id: json.dumps(asdict(said)).encode()}))

    def end(self) -> None:
        """This is not a standby any more, and neither are those of whom nothing was heard: they say so again. It waits
        a moment: who has just taken over has more urgent things to write."""
        time.sleep(_LAST_WORDS)
        batch = Batch()
        with suppress(Unavailable, Closed):
            for key in self._store.keys(self._id.group):
                batch.delete(CheckpointId(self._id.group, key))
            self._store.write(batch)

    def expected_recovery(self) -> float:
        """How many seconds a takeover would take until this standby is where its owner is."""
        last = self.follow.image.last
        replay = 0.0
        if last is not None and last.rates[1] > 0:
            replay = (last.at.events - last.replay.events) / last.rates[1]
        return self._received.recovery + replay

    def _count(self, mark: Mark) -> None:
        if self._seen is not None and mark != self._seen:
            self._changes.append(time.monotonic())
        self._seen = mark

    def _calm_down(self) -> None:
        """Wait, if owners have come and gone too often lately: then something else is wrong."""
        while self._changes and time.monotonic() - self._changes[0] > _LATELY:
            self._changes.popleft()
        if (too_many := len(self._changes) - _CALM) > 0:
            self._ending.wait(_FLAPPING.delay(too_many))
            self._check_ending()
