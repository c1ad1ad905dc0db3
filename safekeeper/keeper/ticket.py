"""What a save leaves behind: a ticket for the caller, and the entry that travels through the queues.

Several saves of an id may be coalesced into one entry. Their tickets then share its outcome; all but the newest are
superseded. An entry knows only the tickets that have a callback, so a million superseded saves of one id that nobody
asks about cost no memory. Saves of different ids that come close together travel as one entry, too: a tray.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator
from math import inf
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from safekeeper.backend import CheckpointId, Receipt
from safekeeper.errors import SafekeeperError, one_line
from safekeeper.keeper.interrupts import Waiter, join, wake
from safekeeper.keeper.loops import LoopWaiter

if TYPE_CHECKING:
    from safekeeper.keeper.completions import Completions, Fate
    from safekeeper.keeper.lanes import LaneQueue
    from safekeeper.large import LargeWrite

TRAY_SECONDS = 0.01
"""How long a tray takes saves. Deadlines that are closer together than this are looked at together anyhow."""

Outcome: TypeAlias = Receipt | SafekeeperError

Callback: TypeAlias = Callable[["Ticket"], object]
"""Called once with the completed ticket, in one of the keeper's threads or in the one that calls `save`. It should be
quick and must not wait for the keeper. What it raises is logged."""


class StateLock(Protocol):
    """What guards a mutable state: `threading.Lock`, `threading.RLock` or anything like them."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, or give up after *timeout* seconds and say False."""

    def release(self) -> None:
        """Give it back."""


class SavedTogether:
    """Entries that are written in one batch, or not at all: they become ready together, and have one outcome."""

    def __init__(self, members: list[Entry], callback: Callback | None) -> None:
        self.members = members
        self.callback = callback
        """What is told of each of them but the first, which is told to whoever asked for all."""
        self.first = 0
        """How many of them are the first of their lanes; all are ready when all are."""
        leader, *others = members
        weight, size = len(members), sum(entry.size for entry in members)
        for entry in others:
            entry.weight = entry.size = 0
        leader.weight, leader.size = weight, size
        for entry in members:
            entry.together = self


