"""A service's elements of state by key, kept as Apache S4 keeps its processing elements.

    words = Checkpointed(keeper, "WordCounter", new=lambda: {"count": 0}, trigger=Every(events=10, seconds=5))

    with words.event(b"foo") as element:        # recovered from the store if it is not in memory
        element.state["count"] += 1             # nobody else has it meanwhile

Leaving the block counts the event, and the trigger decides on a save. A group belongs to one process.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from math import inf
from threading import Event, Lock, Thread
from typing import Any, Generic, NoReturn, Self, TypeVar

from safekeeper.backend import CheckpointId, Receipt, check_group
from safekeeper.elements.element import Element
from safekeeper.elements.holding import Holding
from safekeeper.elements.size import PLAIN, is_small
from safekeeper.errors import Closed, HalfDone, QueueFull, SafekeeperError
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.notices import Notices, log_safely
from safekeeper.keeper.pending import PendingState
from safekeeper.keeper.reader import OnError, Progress
from safekeeper.keeper.ticket import Ticket
from safekeeper.policy import Calibrate, Every, Trigger, Ttl

_log = logging.getLogger("safekeeper")

S = TypeVar("S")

_EVERY_EVENT = Every(events=1)
_NAMED = 10  # ids in one message
_BACKOFF = Backoff(first=0.25, most=60.0)
_FULL = Backoff(first=0.001, most=0.1)  # between two looks at a queue that others keep full


class Checkpointed(Generic[S]):
    """Elements of state by key, all in *group* of *keeper*.

    ONE PROCESS ONLY, and in it one `Checkpointed` for a group: nothing keeps others out. A second one (another process,
    a second worker of a web server, an old instance that is still ending) has elements of its own in memory, and each
    overwrites what the other has stored: events are lost without an error, also those whose tickets have completed.
    Give each process its own group, or see to it that a key's events always come to the same one.

    The first event of a key that is not in memory brings back its state, or starts with *new()* if there is none; if
    the store cannot be read the event fails with `Unavailable`, never with a blank state. An event whose block raises
    does not count and triggers nothing, and what it changed is never saved in silence: see `event`.

    *trigger* decides when an element is saved; None saves only at `checkpoint`, before eviction and at `close`. With
    *calibrate* the triggers are stretched while the keeper's queues are near full. After *ttl* seconds without an event
    an element leaves memory, once its state is stored: it stays in the store and comes back with its next event. A save
    that fails leaves its element dirty, and it is saved again: what was pushed out of a full queue as soon as there is
    room, anything else after the delays of *backoff*. Every *tick* seconds a thread looks after what is due by time,
    postponed or idle.
    """

    def __init__(
        self,
        keeper: SafeKeeper,
        group: str,
        new: Callable[[], S],
        *,
        trigger: Trigger | None = _EVERY_EVENT,
        calibrate: Calibrate | None = None,
        ttl: float | None = None,
        tick: float = 0.25,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        check_group(group)
        self._keeper = keeper
        self._group = group
        self._new = new
        self._trigger = trigger
        self._calibrate = calibrate
        self._tick = tick
        self._backoff = backoff
        self._notices = Notices()
        self._owner = os.getpid()
        # Guards everything below, and the counts of the elements. It is never held while anything is waited for.
        self._guard = Lock()
        self._elements: dict[bytes, Element[S]] = {}
        self._dirty: OrderedDict[bytes, Element[S]] = OrderedDict()  # events after the newest save, the oldest first
        self._postponed: OrderedDict[bytes, Element[S]] = OrderedDict()  # due, but the queues were too full
        self._saving: dict[bytes, Element[S]] = {}  # their newest save has not completed
        self._failed: dict[bytes, Element[S]] = {}  # it has failed
        self._half_done: dict[bytes, Element[S]] = {}  # an event raised in the middle; in none of the above but saving
        self._ttl = None if ttl is None else Ttl(ttl)
        self._closing = Event()
        self._sweeper: Thread | None = None

    def event(self, key: bytes, *, undo: bool = False) -> Holding[Element[S]]:
        """An event for *key*: the element, to be changed inside the block and by nobody else meanwhile.

        A block that raises does not count as an event. With *undo* the state is put back as it was before, which costs
        one serialization an event; a key that was not there before starts anew in any case. Without it what the block
        changed stays changed: the key then raises `HalfDone` and is not saved until `checkpoint(key)` stores it as it
        is, or `forget(key)` removes it.

        The block belongs to one thread, and to one asyncio task. Another thread waits for its end. A second block of
        the key in the same thread is refused with `RuntimeError`, in the same task or another: it could only wait for
        itself. So is a block of another key whose holder waits for this thread. Await nothing inside the block.
        """
        return Holding(self._event(key, undo))

    @contextmanager
    def _event(self, key: bytes, undo: bool) -> Iterator[Element[S]]:
        with self._hold(key) as element:
            _refuse_half_done(element)
            if element.pending is not None:  # before it changes, the save under way gets its bytes
                element.pending.serialize()
            before = element.state
            put_back = self._way_back(element) if undo and element.known else None
            try:
                yield element
            except BaseException as error:
                self._clear_up(element, before, put_back, error)
                raise
            if element.gone:  # forgotten in the block
                return
            now = time.monotonic()
            self._count(element, now)
            if self._trigger is not None and self._is_due(element, now):
                self._save(element)

    def look(self, key: bytes) -> Holding[S | None]:
        """The state of *key*, to be read inside the block; None if there is none. It counts as no event."""
        return Holding(self._look(key))

    @contextmanager
    def _look(self, key: bytes) -> Iterator[S | None]:
        with self._hold(key) as element:
            _refuse_half_done(element)
            try:
                yield element.state if element.known else None
            finally:
                if not element.known:
                    self._drop(element)

    def forget(self, key: bytes) -> Ticket:
        """Remove *key* from memory and from the store. Its next event starts anew. An event may forget its own key."""
        self._check_process()  # before the guard, which nobody would give back in a forked child
        with self._guard:
            element = self._elements.get(key)
        if element is not None and element.is_held_here():
            return self._forget(element)
        with self._hold(key, load=False) as element:
            return self._forget(element)

    def recover(self, progress: Callable[[Progress], object] | None = None, *, on_error: OnError | None = None) -> int:
        """Bring everything in the store into memory, instead of one by one with the first events; how many there were.

        Meant for the start, before the events come: what is in memory already is left alone. *progress* and *on_error*
        are those of `SafeKeeper.recover`; a key whose state cannot be read fails its events, too.
        """
        count = 0
        for key, state in self._keeper.recover(self._group, progress=progress, on_error=on_error):
            with self._hold(key, load=False) as element:
                if not element.loaded:
                    self._fill(element, state, known=True)
            count += 1
        return count

    def checkpoint(self, key: bytes | None = None) -> list[Ticket]:
        """Save everything that is dirty. When all the tickets have completed, every event before the call is stored.

        It respects the keeper's queues whatever their policy is: while they are full it waits until its own saves are
        stored, and what was pushed out of them meanwhile is saved again. Only what others push out after it has
        returned fails its ticket (`QueueFull`); that element stays dirty and is saved again, too.

        An element that an event has left half-done is not saved: if it has events that are not stored, its ticket
        completes with `HalfDone`. With a *key* only that element is saved, as it is, half-done or not.
        """
        self._check_process()
        if key is not None:
            return self._checkpoint_one(key)
        with self._guard:
            elements = list({**self._saving, **self._dirty, **self._failed, **self._half_done}.values())
        return self._save_all(elements)

    def close(self) -> None:
        """Save what is dirty, wait until it is stored, and raise if it is not, with the names. The keeper stays open.

        What an event has left half-done is not saved: that raises too, if there are events before it that are not
        stored.
        """
        if self._owner != os.getpid():
            return  # in a forked child the elements are the parent's
        self._closing.set()
        with self._guard:
            sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.join()
        left = inf
        while lost := [ticket for ticket in self.checkpoint() if not isinstance(ticket.outcome(), Receipt)]:
            pushed_out = any(isinstance(ticket.outcome(), QueueFull) for ticket in lost)
            if not pushed_out or len(lost) >= left:
                raise _not_stored(lost)
            left = len(lost)
        if half_done := self._copy(self._half_done):
            names = _names([element.id for element in half_done])
            log_safely(_log.warning, "closed without what events changed that raised half-way: %s", names)

    def __len__(self) -> int:
        """How many elements are in memory."""
        return len(self._elements)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        """Raise `Closed` in a forked child, where nobody gives back the locks that were held."""
        if self._owner != os.getpid():
            raise Closed(f"these elements belong to process {self._owner}: make new ones after a fork")

    @contextmanager
    def _hold(self, key: bytes, load: bool = True) -> Iterator[Element[S]]:
        """The element of *key*, locked; with its state unless that is not wanted."""
        self._check_process()
        while True:
            with self._guard:
                element = self._elements.get(key) or self._add(key)
            element.hold()  # this, and not a block of `held`: it is on the way of every event
            try:
                if element.gone:  # between the two locks it was evicted or forgotten
                    continue
                if load and not element.loaded:
                    self._load(element)
                yield element
                return
            finally:
                element.let_go()

    def _add(self, key: bytes) -> Element[S]:
        element = self._elements[key] = Element(CheckpointId(self._group, key))
        return element

    def _forget(self, element: Element[S]) -> Ticket:
        # First on its way, then out of memory: an event in between would bring the old state back.
        ticket = self._keeper.forget(element.id)
        self._drop(element)
        return ticket

    def _way_back(self, element: Element[S]) -> Callable[[], S]:
        """What brings back the state that an element has now. Raise `BadState` if it cannot be brought back."""
        state = element.state
        if type(state) in PLAIN:
            return lambda: state
        value = self._keeper._encode(state)
        return lambda: self._keeper._decode(element.id, value)

    def _clear_up(self, element: Element[S], before: S, put_back: Callable[[], S] | None, error: BaseException) -> None:
        """The block of *element* raised *error*: nothing that it has done may be saved."""
        if not element.known:
            self._drop(element)
        elif put_back is not None:
            try:
                element.state = put_back()
            except BaseException as cause:
                self._set_half_done(element, cause)
                raise
        elif not (type(before) in PLAIN and element.state is before):
            self._set_half_done(element, error)

    def _set_half_done(self, element: Element[S], error: BaseException) -> None:
        try:
            reason = repr(error)
        except Exception:
            reason = type(error).__name__
        with self._guard:
            if element.gone:
                return
            element.half_done = reason
            for elements in (self._dirty, self._postponed, self._failed):
                elements.pop(element.key, None)
            self._half_done[element.key] = element
            if self._ttl is not None:
                self._ttl.drop(element.key)  # it stays until somebody has decided

    def _checkpoint_one(self, key: bytes) -> list[Ticket]:
        with self._guard:
            element = self._elements.get(key)
        if element is None:
            return []
        with element.held():
            if element.half_done is not None and not element.gone:
                with self._guard:
                    element.half_done = None
                    del self._half_done[key]
                self._count(element, time.monotonic())
            ticket = self._save_if_dirty(element)
        return [] if ticket is None else [ticket]

    def _load(self, element: Element[S]) -> None:
        try:
            state = self._keeper.fetch(element.id)
            known = state is not None
            self._fill(element, state if known else self._new(), known=known)
        except BaseException:
            self._drop(element)
            raise

    def _fill(self, element: Element[S], state: S, *, known: bool) -> None:
        element.state, element.loaded, element.known = state, True, known
        with self._guard:
            self._touch(element, time.monotonic())

    def _drop(self, element: Element[S]) -> None:
        """Take an element that is held out of memory, unless it is: its key may have another one by now."""
        with self._guard:
            if element.gone:
                return
            element.gone = True
            for elements in (
                *(self._elements, self._dirty, self._postponed),
                *(self._saving, self._failed, self._half_done),
            ):
                elements.pop(element.key, None)
            if self._ttl is not None:
                self._ttl.drop(element.key)

    def _touch(self, element: Element[S], now: float) -> None:
        """With the guard held: *element* is in use, so somebody has to look after it."""
        if self._ttl is not None:
            self._ttl.touch(element.key, now)
        if self._sweeper is None and not self._closing.is_set():
            sweeper = Thread(target=self._sweep, name=f"safekeeper-{self._group}", daemon=True)
            with suppress(RuntimeError):  # no more threads just now: the next event tries again
                sweeper.start()
                self._sweeper = sweeper

    def _count(self, element: Element[S], now: float) -> None:
        """An event has happened."""
        with self._guard:
            if element.version == element.submitted:
                element.since = now
                self._dirty[element.key] = element
            element.version += 1
            element.known = True
            self._touch(element, now)

    def _is_due(self, element: Element[S], now: float) -> bool:
        """Whether the trigger says so, and the queues have room for it; if not, it is tried again later."""
        assert self._trigger is not None
        events, seconds = element.version - element.submitted, now - element.since
        if not self._trigger.due(events, seconds):
            return False
        if self._calibrate is None:
            return True
        stretch = self._calibrate.stretch()
        if self._trigger.due(events / stretch, seconds / stretch):
            return True
        with self._guard:
            if not element.gone:
                self._postponed[element.key] = element
        return False

    def _save_idle(self, element: Element[S]) -> None:
        """Save an element that has something to be saved, unless an event has it just now, the queues are full, or it
        has failed too often."""
        if not self._has_room() or element.retry_at > time.monotonic():
            return
        with element.held_if_free() as free:
            if not free or element.version == element.submitted or element.gone or element.half_done is not None:
                return
            pending = None
            if element.failures:
                # Whether it has bytes by now is found out here: a save that fails is told about each time.
                pending = PendingState(element.state, self._keeper._encode)
                pending.serialize()
                if pending.error is not None:
                    self._not_saved(element, element.submitted, pending.error)
                    return
            self._save(element, pending)

    def _evict(self, element: Element[S]) -> None:
        """Take an element out of memory if everything of it is stored, unless an event has it just now."""
        with element.held_if_free() as free:
            if free and element.version == element.stored and not element.gone and element.half_done is None:
                self._drop(element)

    def _save_all(self, elements: Sequence[Element[S]]) -> list[Ticket]:
        """Save *elements*, with no more of them under way than the queues take."""
        under_way: deque[Ticket] = deque()
        saves: list[tuple[Element[S], Ticket]] = []
        for element in elements:
            while under_way and not self._has_room():
                under_way.popleft().outcome()
            if (ticket := self._save_now(element)) is not None:
                under_way.append(ticket)
                saves.append((element, ticket))
        tickets, in_vain = [], False
        for element, ticket in saves:
            if isinstance(_failure(ticket), QueueFull) and not in_vain:
                ticket = self._insist(element, ticket)
                in_vain = isinstance(_failure(ticket), QueueFull)
            tickets.append(ticket)
        return tickets

    def _insist(self, element: Element[S], ticket: Ticket) -> Ticket:
        """Save an element, whose save others have pushed out, until it is stored or a deadline is over."""
        tries, until = 0, inf
        while isinstance(_failure(ticket), QueueFull) and time.monotonic() < until:
            if tries:
                time.sleep(_FULL.delay(tries))
            ticket = self._save_now(element) or ticket
            ticket.outcome()
            tries, until = tries + 1, min(until, ticket.deadline)
        return ticket

    def _has_room(self) -> bool:
        return self._keeper.fill < 1

    def _save_now(self, element: Element[S]) -> Ticket | None:
        """Save what is not saved of an element; the ticket of its newest save, None if it is not in memory any more."""
        if element.is_held_here() and element.version == element.submitted:
            return element.ticket
        with element.held():
            return self._save_if_dirty(element)

    def _save_if_dirty(self, element: Element[S]) -> Ticket | None:
        """As `_save_now`, for an element that is held."""
        if element.gone:
            return None
        if element.version == element.submitted and _failure(element.ticket) is None:
            return element.ticket
        if element.half_done is not None:
            return self._keeper.save(element.id, PendingState(element, _without_bytes))
        return self._save(element)

    def _save(self, element: Element[S], pending: PendingState | None = None) -> Ticket:
        """Save an element that is held; *pending* is its state, if it has its bytes already."""
        with self._guard:
            before, element.submitted = element.submitted, element.version
            element.attempt += 1
            for elements in (self._dirty, self._postponed, self._failed):
                elements.pop(element.key, None)
            self._saving[element.key] = element
        pending = pending or self._left_to_worker(element)
        told = partial(self._saved, element, element.version, element.attempt, pending)
        try:
            if pending is None:
                element.ticket = self._keeper.save(element.id, element.state, callback=told)
            else:
                element.pending = pending
                element.ticket = self._keeper.save(element.id, pending, frozen=True, callback=told)
        except BaseException:
            self._not_saved(element, before, None)
            raise
        return element.ticket

    def _left_to_worker(self, element: Element[S]) -> PendingState | None:
        """The state of an element to be saved, if a worker is to serialize it; None if that is better done here.

        While an earlier state of the element waits for the worker this one is serialized here, so that its bytes are
        within the bounds of the queue: however often an element is saved, one state of it at most is not.
        """
        earlier = element.pending
        if is_small(element.state) or (earlier is not None and not earlier.done):
            return None
        return PendingState(element.state, self._keeper._encode)

    def _saved(
        self, element: Element[S], version: int, attempt: int, pending: PendingState | None, ticket: Ticket
    ) -> None:
        """The keeper calls back. Not with the element's lock: its holder may be waiting for the keeper."""
        if pending is not None:
            pending.done = True
        outcome = ticket.outcome()
        if isinstance(outcome, Receipt):
            with self._guard:
                element.stored = max(element.stored, version)
                element.failures, element.retry_at = 0, 0.0
                if element.stored == element.submitted and not element.gone:
                    self._saving.pop(element.key, None)
        elif element.attempt == attempt:
            self._not_saved(element, element.stored, outcome)

    def _not_saved(self, element: Element[S], submitted: int, error: SafekeeperError | None) -> None:
        now = time.monotonic()
        with self._guard:
            if element.gone:
                return
            element.submitted, element.since = submitted, now
            self._saving.pop(element.key, None)
            if element.half_done is None:
                self._dirty.pop(element.key, None)
                self._failed[element.key] = element
            if error is None or isinstance(error, QueueFull):
                return  # there is nothing wrong with it: it is saved when there is room
            element.failures += 1
            element.retry_at = now + self._backoff.delay(element.failures)
            if isinstance(error, ValueError) and element.failures == 1:
                self._notices.note(
                    "%s: its state cannot be stored: %s: it stays in memory and is tried again, less and less often:"
                    " change it, or forget it",
                    *(element.id, error),
                )
            lines = self._notices.take()
        for line, _ in lines:
            log_safely(_log.warning, "%s", line)

    def _sweep(self) -> None:
        """Look after what no event looks after, until closing."""
        while not self._closing.wait(self._tick):
            try:
                self._save_what_is_due()
                self._evict_what_is_idle()
            except Closed:  # the keeper was closed first: nothing can be saved any more
                return
            except Exception:
                log_safely(_log.exception, "%s: its elements could not be looked after, it is tried again", self._group)

    def _save_what_is_due(self) -> None:
        now = time.monotonic()
        for element in self._copy(self._failed):
            self._save_idle(element)
        if self._trigger is not None:
            for elements in (self._postponed, self._dirty):
                # The first that is not due ends it: the others came later, or wait for the same queues.
                for element in takewhile(lambda element: self._is_due(element, now), self._copy(elements)):
                    if not self._has_room():
                        return
                    self._save_idle(element)

    def _evict_what_is_idle(self) -> None:
        if self._ttl is None:
            return
        with self._guard:
            idle = [self._elements[key] for key in self._ttl.idle(time.monotonic())]
        for element in idle:
            if element.stored == element.version:
                self._evict(element)
            else:
                self._save_idle(element)

    def _copy(self, elements: Mapping[bytes, Element[S]]) -> list[Element[S]]:
        with self._guard:
            return list(elements.values())


