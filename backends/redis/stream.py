"""`redis:` also carries streams: a Redis stream for the elements, a hash beside it for the readers.

    redis://127.0.0.1:6379/0?stream=words          or rediss:, redis+unix:; the options are the fields of
                                                   `RedisStreamOptions`, most of them those of the backend

    NAME              stream   entry NUMBER-0: body, and key where there is one
    {NAME}:readers    hash     "" -> JSON: the names that the producer has declared
                               reader -> how far it has acknowledged

The server refuses a number that it has seen, also after trimming to nothing, so a repeated send adds nothing; one
script looks and adds, so nothing can come between. What was on its way when its sender gave up can only add what the
sender sends again. Whether an element that was confirmed survives a killed server depends on the server's settings,
which are asked as for the backend. Where it does not, the outlet keeps what is not acknowledged and sends it again to a
server that has lost it.

With `foreign=yes` an inlet reads the entries of somebody else (XADD with `*`). Their positions are pairs of ints; a
body is the field that `body=` names, or all fields as a msgpack map; `key=` names the field of the key.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack
from redis.crc import key_slot

from safekeeper.backend import MAX_VALUE_BYTES, Survives
from safekeeper.backends.redis.options import RedisOptions, parse
from safekeeper.backends.redis.routing import BucketRequest, Router
from safekeeper.backends.redis.server import Command, RedisConnection
from safekeeper.backends.redis.writing import check_confirmed, confirming
from safekeeper.backends.shared.errors import Misconfigured
from safekeeper.errors import BadState, BadUrl, Closed, Gone, TooLarge, Unavailable
from safekeeper.registry import take_asserted
from safekeeper.streams.carrier import Position, StreamElement, StreamStatus
from safekeeper.streams.retained import Retained, Retention, WhenFull, check_declared, check_numbers, number_of
from safekeeper.url import Url, show_url

EntryId: TypeAlias = tuple[int, int]

_DECLARED = b""
_SENT_TOGETHER = 500
_SENT_BYTES = 1024 * 1024
_READ_TOGETHER = 1000
_READ_BYTES = 4 * 1024 * 1024
_FIRST_PAGE = 100
_BLOCK_SECONDS = 0.25

# KEYS: stream, readers. ARGV: declared, floor, first number, then key and body of each element.
# Returns the last number before, and whether the elements were added: not if they would leave a gap. Something is
# always written, so that a WAIT after it waits also for elements that an earlier attempt has added.
_SEND = b"""
local last = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
    local info = redis.call('XINFO', 'STREAM', KEYS[1])
    for i = 1, #info, 2 do
        if info[i] == 'last-generated-id' then
            local number, rest = string.match(info[i + 1], '^(%d+)-(%d+)$')
            if rest ~= '0' then return {info[i + 1], -1} end
            last = tonumber(number)
        end
    end
end
local number = tonumber(ARGV[3])
if number > last + 1 and number > tonumber(ARGV[2]) + 1 then return {last, 0} end
redis.call('HSET', KEYS[2], '', redis.call('HGET', KEYS[2], '') or ARGV[1])
for i = 4, #ARGV, 2 do
    if number > last then
        local id = string.format('%.0f-0', number)
        if ARGV[i] == '' then
            redis.call('XADD', KEYS[1], id, 'body', ARGV[i + 1])
        else
            redis.call('XADD', KEYS[1], id, 'key', ARGV[i], 'body', ARGV[i + 1])
        end
    end
    number = number + 1
