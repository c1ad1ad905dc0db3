"""`store:` carries a stream in any backend: elements in frames, each under an id that is written once.

    store:log:///var/lib/app?stream=words            any store's URL, with these options besides its own:

    stream=NAME            which stream
    poll=0.1               how many seconds a reader sleeps at most before it looks again
    max-elements=N         how many elements may wait for the slowest reader; any number without it
    when-full=stop         or drop-reader, which forgets the reader that is too far behind

A send is one durable write for each MiB. A reader lists the stream's frames when it has read what it knew of, so this
is for hand-overs of many elements at a time, for processes of one host (`log:`), and where a store is all there is. The
last frame is never trimmed, so that a stream goes on with its numbers for ever. The bytes are in `frames`. A stream may
also come in batches that many tasks have written (`batches`); to a reader their pieces are frames like others.

A listing may miss frames that were written while it was made. But whoever sees frame 10 in one listing sees frame 9,
which was there before, in the next. If it is not in that one either, it was trimmed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from safekeeper import registry
from safekeeper.backend import MAX_VALUE_BYTES, Backend, Batch, CheckpointId, Survives, check_group
from safekeeper.errors import BadId, BadUrl, Closed, Corruption, Gone, TooLarge
from safekeeper.streams.batches import decode_piece
from safekeeper.streams.carrier import Position, StreamElement, StreamStatus
from safekeeper.streams.frames import (
    DECLARED,
    GROUP,
    READERS,
    Frame,
    decode_table,
    encode,
    parse_key,
    reader_key,
    split,
)
from safekeeper.streams.retained import Retention, WhenFull, check_declared, check_numbers, number_of
from safekeeper.streams.rolls import RollBook
from safekeeper.streams.tables import ElementTable
from safekeeper.url import Url, show_url

_FIRST_PAUSE = 0.001
_FRAMES_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class StoreStreamOptions:
    """What may stand after the `?` besides the options of the store."""

    stream: str = ""
    poll: float = 0.1
    max_elements: int | None = None
    when_full: WhenFull = "stop"

    def __post_init__(self) -> None:
        if not self.poll > 0:
            raise ValueError("poll= takes more than 0 seconds")
        self.retention  # noqa: B018 - it checks the two others

    @property
    def retention(self) -> Retention:
        """How far readers may be behind."""
        return Retention(self.max_elements, self.when_full)


_OURS = {"stream", "poll", "max-elements", "when-full"}


def open_outlet(url: str, readers: Sequence[str], floor: int = 0) -> StoreOutlet:
    """See `Carrier`."""
    store, options = open_store(url)
    try:
        return StoreOutlet(StoredStream(store, options.stream), readers, floor, options.retention)
    except BaseException:
        store.close()
        raise


def open_inlet(url: str, reader: str | None, after: Position | None) -> StoreInlet:
    """See `Carrier`."""
    if isinstance(after, tuple):
        raise ValueError(f"a position in {show_url(url)} is a number, not {after}")
    store, options = open_store(url)
    try:
        return StoreInlet(StoredStream(store, options.stream), reader, after, options.poll)
    except BaseException:
        store.close()
        raise


def survey(url: str) -> Iterator[StreamStatus]:
    """See `SupportsSurvey`."""
    store, options = open_store(url, named=False)
    with store:
        names = [options.stream] if options.stream else sorted(_names(store))
        for name in names:
            yield StoredStream(store, name).status()


def trim(url: str, upto: Position) -> None:
    """See `SupportsSurvey`."""
    store, options = open_store(url)
    with store:
        stream = StoredStream(store, options.stream)
        assert isinstance(upto, int)
        stream.forget([frame for frame in stream.frames()[:-1] if frame.last <= upto])


def _names(store: Backend) -> set[str]:
    return {group.removesuffix(GROUP) for group in store.groups() if group.endswith(GROUP)}


def open_store(url: str, named: bool = True) -> tuple[Backend, StoreStreamOptions]:
    """The store that *url* names, and our own options."""
    inner, options = _split_url(url)
    if named and not options.stream:
        raise BadUrl(f"{show_url(url)} names no stream: add stream=NAME")
    if options.stream:
        try:
            check_group(options.stream + READERS)
        except BadId as error:
            raise BadUrl(f"{show_url(url)}: {error}") from error
    return registry.open(inner), options


def _split_url(url: str) -> tuple[str, StoreStreamOptions]:
    """The URL of the store, and our own options."""
    inner, mark, query = url.partition(":")[2].partition("?")
    pieces = query.split("&") if mark else []
    ours = [piece for piece in pieces if piece.partition("=")[0] in _OURS]
    rest = "&".join(piece for piece in pieces if piece not in ours)
    options = Url("store", show_url(inner), query=dict(parse_qsl("&".join(ours), keep_blank_values=True)))
    return f"{inner}{'?' if rest else ''}{rest}", options.options(StoreStreamOptions)


class StoredStream:
    """A stream in a store: its frames, and what is known about its readers."""

    def __init__(self, store: Backend, name: str) -> None:
        self.store = store
        self.name = name
        self.group, self._readers = name + GROUP, name + READERS
        self.book = RollBook(store, name)

    def frames(self) -> list[Frame]:
        """The frames that are there, in order; of two that begin with the same element the longer one last.

        Where one seems to be missing it is listed again, up to the last frame that was seen: what is missing in that is
        gone.
        """
        frames = self._list()
        if (run := oldest_run(frames)) is None or run.first == frames[0].first:
            return frames
        return [frame for frame in self._list() if frame.last <= run.last]

    def _list(self) -> list[Frame]:
        keys = set(self.store.keys(self.group))
        return sorted([*filter(None, map(parse_key, keys)), *self.book.look(keys)])

    def write(self, frame: Frame, value: bytes) -> None:
        """Store one frame."""
        self.store.write(Batch({CheckpointId(self.group, frame.key): value}))

    def read(self, frames: Sequence[Frame]) -> list[ElementTable | None]:
        """The elements of *frames*; None where one is not there any more."""
        pieces = [self.book.piece(frame) for frame in frames]
        values = self.store.read([self._id(frame, piece) for frame, piece in zip(frames, pieces, strict=True)])
        return [
            None if value is None else self._decode(frame, piece, value)
            for frame, piece, value in zip(frames, pieces, values, strict=True)
        ]

    def _id(self, frame: Frame, piece: bytes | None) -> CheckpointId:
        return CheckpointId(self.group, frame.key) if piece is None else CheckpointId(self.book.pieces_group, piece)

    def _decode(self, frame: Frame, piece: bytes | None, value: bytes) -> ElementTable:
        if piece is None:
            return decode_table(self.group, frame, value)
        found = decode_piece(self.book.pieces_group, piece, value, frame.first)
        if found.last != frame.last:
            count = len(found.bodies)
            raise Corruption(f"{self.book.pieces_group}/{piece.decode()} is damaged: it has {count} elements")
        return found

    def forget(self, frames: Sequence[Frame]) -> None:
        """Delete *frames*."""
        self.book.forget(frames)
        batch = Batch()
        for frame in frames:
            if self.book.piece(frame) is None:
                batch.delete(CheckpointId(self.group, frame.key))
        if len(batch):
            self.store.write(batch)

    def declared(self) -> list[str] | None:
        """The readers that the producer has declared; None if it was never here."""
        (value,) = self.store.read([CheckpointId(self._readers, DECLARED)])
        return None if value is None else json.loads(value)

    def declare(self, readers: Sequence[str]) -> None:
        """Set who reads the stream."""
        if self.declared() != list(readers):
            self.store.write(Batch({CheckpointId(self._readers, DECLARED): json.dumps(list(readers)).encode()}))

    def acknowledged(self, readers: Sequence[str]) -> dict[str, int]:
        """How far each of *readers* is; without those that have never acknowledged anything."""
        values = self.store.read([CheckpointId(self._readers, reader_key(reader)) for reader in readers])
        return {reader: json.loads(value) for reader, value in zip(readers, values, strict=True) if value is not None}

    def acknowledge(self, reader: str, upto: int) -> None:
        """Store how far *reader* is."""
        self.store.write(Batch({CheckpointId(self._readers, reader_key(reader)): b"%d" % upto}))

    def status(self) -> StreamStatus:
        """What `safekeeper stream ls` shows."""
        frames = self.frames()
        readers = [key[len(reader_key("")) :].decode() for key in self.store.keys(self._readers) if key != DECLARED]
        acknowledged = dict.fromkeys(self.declared() or (), 0) | self.acknowledged(readers)
        first = oldest_run(frames)
        last = max((frame.last for frame in frames), default=None)
        return StreamStatus(self.name, first and first.first, last, acknowledged)


def oldest_run(frames: Sequence[Frame]) -> Frame | None:
    """The elements that are there without a gap, up to the last one. What lies before a gap has been trimmed, and came
    late from a producer that was killed."""
    run: Frame | None = None
    for first, last in frames:
        run = Frame(first, last) if run is None or first > run.last + 1 else Frame(run.first, max(last, run.last))
    return run


def covering(frames: Sequence[Frame], number: int) -> Frame | None:
    """The frame that has the element *number* and the most after it; None if there is none."""
    return max((frame for frame in frames if frame.first <= number <= frame.last), key=lambda f: f.last, default=None)


class StoreOutlet:
    """The producing side. One thread sends at a time."""

    def __init__(self, stream: StoredStream, readers: Sequence[str], floor: int, retention: Retention) -> None:
        self._stream = stream
        self._readers = list(readers)
        self._retention = retention
        self._lock = threading.Lock()
        self._frames = stream.frames()
        self._last = max([frame.last for frame in self._frames], default=0)
        self._floor = floor
        self._acknowledged = dict.fromkeys(readers, 0) | stream.acknowledged(readers)
        stream.declare(readers)

    @property
    def retains(self) -> bool:
        """Whether the store's writes survive a killed process."""
        return Survives.PROCESS in self._stream.store.survives

    @property
    def last(self) -> int:
        return self._last

    def send(self, elements: Sequence[StreamElement]) -> None:
        check_numbers(elements)
        with self._lock:
            self._stream.store.check_open()
            new = [element for element in elements if number_of(element) > self._last]
            if not new:
                return
            self._check_gap(number_of(new[0]))
            self._make_room(number_of(new[-1]))
            for portion in split(new):
                frame, value = encode(portion)
                if len(value) > MAX_VALUE_BYTES:
                    raise TooLarge(f"the element {frame.first} of {self._stream.name} has {len(value)} bytes: split it")
                self._stream.write(frame, value)
                self._frames.append(frame)
                self._last = frame.last

    def _check_gap(self, first: int) -> None:
        if first <= max(self._last, self._floor) + 1:
            return
        raise Gone(
            f"the stream {self._stream.name} ends at {self._last}, and the next element is {first}: the store has lost "
            f"the elements between, or this is another stream"
        )

    def _make_room(self, last: int) -> None:
        if not self._retention.is_full(self._acknowledged, last):
            return
        self._ask_readers()
        for reader in self._retention.drop(self._stream.name, self._acknowledged, last):
            self._readers.remove(reader)
            del self._acknowledged[reader]
            self._stream.declare(self._readers)

    def acknowledged(self) -> dict[str, int]:
        with self._lock:
            self._stream.store.check_open()
            self._ask_readers()
            if self._acknowledged:
                self._trim(min(self._acknowledged.values()))
            return dict(self._acknowledged)

    def _ask_readers(self) -> None:
        for reader, upto in self._stream.acknowledged(self._readers).items():
            self._acknowledged[reader] = max(upto, self._acknowledged[reader])

    def _trim(self, floor: int) -> None:
        """Delete the frames that nobody needs, but never the last one: it says how far the stream has come."""
        gone = [frame for frame in self._frames if frame.last <= floor and frame.last < self._last]
        self._stream.forget(gone)
        self._frames = [frame for frame in self._frames if frame not in gone]

    def close(self) -> None:
        self._stream.store.close()


