"""What every protocol here is built from: fields of a body, and two sides that prove they share a secret.

The agent's protocol (`agent/protocol.py`), that of Peace (`backends/hdfs/peace/protocol.py`) and that of streams over
TCP (`streams/tcp/protocol.py`) use it. Nothing here opens a connection or knows what a frame means.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Any

# field:     length u32 | data                                  bytes; as text: UTF-8
# hello:     mark (4 bytes) | nonce (32 bytes)                  server to client
# answer:    mark (4 bytes) | nonce (32 bytes) | proof (32)     client to server
# welcome:   proof (32 bytes)                                   server to client
# sealed:    kind u8 | request u32 | length u32 | body (length bytes) | tag (16 bytes)
#            little endian; a proof is HMAC-SHA256 of the sender's role and both nonces under the shared secret, a tag
#            the first half of HMAC-SHA256 of the frame's number and its bytes under a key of that direction
_U32 = struct.Struct("<I")
_U64 = _NUMBER = struct.Struct("<Q")

NONCE_BYTES = PROOF_BYTES = 32
HELLO_BYTES = 4 + NONCE_BYTES
ANSWER_BYTES = HELLO_BYTES + PROOF_BYTES
TAG_BYTES = 16
SEALED_HEADER = struct.Struct("<BII")
LEAST_SECRET_BYTES = 16


class BadFrame(Exception):
    """The bytes are not a frame, or its body is not what its kind says. Nothing after it can be trusted."""


def u32(value: int) -> bytes:
    """A number of a body."""
    return _U32.pack(value)


def u64(value: int) -> bytes:
    """A large number of a body."""
    return _U64.pack(value)


def fields(values: Sequence[bytes]) -> bytes:
    """Fields of bytes, one after the other."""
    return b"".join([_U32.pack(len(value)) + value for value in values])


def texts(values: Sequence[str]) -> bytes:
    """Fields of text, one after the other."""
    return fields([value.encode() for value in values])


class Body:
    """A body being taken apart, field by field. Each method raises `BadFrame` where the body has no such field."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def u32(self) -> int:
        """The next number."""
        return int(_U32.unpack(self._take(_U32.size))[0])

    def u64(self) -> int:
        """The next large number."""
        return int(_U64.unpack(self._take(_U64.size))[0])

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields of fixed size."""
        return layout.unpack(self._take(layout.size))

    def blob(self) -> bytes:
        """The next field of bytes."""
        return self._take(self.u32())

    def text(self) -> str:
        """The next field of text."""
        try:
            return self.blob().decode()
        except UnicodeDecodeError as error:
            raise BadFrame(f"a text is not UTF-8: {error.reason} at byte {error.start}") from error

    def keys(self) -> Iterator[bytes]:
        """A count and as many fields of bytes, one at a time: a count alone takes no memory."""
        for _ in range(self.u32()):
            yield self.blob()

    def end(self) -> None:
        """Nothing may follow."""
        if self._at != len(self._data):
            raise BadFrame(f"{len(self._data) - self._at} bytes too many at the end of a body")

    def _take(self, size: int) -> bytes:
        data = self._data[self._at : self._at + size]
        if len(data) != size:
            raise BadFrame(f"a body of {len(self._data)} bytes ends inside a field")
        self._at += size
        return data


class Handshake:
    """Both sides' proof that they know the secret, without telling it. Make one for each connection.

    *mark* is what the protocol's first bytes are, *server* and *client* are what it calls its two sides.
    """

    def __init__(self, mark: bytes, secret: bytes, *, server: str, client: str, max_body_bytes: int) -> None:
        self._mark = mark
        self._max_body_bytes = max_body_bytes
        self._secret = secret
        self._server = server
        self._client = client
        self._mine = secrets.token_bytes(NONCE_BYTES)
        self._nonces = b""

    def hello(self) -> bytes:
        """The server's first bytes."""
        return self._mark + self._mine

    def answer(self, hello: bytes) -> bytes:
        """The client's answer to *hello*. Raise `BadFrame` if that is not a hello."""
        self._nonces = self._nonce(hello) + self._mine
        return self._mark + self._mine + self._proof(self._client)

    def welcome(self, answer: bytes) -> bytes:
        """The server's proof, for a client that gave its own. Raise `BadFrame` for any other."""
        self._nonces = self._mine + self._nonce(answer[:HELLO_BYTES])
        self._check(answer[HELLO_BYTES:], self._client)
        return self._proof(self._server)

    def check_welcome(self, proof: bytes) -> None:
        """Raise `BadFrame` unless the server knows the secret, too."""
        self._check(proof, self._server)

    def seal(self, sender: str) -> Seal:
        """What marks the frames that *sender* sends on this connection."""
        key = hmac.digest(self._secret, sender.encode() + b" frames" + self._nonces, hashlib.sha256)
        return Seal(key, self._max_body_bytes)

    def _nonce(self, hello: bytes) -> bytes:
        if not hello.startswith(self._mark) or len(hello) != HELLO_BYTES:
            raise BadFrame(f"the other side does not speak {self._mark.decode()}")
        return hello[len(self._mark) :]

    def _proof(self, role: str) -> bytes:
        return hmac.digest(self._secret, role.encode() + b" proof" + self._nonces, hashlib.sha256)

    def _check(self, proof: bytes, role: str) -> None:
        if not hmac.compare_digest(proof, self._proof(role)):
            raise BadFrame(f"the {role} does not know the secret")


class Seal:
    """Marks the frames of one direction, and tells whether they came as they were sent, in order, none left out."""

    def __init__(self, key: bytes, max_body_bytes: int) -> None:
        self._key = key
        self._max_body_bytes = max_body_bytes
        self._frames = 0

    def encode(self, kind: int, request: int, body: bytes = b"") -> bytes:
        """The next frame."""
        if len(body) > self._max_body_bytes:
            raise BadFrame(f"a body has at most {self._max_body_bytes} bytes, not {len(body)}")
        frame = SEALED_HEADER.pack(kind, request, len(body)) + body
        return frame + self._tag(frame)

    def check(self, head: bytes, body: bytes, tag: bytes) -> None:
        """Raise `BadFrame` unless this is the next frame that was sent."""
        if not hmac.compare_digest(tag, self._tag(head + body)):
            raise BadFrame("a frame is not what was sent")

    def _tag(self, frame: bytes) -> bytes:
        self._frames += 1
        return hmac.digest(self._key, _NUMBER.pack(self._frames) + frame, hashlib.sha256)[:TAG_BYTES]


def check_secret(secret: str) -> bytes:
    """The bytes of a shared secret. Raise `ValueError` for one that could be guessed."""
    if len(secret.encode()) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret has at least {LEAST_SECRET_BYTES} bytes: `openssl rand -hex 16` makes one")
    return secret.encode()


def write_all(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all *parts* one after the other at the descriptor's position, however often the kernel stops half-way."""
    written = os.writev(fd, parts)
    if written == sum(len(part) for part in parts):
        return
    rest = memoryview(b"".join(parts))[written:]
    while rest:
        rest = rest[os.write(fd, rest) :]
