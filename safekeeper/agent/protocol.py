"""The frames between the JVM and the agent: what they look like, and nothing about what they do."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from safekeeper.wire import BadFrame, fields, u32

# frame:   "SKA3" | kind u8 | request u32 | length u32 | xxh64 u64 | body (length bytes)
# bytes:   length u32 | data            (a field of the body)
# text:    bytes, UTF-8
#          little endian; the checksum covers kind, request, length and body; frozen: version 4 gets another mark.
#          Version 2 added ALIVE, version 3 files; both sides speak the same version or not at all
MARK = b"SKA3"
VERSION = 3
HEADER = struct.Struct("<4sBIIQ")
_CHECKED = struct.Struct("<BII")
_DONE = struct.Struct("<QQII")
_VALUE = struct.Struct("<IBI")
_ERROR = struct.Struct("<BI")
_STATUS = struct.Struct("<BqQ")
_FILE = struct.Struct("<qQ16sIII")

MAX_BODY_BYTES = 65 * 1024 * 1024
"""The longest body: the largest value of the contract, with room for its id."""


class FrameKind(enum.IntEnum):
    """What a frame is: requests are below 64, replies above."""

    PUT = 1
    DELETE = 2
    KEYS = 3
    READ = 4
    STAT = 5
    LIST = 6
    READ_FILE = 7
    WRITE_PART = 8
    WRITE_FILE = 9
    DISCARD = 10
    MAKE_DIRECTORY = 11
    REMOVE = 12
    DONE = 65
    KEY_LIST = 66
    VALUE = 67
    ALIVE = 68
    """The request gets on. It answers nothing: it says that it is worth waiting for the reply."""
    FILE_LIST = 69
    FILE = 70
    ERROR = 127


READING = (FrameKind.KEYS, FrameKind.READ, FrameKind.STAT, FrameKind.LIST, FrameKind.READ_FILE)
"""The requests that write nothing, so no deadline of the keeper ends them."""

LAST_REPLIES = (FrameKind.DONE, FrameKind.ERROR)
"""What ends the answer to a request."""


class ErrorCode(enum.IntEnum):
    """What went wrong, in an ERROR."""

    UNAVAILABLE = 1
    CORRUPTION = 2
    CONFLICT = 3
    CLOSED = 4
    TOO_LARGE = 5
    BAD_ID = 6
    BAD_FRAME = 7
    INTERNAL = 8
    NOT_FOUND = 9
    EXISTS = 10
    NOT_DIRECTORY = 11
    IS_DIRECTORY = 12
    NOT_EMPTY = 13
    REPLACED = 14


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What comes before a body, so that room can be made before the body is read."""

    kind: FrameKind
    request: int
    """The number that the reply repeats."""
    length: int
    """How long the body is."""
    checksum: int

    @classmethod
    def decode(cls, data: bytes) -> FrameHeader:
        """The header in the `HEADER.size` bytes of *data*. Raise `BadFrame` if there is none."""
        mark, kind, request, length, checksum = HEADER.unpack(data)
        if mark != MARK:
            raise BadFrame(
                f"a frame starts with {MARK.decode()}, not with {mark!r}: is the same safekeeper on both sides?"
            )
        if length > MAX_BODY_BYTES:
            raise BadFrame(f"a body has at most {MAX_BODY_BYTES} bytes, not {length}")
        try:
            return cls(FrameKind(kind), request, length, checksum)
        except ValueError:
            raise BadFrame(f"there is no frame of kind {kind}") from None

    def check(self, body: bytes) -> None:
        """Raise `BadFrame` unless *body* is the one that was sent."""
        if _checksum(self.kind, self.request, [body], self.length) != self.checksum:
            raise BadFrame(f"the checksum of request {self.request} does not match: bytes were damaged on the way")


def encode(kind: FrameKind, request: int, pieces: Sequence[bytes] = ()) -> list[bytes]:
    """The buffers of a frame whose body is *pieces*, one after the other; they are not copied."""
    length = sum(map(len, pieces))
    return [HEADER.pack(MARK, kind, request, length, _checksum(kind, request, pieces, length)), *pieces]


def _checksum(kind: FrameKind, request: int, pieces: Sequence[bytes], length: int) -> int:
    checksum = xxhash.xxh64(_CHECKED.pack(kind, request, length))
    for piece in pieces:
        checksum.update(piece)
    return checksum.intdigest()


def done(store_seconds: float, sync_seconds: float, planned: int = 0, hits: int = 0) -> list[bytes]:
    """The body of a DONE."""
    return [_DONE.pack(round(store_seconds * 1e6), round(sync_seconds * 1e6), planned, hits)]


def key_list(keys: Sequence[bytes]) -> list[bytes]:
    """The body of a KEY_LIST."""
    return [u32(len(keys)) + fields(keys)]


def value(index: int, data: bytes | None) -> list[bytes]:
    """The body of the VALUE that answers the key at *index* of a READ; None is a value that was not found."""
    return [_VALUE.pack(index, data is not None, len(data or b"")), data or b""]


def file_list(entries: Sequence[tuple[str, bool, int, int]]) -> list[bytes]:
    """The body of a FILE_LIST: of each its name, whether it is a directory, when it was modified, and its size."""
    pieces = [u32(len(entries))]
    for name, is_directory, modified, size in entries:
        pieces.append(fields([name.encode()]) + _STATUS.pack(is_directory, modified, size))
    return [b"".join(pieces)]


def file(modified: int, size: int, write: bytes, part_bytes: int, crc: int, data: bytes) -> list[bytes]:
    """The body of a FILE: what the entry says, and one part of the content."""
    return [_FILE.pack(modified, size, write, part_bytes, crc, len(data)), data]


def error(code: ErrorCode, message: str) -> list[bytes]:
    """The body of an ERROR. The message becomes one line."""
    text = " ".join(message.split()).encode("utf-8", "backslashreplace")
    return [_ERROR.pack(code, len(text)), text]