class StoreInlet:
    """The reading side."""

    def __init__(self, stream: StoredStream, reader: str | None, after: int | None, poll: float) -> None:
        self._stream = stream
        self._reader = reader
        self._after = after
        self._poll = poll
        self._known: list[Frame] = []
        self._acknowledged = 0
        self._is_reader = reader is None
        self._closing = threading.Event()
        self._lock = threading.Lock()

    def read(self, timeout: float | None = None) -> Sequence[StreamElement]:
        return [element for table in self.read_tables(timeout) for element in table.elements()]

    def read_tables(self, timeout: float | None = None) -> Sequence[ElementTable]:
        """See `SupportsTables`."""
        give_up = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            self._check_open()
            with self._lock:
                found = self._next()
            if found:
                return found
            left = self._poll if give_up is None else give_up - time.monotonic()
            if left <= 0:
                return []
            self._closing.wait(min(pause, left))
            pause = min(2 * pause, self._poll)

    def _next(self) -> list[ElementTable]:
        """Some elements after our position; none if there are none yet."""
        if found := self._read_known():
            return found
        self._known = self._stream.frames()
        if not self._known or not self._find_position():
            return []
        if covering(self._known, self._position + 1):
            return self._read_known()  # nothing if it is trimmed just now; then the next listing says so
        self._check_end()
        return []

    def _read_known(self) -> list[ElementTable]:
        """The elements after our position in the next frames that we know of."""
        if self._after is None:
            return []
        wanted: list[Frame] = []
        upto = self._after
        while len(wanted) < _FRAMES_TOGETHER and (frame := covering(self._known, upto + 1)):
            wanted.append(frame)
            upto = frame.last
        found: list[ElementTable] = []
        for table in self._stream.read(wanted):
            if table is None:  # trimmed meanwhile
                break
            found.append(table.between(self._after))
            self._after = table.last
        self._known = [frame for frame in self._known if frame.last > self._after] if found else []
        return found

    @property
    def _position(self) -> int:
        assert self._after is not None
        return self._after

    def _find_position(self) -> bool:
        """Whether we know where to begin, and may."""
        if not self._is_reader:
            assert self._reader is not None
            check_declared(self._stream.name, self._reader, self._stream.declared())
            self._is_reader = True
        if self._after is None and self._reader is not None:
            self._after = self._stream.acknowledged([self._reader]).get(self._reader)
        if self._after is None:
            run = oldest_run(self._known)
            self._after = run.first - 1 if run else None
        return self._after is not None

    def _check_end(self) -> None:
        """Return if our position is the end of the stream, and raise `Gone` if it is not."""
        name, after = self._stream.name, self._position
        if (last := max(frame.last for frame in self._known)) < after:
            raise Gone(
                f"the stream {name} ends at {last}, before the position {after}: it was made anew, or this is another"
            )
        later = [frame.first for frame in self._known if frame.first > after]
        if later:
            first = min(later)
            raise Gone(
                f"the elements {after + 1} to {first - 1} of {name} are not there any more: begin after {first - 1}"
            )

    def acknowledge(self, upto: Position) -> None:
        if self._reader is None:
            raise ValueError(f"this inlet of {self._stream.name} only looks: open it with reader=NAME to acknowledge")
        if not isinstance(upto, int):
            raise ValueError(f"a position in {self._stream.name} is a number, not {upto}")
        self._check_open()
        with self._lock:
            if upto <= self._acknowledged:
                return
            # Somebody else may go by the same name. If both do this at once it may go back, which loses nothing.
            if upto > self._stream.acknowledged([self._reader]).get(self._reader, 0):
                self._stream.acknowledge(self._reader, upto)
            self._acknowledged = upto

    def last(self) -> int | None:
        self._check_open()
        return max((frame.last for frame in self._stream.frames()), default=None)

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed(f"this inlet of {self._stream.name} was closed: open a new one")
        self._stream.store.check_open()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            self._stream.store.close()
