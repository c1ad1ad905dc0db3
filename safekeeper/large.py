"""Values of any size, above the contract: in parts, the head last.

    large.write(store, id, data)            bytes, or a file that is read to its end
    large.read(store, id)                   bytes, or None
    large.open_value(store, id)             a file to read and to seek in, or None
    large.delete(store, id)

What fits into one value is stored as it is. Anything else is cut into parts, which go to a group of their own; what
stands under the id is a head that names them. Before and after a crash at any moment an id has its old value whole or
its new value whole.

    group GROUP           KEY               the value itself, or a head
    group GROUP.parts     WRITE             the key that the parts are for, so that stray ones can be told
                          WRITE_NUMBER      one part; WRITE has 32 hex digits, NUMBER 8 digits

    head:  "SKV1" | xxh3 u64 | write 16 bytes | size u64 | part size u32 | xxh3 of the content u64
           little endian; the first checksum covers what follows it; frozen: version 2 gets another mark

The rules, which `tests/large` checks in all orders:

1. A write has a name of its own, `WRITE`, and its head is written at most once. If that raises, the next attempt is
   another write with new parts: another writer may have replaced the first one meanwhile and deleted its parts.
2. Parts are deleted by who has seen their head, or knows that it never came, and has written another head since. After
   that the old head cannot come back.
3. Bytes that begin like a head are stored in parts, however few they are. So a value that begins like one is one.

What a writer leaves behind that dies before its head is there takes space and nothing else; `sweep` removes it. One
value that is written by several at once leaves such parts, too.
"""

from __future__ import annotations

import io
import secrets
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, TYPE_CHECKING

import xxhash

from safekeeper.backend import (
    MAX_VALUE_BYTES,
    Batch,
    CheckpointId,
    Receipt,
    Survives,
    announced_to,
    check_group,
    concurrent_writes,
)
from safekeeper.errors import BadId, Corruption, Unavailable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from safekeeper.backend import Backend

PART_BYTES = 16 << 20
"""How large a part is: many enough to be quick with, few enough to be held in memory."""

_AT_ONCE = 4  # parts that are read, and where the backend gains by it written, at once
_COPIED = 64 << 10
_MARK = b"SKV1"
_HEAD = struct.Struct("<4sQ16sQIQ")
_CHECKED_FROM = 12