class Entry:
    """An operation on its way to the store: one save or forget, or the newest of several that were coalesced.

    Everything but `id` belongs to the pipeline and is changed under its lock.
    """

    # Defaults of the class, not of __init__: most entries keep most of them, and entries are made at a high rate.

    encoded = True
    """Whether `value` is what will be written; if not, `state` is still to be serialized."""
    value: bytes | None = None
    """The bytes to write; None deletes."""
    state: Any = None
    lock: StateLock | None = None
    """To be held while `state` is serialized."""
    serializing = 0.0
    """How long its serialization took before it was submitted."""
    refused: SafekeeperError | None = None
    """Why it has no bytes: it completes with this and goes nowhere."""
    weight = 1
    """What it counts for in the queue's number of entries: one, or its callbacks where they are more."""
    saves = 1
    """How many saves complete with it, without those that are superseded."""
    moved: dict[CheckpointId, Entry] | None = None
    """The entries that a tray was taken apart into."""
    newest = 0
    """The number of the newest save in it."""
    queue: LaneQueue | None = None
    """The queue that it waits in; None while a worker has it and once it is done."""
    leaving: LaneQueue | None = None
    """The queue that a worker took it from and that has to be told as soon as it has come into the next."""
    following: Entry | None = None
    """The next entry of the same id, which waits until this one is out of the way."""
    taken = 0.0
    """When a worker of its stage first took it; 0 until then."""
    in_parts: LargeWrite | None = None
    """What writes it if it is too large for one value; it knows what failed attempts have left."""
    preceding: Entry | None = None
    """The entry of the same id that this one waits for."""
    heir: Entry | None = None
    """The entry that this one was coalesced into."""
    outcome: Outcome | None = None
    fate: Fate | None = None
    """As what its completion counts; set together with the outcome."""
    entered = False
    """Whether it has come into a queue; from then on it is the workers' to look after."""
    abandoned = False
    """Whether its caller was interrupted: if it has not entered, nobody will let it in any more."""
    listeners: list[Ticket] | None = None
    """The tickets that have a callback."""
    together: SavedTogether | None = None
    """Those that it is saved together with, and itself. The first of them counts for all in the queue's bounds."""
    waiters: list[Waiter] | None = None
    """One held lock for each thread that waits, or its like for a task; they are released when there is news."""

    @property
    def members(self) -> list[Entry]:
        """Those that it is saved together with, and itself."""
        return [self] if self.together is None else self.together.members

    def __init__(self, id: CheckpointId, since: float, patience: float) -> None:
        self.id = id
        self.since = since
        """When it was ready to enter the queue that it is in."""
        self.patience = patience
        """How many seconds without progress it waits."""
        self.deadline = since + patience
        """When that time is over; it is put off if there was progress meanwhile."""
        self.size = len(id.key)
        """What it counts for in the queue's bytes."""

    def __str__(self) -> str:
        """What it is called in messages."""
        return str(self.id)

    @property
    def ids(self) -> Collection[CheckpointId]:
        """What it writes."""
        return (self.id,)

    def set_follower(self, id: CheckpointId, follower: Entry | None) -> None:
        """Let *follower* be the entry of *id* that waits until this one is out of the way."""
        self.following = follower

    def take_followers(self) -> Collection[Entry]:
        """All that wait for this one; from now on there are none."""
        following, self.following = self.following, None
        return () if following is None else (following,)

    def newest_of(self, id: CheckpointId) -> int:
        """The number of the newest save of *id* in it."""
        return self.newest

    def get_on(self) -> None:
        """A slice of it is serialized, or a part of it is stored."""
        self.taken = time.monotonic()

    def adopt(self, newer: Entry) -> None:
        """Do from now on what *newer* was to do, and answer for it too."""
        listeners = (self.listeners or []) + newer.listeners if newer.listeners else self.listeners
        weight = max(len(listeners or ()), 1)
        # From here on no call: all of it is done, or nothing, also if an interrupt comes.
        self.deadline, self.patience, self.newest, self.size = newer.deadline, newer.patience, newer.newest, newer.size
        self.encoded, self.value, self.state, self.lock = newer.encoded, newer.value, newer.state, newer.lock
        self.listeners, self.weight, newer.heir = listeners, weight, self

    def set_value(self, value: bytes | None) -> None:
        """Write *value*, or delete if it is None."""
        self.encoded, self.value = True, value
        self.size = len(self.id.key) + (0 if value is None else len(value))

    def set_state(self, state: Any, size: int, lock: StateLock | None) -> None:
        """Serialize *state* first, holding *lock* if there is one."""
        self.encoded, self.state, self.lock = False, state, lock
        self.size = len(self.id.key) + size

    def drop_state(self) -> None:
        """Forget the state: whoever keeps a ticket does not keep that."""
        self.value = self.state = self.lock = None

    def join(self) -> threading.Lock:
        """A lock that can be acquired when there is news."""
        if self.waiters is None:
            self.waiters = []
        return join(self.waiters)

    def leave(self, waiter: Waiter) -> None:
        """*waiter* waits no more."""
        if self.waiters is not None and waiter in self.waiters:
            self.waiters.remove(waiter)

    def wake(self) -> None:
        """Let everybody who waits look again."""
        if self.waiters is not None:
            wake(self.waiters)
            self.waiters = None


class Tray(Entry):
    """Saves of different ids of one group that came close together: in the queues they are one entry, in many lanes.

    That is what makes a save cheap. A tray takes saves while it waits, for `TRAY_SECONDS` at most, and all of them have
    its deadline. Nobody has asked to be called back for any of them. Where one of them has to be told from the others,
    a tray that waits is taken apart into entries (`moved`).
    """

    def __init__(self, id: CheckpointId, since: float, patience: float) -> None:
        super().__init__(id, since, patience)
        self.deadline += TRAY_SECONDS  # that of the last that may come
        self.closes = since + TRAY_SECONDS
        """Until when it takes saves."""
        self.values: dict[CheckpointId, bytes] = {}
        """What it writes."""
        self.followers: dict[CheckpointId, Entry] = {}
        """The next entry of an id in it, where there is one."""
        self.newer: dict[CheckpointId, int] = {}
        """The numbers of the newest saves of ids that were saved again while it waited; `newest` is all others'."""
        self.times: list[float] = []
        """How long the serialization of its saves took."""
        self.saves = self.weight = self.size = 0

    def fill(self, values: dict[CheckpointId, bytes], size: int) -> None:
        """Let it write *values*, which have *size* bytes with their keys."""
        self.values, self.size = values, size
        self.saves = self.weight = len(values)

    def __str__(self) -> str:
        return f"{self.id} and {self.saves - 1} more" if self.saves > 1 else str(self.id)

    @property
    def ids(self) -> Collection[CheckpointId]:
        return self.values

    def set_follower(self, id: CheckpointId, follower: Entry | None) -> None:
        if follower is None:
            self.followers.pop(id, None)
        else:
            self.followers[id] = follower

    def take_followers(self) -> Collection[Entry]:
        followers, self.followers = self.followers, {}
        return followers.values()

    def newest_of(self, id: CheckpointId) -> int:
        return self.newer.get(id, self.newest)

    def singly(self) -> dict[CheckpointId, Entry]:
        """An entry for each of its saves."""
        entries = {}
        for id, value in self.values.items():
            entry = entries[id] = Entry(id, self.since, self.patience)
            entry.deadline, entry.newest = self.deadline, self.newest_of(id)
            entry.set_value(value)
        return entries


