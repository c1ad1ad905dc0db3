"""An operator with its journal, inputs and outputs: nothing lost, nothing twice.

    with Operator("counter", "log:///var/lib/counter", inputs={"words": url}, outputs={"counts": other}) as counter:
        for event in counter:                                   or `async with` and `async for`
            part = counter.part(event.key)
            part.state["n"] = part.state.get("n", 0) + 1
            counter.emit("counts", key=event.key, body=pack(part.state))

With a client of your own, whatever has positions:

    with Operator("fraud/3", store, outputs={"alerts": url}) as operator:
        client.seek(operator.positions.get("payments/3", 0))
        for message in client:
            with operator.event("payments/3", message.offset) as event:     whole, or not at all
                ...

`docs/operators.md` is the guide.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from threading import Event as Signal
from threading import Lock, Thread, get_ident
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, cast

from safekeeper.backend import Backend
from safekeeper.errors import BadState, Closed, Conflict, SafekeeperError, Unavailable
from safekeeper.journal import Image, Journal, Moment
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.notices import log_safely
from safekeeper.keeper.serializers import Serializer, serializer_named
from safekeeper.operators.core import Core
from safekeeper.operators.event import Event
from safekeeper.operators.feed import Feed
from safekeeper.operators.guarantee import Kind, Recovery, Release, guarantee
from safekeeper.operators.metrics import OperatorMetrics
from safekeeper.operators.pump import Pump
from safekeeper.policy.capture import Capture, Changed, KnowsOperators, Lingering, PasteTurns
from safekeeper.policy.every import Trigger
from safekeeper.standby.door import OwnerDoor
from safekeeper.standby.follower import Follower, OnLag, StandbyLag, TakeoverTurn
from safekeeper.streams.carrier import Inlet, Outlet, Position, StreamElement
from safekeeper.streams.registry import open_inlet, open_outlet

_log = logging.getLogger("safekeeper")

OpenInlet: TypeAlias = Callable[[Position | None], Inlet]
"""Opens an inlet after a position; None is the beginning, or what the reader has acknowledged."""
OnPoison: TypeAlias = Callable[[Event, Exception], object]
OnDurable: TypeAlias = Callable[[Mapping[str, Position]], object]

_HOLD = Bounds(100_000)
_IN_FLIGHT = 2  # blocks; while they are under way the next one grows
_ASKED = 8  # events, a power of two: one in so many asks a policy that goes by time; when none comes, the pump does
_SAMPLED = 31  # events, a power of two less one: one in so many is measured
_MEASURABLE = 10_000  # records, from which on loading says how quick it is
_REMEMBERED = 0.99  # of what was measured until the last block
_REPLAY_COST = 2.0  # to replay an event takes about so much more than to take it
_LONG_EVENT = 0.1  # seconds, for which who asks for numbers waits for the event under way
_LOOK = 1.0  # seconds until somebody who waits looks again, whatever was missed


class Operator:
    """State in parts by key, positions in inputs, outputs: one event changes all three, or nothing.

    What it has done is in the journal *name* of *store*: a URL, a backend, or a keeper, which several operators may
    share and which is then not closed here. Entering takes the journal, whoever has it, recovers, and opens inputs and
    outputs. Whoever had it stops with `Conflict`, and nothing that it did since counts.

    inputs      by name: the URL of a stream, or a function that opens an `Inlet` after a position. None if the events
                come by `event`
    outputs     by name: the URL of a stream, or an `Outlet`
    readers     by output: the names of those for whom it retains what they have not read
    kind        what the operator promises: "arbitrary" is nothing; "deterministic": the same events in the same order
                have the same effect; "convergent", "repeatable"
    release     when outputs leave: "durable" when the block that has them is acknowledged, "at-once" before that,
                which is precise with one input only, since the order of several is in the block
    want        "precise" refuses a combination that cannot give it; `guarantee` says what one gets
    capture     when a block is appended, and what is in it: `Every(...)`, `Eventual(...)` or a `Capture`
    linger      seconds between two blocks, unless *capture* says when: events that come meanwhile share the next one.
                The latency of outputs is a durable write, and at most this before it
    serializer  for the states of parts: as for a `SafeKeeper`
    hold        how many outputs are kept in memory that no stream is sure to have yet; when they are too many, no event
                is taken. Those that wait for a reader over TCP stay in the journal and leave memory from half of that
    undo        whether an event that raises is put back, which costs a serialization of each part it touches. Without
                it the operator stops and has to be entered anew: it then goes on from its journal
    on_error    with *undo*: gets the event and the error, may emit, and the event counts as taken. Without it the
                error is raised and the event comes again
    on_durable  gets the positions up to which inputs are not needed any more; called in another thread
    about       what others see of this owner, besides its host and process
    standby     "warm": if the journal has an owner, entering waits, follows it, and takes over when that is gone. Both
                have to be started with it
    lease       with *standby*: for how many seconds an owner may be silent
    watch       with *standby*: host and port at which others watch this owner. The default is for standbys on this
                host; port 0 is any that is free
    on_lag      with *standby*: gets a `StandbyLag` while it waits
    """

    def __init__(
        self,
        name: str,
        store: str | Backend | SafeKeeper,
        *,
        inputs: Mapping[str, str | OpenInlet] | None = None,
        outputs: Mapping[str, str | Outlet] | None = None,
        readers: Mapping[str, Sequence[str]] | None = None,
        kind: Kind = "arbitrary",
        release: Release = "durable",
        want: Literal["precise"] | None = None,
        capture: Capture | Trigger | None = None,
        linger: float = 0.005,
        serializer: str | Serializer = "msgpack",
        hold: Bounds = _HOLD,
        undo: bool = False,
        on_error: OnPoison | None = None,
        on_durable: OnDurable | None = None,
        about: Mapping[str, str] | None = None,
        standby: Literal["warm"] | None = None,
        lease: float = 1.5,
        watch: str = "127.0.0.1:0",
        on_lag: OnLag = lambda lag: None,
    ) -> None:
        self.name = name
        self.on_durable = on_durable
        self._store = store
        self._inputs, self._outputs, self._readers = dict(inputs or {}), dict(outputs or {}), dict(readers or {})
        if unknown := set(self._readers) - set(self._outputs):
            raise ValueError(f"readers= names {min(unknown)!r}, which is not an output")
        if on_error is not None and not undo:
            raise ValueError("on_error= needs undo=True: what a failed event has changed must be put back first")
        if standby not in (None, "warm") or lease <= 0:
            raise ValueError(f'standby= takes "warm" or None, lease= more than 0 s; not {standby!r}, {lease}')
        self._standby, self._lease, self._on_lag = standby, lease, on_lag
        self._watch_place = _host_and_port(watch)
        self._follower: Follower | None = None
        self._door: OwnerDoor | None = None
        self._counted = OperatorMetrics()
        self._kind, self._release, self._want = kind, release, want
        self._capture = _capture(capture)
        self._in_flight = 1 if getattr(self._capture, "one_at_a_time", False) else _IN_FLIGHT
        self._rarely = _ASKED - 1 if linger > 0 and getattr(self._capture, "by_time", False) else 0
        self._serializer = serializer_named(serializer) if isinstance(serializer, str) else serializer
        self._linger, self._hold, self._undo = linger, hold, undo
        self._on_error, self._about = on_error, dict(about or {})
        self.guarantee: Recovery | None = None
        """What recovery this operator gets; known when it is entered."""
        self._sources = 0
        self._last_source = ""
        self._core = Core(self._capture, self._serializer, self._outputs, linger=linger, undo=undo, name=name)
        self.part = self._core.part
        """part(key, new=dict): the part of *key*, to be changed in the event under way; opened with *new*() if there is
        none."""
        self.emit = self._core.emit
        """emit(stream, body, key=b""): send *body* to an output, when the event is acknowledged."""
        self.look = self._core.look
        """look(key): the state of a part, not to be changed; None if there is none."""
        self._event = Event(self)
        self._mine = (0, self._event)  # which thread had it
        self._wanted = False  # whether the pump would ask for a block, but for the event under way
        self._begun = False  # whether an event is under way, and the lock held for it
        self._event_thread = 0
        self._lock = Lock()  # held during an event, and while a block is captured
        self._bell = Signal()
        self._ring_loop: Callable[[], object] = lambda: None
        self._failure: BaseException | None = None
        self._state: Literal["new", "open", "closed"] = "new"
        self._stopped = False
        self._stack = ExitStack()
        self._replays: deque[tuple[int, Moment]] = deque()
        self._elements: Iterator[StreamElement] = iter(())
        self._left: dict[str, Iterator[StreamElement]] = {}
        self._source = ""
        self._measured = (0, 0.0, 0)  # thread, its processor time and the events then
        self._sample = 0.0  # the thread's processor time when an event that is measured began
        self._taken = (0.0, 0.0)  # events and their processor time, the last ones counting most

    # Opening and closing

    def __enter__(self) -> Self:
        if self._state != "new":
            raise Closed("an operator is entered once: make another one, it goes on from the journal")
        self._state = "open"
        begun = time.monotonic()
        with ExitStack() as stack:
            loading = self._open(stack)
            self._stack = stack.pop_all()
        self._core.opening = time.monotonic() - begun - loading
        return self

    def _open(self, stack: ExitStack) -> float:
        """Take the journal, recover, and open everything; how many seconds it took to load the journal."""
        keeper = self._store
        if not isinstance(keeper, SafeKeeper):
            keeper = stack.enter_context(SafeKeeper(keeper, serializer=None))
        self._backend = keeper.backend
        self._check_guarantee(self._backend)
        self._journal = Journal(keeper, self.name, on_news=self._wake_pump)
        begun = time.monotonic()
        try:
            image = self._journal.own(**self._about) if self._standby is None else self._wait_for_turn(stack)
        except BaseException:
            self._journal.release()  # others need not wait for one that has ended with an error
            raise
        stack.callback(self._journal.release)
        self._core.restore(image)
        loading = time.monotonic() - begun
        if self._standby is None and (records := image.extent.records) > _MEASURABLE:
            self._core.load_rate = records / loading
        if self._core.replay is not None:
            _log.info("%s replays %d events", self.name, image.at.events - image.replay.events)
        outlets = {name: self._open_outlet(stack, name, outlet) for name, outlet in self._outputs.items()}
        self._check_outlets(outlets)
        self._pump = Pump(self, self._core, self._journal, outlets, self._hold)
        self._open_inputs(stack)
        stack.callback(self._leave_capture)
        if isinstance(self._capture, KnowsOperators):
            self._capture.enter(self._core)
        self._pump.start()
        return loading

    def _wait_for_turn(self, stack: ExitStack) -> Image:
        """Follow the journal until its owner is gone, and take it then."""
        turns = self._capture if isinstance(self._capture, PasteTurns) else None
        follower = Follower(self._backend, self.name, lease=self._lease, on_lag=self._on_lag, turns=turns)
        self._follower = follower
        if self._stopped:
            follower.stop()
        while True:
            turn = follower.wait()
            try:
                image = self._take_over(turn, stack)
            except Conflict:
                continue  # another one was quicker, or came at the same moment: it is followed
            except Unavailable as error:
                follower.put_off(error)
                continue
            self._follower = None
            Thread(target=follower.end, name="safekeeper-standby", daemon=True).start()  # nobody waits for that
            return image

    def _take_over(self, turn: TakeoverTurn, stack: ExitStack) -> Image:
        """Claim the journal, with a door by which this owner is watched."""
        journal, host = self._journal, self._watch_place[0]
        with ExitStack() as opened:
            door = self._open_door(lambda: journal.acknowledged)
            opened.callback(door.close)
            shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
            image = journal.own_after(turn.after, turn.follow, watch=f"{shown}:{door.port}", **self._about)
            if not turn.watched:
                assert self._follower is not None
                self._follower.let_others_claim()
                journal.check()
            door.mark = journal.mark
            self._door = door
            stack.push(opened.pop_all())
        return image

    def _open_door(self, number: Callable[[], int]) -> OwnerDoor:
        host, port = self._watch_place
        try:
            return OwnerDoor((host, port), self._lease / 3, number)
        except OSError as error:
            if not port:
                raise BadState(f"watch= takes an address of this host, not {host}: {error}") from error
            text = "%s: port %d is taken, perhaps by an owner that was stopped: watched at another one: %s"
            log_safely(_log.warning, text, self.name, port, error)
            return OwnerDoor((host, 0), self._lease / 3, number)

    @property
    def lag(self) -> StandbyLag | None:
        """How far this standby is behind; None if it is not one."""
        return None if self._follower is None else self._follower.lag

    def _check_guarantee(self, store: Backend) -> None:
        before = self.guarantee
        self.guarantee, reason = guarantee(
            *(self._kind, self._release),
            fuzzy=self._capture.fuzzy,
            survives=store.survives,
            inputs=max(len(self._inputs), self._sources),
        )
        if self._want == "precise" and self.guarantee != "precise":
            raise ValueError(f"{self.name} cannot recover precisely, but {self.guarantee}: {reason}")
        if self.guarantee != before:
            log_safely(_log.info, "%s recovers: %s (%s)", self.name, self.guarantee, reason)

    def _check_outlets(self, outlets: Mapping[str, Outlet]) -> None:
        """What is confirmed when it is sent must be kept by the stream, else nobody would send it again."""
        for name, outlet in outlets.items():
            if not outlet.retains and not outlet.acknowledged():
                self.guarantee = "gap"
                text = f"output {name} does not keep what it has, and nobody is waited for: name its readers="
                if self._want == "precise":
                    raise ValueError(f"{self.name} cannot recover precisely, but gap: {text}")
                log_safely(_log.info, "%s recovers: gap (%s)", self.name, text)

    def _open_outlet(self, stack: ExitStack, name: str, outlet: str | Outlet) -> Outlet:
        if isinstance(outlet, str):
            floor = self._core.streams[name].acknowledged
            outlet = open_outlet(outlet, readers=self._readers.get(name, ()), floor=floor)
            stack.callback(outlet.close)
        emitted = self._core.streams[name].number
        if outlet.last > emitted and self._release == "durable":
            self._journal.check()  # whoever has taken it since has sent more
            raise BadState(
                f"output {name} has {outlet.last} elements, the journal of {self.name} knows of {emitted}: somebody"
                " else sends to it, or the journal is another one; give the operator a stream of its own"
            )
        return outlet

    def _open_inputs(self, stack: ExitStack) -> None:
        inlets: dict[str, Inlet] = {}
        for name, inlet in self._inputs.items():
            after = self._core.positions.get(name)
            inlets[name] = open_inlet(inlet, reader=self.name, after=after) if isinstance(inlet, str) else inlet(after)
            stack.callback(inlets[name].close)
        self._feed = Feed(inlets, self._ring)
        stack.callback(self._feed.close)
        self._feed.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if self._state != "open":
            return
        self._state = "closed"
        half_done = self._begun
        if half_done:
            self._give_up_event()
        failure = self._failure
        with self._stack:
            try:
                if error is None and failure is None and not half_done:
                    self.flush()
            finally:
                self._pump.stop()
        if error is None and failure is not None:
            raise failure

    def _give_up_event(self) -> None:
        """Nobody will finish the event under way: it will come again."""
        if self._undo:
            self._core.abort()
            self._core.skip()
        self._begun = False
        self._lock.release()

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until everything that was taken is acknowledged, and its outputs were sent.

        Raise `TimeoutError` if *timeout* seconds pass first.
        """
        if self._begun and self._event_thread == get_ident():
            raise RuntimeError("flush inside an event would wait for its end: do it between events")
        end = time.monotonic() + timeout
        while True:
            self._bell.clear()
            self._check_failure()
            with self._lock:
                self._append(now=True)
            if self._pump.idle:
                return
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError(f"{self.name}: not everything was acknowledged and sent after {timeout:g} s")
            self._bell.wait(min(left, _LOOK))

    async def __aenter__(self) -> Self:
        try:
            return await asyncio.to_thread(self.__enter__)
        except asyncio.CancelledError:
            self.stop()  # nobody waits for the turn any more
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ring_loop = lambda: None
        await asyncio.to_thread(self._close, error)

    # Looking

    @property
    def positions(self) -> dict[str, Any]:
        """Where to go on in each input: after these positions, as given. After a recovery, where replay begins."""
        return dict(self._core.positions)

    @property
    def expects(self) -> str | None:
        """The input whose event has to come next, while events are replayed after a recovery; None: any."""
        return None if self._core.replay is None else self._core.replay.expects

    @property
    def events(self) -> int:
        """How many events were taken, since the journal began."""
        return self._core.events

    @property
    def expected_recovery(self) -> float:
        """How many seconds a recovery would take now, by the rates that were measured here; of a standby, a takeover.
        Any thread may ask; during a long event it is that of before the event."""
        return self.metrics().expected_recovery_seconds

    def metrics(self) -> OperatorMetrics:
        """A copy of all numbers. Any thread may ask; during a long event some are those of before the event."""
        follower = self._follower
        if follower is not None:
            return _followed(follower)
        if self._state == "new" or not hasattr(self, "_pump"):
            return OperatorMetrics()
        mine = self._begun and self._event_thread == get_ident()
        if mine or self._lock.acquire(timeout=_LONG_EVENT):
            try:
                self._counted = self._count()
            finally:
                if not mine:
                    self._lock.release()
        now = self._counted.copy()
        now.owns = int(self._state == "open" and self._failure is None)
        now.standbys = 0 if self._door is None else self._door.watching
        now.blocks_in_flight = self._journal.in_flight
        return now

    def _count(self) -> OperatorMetrics:
        core = self._core
        return OperatorMetrics(
            events=core.events,
            outputs=sum(emitted.number + len(emitted.bodies) for emitted in core.streams.values()),
            acknowledged_outputs=core.trimmed,
            blocks=self._journal.next_number - 1,
            capture=core.captures.copy(),
            parts=core.live,
            records=core.records,
            replay_events=core.replayed,
            unsaved_events=core.unsaved,
            held_outputs=core.held,
            held_output_bytes=core.held_bytes,
            expected_recovery_seconds=core.opening + core.records / core.load_rate + core.replayed / core.replay_rate,
        )

    # Events by the author's own loop

    def event(self, source: str, position: Position, key: bytes = b"", body: bytes = b"") -> Event:
        """An event of input *source* at *position*, to be used as a `with` block.

        It waits while too many outputs are held. Raise `ValueError` if the position was taken already, or if, in a
        replay, another input has to come first (`expects`).
        """
        if source != self._last_source:
            self._meet(source)
        thread, event = self._mine
        if self._begun or thread != get_ident():  # another thread may be about to use it
            event = Event(self)
        event.source, event.position, event.key, event.body = source, position, key, body
        return event

    def _meet(self, source: str) -> None:
        """An event of another input than before."""
        if source in self._inputs:
            raise ValueError(f"{source} is among inputs=, its events come by iteration")
        self._last_source = source
        if self._state == "open" and source not in self._core.positions:
            self._sources = len(self._core.positions) + 1
            self._check_guarantee(self._backend)

    def _enter(self, event: Event) -> None:
        if self._begun and self._event_thread == get_ident():
            if event is self._event:
                return  # it was given by iteration
            raise RuntimeError(f"event {self._event!r} is not finished: one at a time")
        while not self._has_room():
            self._wait()
        self._begin(event)

    def _begin(self, event: Event) -> None:
        self._lock.acquire()
        try:
            self._core.begin(event.source, event.position)
        except BaseException:
            self._lock.release()
            raise
        self._event, self._begun, self._event_thread = event, True, get_ident()
        self._sample = 0.0 if self._core.events & _SAMPLED else time.thread_time()
        self._mine = (self._event_thread, event)

    def _leave(self, event: Event, error: BaseException | None) -> bool:
        """The block of *event* has ended; whether its error is dealt with."""
        if not self._begun:
            return False
        if error is None:
            self._finish()
            return False
        if not self._undo:
            self._fail(error)
            self._begun = False
            self._lock.release()
            return False
        self._core.abort()
        if self._on_error is None or not isinstance(error, Exception):
            self._core.skip()
            self._come_again(event)
            self._begun = False
            self._lock.release()
            return False
        try:
            self._on_error(event, error)
        except BaseException as another:
            self._fail(another)
            self._begun = False
            self._lock.release()
            raise
        self._finish()
        return True

    def _come_again(self, event: Event) -> None:
        if event.source in self._inputs:
            element = StreamElement(event.position, event.body, event.key)
            self._elements = chain((element,), self._elements)

    def _finish(self) -> None:
        """The event under way is done."""
        if self._sample:
            self._core.measured(max(time.thread_time() - self._sample, 0.0))
            self._sample = 0.0
        try:
            self._core.commit()
            if self._release == "at-once":
                self._pump.send_at_once(self._core.fresh())
            if self._wanted or not (self._core.unsaved - 1) & self._rarely:
                self._wanted = False
                self._append()
                if self._core.unsaved == 1:
                    self._pump.wake()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._begun = False
            self._lock.release()

    # Events by iteration

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while True:
            self._bell.clear()
            if (event := self._advance()) is not None:
                return event
            if self._stopped:
                raise StopIteration
            self._bell.wait(_LOOK)

    def __aiter__(self) -> Self:
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(bell.set)

        self._ring_loop, self._loop_bell = ring, bell
        return self

    async def __anext__(self) -> Event:
        while True:
            self._loop_bell.clear()
            if (event := self._advance()) is not None:
                return event
            if self._stopped:
                raise StopAsyncIteration
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):  # wait_for may swallow a cancellation when the bell rings with it
                    await self._loop_bell.wait()

    def stop(self) -> None:
        """Let the iteration end after the present event. Any thread may call it."""
        self._stopped = True
        if self._follower is not None:
            self._follower.stop()
        self._ring()

    def stop_waiting(self) -> None:
        """Let entering end with `Closed` if it waits for its turn as a standby; what owns its journal goes on. Any
        thread may call it."""
        if (follower := self._follower) is not None:
            follower.stop()

    def _advance(self) -> Event | None:
        """Finish the event before, and begin with the next one; None if there is none yet."""
        if self._begun:
            self._finish()
        if self._stopped or not self._has_room():
            return None
        replay = self._core.replay
        if replay is not None and replay.expects != self._source:
            self._go_over(replay.expects)
        element = next(self._elements, None)
        if element is None and (element := self._more()) is None:
            return None
        event = self._event
        event.source, event.position, event.key, event.body = self._source, element.number, element.key, element.body
        self._begin(event)
        return event

    def _go_over(self, source: str) -> None:
        """Take elements of another input, and keep what is left of this one."""
        self._left[self._source] = self._elements
        self._source, self._elements = source, self._left.pop(source, iter(()))

    def _more(self) -> StreamElement | None:
        """The first element of another batch."""
        replay = self._core.replay
        while replay is None and self._left:  # what was left over when inputs were taken in the recorded order
            self._source, self._elements = self._left.popitem()
            if (element := next(self._elements, None)) is not None:
                return element
        if replay is not None and replay.expects not in self._inputs:
            raise BadState(f"the journal goes on with an event of {replay.expects!r}: give it among inputs=")
        found = self._feed.take(None if replay is None else replay.expects)
        if found is None:
            if self._feed.failure is not None:
                self.fail(self._feed.failure)
                self._check_failure()
            return None
        self._source, batch = found
        self._elements = iter(batch)
        return next(self._elements, None)

    # Blocks and outputs

    def _has_room(self) -> bool:
        if self._failure is not None or self._state != "open":
            self._check_failure()
        return self._pump.has_room(self._hold)

    def _append(self, *, now: bool = False) -> None:
        """Append a block, if one is due and not too many are under way. With the lock held, between events."""
        journal = self._journal
        if journal.in_flight >= self._in_flight:
            return
        block = self._core.capture(journal.next_number, now=now)
        if block is None:
            return
        self._measure()
        self._replays.append((journal.next_number, block.replay))
        journal.append(block)

    def append_if_idle(self) -> None:
        """Append a block, if one is due and no event is under way; for the pump."""
        if not self._lock.acquire(blocking=False):
            self._wanted = True  # when the event under way is done
            return
        try:
            if self._failure is None and self._state == "open":  # else an event may have been left half-done
                self._append()
        finally:
            self._lock.release()

    def acknowledged(self, number: int) -> None:
        """Blocks up to *number* are acknowledged, and their outputs were sent; for the pump."""
        replay = None
        while self._replays and self._replays[0][0] <= number:
            replay = self._replays.popleft()[1]
        if replay is None:
            return
        for name, inlet in self._feed.inlets.items():
            if (position := replay.positions.get(name)) is not None:
                with suppress(Unavailable):  # the next acknowledgement says it again
                    inlet.acknowledge(position)
        if self.on_durable is not None:
            self.on_durable(replay.positions)

    def _measure(self) -> None:
        """Learn how quickly this thread takes events."""
        thread, spent, events = get_ident(), time.thread_time(), self._core.events
        last_thread, last_spent, last_events = self._measured
        self._measured = (thread, spent, events)
        if thread == last_thread:
            self._taken = (
                _REMEMBERED * self._taken[0] + events - last_events,
                _REMEMBERED * self._taken[1] + spent - last_spent,
            )
            if self._taken[1] > 0 and self._taken[0] >= 1:
                self._core.replay_rate = self._taken[0] / self._taken[1] / _REPLAY_COST

    # Failures and waiting

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._leave_capture()
        self._ring()

    def _leave_capture(self) -> None:
        if isinstance(self._capture, KnowsOperators):
            self._capture.leave(self._core)

    def fail(self, error: BaseException) -> None:
        """Stop because of *error*, which came from a stream or the journal: nothing more is taken or acknowledged.

        If another has taken the journal, that is why: a stream goes on without us."""
        with suppress(Unavailable, Closed):
            try:
                self._journal.check()
            except Conflict as conflict:
                error = conflict
        self._fail(error)

    def _check_failure(self) -> None:
        if self._state == "new":
            raise Closed(f"{self.name} is not open: enter it with `with` or `async with`")
        if isinstance(self._failure, SafekeeperError):
            raise self._failure.with_traceback(None)
        if self._failure is not None:
            raise Closed(f"{self.name} has stopped, since an event raised {self._failure!r:.200}: open it again")

    def _wake_pump(self) -> None:
        self._pump.wake()

    def _wait(self) -> None:
        self._bell.wait(_LOOK)
        self._bell.clear()

    def _ring(self) -> None:
        self._bell.set()
        self._ring_loop()

    def ring(self) -> None:
        """Let whoever waits look again; for the pump."""
        self._ring()


def _followed(follower: Follower) -> OperatorMetrics:
    """What a standby knows of its operator."""
    follow, lag = follower.follow, follower.lag
    image, last = follow.image, follow.image.last
    return OperatorMetrics(
        events=image.at.events,
        outputs=0 if last is None else sum(last.numbers.values()),
        acknowledged_outputs=0 if last is None else sum(last.floor.values()),
        blocks=image.number,
        parts=len(image.parts),
        records=image.extent.records,
        replay_events=0 if last is None else last.at.events - last.replay.events,
        expected_recovery_seconds=follower.expected_recovery(),
        stands_by=1,
        standby_lag_blocks=lag.blocks,
        standby_lag_seconds=lag.seconds,
        standby_waiting_blocks=lag.waiting,
        standby_loads=follow.loads,
    )


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"watch= takes host:port, such as 0.0.0.0:7000, not {text!r}")
    return host.strip("[]"), int(port)


def _capture(capture: Capture | Trigger | None) -> Capture:
    if capture is None:
        return Lingering()
    return cast("Capture", capture) if hasattr(capture, "fuzzy") else Changed(capture)
