"""One of a keeper's two queues: bounded, and in order for each id.

    lanes:   id a   [being written] -> [waiting] -> [waiting]
             id b   [ready]
             id c   [ready] -> [waiting]
    ready:   b, c

A tray is one entry in the lanes of all its ids, and the first in each of them.

Each id has a lane while anything of it is queued or with a worker. Only the first entry of a lane may be taken, and the
next becomes ready when the first is out of the way: so with any number of workers a later save of an id never overtakes
an earlier one, and what is taken together has every id once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safekeeper.backend import CheckpointId
from safekeeper.keeper.ticket import Entry, SavedTogether, Tray

if TYPE_CHECKING:
    from safekeeper.keeper.completions import Completions


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait in a queue. What workers have in their hands comes on top: at most this much for each."""

    count: int = 10_000
    """Entries. Superseded saves that have a callback count too."""
    nbytes: int = 64 * 1024 * 1024
    """Bytes of states and keys. One entry that is larger enters when the queue is empty."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.nbytes < 1:
            raise ValueError(f"a queue has room for something, not for {self.count} entries and {self.nbytes} bytes")


class LaneQueue:
    """Entries in the order of their arrival, a lane for each id. All methods are called with the keeper's lock held."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.count = 0
        self.nbytes = 0
        self.line: dict[Entry, float] = {}
        """What waits for room, the longest waiting first, with the time since when; each in a thread of its own."""
        # Ordered dicts serve as queues from whose middle a completed entry can be removed at once.
        self._waiting: OrderedDict[Entry, None] = OrderedDict()
        self._ready: OrderedDict[Entry, None] = OrderedDict()
        self.lanes: dict[CheckpointId, Entry] = {}
        """The newest entry of each id that has any, waiting or with a worker."""
        self.taken: set[Entry] = set()
        """What workers have in hand."""
        self.trays: dict[str, Tray] = {}
        """The tray of each group that takes saves, if it still waits."""

    def __contains__(self, id: CheckpointId) -> bool:
        """Whether anything of *id* waits here or was taken and not yet released."""
        return bool(self.lanes) and id in self.lanes  # mostly there is nothing, and hashing an id takes its time

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._ready)

    @property
    def busy(self) -> bool:
        """Whether anything waits here or was taken and not yet released."""
        return bool(self.lanes)

    def last(self, id: CheckpointId) -> Entry | None:
        """The newest entry of *id*, waiting or with a worker."""
        return self.lanes.get(id)

    def oldest(self) -> Entry:
        """The entry that has waited longest. There must be one."""
        return next(iter(self._waiting))

    @property
    def blocked(self) -> int:
        """How many threads wait for room."""
        return len(self.line)

    @property
    def fill(self) -> float:
        """How full it is, from 0 to 1; above 1 with an entry larger than the bounds."""
        return max(self.count / self.bounds.count, self.nbytes / self.bounds.nbytes)

    def has_room(self, entry: Entry) -> bool:
        """Whether *entry* may enter."""
        bounds = self.bounds
        return not self.count or (
            self.count + entry.weight <= bounds.count and self.nbytes + entry.size <= bounds.nbytes
        )

    def can_replace(self, carrier: Entry, newer: Entry) -> bool:
        """Whether *carrier*, which waits here, may do what *newer* was to do."""
        callbacks = len(carrier.listeners or ()) + len(newer.listeners or ())
        if self.count - carrier.weight + max(callbacks, 1) > self.bounds.count:
            return False
        return self.count == carrier.weight or self.nbytes - carrier.size + newer.size <= self.bounds.nbytes

    def push(self, entry: Entry) -> None:
        """Put *entry* at the end of its lane, whether or not there is room."""
        self._waiting[entry] = None  # the fact from which `mend` finds the rest
        if (left := entry.leaving) is not None:  # it can be in one lane only
            entry.leaving = None
            left.release(entry)
        last = self.lanes.setdefault(entry.id, entry)
        if last is entry:
            if entry.together is None:
                self._ready[entry] = None
            else:
                self._is_first(entry.together)
        else:
            self.lanes[entry.id] = entry
            last.set_follower(entry.id, entry)
            entry.preceding = last
        entry.queue, entry.entered = self, True
        self.count += entry.weight
        self.nbytes += entry.size

    def push_if_free(self, entry: Entry) -> bool:
        """Put *entry* on the queue if there is room and nothing else of its id, which is mostly so; whether it is."""
        # In one piece, without a call: it is on the way of every save.
        count, nbytes, bounds = self.count + entry.weight, self.nbytes + entry.size, self.bounds
        if (count > bounds.count or nbytes > bounds.nbytes) and self.count:
            return False
        if entry.id in self.lanes:
            return False
        self._waiting[entry] = self._ready[entry] = None
        self.lanes[entry.id] = entry
        entry.queue, entry.entered = self, True
        self.count, self.nbytes = count, nbytes
        return True

    def join(self, id: CheckpointId, value: bytes, now: float, completions: Completions, coalesce: bool) -> Tray | None:
        """Let the tray of its group save *value*, too, if there is one with room for it, and count it as under way;
        that tray. With *coalesce* it may take the place of what the tray was to save."""
        tray = self.trays.get(id.group)
        if tray is None or tray.queue is not self or now > tray.closes:
            return None
        size, is_new = len(value) + len(id.key), 1
        if id in self.lanes:
            if self.lanes[id] is not tray or not coalesce:
                return None
            size, is_new = len(value) - len(tray.values[id]), 0
        if self.count + is_new > self.bounds.count or self.nbytes + size > self.bounds.nbytes:
            return None
        metrics, counts = completions.metrics, completions.counts
        # From here on no call: all of it is done, or nothing, also if an interrupt comes.
        metrics.saves += 1
        tray.values[id] = value
        if is_new:
            self.lanes[id] = tray
            tray.saves = tray.weight = tray.saves + 1
            self.count += 1
        else:
            counts["superseded"] += 1
            tray.newer[id] = metrics.saves
        tray.size += size
        self.nbytes += size
        return tray

    def is_free_for(self, tray: Tray) -> bool:
        """Whether there is room for *tray* and nothing else of its ids."""
        bounds = self.bounds
        if self.count + tray.weight > bounds.count or self.nbytes + tray.size > bounds.nbytes:
            return False
        return self.lanes.keys().isdisjoint(tray.values)

    def push_tray(self, tray: Tray) -> None:
        """Put *tray* on the queue, which is free for it."""
        self._waiting[tray] = None  # the fact from which `mend` finds the rest
        self.lanes.update(dict.fromkeys(tray.values, tray))
        self._ready[tray] = None
        self._enter(tray)

    def take_apart(self, tray: Tray) -> list[Entry]:
        """Put an entry for each save of *tray*, which waits here or was taken, in its place; all of them."""
        moved = tray.singly()
        tray.moved = moved  # the fact from which `mend` finds the rest
        for id, entry in reversed(moved.items()):
            entry.entered = True
            if (follower := tray.followers.get(id)) is None:
                self.lanes[id] = entry
            else:
                entry.following, follower.preceding = follower, entry
            if tray.queue is None:
                self.taken.add(entry)
                continue
            entry.queue = self
            for queue in (self._ready, self._waiting):
                queue[entry] = None
                queue.move_to_end(entry, last=False)
        if tray.queue is None:
            self.taken.discard(tray)
        else:
            del self._waiting[tray], self._ready[tray]
        tray.queue, tray.values, tray.followers = None, {}, {}
        tray.wake()
        return list(moved.values())

    def _is_first(self, together: SavedTogether) -> None:
        """One more of *together* is the first of its lane."""
        together.first += 1
        if together.first == len(together.members):
            self._ready.update(dict.fromkeys(together.members))

    def _next(self, entry: Entry) -> None:
        """What follows *entry*, which is out of the way, is the first of its lanes now."""
        for following in entry.take_followers():
            following.preceding = None
            if following.together is None:
                self._ready[following] = None
            else:
                self._is_first(following.together)
        lanes = self.lanes
        for id in entry.ids:
            if lanes[id] is entry:
                del lanes[id]
        if type(entry) is Tray:
            entry.values = {}

    def replace(self, carrier: Entry, newer: Entry) -> None:
        """Let *carrier* do what *newer* was to do, at its own place in the queue."""
        self.count -= carrier.weight
        self.nbytes -= carrier.size
        carrier.adopt(newer)
        self._enter(carrier)

    def put_back(self, entry: Entry) -> None:
        """Put a taken entry back to the front, to be taken again."""
        self.taken.discard(entry)
        for queue in (self._ready, self._waiting):
            queue[entry] = None
            queue.move_to_end(entry, last=False)
        self._enter(entry)

    def take(self, most: int) -> list[Entry]:
        """The ready entries, at most so many, the longest waiting first; no two of one id."""
        if most >= len(self._ready):
            taken = list(self._ready)
            self._ready.clear()
        else:
            taken = [self._ready.popitem(last=False)[0] for _ in range(most)]
            # Those that are written together came here together, and stand next to each other.
            while (together := taken[-1].together) and self._ready and next(iter(self._ready)).together is together:
                taken.append(self._ready.popitem(last=False)[0])
        if len(taken) == len(self._waiting):
            self._waiting.clear()
            for entry in taken:
                entry.queue = None
            self.count = self.nbytes = 0
        else:
            for entry in taken:
                self._leave(entry)
        self.taken.update(taken)
        self.trays.clear()
        if self.line:
            self.tell_blocked()
        return taken

    def release(self, entry: Entry) -> None:
        """The worker is done with *entry*: the next of its id becomes ready."""
        self.taken.discard(entry)
        self._next(entry)

    def release_all(self, entries: list[Entry]) -> None:
        """As `release` for each of *entries*."""
        self.taken.difference_update(entries)
        lanes = self.lanes
        for entry in entries:
            if type(entry) is Entry and entry.following is None:
                del lanes[entry.id]
            else:
                self._next(entry)

    def remove(self, entry: Entry) -> None:
        """Take out an entry that completed while it waited."""
        self._leave(entry)
        self.tell_blocked()
        if (preceding := entry.preceding) is None:
            self._ready.pop(entry, None)  # it is not there if one that it is saved together with is not the first yet
            self.release(entry)
            return
        preceding.set_follower(entry.id, entry.following)
        entry.preceding = None
        if (following := entry.following) is None:
            self.lanes[entry.id] = preceding
        else:
            following.preceding, entry.following = preceding, None

    def _enter(self, entry: Entry) -> None:
        entry.queue = self
        entry.entered = True
        self.count += entry.weight
        self.nbytes += entry.size

    def _leave(self, entry: Entry) -> None:
        del self._waiting[entry]
        entry.queue = None
        self.count -= entry.weight
        self.nbytes -= entry.size

    def tell_blocked(self) -> None:
        """Let those who wait for room look again."""
        for entry in self.line:
            entry.wake()

    def mend(self, previous: LaneQueue | None = None) -> None:
        """Make everything fit again what waits and what was taken, after an interrupt in the middle of a change.
        What has come here from the *previous* queue has left that one."""
        if previous is not None:
            for entry in previous.taken & (self._waiting.keys() | self.taken):
                entry.leaving = None
                previous.taken.discard(entry)
        for entry in self._waiting:
            if entry.outcome is not None:
                entry.queue = None
                entry.drop_state()
        now_waiting = {one: None for entry in self._waiting for one in ((entry.moved or {}).values() or (entry,))}
        waiting = [entry for entry in now_waiting if entry.outcome is None]
        last: dict[CheckpointId, Entry] = {id: entry for entry in self.taken for id in entry.ids}
        first: list[Entry] = []
        for entry in (*self.taken, *waiting):
            entry.preceding = entry.following = None
            if type(entry) is Tray:
                entry.followers.clear()
        for entry in waiting:
            entry.queue = self
            entry.entered = True
            if (before := last.get(entry.id)) is None:
                first.append(entry)
            else:
                before.set_follower(entry.id, entry)
                entry.preceding = before
            last.update(dict.fromkeys(entry.ids, entry))
        count, nbytes = sum(entry.weight for entry in waiting), sum(entry.size for entry in waiting)
        self._waiting, self._ready, self.lanes = OrderedDict.fromkeys(waiting), OrderedDict(), last
        self.count, self.nbytes = count, nbytes
        self.trays.clear()
        for entry in waiting:
            if entry.together is not None:
                entry.together.first = 0
        for entry in first:
            if entry.together is None:
                self._ready[entry] = None
            else:
                self._is_first(entry.together)
        for entry in list(self.line):
            orphan = entry.abandoned and not entry.entered
            if orphan or entry.outcome is not None or entry.heir is not None or entry in self._waiting:
                self.line.pop(entry, None)
                entry.wake()
        self.tell_blocked()