class Ticket:
    """The answer to one `save` or `forget`. It completes exactly once: with a `Receipt`, or with an error.

    It completes with an error at the latest when there was no progress for the save's deadline. In a process forked
    meanwhile it completes with `Closed`; the parent does not notice. In an event loop it can be awaited, also by
    several tasks: `await ticket` is `ticket.result()`. When a task that waits is cancelled the save goes on.
    """

    __slots__ = ("_callback", "_completions", "_entry", "_number", "deadline", "id", "late", "patience")

    def __init__(
        self, completions: Completions, entry: Entry, id: CheckpointId, number: int, callback: Callback | None = None
    ) -> None:
        self.id = id
        """What was saved or forgotten."""
        self._completions = completions
        self._entry = entry
        self._number = number
        self._callback = callback
        self.deadline = entry.deadline
        """When it completes at the latest, in the time of `time.monotonic`, unless there is progress until then."""
        self.patience = entry.patience
        """How many seconds without progress it waits."""
        self.late: SafekeeperError | None = None
        """The outcome of a superseded save whose deadline came before there was another."""

    @property
    def superseded(self) -> bool:
        """Whether a newer save of the same id took this one's place before it was written."""
        return self.carrier.newest_of(self.id) != self._number

    def __repr__(self) -> str:
        outcome = self.late or self.carrier.outcome
        if outcome is None:
            how = "under way"
        else:
            how = "stored" if isinstance(outcome, Receipt) else f"{type(outcome).__name__}: {outcome}"
        return one_line(f"<Ticket of {self.id}, {'superseded, ' if self.superseded else ''}{how}>")

    def done(self) -> bool:
        """Whether it has completed."""
        return self._look() is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for completion. Return what the store promised, or raise why there is no promise.

        A superseded save has the outcome of the save that took its place. Raise `TimeoutError` if *timeout* seconds
        pass first; the save goes on.
        """
        outcome = self.outcome(timeout)
        if isinstance(outcome, Receipt):
            return outcome
        # A batch shares one error: without this its traceback would grow with every ticket that raises it.
        raise outcome.with_traceback(None)

    def outcome(self, timeout: float | None = None) -> Outcome:
        """As `result`, but an error of the save is returned instead of raised."""
        outcome = self._look() or self._wait(timeout)
        if outcome is None:
            raise TimeoutError(f"{self.id}: not stored after {timeout} s; it is still tried")
        return outcome

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self._result_in_loop().__await__()

    async def _result_in_loop(self) -> Receipt:
        import asyncio

        loop = asyncio.get_running_loop()
        while self._look() is None:
            waiter = LoopWaiter(loop)
            with self._completions.lock:
                entry = self.carrier
                if entry.outcome is not None:
                    break
                entry.waiters = [*(entry.waiters or ()), waiter]
                self._completions.hurry()
            alarm = None
            if self.superseded:  # its own deadline is nobody else's to watch
                alarm = loop.call_later(max(self.deadline - time.monotonic(), 0.0), waiter.tell)
            try:
                await waiter.future
            finally:
                if alarm is not None:
                    alarm.cancel()
                with self._completions.lock:
                    entry.leave(waiter)
        return self.result()

    def call_back(self) -> None:
        """For the keeper, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)

    @property
    def carrier(self) -> Entry:
        """The entry that has or will have the outcome: in each of the two queues this save may have found an heir."""
        entry = self._entry
        if entry.moved is not None:
            entry = entry.moved[self.id]
        while entry.heir is not None:
            entry = entry.heir
        return entry

    def _look(self) -> Outcome | None:
        outcome = self.late or self.carrier.outcome
        if outcome is None and self.deadline <= time.monotonic():
            self._completions.expire(self)
            outcome = self.late or self.carrier.outcome
        return outcome

    def _wait(self, timeout: float | None) -> Outcome | None:
        until = inf if timeout is None else time.monotonic() + timeout
        if timeout is None:
            self._completions.write_for(self.carrier)
        while (outcome := self._look()) is None:
            remaining = min(until, self.deadline) - time.monotonic()
            if remaining > 0:
                self._sleep(remaining)
            elif until <= self.deadline:
                return None
        return outcome

    def _sleep(self, seconds: float) -> None:
        """Until there is news about the entry, or the time is over."""
        self._completions.refuse_in_callback("to wait for a save")
        with self._completions.lock:
            entry = self.carrier
            if entry.outcome is not None:
                return
            waiter = entry.join()
            self._completions.hurry()
        if not waiter.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            with self._completions.lock:
                entry.leave(waiter)
