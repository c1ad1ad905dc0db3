"""What a producer and its readers send each other over TCP: the bytes, and nothing about what they do with them.

`docs/streams.md` attacks it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from safekeeper.backend import MAX_VALUE_BYTES
from safekeeper.errors import Corruption
from safekeeper.streams.carrier import StreamElement
from safekeeper.streams.frames import Frame, decode, encode
from safekeeper.wire import BadFrame, Body, Handshake, texts, u64

# handshake and frames are those of `safekeeper.wire`; frozen: version 2 gets another mark
#
# reader to producer
#   OPEN      begins u64 | window u64 | stream field | reader field
#             begins: 0 after what the reader has acknowledged, else its position + 1; reader: "" if it only looks
#   ACK       upto u64                  all up to there is dealt with for good
#   CREDIT    nbytes u64                so many bytes of elements were taken since OPEN; `window` more may come
#   ASK       (a request's number)      answer when all that there is was sent
#   BYE                                 nothing more comes from this reader: hang up
# producer to reader
#   WELCOME   epoch u64 | after u64 | last u64        elements come after `after`; the stream ends with `last`
#   DATA      first u64 | last u64 | a frame of `streams/frames.py`
#   ANSWER    last u64
#   BEAT      last u64                  a sign of life, when there is nothing else to say
#   REFUSE    error field | text field                the producer hangs up after it
MARK = b"SKC1"
MAX_BODY_BYTES = MAX_VALUE_BYTES + (1 << 20)
PRODUCER, READER = "producer", "reader"


class StreamKind(enum.IntEnum):
    """What a frame is: a reader's are below 64, a producer's above."""

    OPEN = 1
    ACK = 2
    CREDIT = 3
    ASK = 4
    BYE = 5
    WELCOME = 65
    DATA = 66
    ANSWER = 67
    BEAT = 68
    REFUSE = 127


@dataclass(frozen=True, slots=True)
class OpenStream:
    """OPEN: who wants to read what, and from where."""

    stream: str
    reader: str | None
    after: int | None
    """None: after what the reader has acknowledged."""
    window: int

    def encode(self) -> bytes:
        """The body."""
        begins = 0 if self.after is None else self.after + 1
        return u64(begins) + u64(self.window) + texts([self.stream, self.reader or ""])

    @classmethod
    def decode(cls, body: Body) -> Self:
        """The inverse of `encode`. Raise `BadFrame` if it is none."""
        begins, window, stream, reader = body.u64(), body.u64(), body.text(), body.text()
        body.end()
        return cls(stream, reader or None, begins - 1 if begins else None, window)


@dataclass(frozen=True, slots=True)
class Welcome:
    """WELCOME: the producer's claim, and where it begins."""

    epoch: int
    after: int
    last: int

    def encode(self) -> bytes:
        """The body."""
        return u64(self.epoch) + u64(self.after) + u64(self.last)

    @classmethod
    def decode(cls, body: Body) -> Self:
        """The inverse of `encode`. Raise `BadFrame` if it is none."""
        welcome = cls(body.u64(), body.u64(), body.u64())
        body.end()
        return welcome


def encode_data(elements: Sequence[StreamElement]) -> bytes:
    """The body of a DATA."""
    frame, value = encode(elements)
    return u64(frame.first) + u64(frame.last) + value


def decode_data(data: bytes) -> list[StreamElement]:
    """The elements of a DATA. Raise `BadFrame` if it is none."""
    body = Body(data[:16])
    frame = Frame(body.u64(), body.u64())
    try:
        elements = decode("a stream over TCP", frame, data[16:])
    except (Corruption, ValueError, TypeError) as error:
        raise BadFrame(str(error)) from error
    if not elements or any(type(one.body) is not bytes or type(one.key) is not bytes for one in elements):
        raise BadFrame(f"the elements {frame.first} to {frame.last} are not elements")
    return elements


def one_number(body: Body) -> int:
    """The number that is all of a body."""
    number = body.u64()
    body.end()
    return number


def handshake(secret: bytes) -> Handshake:
    """What a producer and its reader begin a connection with."""
    return Handshake(MARK, secret, server=PRODUCER, client=READER, max_body_bytes=MAX_BODY_BYTES)
