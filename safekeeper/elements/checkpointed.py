"""A service's elements of state by key, kept as Apache S4 keeps its processing elements.

    words = Checkpointed(keeper, "WordCounter", new=lambda: {"count": 0}, trigger=Every(events=10, seconds=5))

    with words.event(b"foo") as element:        # recovered from the store if it is not in memory
        element.state["count"] += 1             # nobody else has it meanwhile

    async with words.event(b"foo") as element:  # the same in an event loop, which goes on while this waits
        element.state["count"] += 1

Leaving the block counts the event, and the trigger decides on a save. A group belongs to one process at a time.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from math import inf
from threading import Lock
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from safekeeper.backend import CheckpointId, Receipt, as_key, check_group
from safekeeper.elements.element import Element
from safekeeper.elements.holding import Call, Hold, Holding, Inside, Pool, Steps, Waits
from safekeeper.elements.memory import Memory
from safekeeper.elements.metrics import ElementMetrics
from safekeeper.elements.owner import OwnerMode, Ownership
from safekeeper.elements.recovering import BackgroundRecovery
from safekeeper.elements.saving import Saver, refuse_half_done
from safekeeper.elements.size import PLAIN, is_small
from safekeeper.elements.sweeper import ElementSweeper
from safekeeper.errors import Closed, QueueFull, SafekeeperError, Unavailable
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.loops import awaited
from safekeeper.keeper.notices import log_safely
from safekeeper.keeper.reader import OnError, Progress
from safekeeper.keeper.ticket import Ticket
from safekeeper.policy import Calibrate, Every, Trigger

_log = logging.getLogger("safekeeper")

S = TypeVar("S")
Recovery: TypeAlias = Literal["lazy", "eager"]
WhenUnavailable: TypeAlias = Literal["raise", "blank"]

_EVERY_EVENT = Every(events=1)
_NAMED = 10  # ids in one message
_BACKOFF = Backoff(first=0.25, most=60.0)


class Checkpointed(Generic[S]):
    """Elements of state by key, all in *group* of *keeper*.

    A group belongs to one process, and in it to one `Checkpointed`: its block, `claim` or the first event takes it, and
    `close` gives it back. Another process that has taken it meanwhile ends that: everything raises `Conflict` then, and
    nothing more is acknowledged, whatever this process was doing. `safekeeper.elements.owner` tells how.

    The first event of a key that is not in memory brings back its state, or starts with *new()* if there is none; if
    the store cannot be read the event fails with `Unavailable`, never with a blank state. An event whose block raises
    does not count and triggers nothing, and what it changed is never saved in silence: see `event`.

    state           the type of the states, as that of `SafeKeeper`, which it stands in for here
    owner           what to do if the group belongs to another process: "fail" raises `Conflict` unless that one is
                    gone, "wait" waits until it is, "take" takes it at once. None takes nothing and keeps nobody out:
                    for keys that you divide between processes yourself; two that share a key lose events
    patience        an owner that shows no sign of life in the store for so many seconds is taken to be gone
    trigger         when an element is saved; None saves only at `checkpoint`, before eviction and at `close`
    calibrate       stretches the triggers while the keeper's queues are near full
    ttl             after so many seconds without an event an element leaves memory, once its state is stored: it stays
                    in the store and comes back with its next event
    tick            every so many seconds a thread looks after what is due by time, postponed or idle
    backoff         a save that fails leaves its element dirty, and it is saved again: what was pushed out of a full
                    queue as soon as there is room, anything else after these delays
    recovery        "eager" brings everything in the store into memory in the background, from the moment on that the
                    group is ours, while events come; what they ask for first is read first. "lazy" reads each element
                    with its first event
    unavailable     "blank" lets an event whose state cannot be read (`Unavailable`: see the keeper's `fetch_timeout`
                    and `fuse`) start with *new()* instead of failing, as Apache S4 does: blank rather than late. What
                    is saved then takes the place of what is stored. `element.blank` says so.
    """

    def __init__(
        self,
        keeper: SafeKeeper[Any],
        group: str,
        new: Callable[[], S],
        *,
        state: type[S] | None = None,
        owner: OwnerMode | None = "fail",
        patience: float = 10.0,
        trigger: Trigger | None = _EVERY_EVENT,
        calibrate: Calibrate | None = None,
        ttl: float | None = None,
        tick: float = 0.25,
        backoff: Backoff = _BACKOFF,
        recovery: Recovery = "lazy",
        unavailable: WhenUnavailable = "raise",
    ) -> None:
        check_group(group)
        if recovery not in ("lazy", "eager"):
            raise ValueError(f"recovery= is 'lazy' or 'eager', not {recovery!r}")
        if unavailable not in ("raise", "blank"):
            raise ValueError(f"unavailable= is 'raise' or 'blank', not {unavailable!r}")
        self._keeper: SafeKeeper[Any] = keeper if state is None else keeper._of(state)
        self._group = group
        self._new = new
        self._trigger = trigger
        self._calibrate = calibrate
        self._unavailable = unavailable
        self._process = os.getpid()
        self._ownership = None if owner is None else Ownership(keeper, group, owner, patience)
        self._ready = owner is None
        self._memory: Memory[S] = Memory(group, ttl)
        self._saver = Saver(self._keeper, self._memory, backoff, lambda: self._sweeper.is_stopping)
        self._sweeper = ElementSweeper(group, tick, self._sweep)
        self._pool = Pool()
        self._recovering = Lock()
        self._eager: BackgroundRecovery | None = None
        if recovery == "eager":
            self._eager = BackgroundRecovery(group, lambda on_error: self.recover(on_error=on_error), backoff)
            if self._ready:
                self._eager.start()

    def claim(self, timeout: float | None = None) -> None:
        """See to it that the group belongs to this process, as *owner* says; for a service that wants to know before it
        opens its doors. Raise `Conflict` if it belongs to another one, and still does after *timeout* seconds."""
        self._check_process()
        if self._ownership is not None and not self._ready:
            place = self._ownership.take(timeout)
            with self._memory.lock:
                first, self._ready, self._memory.group = not self._ready, True, place
            if first and self._eager is not None:
                self._eager.start()
        self._check()

    def event(self, key: bytes | str, *, undo: bool = False) -> Holding[Element[S]]:
        """An event for *key*, bytes or a str: the element, to be changed inside the block and by nobody else meanwhile.

        A block that raises does not count as an event. With *undo* the state is put back as it was before, which costs
        one serialization an event; a key that was not there before starts anew in any case. Without it what the block
        changed stays changed: the key then raises `HalfDone` and is not saved until `checkpoint(key)` stores it as it
        is, or `forget(key)` removes it. A task that is cancelled inside its block raises there like any other.

        With `with` the block belongs to one thread, with `async with` to one task; all others wait for its end. What
        could only wait for itself is refused with `RuntimeError`: a second block of the key inside the first, a `with`
        block while another task of the same thread has the key, or blocks of several keys in opposite order. In an
        `async with` block other things may be awaited. A `with` block in an event loop keeps it waiting while another
        thread has the key, or while the state is read.
        """
        return Holding(self._event(as_key(key), undo), self._pool)

    def _event(self, key: bytes, undo: bool) -> Steps[Element[S]]:
        element = yield from self._take(key)
        try:
            if element.half_done is not None:
                refuse_half_done(element)
            if element.pending is not None and not element.pending.done:
                yield Call(element.pending.serialize)  # before it changes, the save under way gets its bytes
            before = element.state
            put_back = (yield from self._way_back(element)) if undo and element.known else None
            try:
                yield Inside(element)
            except BaseException as error:
                self._clear_up(element, before, put_back, error)
                raise
            if element.gone:  # forgotten in the block
                return
            now = time.monotonic()
            self._memory.count(element, now)
            self._sweeper.start()
            if self._trigger is not None and self._is_due(element, now):
                yield from self._saver.save_after_event(element)
        finally:
            element.let_go()

    def look(self, key: bytes | str) -> Holding[S | None]:
        """The state of *key*, to be read inside the block; None if there is none. It counts as no event."""
        return Holding(self._look(as_key(key)), self._pool)

    def _look(self, key: bytes) -> Steps[S | None]:
        element = yield from self._take(key)
        try:
            if element.half_done is not None:
                refuse_half_done(element)
            yield Inside(element.state if element.known else None)
        finally:
            if not element.known:
                self._memory.drop(element)
            element.let_go()

    def forget(self, key: bytes | str) -> Ticket:
        """Remove *key* from memory and from the store. Its next event starts anew. An event may forget its own key."""
        self.claim()
        key = as_key(key)
        element = self._memory.get(key)
        if element is not None and element.is_held_here():
            return self._forget(element)
        element = self._hold_without_state(key)
        try:
            return self._forget(element)
        finally:
            element.let_go()

    def recover(self, progress: Callable[[Progress], object] | None = None, *, on_error: OnError | None = None) -> int:
        """Bring everything in the store into memory, instead of one by one with the first events; how many there were.

        What is in memory already is left alone, and events may come meanwhile. *progress* and *on_error* are those of
        `SafeKeeper.recover`; a key whose state cannot be read fails its events, too.
        """
        self.claim()
        count = 0
        memory = self._memory
        with self._recovering:
            memory.left = set()
            try:
                for key, state in self._keeper.recover(memory.group, progress=progress, on_error=on_error):
                    if self._eager is not None:
                        self._eager.check()
                    self._bring_back(key, state)
                    count += 1
            finally:
                memory.left = None
        self._confirm()
        return count

    def checkpoint(self, key: bytes | str | None = None) -> list[Ticket]:
        """Save everything that is dirty. When all the tickets have completed, every event before the call is stored.

        It respects the keeper's queues whatever their policy is: while they are full it waits until its own saves are
        stored, and what was pushed out of them meanwhile is saved again. Only what others push out after it has
        returned fails its ticket (`QueueFull`); that element stays dirty and is saved again, too.

        An element that an event has left half-done is not saved: if it has events that are not stored, its ticket
        completes with `HalfDone`. With a *key* only that element is saved, as it is, half-done or not.
        """
        self._check_process()
        if key is not None:
            return self._checkpoint_one(as_key(key))
        return self._saver.save_all(self._memory.not_stored())

    def close(self) -> None:
        """Save what is dirty, wait until it is stored, and raise if it is not, with the names. The keeper stays open.

        What an event has left half-done is not saved: that raises too, if there are events before it that are not
        stored. When everything is stored the group is given back, and nothing more can be done here.
        """
        if self._process != os.getpid():
            return  # in a forked child the elements are the parent's
        if self._eager is not None:
            self._eager.stop()
        self._sweeper.stop()
        self._pool.close()
        ownership = self._ownership
        try:
            self._store_everything()
        except SafekeeperError:
            if ownership is not None and ownership.lost:
                ownership.release()
            elif ownership is not None:
                ownership.rest()
            raise
        if ownership is not None:
            ownership.release()
        if half_done := self._memory.copy(self._memory.half_done):
            names = _names([element.id for element in half_done])
            log_safely(_log.warning, "closed without what events changed that raised half-way: %s", names)

    def _store_everything(self) -> None:
        left = inf
        while lost := [ticket for ticket in self.checkpoint() if not isinstance(ticket.outcome(), Receipt)]:
            pushed_out = any(isinstance(ticket.outcome(), QueueFull) for ticket in lost)
            if not pushed_out or len(lost) >= left:
                raise _not_stored(lost)
            left = len(lost)

    aclaim = awaited(claim)
    aforget = awaited(forget)
    arecover = awaited(recover)
    acheckpoint = awaited(checkpoint)
    aclose = awaited(close)

    def metrics(self) -> ElementMetrics:
        """The numbers as they are now."""
        metrics = self._memory.measured()
        metrics.recovered = int(self._eager is not None and self._eager.done)
        metrics.owned = int(self._ownership is not None and self._ready and self._ownership.holds)
        return metrics

    def __len__(self) -> int:
        """How many elements are in memory."""
        return len(self._memory.elements)

    def __repr__(self) -> str:
        return f"<Checkpointed {self._group!r}, {len(self)} elements in memory>"

    def __enter__(self) -> Self:
        self.claim()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.aclaim()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Getting hold of an element

    def _check(self) -> None:
        """Raise unless the elements may be used here and now."""
        self._check_process()
        if self._ownership is not None:
            self._ownership.check()

    def _check_process(self) -> None:
        """Raise `Closed` in a forked child, where nobody gives back the locks that were held."""
        if self._process != os.getpid():
            raise Closed(f"these elements belong to process {self._process}: make new ones after a fork")

    def _take(self, key: bytes) -> Waits[Element[S]]:
        """The element of *key*, held and with its state. Whoever takes it lets it go."""
        self._check()
        if not self._ready:
            yield Call(self.claim, alone=True)
        while True:
            element = self._memory.get_or_add(key)
            yield Hold(element)
            if element.gone:  # meanwhile it was evicted or forgotten
                element.let_go()
                continue
            if element.loaded:
                return element
            try:
                yield from self._load(element)
            except BaseException:
                self._memory.drop(element)
                element.let_go()
                raise
            return element

    def _hold_without_state(self, key: bytes) -> Element[S]:
        while True:
            element = self._memory.get_or_add(key)
            element.hold()
            if not element.gone:
                return element
            element.let_go()

    def _load(self, element: Element[S]) -> Waits[None]:
        """Bring the state of an element that is held, or begin with a new one."""
        metrics, begun = self._memory.metrics, time.monotonic()
        try:
            state = yield Call(partial(self._fetch, element.id))
        except BaseException as error:
            if not (isinstance(error, Unavailable) and self._unavailable == "blank"):
                with self._memory.lock:
                    metrics.load_errors += 1
                raise
            state, element.blank = None, True
            log_safely(_log.warning, "%s: it begins blank, since the store does not answer: %s", element.id, error)
        known = state is not None
        self._memory.fill(element, state if known else self._new(), known=known)
        self._sweeper.start()
        with self._memory.lock:
            metrics.load.record(time.monotonic() - begun)
            metrics.loaded += known
            metrics.blank += element.blank
            metrics.began += not known and not element.blank

    def _fetch(self, id: CheckpointId) -> S | None:
        """What is stored; None if there is nothing, and not because another owner has removed it."""
        state: S | None = self._keeper.fetch(id)
        if state is None:
            self._confirm()
        return state

    def _confirm(self) -> None:
        """Raise `Conflict` if the group belongs to another process by now, which has removed what it has copied."""
        if self._ownership is not None:
            self._keeper._reader.ask(self._ownership.confirm)

    def _bring_back(self, key: bytes, state: S) -> None:
        """Put what `recover` has read into memory, unless the key is there, or was meanwhile."""
        element = self._hold_without_state(key)
        try:
            if element.loaded:
                return
            assert self._memory.left is not None
            if key in self._memory.left:
                self._memory.drop(element)
            else:
                self._memory.fill(element, state, known=True)
                self._sweeper.start()
        finally:
            element.let_go()

    # The end of a block

    def _way_back(self, element: Element[S]) -> Waits[Callable[[], S]]:
        """What brings back the state that an element has now. Raise `BadState` if it cannot be brought back."""
        state = element.state
        if type(state) in PLAIN:
            return lambda: state
        encode = partial(self._keeper._encode, state)
        value: bytes = encode() if is_small(state) else (yield Call(encode))
        return lambda: self._keeper._decode(element.id, value)

    def _clear_up(self, element: Element[S], before: S, put_back: Callable[[], S] | None, error: BaseException) -> None:
        """The block of *element* raised *error*: nothing that it has done may be saved."""
        with self._memory.lock:
            self._memory.metrics.raised += 1
        if not element.known:
            self._memory.drop(element)
        elif put_back is not None:
            try:
                element.state = put_back()
            except BaseException as cause:
                self._memory.set_half_done(element, cause)
                raise
            with self._memory.lock:
                self._memory.metrics.undone += 1
        elif not (type(before) in PLAIN and element.state is before):
            self._memory.set_half_done(element, error)

    def _forget(self, element: Element[S]) -> Ticket:
        # First on its way, then out of memory: an event in between would bring the old state back.
        ticket = self._keeper.forget(element.id)
        if self._memory.drop(element):
            with self._memory.lock:
                self._memory.metrics.forgotten += 1
        return ticket

    def _checkpoint_one(self, key: bytes) -> list[Ticket]:
        element = self._memory.get(key)
        if element is None:
            return []
        with element.held():
            if element.half_done is not None and not element.gone:
                self._memory.take_as_it_is(element)
            ticket = self._saver.save_if_dirty(element)
        return [] if ticket is None else [ticket]

    # What no event looks after

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
        with self._memory.lock:
            if not element.gone:
                self._memory.postponed[element.key] = element
        return False

    def _sweep(self) -> None:
        if self._ownership is not None and self._ownership.lost:
            raise Closed("the group belongs to another process")
        if self._keeper.closed:
            raise Closed("the keeper was closed first")
        self._save_what_is_due()
        self._evict_what_is_idle()

    def _save_what_is_due(self) -> None:
        now = time.monotonic()
        memory, saver = self._memory, self._saver
        for element in memory.copy(memory.failed):
            saver.save_idle(element)
        if self._trigger is not None:
            for elements in (memory.postponed, memory.dirty):
                # The first that is not due ends it: the others came later, or wait for the same queues.
                for element in takewhile(lambda element: self._is_due(element, now), memory.copy(elements)):
                    if not saver.has_room():
                        return
                    saver.save_idle(element)

    def _evict_what_is_idle(self) -> None:
        for element in self._memory.idle():
            if element.stored == element.version:
                self._evict(element)
            else:
                self._saver.save_idle(element)

    def _evict(self, element: Element[S]) -> None:
        """Take an element out of memory if everything of it is stored, unless an event has it just now."""
        with element.held_if_free() as free:
            if free and element.version == element.stored and not element.gone and element.half_done is None:
                self._memory.drop(element)
                with self._memory.lock:
                    self._memory.metrics.evicted += 1


def _names(ids: Sequence[CheckpointId]) -> str:
    """The first of *ids*, and how many there are."""
    names = ", ".join(str(id) for id in ids[:_NAMED])
    return names if len(ids) <= _NAMED else f"{names} and {len(ids) - _NAMED} more"


def _not_stored(lost: Sequence[Ticket]) -> SafekeeperError:
    """One error for all of *lost*."""
    outcome = lost[0].outcome()
    assert not isinstance(outcome, Receipt)
    many = "1 element is" if len(lost) == 1 else f"{len(lost)} elements are"
    error = type(outcome)(f"{many} not stored: {_names([ticket.id for ticket in lost])}: {outcome}")
    error.__cause__ = outcome
    return error
