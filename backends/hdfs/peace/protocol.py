"""What writers and the coordinator of Peace send each other: the bytes, and nothing about what they do with them.

`docs/peace.md` tells the protocol as a story and attacks it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Self

from safekeeper.backends.hdfs.placement import MOST_CHUNKS
from safekeeper.wire import SEALED_HEADER, BadFrame, Body, Handshake, texts, u32

# handshake and frames are those of `safekeeper.wire`; frozen: version 2 gets another mark
MARK = b"SKT1"
MAX_BODY_BYTES = 64 * 1024


class PeaceKind(enum.IntEnum):
    """What a frame is: a writer's are below 64, a coordinator's above."""

    ASK = 1
    DONE = 2
    WITHDRAW = 3
    STAND = 4
    GRANT = 65
    WAIT = 66
    PLACE = 67
    REFUSE = 127


class Role(enum.StrEnum):
    """Who speaks."""

    WRITER = "writer"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Ask:
    """ASK: leave to write chunks is wanted. STAND: a pipeline for a file that stays open is; it has no chunks."""

    host: str
    """The writer's address as the NameNode sees it."""
    rack: str
    """The writer's rack, for a host that is no DataNode; "" if it does not know."""
    replicas: int
    chunks: int = 0
    checkpoint: str = ""

    def encode(self) -> bytes:
        """The body."""
        return u32(self.replicas) + u32(self.chunks) + texts([self.host, self.rack, self.checkpoint])

    @classmethod
    def decode(cls, body: Body) -> Self:
        """The inverse of `encode`. Raise `BadFrame` if it is none."""
        replicas, chunks = body.u32(), body.u32()
        host, rack, checkpoint = body.text(), body.text(), body.text()
        body.end()
        if not 1 <= replicas <= 512:
            raise BadFrame(f"{replicas} replicas are asked for: HDFS keeps 1 to 512")
        if chunks > MOST_CHUNKS:
            raise BadFrame(f"{chunks} chunks are asked for: at most {MOST_CHUNKS} are")
        return cls(host, rack, replicas, chunks, checkpoint)


@dataclass(frozen=True, slots=True)
class Granted:
    """GRANT: one chunk may be written, now. PLACE, the answer to STAND, has only the nodes."""

    number: int
    timestep: int
    lease_ms: int
    """After so long without a DONE the coordinator counts the chunk as done."""
    nodes: tuple[str, ...]

    def encode(self) -> bytes:
        """The body."""
        head = u32(self.number) + u32(self.timestep) + u32(self.lease_ms)
        return head + u32(len(self.nodes)) + texts(self.nodes)

    @classmethod
    def decode(cls, body: Body) -> Self:
        """The inverse of `encode`. Raise `BadFrame` if it is none."""
        number, timestep, lease = body.u32(), body.u32(), body.u32()
        nodes = tuple(body.text() for _ in range(body.u32()))
        body.end()
        return cls(number, timestep, lease, nodes)


def number(value: int) -> bytes:
    """The body of a DONE, the grant's number, and of a WAIT, the milliseconds until the next sign of life."""
    return u32(value)


def text(value: str) -> bytes:
    """The body of a REFUSE: one line for a person."""
    return texts([" ".join(value.split())])


def handshake(secret: bytes) -> Handshake:
    """What a writer and its coordinator begin a connection with: `docs/peace.md` draws it."""
    return Handshake(MARK, secret, server=Role.COORDINATOR, client=Role.WRITER, max_body_bytes=MAX_BODY_BYTES)


def decode_head(data: bytes) -> tuple[PeaceKind, int, int]:
    """Kind, request and length in the `SEALED_HEADER.size` bytes of *data*. Raise `BadFrame` if they are none."""
    kind, request, length = SEALED_HEADER.unpack(data)
    if length > MAX_BODY_BYTES:
        raise BadFrame(f"a body has at most {MAX_BODY_BYTES} bytes, not {length}")
    try:
        return PeaceKind(kind), request, length
    except ValueError:
        raise BadFrame(f"there is no frame of kind {kind}") from None