def _names(ids: Sequence[CheckpointId]) -> str:
    """The first of *ids*, and how many there are."""
    names = ", ".join(str(id) for id in ids[:_NAMED])
    return names if len(ids) <= _NAMED else f"{names} and {len(ids) - _NAMED} more"


def _failure(ticket: Ticket | None) -> SafekeeperError | None:
    """Why a save has failed; None if it has not."""
    if ticket is None or not ticket.done() or isinstance(outcome := ticket.outcome(), Receipt):
        return None
    return outcome


def _not_stored(lost: Sequence[Ticket]) -> SafekeeperError:
    """One error for all of *lost*."""
    outcome = lost[0].outcome()
    assert not isinstance(outcome, Receipt)
    many = "1 element is" if len(lost) == 1 else f"{len(lost)} elements are"
    error = type(outcome)(f"{many} not stored: {_names([ticket.id for ticket in lost])}: {outcome}")
    error.__cause__ = outcome
    return error


def _refuse_half_done(element: Element[Any]) -> None:
    if element.half_done is not None:
        _without_bytes(element)


def _without_bytes(element: Element[Any]) -> NoReturn:
    raise HalfDone(
        f"{element.id}: an event raised half-way ({element.half_done}) and was not undone:"
        " checkpoint(key) stores the state as it is, forget(key) removes it"
    )