end
return {last, 1}
"""

# KEYS: stream, readers. ARGV: reader, an id. Returns what is known of both: declared, acknowledged, whether the stream
# exists, its last id, its first one if there is one, and whether the entry with the id is there.
_LOOK = b"""
local known = redis.call('HMGET', KEYS[2], '', ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 then return {known[1], known[2], 0} end
local info, last, first = redis.call('XINFO', 'STREAM', KEYS[1]), '', ''
for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
    if info[i] == 'first-entry' and info[i + 1] then first = info[i + 1][1] end
end
return {known[1], known[2], 1, last, first, #redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])}
"""

# KEYS: readers. ARGV: reader, an id. Sets how far the reader is, unless it is further already.
_ACKNOWLEDGE = b"""
local function less(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
end
local old = redis.call('HGET', KEYS[1], ARGV[1])
if old then
    local a, b = string.match(old, '^(%d+)-?(%d*)$')
    local c, d = string.match(ARGV[2], '^(%d+)-?(%d*)$')
    if less(c, a) or (a == c and not less(b, d)) then return 0 end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class RedisStreamOptions(RedisOptions):
    """What may stand after the `?`: the options of the backend, but for `prefix=`, and these."""

    stream: str = ""
    """The name of the stream: its key."""
    foreign: bool = False
    """`yes`: somebody else writes it; see the module."""
    body: str | None = None
    """Foreign: the field that is the body."""
    key: str | None = None
    """Foreign: the field that is the key."""
    max_elements: int | None = None
    """How many elements may wait for the slowest reader; any number without it."""
    when_full: WhenFull = "stop"
    """What happens then; `drop-reader` forgets the reader that is too far behind."""

    def __post_init__(self) -> None:
        RedisOptions.__post_init__(self)  # `super()` does not work in a class with slots
        if self.prefix != "safekeeper":
            raise ValueError("prefix= is for stores: the name of a stream is its key")
        if not self.foreign and (self.body is not None or self.key is not None):
            raise ValueError("body= and key= are for foreign=yes")
        Retention(self.max_elements, self.when_full)


def open_outlet(url: str, readers: Sequence[str], floor: int) -> RedisOutlet:
    """See `Carrier`."""
    stream = RedisStream(url)
    try:
        if stream.options.foreign:
            raise BadUrl(f"{show_url(url)}: what we send is not foreign: leave foreign= out")
        return RedisOutlet(stream, readers, floor)
    except BaseException:
        stream.close()
        raise


def open_inlet(url: str, reader: str | None, after: Position | None) -> RedisInlet:
    """See `Carrier`."""
    stream = RedisStream(url)
    try:
        return RedisInlet(stream, reader, None if after is None else stream.parse_position(after))
    except BaseException:
        stream.close()
        raise


def survey(url: str) -> Iterator[StreamStatus]:
    """See `SupportsSurvey`. In a cluster the URL has to name the stream."""
    with RedisStream(url, named=False) as server:
        if server.options.stream:
            yield server.status(server.options.stream)
            return
        if server.in_cluster:
            raise BadUrl(f"{show_url(url)} is a cluster, whose streams are not listed: add stream=NAME")
        for name in server.names():
            yield server.status(name)


def trim(url: str, upto: Position) -> None:
    """See `SupportsSurvey`."""
    with RedisStream(url) as stream:
        stream.trim(stream.parse_position(upto))


class RedisStream:
    """A stream on a server: what is asked there, and the connections to it."""

    def __init__(self, url: str, named: bool = True) -> None:
        asserted, parsed = take_asserted(Url.parse(url))
        self.options = parsed.options(RedisStreamOptions)
        if named and not self.options.stream:
            raise BadUrl(f"{show_url(url)} names no stream: add stream=NAME")
        self.name = self.options.stream
        self.key = self.name.encode()
        self.readers = _readers_key(self.name) if self.name else b""
        self._always = asserted | (Survives.HOST if self.options.replicas else Survives.NOTHING)
        self._is_open = True
        address, connect = parse(parsed, self.options)
        try:
            self._router = Router(address, connect, self.options, [key_slot(self.key)])
            if self.options.aof and not all(server.waits_for_aof for server in self._router.facts()):
                raise Misconfigured(f"{address}: aof=yes needs Redis 7.2 or Valkey, with appendonly yes")
        except Misconfigured as error:
            raise BadUrl(str(error)) from error

    def __enter__(self) -> RedisStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_cluster(self) -> bool:
        """Whether the server is one of several."""
        return self._router.in_cluster

    @property
    def survives(self) -> Survives:
        """What an entry survives, by what the server said last."""
        return self._router.survives() | self._always

    def check_open(self) -> None:
        """Raise `Closed` if it was closed."""
        if not self._is_open:
            raise Closed(f"this side of the stream {self.name} was closed: open a new one")

    def close(self) -> None:
        """Close the connections."""
        self._is_open = False
        self._router.close()

    def ask(self, *command: bytes) -> Any:
        """The answer to a command. It may be sent twice."""
        self.check_open()
        (answer,) = self._router.ask([BucketRequest.of(0, *command)])
        self.check_open()
        return answer

    def change(self, *command: bytes) -> Any:
        """The same for one that changes something: first the server's settings, afterwards its replicas are asked."""
        self.check_open()

        def known(connection: RedisConnection) -> Command:
            self._router.node_of(0).ask_again(connection)
            return command

        requests = [BucketRequest(0, known)]
        if self.options.aof or self.options.replicas:
            requests.append(BucketRequest(0, lambda _: confirming(self.options)))
        answer, *confirmed = self._router.ask(requests)
        for counted in confirmed:
            check_confirmed(self._router.node_of(0).address, self.options, counted)
        return answer

    def add(self, declared: bytes, floor: int, elements: Sequence[StreamElement]) -> tuple[int, bool]:
        """Add *elements*. The number that the stream ended with before, and whether it was done: not with a gap."""
        fields = itertools.chain.from_iterable((element.key, element.body) for element in elements)
        head = (declared, b"%d" % floor, b"%d" % number_of(elements[0]))
        last, done = self.change(b"EVAL", _SEND, b"2", self.key, self.readers, *head, *fields)
        if done < 0:
            raise BadState(
                f"the stream {self.name} has the entry {last.decode()}, which no outlet wrote: choose another name"
            )
        return last, bool(done)

    def look(self, reader: str | None, position: EntryId = (0, 0)) -> StreamLook:
        """What is known of the stream and of *reader*, and whether the entry at *position* is there."""
        words = (b"" if reader is None else reader.encode(), format_id(position))
        answer = self.ask(b"EVAL", _LOOK, b"2", self.key, self.readers, *words)
        declared, acknowledged, there = answer[:3]
        return StreamLook(
            declared=None if declared is None else json.loads(declared),
            acknowledged=None if acknowledged is None or reader is None else parse_id(acknowledged),
            last=parse_id(answer[3]) if there else None,
            first=parse_id(answer[4]) if there and answer[4] else None,
            is_there=bool(there and answer[5]),
        )

    def read(self, after: EntryId, count: int, seconds: float) -> list[Any]:
        """Entries after an id, as the server has them; none if none came within so many seconds."""
        seconds = min(seconds, self.options.timeout / 2)
        block = (b"BLOCK", b"%d" % max(1, seconds * 1000)) if seconds > 0 else ()
        command = (b"XREAD", b"COUNT", b"%d" % count, *block, b"STREAMS", self.key, format_id(after))
        answer = self.ask(*command)
        return answer[0][1] if answer else []

    def declare(self, declared: bytes) -> None:
        """Set who reads the stream."""
        self.ask(b"HSET", self.readers, _DECLARED, declared)

    def acknowledged(self, readers: Sequence[str]) -> dict[str, int]:
        """How far each of *readers* is, of those that have ever acknowledged anything."""
        if not readers:
            return {}
        answers = self.ask(b"HMGET", self.readers, *[reader.encode() for reader in readers])
        found = zip(readers, answers, strict=True)
        return {reader: parse_id(answer)[0] for reader, answer in found if answer is not None}

    def acknowledge(self, reader: str, upto: EntryId) -> None:
        """Set how far *reader* is."""
        text = format_id(upto) if self.options.foreign else b"%d" % upto[0]
        self.change(b"EVAL", _ACKNOWLEDGE, b"1", self.readers, reader.encode(), text)

    def trim(self, upto: EntryId) -> None:
        """Forget the entries up to an id. Of foreign ones the last is kept: it shows that none after it is gone."""
        first = upto if self.options.foreign else (upto[0] + 1, 0)
        self.ask(b"XTRIM", self.key, b"MINID", b"=", format_id(first))

    def names(self) -> list[str]:
        """All streams of the database."""
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, some = self.ask(b"SCAN", cursor, b"COUNT", b"1000", b"TYPE", b"stream")
            found.update(some)
            if cursor == b"0":
                return sorted(name.decode("utf-8", "replace") for name in found)

    def status(self, name: str) -> StreamStatus:
        """What `safekeeper stream ls` shows of a stream."""
        self.key, self.readers = name.encode(), _readers_key(name)
        look = self.look(None)
        flat = self.ask(b"HGETALL", self.readers)
        acknowledged = {reader: parse_id(upto) for reader, upto in zip(flat[::2], flat[1::2], strict=True) if reader}
        readers: dict[str, Position] = dict.fromkeys(look.declared or (), 0)
        readers |= {reader.decode("utf-8", "replace"): _plain(upto) for reader, upto in acknowledged.items()}
        first, last = (None if id is None else _plain(id) for id in (look.first, look.last))
        return StreamStatus(name, first, last, readers)

    def parse_position(self, position: Position) -> EntryId:
        """The id that stands for *position*."""
        if self.options.foreign:
            if isinstance(position, tuple) and len(position) == 2:
                return position[0], position[1]
            raise ValueError(f"a position in the foreign stream {self.name} is a pair of numbers, not {position}")
        if isinstance(position, int):
            return position, 0
        raise ValueError(f"a position in the stream {self.name} is a number, not {position}")

    def decode(self, entry: Any) -> StreamElement:
        """The element that an entry is."""
        id, flat = entry
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        number, rest = parse_id(id)
        if self.options.foreign:
            return StreamElement((number, rest), self._foreign_body(id, fields), self._foreign_key(fields))
        if rest or not fields.keys() <= {b"key", b"body"} or b"body" not in fields:
            raise BadState(
                f"the entry {id.decode()} of the stream {self.name} no outlet wrote: read it with foreign=yes"
            )
        return StreamElement(number, fields[b"body"], fields.get(b"key", b""))

    def _foreign_body(self, id: bytes, fields: dict[bytes, bytes]) -> bytes:
        if self.options.body is None:
            return msgpack.packb(fields)  # type: ignore[no-any-return]
        body = fields.get(self.options.body.encode())
        if body is None:
            raise BadState(f"the entry {id.decode()} of the stream {self.name} has no field {self.options.body}")
        return body

    def _foreign_key(self, fields: dict[bytes, bytes]) -> bytes:
        return b"" if self.options.key is None else fields.get(self.options.key.encode(), b"")


@dataclass(frozen=True, slots=True)
class StreamLook:
    """What a server says of a stream."""

    declared: list[str] | None
    """The readers that the producer has declared; None if it was never here."""
    acknowledged: EntryId | None
    """How far the reader is that was asked for."""
    last: EntryId | None
    """The last id that it ever had; None if there is no stream."""
    first: EntryId | None
    """The first entry that it has."""
    is_there: bool
    """Whether the entry that was asked for is there."""


def _readers_key(name: str) -> bytes:
    """The hash beside the stream *name*, in the same slot."""
    tagged = name if "{" in name and key_slot(f"{name}:readers".encode()) == key_slot(name.encode()) else f"{{{name}}}"
    if key_slot(f"{tagged}:readers".encode()) != key_slot(name.encode()):
        raise BadUrl(f"stream={name}: braces in a name must enclose a part of it, as {{user}}:words")
    return f"{tagged}:readers".encode()


def parse_id(text: bytes) -> EntryId:
    """The two numbers of an id; the second is 0 where it is left out."""
    number, _, rest = text.partition(b"-")
    return int(number), int(rest or 0)


def format_id(id: EntryId) -> bytes:
    """An id as the server knows it."""
    return b"%d-%d" % id


def _plain(id: EntryId) -> Position:
    return id if id[1] else id[0]


class RedisOutlet:
    """The producing side. One thread sends at a time."""

    def __init__(self, stream: RedisStream, readers: Sequence[str], floor: int) -> None:
        self._stream = stream
        self._retention = Retention(stream.options.max_elements, stream.options.when_full)
        self._lock = threading.Lock()
        self._acknowledged = dict.fromkeys(readers, 0) | stream.acknowledged(readers)
        self._floor = max(floor, min(self._acknowledged.values(), default=0))
        self._trimmed = 0
        self._kept: Retained | None = None
        """What is not acknowledged, while the server may lose it."""
        look = stream.look(None)
        if look.last and look.last[1]:
            raise BadState(f"the stream {stream.name} is written by somebody else: choose another name")
        self._last = look.last[0] if look.last else 0
        stream.declare(self._declared)

    @property
    def _declared(self) -> bytes:
        return json.dumps(list(self._acknowledged)).encode()

    @property
    def retains(self) -> bool:
        """Whether the server gets back what it has answered when it is killed."""
        return Survives.PROCESS in self._stream.survives

    @property
    def last(self) -> int:
        return self._last

    def send(self, elements: Sequence[StreamElement]) -> None:
        check_numbers(elements)
        for element in elements:
            if len(element.body) + len(element.key) > MAX_VALUE_BYTES:
                size = len(element.body) + len(element.key)
                raise TooLarge(f"the element {element.number} of {self._stream.name} has {size} bytes: split it")
        with self._lock:
            self._stream.check_open()
            new = [element for element in elements if number_of(element) > self._last]
            if new:
                self._make_room(number_of(new[-1]))
                for some in _portions(new):
                    self._add(some)
                    self._keep(some)
                    self._last = max(self._last, number_of(some[-1]))

    def _add(self, elements: Sequence[StreamElement]) -> None:
        last, done = self._stream.add(self._declared, self._floor, elements)
        if done:
            return
        for some in _portions(self._lost(last, number_of(elements[0]))):
            last, done = self._stream.add(self._declared, self._floor, some)
            if not done:
                break
        else:
            _, done = self._stream.add(self._declared, self._floor, elements)
        if not done:
            raise Unavailable(f"the stream {self._stream.name} changed while it was filled again: send it once more")

    def _lost(self, last: int, first: int) -> list[StreamElement]:
        """The elements between *last*, where the stream ends, and *first*, if we still have them."""
        begin = max(last, self._floor)
        if self._kept is not None and first <= self._kept.last + 1:
            try:
                return self._kept.after(begin, first - 1 - begin)
            except Gone:
                pass
        raise Gone(
            f"the stream {self._stream.name} ends at {last}, and the next element is {first}: the server has lost the "
            f"elements between, or this is another stream"
        )

    def _keep(self, elements: Sequence[StreamElement]) -> None:
        if self.retains or not self._acknowledged:
            self._kept = None
            return
        first = number_of(elements[0])
        if self._kept is None or self._kept.last < first - 1:
            self._kept = Retained(list(self._acknowledged), floor=first - 1)
        self._kept.append(elements)

    def _make_room(self, last: int) -> None:
        if not self._retention.is_full(self._acknowledged, last):
            return
        self._ask_readers()
        for reader in self._retention.drop(self._stream.name, self._acknowledged, last):
            del self._acknowledged[reader]
            self._stream.declare(self._declared)

    def acknowledged(self) -> dict[str, int]:
        with self._lock:
            self._stream.check_open()
            self._ask_readers()
            if self._floor > self._trimmed:
                self._stream.trim((self._floor, 0))
                self._trimmed = self._floor
            return dict(self._acknowledged)

    def _ask_readers(self) -> None:
        for reader, upto in self._stream.acknowledged(list(self._acknowledged)).items():
            self._acknowledged[reader] = max(upto, self._acknowledged[reader])
            if self._kept is not None:
                self._kept.acknowledge(reader, min(upto, self._kept.last))
        self._floor = max(self._floor, min(self._acknowledged.values(), default=0))

    def close(self) -> None:
        self._stream.close()


def _portions(elements: Sequence[StreamElement]) -> Iterator[Sequence[StreamElement]]:
    """*elements*, as many at a time as one script adds."""
    start = nbytes = 0
    for index, element in enumerate(elements):
        size = len(element.key) + len(element.body)
        if index > start and (nbytes + size > _SENT_BYTES or index - start == _SENT_TOGETHER):
            yield elements[start:index]
            start, nbytes = index, 0
        nbytes += size
    if elements:
        yield elements[start:]


class RedisInlet:
    """The reading side."""

    def __init__(self, stream: RedisStream, reader: str | None, after: EntryId | None) -> None:
        self._stream = stream
        self._reader = reader
        self._after = after
        self._has_begun = False
        self._lock = threading.Lock()
        self._seen = self._bytes = 0

    def read(self, timeout: float | None = None) -> Sequence[StreamElement]:
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _BLOCK_SECONDS if give_up is None else min(give_up - time.monotonic(), _BLOCK_SECONDS)
            with self._lock:
                self._stream.check_open()
                found = self._next(left)
            if found or left <= 0:
                return found

    def _next(self, seconds: float) -> list[StreamElement]:
        if not self._has_begun and not self._begin():
            self._stream.read((0, 0), 1, max(0, seconds))  # which waits for its first entry
            return []
        assert self._after is not None
        entries = self._stream.read(self._after, self._page, seconds)
        if not entries and self._is_behind():
            entries = self._stream.read(self._after, self._page, 0)
            if not entries:
                self._check(self._stream.look(self._reader, self._after))
        found = [self._stream.decode(entry) for entry in entries]
        if found:
            self._check_next(found[0])
            self._after = parse_id(entries[-1][0])
            self._seen += len(found)
            self._bytes += sum(len(element.key) + len(element.body) + 1 for element in found)
        return found

    @property
    def _page(self) -> int:
        """How many to ask for: it goes by how large they were so far."""
        return _FIRST_PAGE if not self._seen else min(_READ_TOGETHER, _READ_BYTES * self._seen // self._bytes + 1)

    def _is_behind(self) -> bool:
        assert self._after is not None
        last = self._stream.look(None).last
        return last is not None and last > self._after

    def _begin(self) -> bool:
        """Find out where to begin, and whether we may; False while there is no stream."""
        look = self._stream.look(self._reader, self._after or (0, 0))
        if look.last is None:
            return False
        if self._reader is not None and not self._stream.options.foreign:
            check_declared(self._stream.name, self._reader, look.declared)
        if self._after is None:
            self._after = look.acknowledged or self._before(look.first or look.last, look.first is not None)
            look = self._stream.look(self._reader, self._after)
        self._check(look)
        self._has_begun = True
        return True

    def _before(self, id: EntryId, is_there: bool) -> EntryId:
        """The position before the entry *id*, or after it if it is not there."""
        if not is_there:
            return id
        if not self._stream.options.foreign:
            return id[0] - 1, 0
        return (id[0], id[1] - 1) if id[1] else (max(0, id[0] - 1), (1 << 64) - 1)

    def _check(self, look: StreamLook) -> None:
        """Raise `Gone` unless the entries after our position are there."""
        assert self._after is not None
        name, last = self._stream.name, look.last
        if last is None or last < self._after:
            raise Gone(
                f"the stream {name} ends at {_show(last or (0, 0))}, before the position {_show(self._after)}: it was "
                f"made anew, or this is another"
            )
        if last == self._after or (self._after == (0, 0) and self._stream.options.foreign) or look.is_there:
            return
        before = self._before(look.first or last, look.first is not None)
        if before > self._after:
            raise Gone(
                f"elements after {_show(self._after)} of {name} are not there any more: begin after {_show(before)}"
            )

    def _check_next(self, element: StreamElement) -> None:
        """Raise `Gone` if there is something missing before *element*."""
        assert self._after is not None
        if not self._stream.options.foreign and element.number != self._after[0] + 1:
            before = number_of(element) - 1
            raise Gone(
                f"the elements {self._after[0] + 1} to {before} of {self._stream.name} are not there any more: begin "
                f"after {before}"
            )

    def acknowledge(self, upto: Position) -> None:
        if self._reader is None:
            raise ValueError(f"this inlet of {self._stream.name} only looks: open it with reader=NAME to acknowledge")
        self._stream.check_open()
        self._stream.acknowledge(self._reader, self._stream.parse_position(upto))

    def last(self) -> Position | None:
        self._stream.check_open()
        last = self._stream.look(None).last
        return last if last is None or self._stream.options.foreign else last[0]

    def close(self) -> None:
        self._stream.close()


def _show(id: EntryId) -> str:
    return f"{id[0]}-{id[1]}" if id[1] else f"{id[0]}"
