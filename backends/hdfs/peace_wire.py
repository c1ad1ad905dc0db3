"""What writers and the coordinator of Peace send each other: the bytes, and nothing about what they do with them.

`docs/peace.md` tells the protocol as a story and attacks it.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from safekeeper.agent.frames import BadFrame, Body

# hello:     "SKP1" | nonce (32 bytes)                          coordinator to writer
# answer:    "SKP1" | nonce (32 bytes) | proof (32 bytes)       writer to coordinator
# welcome:   proof (32 bytes)                                   coordinator to writer
# frame:     kind u8 | request u32 | length u32 | body (length bytes) | tag (16 bytes)
#            little endian; a proof is HMAC-SHA256 of the sender's role and both nonces under the shared secret, a tag
#            the first half of HMAC-SHA256 of the frame's number and its bytes under a key of that direction; frozen:
#            version 2 gets another mark
MARK = b"SKP1"
NONCE_BYTES = PROOF_BYTES = 32
HELLO_BYTES = len(MARK) + NONCE_BYTES
ANSWER_BYTES = HELLO_BYTES + PROOF_BYTES
HEAD = struct.Struct("<BII")
TAG_BYTES = 16
MAX_BODY_BYTES = 64 * 1024
LEAST_SECRET_BYTES = 16
MOST_CHUNKS = 4096
"""How many chunks one request asks for at most."""
_U32 = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class Kind(enum.IntEnum):
    """What a frame is: a writer's are below 64, a coordinator's above."""

    ASK = 1
    DONE = 2
    WITHDRAW = 3
    STAND = 4
    GRANT = 65
    WAIT = 66
    PLACE = 67
    REFUSE = 127


class Role(enum.Enum):
    """Who speaks."""

    WRITER = b"writer"
    COORDINATOR = b"coordinator"


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
        return _U32.pack(self.replicas) + _U32.pack(self.chunks) + _texts([self.host, self.rack, self.checkpoint])

    @classmethod
    def decode(cls, body: Body) -> Self:
        """The contrary. Raise `BadFrame` if it is none."""
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
        head = _U32.pack(self.number) + _U32.pack(self.timestep) + _U32.pack(self.lease_ms)
        return head + _U32.pack(len(self.nodes)) + _texts(self.nodes)

    @classmethod
    def decode(cls, body: Body) -> Self:
        """The contrary. Raise `BadFrame` if it is none."""
        number, timestep, lease = body.u32(), body.u32(), body.u32()
        nodes = tuple(body.text() for _ in range(body.u32()))
        body.end()
        return cls(number, timestep, lease, nodes)


def number(value: int) -> bytes:
    """The body of a DONE, the grant's number, and of a WAIT, the milliseconds until the next sign of life."""
    return _U32.pack(value)


def text(value: str) -> bytes:
    """The body of a REFUSE: one line for a person."""
    return _texts([" ".join(value.split())])


def _texts(values: Sequence[str]) -> bytes:
    encoded = [value.encode() for value in values]
    return b"".join(_U32.pack(len(one)) + one for one in encoded)


class Handshake:
    """Both sides' proof that they know the secret, without telling it. Make one for each connection."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._mine = secrets.token_bytes(NONCE_BYTES)
        self._nonces = b""

    def hello(self) -> bytes:
        """The coordinator's first bytes."""
        return MARK + self._mine

    def answer(self, hello: bytes) -> bytes:
        """The writer's answer to *hello*. Raise `BadFrame` if that is none."""
        self._nonces = _nonce(hello) + self._mine
        return MARK + self._mine + self._proof(Role.WRITER)

    def welcome(self, answer: bytes) -> bytes:
        """The coordinator's proof, for a writer that gave its own. Raise `BadFrame` for any other."""
        self._nonces = self._mine + _nonce(answer[:HELLO_BYTES])
        self._check(answer[HELLO_BYTES:], Role.WRITER)
        return self._proof(Role.COORDINATOR)

    def check_welcome(self, proof: bytes) -> None:
        """Raise `BadFrame` unless the coordinator knows the secret, too."""
        self._check(proof, Role.COORDINATOR)

    def seal(self, sender: Role) -> Seal:
        """What marks the frames that *sender* sends on this connection."""
        return Seal(hmac.digest(self._secret, sender.value + b" frames" + self._nonces, hashlib.sha256))

    def _proof(self, role: Role) -> bytes:
        return hmac.digest(self._secret, role.value + b" proof" + self._nonces, hashlib.sha256)

    def _check(self, proof: bytes, role: Role) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise BadFrame(f"the {role.value.decode()} does not know the secret")


class Seal:
    """Marks the frames of one direction, and tells whether they came as they were sent, in order, none left out."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._frames = 0

    def encode(self, kind: Kind, request: int, body: bytes = b"") -> bytes:
        """The next frame."""
        if len(body) > MAX_BODY_BYTES:
            raise BadFrame(f"a body has at most {MAX_BODY_BYTES} bytes, not {len(body)}")
        frame = HEAD.pack(kind, request, len(body)) + body
        return frame + self._tag(frame)

    def check(self, head: bytes, body: bytes, tag: bytes) -> None:
        """Raise `BadFrame` unless this is the next frame that was sent."""
        if not hmac.compare_digest(tag, self._tag(head + body)):
            raise BadFrame("a frame is not what was sent")

    def _tag(self, frame: bytes) -> bytes:
        self._frames += 1
        return hmac.digest(self._key, _NUMBER.pack(self._frames) + frame, hashlib.sha256)[:TAG_BYTES]


def decode_head(data: bytes) -> tuple[Kind, int, int]:
    """Kind, request and length in the `HEAD.size` bytes of *data*. Raise `BadFrame` if they are none."""
    kind, request, length = HEAD.unpack(data)
    if length > MAX_BODY_BYTES:
        raise BadFrame(f"a body has at most {MAX_BODY_BYTES} bytes, not {length}")
    try:
        return Kind(kind), request, length
    except ValueError:
        raise BadFrame(f"there is no frame of kind {kind}") from None


def _nonce(hello: bytes) -> bytes:
    if not hello.startswith(MARK) or len(hello) != HELLO_BYTES:
        raise BadFrame(f"the other side does not speak {MARK.decode()}")
    return hello[len(MARK) :]


def check_secret(secret: str) -> bytes:
    """The bytes of a shared secret. Raise `ValueError` for one that could be guessed."""
    if len(secret.encode()) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret has at least {LEAST_SECRET_BYTES} bytes: `openssl rand -hex 16` makes one")
    return secret.encode()