@dataclass(frozen=True, slots=True)
class LargeHead:
    """What stands under the id of a value that was written in parts."""

    write: bytes
    size: int
    part_bytes: int
    checksum: int

    def encode(self) -> bytes:
        """Its bytes."""
        head = _HEAD.pack(_MARK, 0, self.write, self.size, self.part_bytes, self.checksum)
        return _MARK + xxhash.xxh3_64_intdigest(head[_CHECKED_FROM:]).to_bytes(8, "little") + head[_CHECKED_FROM:]

    @classmethod
    def decode(cls, id: CheckpointId, value: bytes | None) -> LargeHead | None:
        """The head in *value*; None if it is a value of its own, or nothing."""
        if value is None or not is_head(value):
            return None
        if len(value) != _HEAD.size or xxhash.xxh3_64_intdigest(value[_CHECKED_FROM:]) != _HEAD.unpack(value)[1]:
            raise Corruption(f"{id}: the head of a value in parts is damaged")
        return cls(*_HEAD.unpack(value)[2:])

    @property
    def count(self) -> int:
        """How many parts there are."""
        return -(-self.size // self.part_bytes)


class LargeWrite:
    """One value that is to be written, by as many attempts as it takes. The one that succeeds removes what the value
    before it and failed attempts have left."""

    def __init__(
        self,
        store: Backend,
        id: CheckpointId,
        *,
        part_bytes: int = PART_BYTES,
        on_part: Callable[[], object] = lambda: None,
    ) -> None:
        """*on_part* is called whenever a part was stored."""
        if not 1 <= part_bytes <= MAX_VALUE_BYTES:
            raise ValueError(f"a part has 1 to {MAX_VALUE_BYTES} bytes, not {part_bytes}")
        self._store, self._id, self._part_bytes, self._on_part = store, id, part_bytes, on_part
        self._begun: dict[bytes, int] = {}
        """The attempts that may have left parts, with how many of them."""

    def write(self, source: bytes | IO[bytes]) -> Receipt:
        """Write what *source* has, a file to its end. After `Unavailable`, call it again with a source that begins
        anew."""
        if isinstance(source, bytes) and fits(source):
            return self._write_head(source, self._store.survives)
        pieces = _cut(source, self._part_bytes)
        first, second = next(pieces, b""), next(pieces, None)
        if second is None and fits(first):
            return self._write_head(first, self._store.survives)
        write = secrets.token_bytes(16)
        self._begun[write] = 0
        survives = self._put(_note(write), self._id.key).survives
        size, checksum = 0, xxhash.xxh3_64()
        at_once = max(1, min(_AT_ONCE, concurrent_writes(self._store)))
        rest = chain((first,), () if second is None else (second,), pieces)
        known = len(source) if isinstance(source, bytes) else 0  # a file may be slow to read: nobody is to wait for it
        with announced_to(self._store, parts_group(self._id.group), known):
            while some := list(islice(rest, at_once)):
                begun = self._begun[write]
                self._begun[write] = begun + len(some)
                survives &= self._put_parts(write, begun, some).survives
                self._on_part()
                size += sum(map(len, some))
                for piece in some:
                    checksum.update(piece)
        head = LargeHead(write, size, self._part_bytes, checksum.intdigest())
        return self._write_head(head.encode(), survives, write)

    def _write_head(self, value: bytes, survives: Survives, write: bytes | None = None) -> Receipt:
        """Let *value* stand under the id; then remove what nobody needs any more."""
        replaced = LargeHead.decode(self._id, self._store.read([self._id])[0])
        receipt = self._store.write(Batch({self._id: value}))
        stale = {begun: count for begun, count in self._begun.items() if begun != write}
        if replaced is not None:
            stale[replaced.write] = replaced.count
        with suppress(Unavailable):  # it takes space and nothing else
            _remove(self._store, self._id.group, stale)
            self._begun.clear()
        return Receipt(receipt.survives & survives, receipt.sync_seconds)

    def _put_parts(self, write: bytes, first: int, parts: list[bytes]) -> Receipt:
        group = parts_group(self._id.group)
        return self._store.write(
            Batch({CheckpointId(group, _part(write, first + n)): part for n, part in enumerate(parts)})
        )

    def _put(self, key: bytes, value: bytes) -> Receipt:
        return self._store.write(Batch({CheckpointId(parts_group(self._id.group), key): value}))


class LargeReader(io.RawIOBase):
    """A value in parts as a file to read and to seek in.

    One part is in memory at a time; of a store that gains by having several writes under way a few, while it is read
    from one to the next. If the value is replaced meanwhile, a read raises `Unavailable`: open it again.
    """

    def __init__(self, store: Backend, id: CheckpointId, head: LargeHead) -> None:
        self._store, self._id, self._head = store, id, head
        self._at = 0
        self._number, self._part = -2, memoryview(b"")  # before the first one: that is read alone
        self._next: dict[int, bytes] = {}
        self._at_once = max(1, min(_AT_ONCE, concurrent_writes(store)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._head.size}[whence]
        if start + offset < 0:
            raise ValueError(f"there is nothing before the beginning of {self._id}")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._at >= self._head.size:
            return 0
        number, start = divmod(self._at, self._head.part_bytes)
        if number != self._number:
            self._part = memoryview(self._read_part(number))
            self._number = number
        into = memoryview(buffer).cast("B")
        piece = self._part[start : start + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _read_part(self, number: int) -> bytes:
        """A part; whoever goes from one to the next gets several at once."""
        if number not in self._next:
            most = self._at_once if number == self._number + 1 else 1
            parts = _read_parts(self._store, self._id, self._head, number, most)
            self._next = dict(enumerate(parts, number))
        return self._next.pop(number)


def fits(value: bytes) -> bool:
    """Whether *value* can be stored as it is."""
    return len(value) <= MAX_VALUE_BYTES and value[:4] != _MARK  # not in two calls: every value is asked about


def is_head(value: bytes) -> bool:
    """Whether *value*, which was read, is the head of a value in parts."""
    return value[:4] == _MARK


def write(store: Backend, id: CheckpointId, source: bytes | IO[bytes], *, part_bytes: int = PART_BYTES) -> Receipt:
    """Store what *source* has under *id*, a file to its end, whatever its size."""
    return LargeWrite(store, id, part_bytes=part_bytes).write(source)


def read(store: Backend, id: CheckpointId) -> bytes | None:
    """The value of *id*, whatever its size; None if there is none."""
    return whole(store, id, store.read([id])[0])


def whole(store: Backend, id: CheckpointId, value: bytes | None) -> bytes | None:
    """What *value* stands for, which was read under *id*: itself, or what its parts give. If it is replaced while they
    are read, it is what stands there then."""
    while (head := LargeHead.decode(id, value)) is not None:
        try:
            data = b"".join(part for at in range(0, head.count, _AT_ONCE) for part in _read_parts(store, id, head, at))
        except _Replaced as error:
            value = error.value
            continue
        if xxhash.xxh3_64_intdigest(data) != head.checksum:
            raise Corruption(f"{id}: the parts of the value do not fit its head")
        return data
    return value


def open_value(store: Backend, id: CheckpointId) -> io.BufferedReader | None:
    """The value of *id* as a file to read and to seek in; None if there is none."""
    (value,) = store.read([id])
    head = LargeHead.decode(id, value)
    if value is None:
        return None
    return io.BufferedReader(io.BytesIO(value) if head is None else LargeReader(store, id, head))


def delete(store: Backend, id: CheckpointId) -> Receipt:
    """Remove *id*, with its parts."""
    head = LargeHead.decode(id, store.read([id])[0])
    batch = Batch()
    batch.delete(id)
    receipt = store.write(batch)
    if head is not None:
        with suppress(Unavailable):
            _remove(store, id.group, {head.write: head.count})
    return receipt


def sweep(store: Backend, group: str) -> int:
    """Remove the parts that no value of *group* needs: what dead writers have left. How many writes they were of.

    Call it while nobody writes large values of the group: a write whose head is not there yet looks like a dead one.
    """
    counts: dict[bytes, int] = {}
    for key in store.keys(parts_group(group)):
        write, _, number = key.partition(b"_")
        counts[write] = max(counts.get(write, 0), int(number or -1) + 1)
    stray = {}
    for name, count in counts.items():
        write = bytes.fromhex(name.decode())
        (owner,) = store.read([CheckpointId(parts_group(group), _note(write))])
        if owner is None or not _is_of(store, CheckpointId(group, owner), write):
            stray[write] = count
    _remove(store, group, stray)
    return len(stray)


def _is_of(store: Backend, id: CheckpointId, write: bytes) -> bool:
    """Whether the value of *id* is the one that *write* wrote."""
    head = LargeHead.decode(id, store.read([id])[0])
    return head is not None and head.write == write


def parts_group(group: str) -> str:
    """The group in which the parts of the values of *group* lie."""
    check_group(name := f"{group}.parts")
    return name


def with_parts(groups: Iterable[str]) -> Iterator[str]:
    """*groups*, and before each the group of its parts: for whoever copies them."""
    for group in groups:
        with suppress(BadId):  # its name is too long for values in parts
            yield parts_group(group)
        yield group


class _Replaced(Unavailable):
    """The value was replaced while its parts were read."""

    def __init__(self, message: str, value: bytes | None) -> None:
        super().__init__(message)
        self.value = value


def _read_parts(store: Backend, id: CheckpointId, head: LargeHead, first: int, most: int = _AT_ONCE) -> list[bytes]:
    """The parts from number *first* on, at most so many."""
    numbers = range(first, min(first + most, head.count))
    parts = store.read([CheckpointId(parts_group(id.group), _part(head.write, number)) for number in numbers])
    return [_checked(store, id, head, number, part) for number, part in zip(numbers, parts, strict=True)]


def _checked(store: Backend, id: CheckpointId, head: LargeHead, number: int, part: bytes | None) -> bytes:
    if part is not None and len(part) == min(head.part_bytes, head.size - number * head.part_bytes):
        return part
    (now,) = store.read([id])
    if LargeHead.decode(id, now) != head:
        raise _Replaced(f"{id} was replaced while it was read: read it again", now)
    raise Corruption(f"{id}: part {number} of its value is {'gone' if part is None else 'of another size'}")


def _remove(store: Backend, group: str, writes: Mapping[bytes, int]) -> None:
    """Remove the parts of *writes*, of each so many, and at last what says whose they were."""
    for write, count in writes.items():
        batch = Batch()
        for number in range(count):
            batch.delete(CheckpointId(parts_group(group), _part(write, number)))
        store.write(batch)
        batch = Batch()
        batch.delete(CheckpointId(parts_group(group), _note(write)))
        store.write(batch)


def _note(write: bytes) -> bytes:
    return write.hex().encode()


def _part(write: bytes, number: int) -> bytes:
    return f"{write.hex()}_{number:08}".encode()


def _cut(source: bytes | IO[bytes], size: int) -> Iterator[bytes]:
    """What *source* has, in pieces of *size* bytes; only the last may have less."""
    if isinstance(source, bytes):
        yield from (_copy(source, start, min(start + size, len(source))) for start in range(0, len(source), size))
        return
    while piece := _read_fully(source, size):
        yield piece


def _copy(source: bytes, start: int, end: int) -> bytes:
    """A part of *source*. Not in one copy, which would keep all other threads waiting: `join` lets them run."""
    return b"".join([source[at : min(at + _COPIED, end)] for at in range(start, end, _COPIED)])


def _read_fully(file: IO[bytes], size: int) -> bytes:
    """The next *size* bytes of *file*; less at its end. A file may give less than it was asked for at any time."""
    pieces, missing = [], size
    while missing and (piece := file.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)
