"""The way into a queue, and what happens when it is full."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from typing import Literal, TypeAlias, get_args

from safekeeper.errors import QueueFull, Unavailable
from safekeeper.keeper.completions import Completions, Fate
from safekeeper.keeper.lanes import LaneQueue
from safekeeper.keeper.stage import Stage
from safekeeper.keeper.ticket import Entry, Tray

_PATIENCE = 0.1  # seconds that an entry may be overtaken by others while it waits for room

Overflow: TypeAlias = Literal["block", "reject", "drop-oldest", "coalesce"]
"""What a save does that finds a queue full; `SafeKeeper` explains them."""


class Entrance:
    """Puts entries on queues, as the overflow policy says. All methods are called with the keeper's lock held."""

    def __init__(self, completions: Completions, overflow: Overflow) -> None:
        if overflow not in get_args(Overflow):
            raise ValueError(f"overflow is {', '.join(get_args(Overflow))}, not {overflow!r}")
        self._completions = completions
        self._overflow = overflow
        self.coalesces = overflow == "coalesce"

    def enter(self, stage: Stage, entry: Entry, *, accepted: bool = False) -> bool:
        """Put *entry* on the queue of *stage*, or settle it if that cannot be. False, and nothing has happened, if it
        has to wait for room. With *accepted* it does so whatever the policy: it has passed one queue, and is not
        refused by the next."""
        queue, completions = stage.queue, self._completions
        alone = entry.together is None and entry.leaving is None
        if alone and entry.outcome is None and not queue.line and queue.push_if_free(entry):
            self.wake(stage, (entry,))  # mostly it is so, and then the policy does not matter
            return True
        while entry.outcome is None:
            if self.coalesces and self._coalesce(queue, entry):
                break
            if queue.has_room(entry) and not (queue.line and self._would_overtake(queue, entry)):
                self._push(stage, entry)
                break
            if accepted:
                return False
            if self._overflow == "reject" or completions.in_callback:
                self._give_way(queue, entry, "rejected", "rejected")
            elif self._overflow == "drop-oldest":
                self._drop_oldest(stage)
            else:
                return False
        else:
            entry.drop_state()
        if queue.line and entry in queue.line:
            del queue.line[entry]
            queue.tell_blocked()  # some may have waited for this one
        return True

    def stand_in_line(self, queue: LaneQueue, entry: Entry) -> Lock:
        """Let *entry* wait for room: the lock can be acquired when it is time to look again."""
        queue.line.setdefault(entry, time.monotonic())
        return entry.join()

    def _would_overtake(self, queue: LaneQueue, entry: Entry) -> bool:
        """Whether another has waited so long that nobody may overtake it any more: a large entry would never find room
        among small ones. Up to then everybody may, as handing over from thread to thread takes long."""
        first, since = next(iter(queue.line.items()))
        return first is not entry and since < time.monotonic() - _PATIENCE and not self._completions.in_callback

    def _drop_oldest(self, stage: Stage) -> None:
        """Make room. What was accepted and waits for room is older than the newcomer, and gets it first."""
        queue = stage.queue
        first = next(iter(queue.line), None)
        if first is not None and first.outcome is not None:
            del queue.line[first]
            first.drop_state()
        elif first is not None and queue.has_room(first):
            self._push(stage, first)
            del queue.line[first]
            first.wake()
        else:
            if type(oldest := queue.oldest()) is Tray:
                self._take_apart(queue, oldest)
            self._give_way(queue, queue.oldest(), "dropped as the oldest", "dropped")

    def _take_apart(self, queue: LaneQueue, tray: Tray) -> None:
        """Let each save of *tray* be an entry."""
        self._completions.take_apart(tray, queue.take_apart(tray))

    def _coalesce(self, queue: LaneQueue, entry: Entry) -> bool:
        """Let the waiting entry of the same id carry *entry* too, if there is one and room for it."""
        carrier = queue.last(entry.id)
        if carrier is None or carrier.queue is not queue:
            return False
        if type(carrier) is Tray and entry.together is None:
            self._take_apart(queue, carrier)
            carrier = queue.lanes[entry.id]
        if not queue.can_replace(carrier, entry):
            return False
        if carrier.together is not None or entry.together is not None:  # what is saved together stays together
            return False
        queue.replace(carrier, entry)
        self._completions.supersede(entry)
        return True

    def _push(self, stage: Stage, entry: Entry) -> None:
        stage.queue.push(entry)
        if entry.together is not None:
            for member in entry.together.members[1:]:
                stage.queue.push(member)
        self.wake(stage, (entry,))

    def wake(self, stage: Stage, entries: Sequence[Entry]) -> None:
        """See to it that somebody takes *entries*, which were pushed."""
        try:
            stage.wake()
            if stage.then is not None:
                stage.then.prepare()
        except RuntimeError as error:
            for entry in entries:
                self._completions.fail(entry, Unavailable(f"{entry}: there is no thread to store it: {error}"))

    def _give_way(self, queue: LaneQueue, entry: Entry, how: str, fate: Fate) -> None:
        self._completions.notices.note(
            "%s: a save was %s, the queue is full (%d entries, %d bytes): save less often (policy.Calibrate does that),"
            " enlarge the queue, or let newer states replace older ones (overflow='coalesce')",
            *(entry.id, how, queue.count, queue.nbytes),
        )
        error = QueueFull(f"{entry.id}: {how}: the queue has {queue.count} entries, {queue.nbytes} bytes")
        self._completions.settle(entry, error, fate)
