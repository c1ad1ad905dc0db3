"""One of a keeper's two queues: bounded, and in order for each id.

    lanes:   id a   [being written] -> [waiting] -> [waiting]
             id b   [ready]
             id c   [ready] -> [waiting]
    ready:   b, c

Each id has a lane while anything of it is queued or with a worker. Only the first entry of a lane may be taken, and the
next becomes ready when the first is out of the way: so with any number of workers a later save of an id never overtakes
an earlier one, and what is taken together has every id once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from safekeeper.backend import CheckpointId
from safekeeper.keeper.ticket import Entry, Together


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
            last.following, entry.preceding = entry, last
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

    def _is_first(self, together: Together) -> None:
        """One more of *together* is the first of its lane."""
        together.first += 1
        if together.first == len(together.members):
            self._ready.update(dict.fromkeys(together.members))

    def _next(self, entry: Entry) -> None:
        """What follows *entry*, which is out of the way, is the first of its lane now."""
        if (following := entry.following) is None:
            del self.lanes[entry.id]
            return
        entry.following = following.preceding = None
        if following.together is None:
            self._ready[following] = None
        else:
            self._is_first(following.together)

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
            if entry.following is None:
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
        preceding.following, entry.preceding = entry.following, None
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
        waiting = [entry for entry in self._waiting if entry.outcome is None]
        last: dict[CheckpointId, Entry] = {entry.id: entry for entry in self.taken}
        first: list[Entry] = []
        for entry in (*self.taken, *waiting):
            entry.preceding = entry.following = None
        for entry in waiting:
            entry.queue = self
            entry.entered = True
            if (before := last.get(entry.id)) is None:
                first.append(entry)
            else:
                before.following, entry.preceding = entry, before
            last[entry.id] = entry
        count, nbytes = sum(entry.weight for entry in waiting), sum(entry.size for entry in waiting)
        self._waiting, self._ready, self.lanes = OrderedDict.fromkeys(waiting), OrderedDict(), last
        self.count, self.nbytes = count, nbytes
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
