"""An operator without I/O: events in, blocks and outputs out. Whoever drives it appends and sends them.

    core.begin("words", 17)                     an event, from one input at one position
    part = core.part(b"to", dict)               state by key, changed in place
    core.emit("counts", b"1")
    core.commit()                               all of it happened, or `abort`: nothing of it

    block = core.capture(number)                what is to be appended, if the policy says so
    core.release(number)                        the outputs of acknowledged blocks

It is used by one thread at a time. Only `release` and `confirm` may be called from another one meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from math import inf
from typing import Any, NamedTuple

from safekeeper.errors import BadState
from safekeeper.journal.block import CHECK, CLOSE, DELTA, MOVED, OPEN, Block, Moment, Outputs
from safekeeper.journal.extent import JournalExtent
from safekeeper.journal.image import Image
from safekeeper.keeper.metrics import Histogram
from safekeeper.keeper.serializers import Serializer
from safekeeper.operators.changes import PieceWriter, has_changes, is_pieces
from safekeeper.operators.outputs import Emitted
from safekeeper.operators.part import Part
from safekeeper.operators.replay import EventReplay
from safekeeper.policy.capture import Capture, Choice, What
from safekeeper.streams.carrier import Position

_CLEAN_AT = 2.0  # records for each part that is alive: above that, old parts are brought forward
_LEAST_RECORDS = 1_000  # below that, not
_LOAD_RATE, _REPLAY_RATE = 500_000.0, 50_000.0  # a second, until something was measured


class _Before(NamedTuple):
    """What a key had before an event."""

    part: Part | None
    value: Any
    """The bytes of its state; a copy, if that knows its changes."""
    since: int
    closed: bool
    """Whether the next block is to say that a part of it was closed."""


class Core:
    """State in parts, positions, outputs. *streams* are the outputs that there are."""

    def __init__(
        self,
        capture: Capture,
        serializer: Serializer,
        streams: Iterable[str] = (),
        *,
        linger: float = 0.005,
        undo: bool = False,
        clock: Callable[[], float] = time.monotonic,
        name: str = "",
    ) -> None:
        self.name = name
        self.streams = {stream: Emitted() for stream in streams}
        self.linger = linger
        self.events = 0
        """How many events were taken."""
        self.positions: dict[str, Position] = {}
        """The position of the last event of each input."""
        self.unsaved = 0
        self.load_rate, self.replay_rate = _LOAD_RATE, _REPLAY_RATE
        self.opening = 0.0
        """How many seconds it took to open everything, besides loading."""
        self.event_seconds = self.capture_seconds = 0.0
        self.captures = Histogram()
        """How much processor time each capture took."""
        self.replay: EventReplay | None = None
        """While events are replayed after a recovery."""
        self._capture, self._fuzzy = capture, capture.fuzzy
        self._dumps, self._loads, self._serializer = serializer.dumps, serializer.loads, serializer.name
        self._clock = clock
        self._extent = JournalExtent()
        self._parts: dict[bytes, Part] = {}
        self._cold: dict[bytes, bytes] = {}  # recovered and not touched yet
        self._closed: dict[bytes, None] = {}  # since the last block
        self._opened: list[Part] = []  # since the last block
        self._dirty: deque[tuple[int, Part]] = deque()  # by their first event that is not in a record
        self._order: list[list[Any]] = []  # [input, count] since the last block
        self._run: list[Any] = ["", 0]  # the last of them
        self._moments: deque[Moment] = deque([Moment()])  # blocks at which replay could begin
        self._first_unsaved = 0.0
        self._last_block = -inf
        self._event = 0  # the number of the event under way; 0 between events
        self._source = ""
        self._position: Position = 0
        self._one: Part | None = None  # the part that the event has touched, where it may touch only one
        self._undo: dict[bytes, _Before] | None = {} if undo else None

    # An event

    def begin(self, source: str, position: Position) -> None:
        """An event of input *source* at *position*, which comes after the last one."""
        if self._event:
            raise RuntimeError(f"event {self._where()} is not finished: one at a time")
        last = self.positions.get(source)
        if last is not None and position <= last:  # type: ignore[operator]
            raise ValueError(f"{source} is at {last}, {position} was taken already: go on after `positions`")
        if self.replay is not None:
            self.replay.begin(source, position)
        self._event, self._source, self._position = self.events + 1, source, position

    def part(self, key: bytes, new: Callable[[], Any] = dict) -> Part:
        """The part of *key*, to be changed; if there is none, it is opened with *new*()."""
        if not self._event:
            raise RuntimeError("parts are changed inside an event: `with operator.event(...)`")
        if self.replay is not None:
            return self._replayed_part(key, new)
        part = self._parts.get(key)
        if part is None:
            part = self._bring(key, new)
        if self._fuzzy and self._one is not part:
            self._check_one(part)
        if part.since and self._undo is None:
            return part
        return self._touch(part)

    def _touch(self, part: Part) -> Part:
        """Let *part* have changed in this event."""
        if self._undo is not None and part.key not in self._undo:
            value = self._dump(part) if part.writer is None else deepcopy(part.state)
            self._undo[part.key] = _Before(part, value, part.since, part.key in self._closed)
        if not part.since:
            part.since = self._event
            self._dirty.append((part.since, part))
        return part

    def look(self, key: bytes, new: Callable[[], Any] = dict) -> Any:
        """The state of *key*, not to be changed; None if there is none. *new* is as for `part`. It is for events of its
        own part, and for those who ask from outside: what one event sees of another part is not the same in a
        replay."""
        part = self._parts.get(key)
        if part is None:
            return self._load(key, self._cold[key], new)[0] if key in self._cold else None
        return part.state

    def emit(self, stream: str, body: bytes, key: bytes = b"") -> None:
        """Send *body* to *stream*, when the event is acknowledged."""
        if not self._event or type(body) is not bytes or type(key) is not bytes:
            raise self._cannot_emit(body, key)
        emitted = self.streams.get(stream)
        if emitted is None:
            raise ValueError(f"no output {stream!r}; there are: {', '.join(self.streams) or 'none'}")
        if self.replay is not None:
            self.replay.emit(stream, key, body)
            return
        emitted.events.append(self._event)
        emitted.keys.append(key)
        emitted.bodies.append(body)
        emitted.nbytes += len(body) + len(key)

    def close_part(self, part: Part) -> None:
        """Remove *part*, inside an event."""
        if not self._event:
            raise RuntimeError("parts are closed inside an event: `with operator.event(...)`")
        if self.replay is not None:
            self.replay.close(part.key)
            return
        if self._parts.get(part.key) is not part:
            return  # closed before, by this event
        del self._parts[part.key]
        self._closed[part.key] = None
        part.since = 0

    def measured(self, seconds: float) -> None:
        """So long took an event."""
        self.event_seconds = _smooth(self.event_seconds, seconds)

    def commit(self) -> None:
        """The event is done."""
        source = self._source
        if self.replay is not None:
            self._end_of_replayed()
        else:
            run = self._run
            if run[0] == source:
                run[1] += 1
            else:
                self._run = run = [source, 1]
                self._order.append(run)
            if not self.unsaved:
                self._first_unsaved = self._clock()
            self.unsaved += 1
        self.positions[source] = self._position
        self.events = self._event
        self._event = 0
        self._one = None
        if self._undo:
            self._undo.clear()

    def abort(self) -> None:
        """Put back what the event has done. Only with *undo*."""
        assert self._undo is not None
        for key, before in self._undo.items():
            self._put_back(key, before)
        self._undo.clear()
        while self._dirty and self._dirty[-1][0] == self._event:  # the next event may get this number
            self._dirty.pop()
        for emitted in self.streams.values():
            emitted.undo(self._event)
        if self.replay is not None:
            self.replay.drop()
        self._one = None

    def skip(self) -> None:
        """End the event as one that has done nothing, and is to come again."""
        self._event = 0
        if self.replay is not None:
            self.replay.again()

    def _put_back(self, key: bytes, before: _Before) -> None:
        self._drop(key)  # it may be another one than before
        if before.part is not None:
            plain = before.part.writer is None
            before.part.state, before.part.since = self._loads(before.value) if plain else before.value, before.since
            self._parts[key] = before.part
        if before.closed:
            self._closed[key] = None
        else:
            self._closed.pop(key, None)

    def _drop(self, key: bytes) -> None:
        part = self._parts.pop(key, None)
        if part is not None:
            part.since = 0

    def _bring(self, key: bytes, new: Callable[[], Any]) -> Part:
        """The part of *key*, which is not in use: from its bytes, or a new one."""
        if type(key) is not bytes:
            raise TypeError(f"the key of a part is bytes, not {type(key).__name__}: encode it first")
        value = self._cold.pop(key, None)
        if value is not None:
            part = self._parts[key] = Part(self, key, *self._load(key, value, new), opened=False)
            return part
        if self._undo is not None:
            self._undo.setdefault(key, _Before(None, b"", 0, key in self._closed))
        state = new()
        writer = PieceWriter() if has_changes(state) else None
        part = self._parts[key] = Part(self, key, state, writer, opened=True)
        self._opened.append(part)
        return part

    def _check_one(self, part: Part) -> None:
        if self._one is None or self._one.key == part.key:
            self._one = part
            return
        if part.opened and not part.since:
            self._drop(part.key)
        raise RuntimeError(
            f"event {self._where()} touches {self._one.key!r:.40} and {part.key!r:.40}: with this capture= an event may"
            " touch one part; take capture=Every(...)"
        )

    def _dump(self, part: Part, *, whole: bool = True) -> bytes:
        try:
            if part.writer is not None:
                return part.writer.dump(part.state, self._dumps, whole=whole)
            return self._dumps(part.state)
        except Exception as error:
            raise BadState(f"part {part.key!r:.80}: {error}") from error

    def _load(self, key: bytes, value: bytes, new: Callable[[], Any]) -> tuple[Any, PieceWriter | None]:
        try:
            state = new()
            if not has_changes(state):
                if is_pieces(value):
                    raise TypeError("it was a state that knows its changes: give the new= that made it")
                return self._loads(value), None
            writer = PieceWriter()
            writer.load(state, self._loads, value)
            return state, writer
        except Exception as error:
            raise BadState(f"part {key!r:.80}: {self._serializer} cannot read its bytes: {error}") from error

    def _where(self) -> str:
        return f"{self._position} of {self._source}"

    def _cannot_emit(self, body: object, key: object) -> Exception:
        if not self._event:
            return RuntimeError("outputs are emitted inside an event: `with operator.event(...)`")
        what, wrong = ("body", body) if type(body) is not bytes else ("key", key)
        return TypeError(f"the {what} of an output is bytes, not {type(wrong).__name__}: encode it first")

    # Blocks

    @property
    def live(self) -> int:
        """How many parts there are."""
        return len(self._parts) + len(self._cold)

    @property
    def waited(self) -> float:
        """How many seconds ago the first event that is in no block was taken."""
        return self._clock() - self._first_unsaved if self.unsaved else 0.0

    @property
    def since_block(self) -> float:
        """How many seconds ago the last block was captured."""
        return self._clock() - self._last_block

    @property
    def trimmed(self) -> int:
        """How many outputs all readers have acknowledged, since the operator began."""
        return sum(emitted.acknowledged for emitted in self.streams.values())

    @property
    def records(self) -> int:
        """How many records recovery has to load."""
        return self._extent.records

    @property
    def replayed(self) -> int:
        """How many events recovery has to replay."""
        return self.events - self._replay_from().events

    @property
    def extent(self) -> JournalExtent:
        """Which blocks are needed."""
        return self._extent

    def oldest_record(self) -> bytes | None:
        """The part whose newest record is the oldest, and not in the newest block."""
        return self._extent.oldest_part(self._extent.newest)

    def oldest_change(self) -> bytes | None:
        """The part with the oldest event that is not in a record."""
        self._forget_recorded()
        return self._dirty[0][1].key if self._dirty else None

    def capture(self, number: int, *, now: bool = False) -> Block | None:
        """Block *number*, if it is due or is to be *now*; None if there is nothing to be captured."""
        if not self.unsaved or self.replay is not None:
            return None
        what = Choice.CHANGED if now else self._capture.due(self)
        if what is None:
            return None
        begun = time.thread_time()
        block = self._capture_block(number, what)
        spent = time.thread_time() - begun
        self.capture_seconds = _smooth(self.capture_seconds, spent)
        self.captures.record(spent)
        return block

    def _capture_block(self, number: int, what: What) -> Block:
        out = {
            stream: outputs
            for stream, some in self.streams.items()
            if (outputs := some.take(number, all=self._fuzzy)) is not None
        }
        keys, kinds, values = self._first_records(what)
        closed = [key for key in self._closed if key not in self._parts]
        keys += closed
        kinds += CLOSE * len(closed)
        values += [b""] * len(closed)
        last = {stream: outputs.last for stream, outputs in out.items()}
        deltas = {key: at for at, key in enumerate(keys) if kinds[at] == DELTA[0]} if DELTA in kinds else {}
        self._extent.add(number, self.events, keys, closed, last, deltas)
        for key, kind, value in self._further_records(what, len(keys)):
            if (at := deltas.pop(key, None)) is not None:  # then there is one record of it, and that is whole
                self._extent.whole(key)
                kinds[at], values[at] = CHECK[0], value
                continue
            self._extent.also(key)
            kinds += kind
            values.append(value)
        self._closed.clear()
        self._opened.clear()
        order = [(source, count) for source, count in self._order]
        self._order, self._run = [], ["", 0]
        self.unsaved = 0
        self._last_block = self._clock()
        moment = Moment(self.events, self.positions.copy())
        self._moments.append(moment)
        replay = self._replay_from()
        confirmed = {stream: some.confirmed for stream, some in self.streams.items()}
        return Block(
            moment,
            replay,
            order,
            keys,
            bytes(kinds),
            values,
            out,
            {stream: some.number for stream, some in self.streams.items()},
            confirmed,
            {stream: some.acknowledged for stream, some in self.streams.items()},
            self._extent.trim(replay.events, confirmed),
            self.live,
            self._serializer,
            (self.load_rate, self.replay_rate),
        )

    def _first_records(self, what: object) -> tuple[list[bytes], bytearray, list[bytes]]:
        """What goes into a block at once: the parts that were opened, and those that have changed where all of these
        do."""
        if what is Choice.ALL or what is Choice.CHANGED:
            parts = [part for since, part in self._dirty if part.since == since]
            self._dirty.clear()
        else:
            parts = [part for part in self._opened if part.since and part.opened]
        keys = [part.key for part in parts]
        values = self._dump_all(parts, whole=what is Choice.ALL)
        kinds = bytearray(CHECK * len(parts))
        for at, part in enumerate(parts):
            if part.opened:
                kinds[at] = OPEN[0]
                part.opened = False
            elif part.writer is not None and part.writer.delta:
                kinds[at] = DELTA[0]
            part.since = 0
        return keys, kinds, values

    def _dump_all(self, parts: list[Part], *, whole: bool) -> list[bytes]:
        dumps, dump = self._dumps, self._dump
        try:
            return [dumps(part.state) if part.writer is None else dump(part, whole=whole) for part in parts]
        except BadState:
            raise
        except Exception:
            for part in parts:
                if part.writer is None:
                    dump(part)  # which names the part
            raise

    def _further_records(self, what: object, count: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Other parts that go into the block; each is recorded before the next is looked for."""
        number = self._extent.newest
        if what is Choice.ALL:
            for key in [key for key in (*self._parts, *self._cold) if self._extent.recorded.get(key) != number]:
                yield self._record(key)
        elif what is Choice.CHANGED:
            if self._extent.waits_for_readers({stream: some.confirmed for stream, some in self.streams.items()}):
                return
            for _ in range(count + 1):  # one old one for each new one is enough to keep the extent bounded
                if self._extent.records <= max(_CLEAN_AT * self.live, _LEAST_RECORDS):
                    break
                if (oldest := self.oldest_record()) is None:
                    break
                yield self._record(oldest)
        else:
            for key in what:  # type: ignore[attr-defined]
                yield self._record(key)

    def _record(self, key: bytes) -> tuple[bytes, bytes, bytes]:
        part = self._parts.get(key)
        if part is None:
            return key, MOVED, self._cold[key]
        changed, part.since = part.since, 0
        return key, CHECK if changed else MOVED, self._dump(part)

    def _forget_recorded(self) -> None:
        """Let the oldest change be the first of `_dirty`."""
        dirty = self._dirty
        while dirty and dirty[0][1].since != dirty[0][0]:
            dirty.popleft()

    def _replay_from(self) -> Moment:
        """The last block after which are all events that are not in records of their parts."""
        self._forget_recorded()
        first = self._dirty[0][0] if self._dirty else self.events + 1
        moments = self._moments
        while len(moments) > 1 and moments[1].events < first:
            moments.popleft()
        return moments[0]

    # Outputs

    def release(self, block: int) -> Iterator[tuple[str, Outputs]]:
        """The outputs of the blocks up to *block* that were not released yet."""
        for stream, emitted in self.streams.items():
            for outputs in emitted.release(block):
                yield stream, outputs

    def fresh(self) -> Iterator[tuple[str, Outputs]]:
        """The outputs since the last call, whether or not a block has them."""
        for stream, emitted in self.streams.items():
            if (outputs := emitted.fresh()) is not None:
                yield stream, outputs

    def confirm(self, stream: str, upto: int) -> None:
        """Outputs up to number *upto* need not be kept."""
        self.streams[stream].confirm(upto)

    @property
    def held(self) -> int:
        """How many outputs are kept."""
        return sum(emitted.held for emitted in self.streams.values())

    @property
    def held_bytes(self) -> int:
        """How many bytes they have."""
        return sum(emitted.held_bytes for emitted in self.streams.values())

    # Recovery

    def restore(self, image: Image) -> None:
        """Go on from what a journal says."""
        if image.last is None:
            return
        if image.last.serializer != self._serializer:
            raise BadState(
                f"the parts were written by the serializer {image.last.serializer!r}, this operator has"
                f" {self._serializer!r}: open it with serializer={image.last.serializer!r}"
            )
        if lost := sorted(set(image.last.numbers) - set(self.streams)):
            raise BadState(f"the journal has outputs to {lost[0]!r}: give it among outputs=")
        self._cold, self._extent = image.parts, image.extent
        self._moments = deque(image.moments())
        self.events, self.positions = image.replay.events, dict(image.replay.positions)
        for stream in image.last.numbers:
            emitted = self.streams[stream]
            emitted.confirmed = emitted.released = image.last.confirmed.get(stream, 0)
            emitted.acknowledged = image.last.floor.get(stream, 0)
        for stream, spilled in image.spilled():
            emitted = self.streams[stream]
            if spilled.last > emitted.confirmed:
                emitted.spilled.add(spilled)
                emitted.nbytes += spilled.nbytes
                emitted.released = max(emitted.released, spilled.last)
        for number, stream, outputs in image.outputs():
            emitted = self.streams[stream]
            if outputs.last > emitted.confirmed:
                emitted.nbytes += emitted.hold(number, outputs)
        for stream, number in image.last.numbers.items():
            self.streams[stream].number = number
        if image.replay.events < image.at.events:
            self.replay = EventReplay(image)

    def _replayed_part(self, key: bytes, new: Callable[[], Any]) -> Part:
        assert self.replay is not None
        if self.replay.covers(key, self._event):
            state = self._load(key, self._cold[key], new)[0] if key in self._cold else new()
            return Part(self, key, state, None, opened=False)  # thrown away: the record has this event already
        return self._touch(self._parts.get(key) or self._bring(key, new))

    def _end_of_replayed(self) -> None:
        assert self.replay is not None
        if self.replay.commit(self._event):
            self.replay = None


def _smooth(before: float, now: float) -> float:
    return 0.75 * before + 0.25 * now if before else now
