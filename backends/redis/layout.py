"""How checkpoints lie in Redis: the names of the keys and the bytes of the values.

    PREFIX:{BB}:groups            set      the groups of this bucket; a name is in it exactly while its hash exists
    PREFIX:{BB}:ids:GROUP         hash     key -> value, or the head of a value over 512 KiB
    PREFIX:{BB}:large:GROUP       hash     key -> write id and number of chunks, for the keys that have a head
    PREFIX:{BB}:part:WRITE-ID:N   string   chunk N of such a value; it expires, unless its head was written
    PREFIX:{BB}:lease:ID          string   the lease of a connection that writes; it expires after some seconds

BB is the bucket of the group, 00 to ff. It is the hash tag, so in a cluster a bucket lies in one slot, and one
transaction can change a group and the list it stands in. Frozen, all of it: another layout gets another prefix.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from functools import lru_cache

from safekeeper.backend import TOKEN_BYTES
from safekeeper.backends.shared.checksums import check, checksum, damaged, seed_of

BUCKETS = 256

LARGE_BYTES = CHUNK_BYTES = 512 * 1024
"""Values over this size are written in chunks of it. No server can be told to refuse an argument of this size: the
limits that it can be given have a lower bound of 1 MiB."""

# value:   mark u8 | xxh3 u64 | mark 1: the bytes themselves
#                             | mark 2: write id, 16 hexadecimal digits | number of chunks u16
#          what was created:  | mark 3: token, 16 bytes | the bytes themselves
#                             | mark 4: token, 16 bytes | write id | number of chunks u16
#          little endian; the checksum covers the whole value and is seeded with the id and the token, so that a value
#          under another id's name does not pass
_HEADER = struct.Struct("<BQ")
_CHUNKS = struct.Struct("<16sH")
_WHOLE, _IN_CHUNKS, _CREATED_WHOLE, _CREATED_IN_CHUNKS = 1, 2, 3, 4
TOKEN_AT = _HEADER.size


@dataclass(frozen=True, slots=True)
class RedisGroup:
    """Where a group lies."""

    name: str
    raw: bytes
    """The name as the server knows it."""
    bucket: int
    listed_in: bytes
    ids: bytes
    large: bytes
    chunk_prefix: bytes
    seed: int

    def describe(self, key: bytes) -> str:
        """What the value of *key* lies in, for people."""
        return f"the hash {self.ids.decode()}"


@lru_cache(maxsize=4096)
def locate(prefix: str, name: str) -> RedisGroup:
    """Where the group *name* lies in the store *prefix*."""
    raw = name.encode()
    seed = seed_of(raw)
    bucket = seed % BUCKETS
    tag = _tag(prefix, bucket)
    return RedisGroup(
        name, raw, bucket, group_list(prefix, bucket), tag + b"ids:" + raw, tag + b"large:" + raw, tag + b"part:", seed
    )


def group_list(prefix: str, bucket: int) -> bytes:
    """The key of the list of groups in *bucket*; it lies in the slot of the whole bucket."""
    return _tag(prefix, bucket) + b"groups"


def lease_name(prefix: str, bucket: int) -> bytes:
    """A fresh name for a lease in *bucket*."""
    return _tag(prefix, bucket) + b"lease:" + secrets.token_hex(8).encode()


def _tag(prefix: str, bucket: int) -> bytes:
    return b"%b:{%02x}:" % (prefix.encode(), bucket)


@dataclass(frozen=True, slots=True)
class RedisLargeValue:
    """A large value as its head tells it: which chunks it has, and the checksum of them all together."""

    checksum: int
    write_id: bytes
    chunks: int
    token: bytes = b""
    """What it was created with."""

    def names(self, group: RedisGroup) -> list[bytes]:
        """The keys of the chunks, in order."""
        return [b"%b%b:%d" % (group.chunk_prefix, self.write_id, n) for n in range(self.chunks)]

    def encode(self) -> bytes:
        mark = _CREATED_IN_CHUNKS if self.token else _IN_CHUNKS
        return _HEADER.pack(mark, self.checksum) + self.token + _CHUNKS.pack(self.write_id, self.chunks)


def encode(group: RedisGroup, key: bytes, value: bytes, token: bytes = b"") -> bytes:
    """A value as it is stored under its key; with a *token* if it is created."""
    if token:
        return _HEADER.pack(_CREATED_WHOLE, checksum(group, key, value, token)) + token + value
    return _HEADER.pack(_WHOLE, checksum(group, key, value)) + value


def split(group: RedisGroup, key: bytes, value: bytes, token: bytes = b"") -> tuple[RedisLargeValue, list[memoryview]]:
    """A large value as its head and its chunks, under a fresh write id."""
    view = memoryview(value)
    chunks = [view[start : start + CHUNK_BYTES] for start in range(0, len(value), CHUNK_BYTES)]
    write_id = secrets.token_hex(8).encode()
    return RedisLargeValue(checksum(group, key, value, token), write_id, len(chunks), token), chunks


def decode(group: RedisGroup, key: bytes, stored: bytes) -> bytes | RedisLargeValue:
    """The value that *stored* holds, checked, or the head of a large one."""
    if len(stored) >= _HEADER.size:
        mark, expected = _HEADER.unpack_from(stored)
        if mark == _WHOLE:
            return check(group, key, expected, stored[_HEADER.size :])
        if mark == _IN_CHUNKS and len(stored) == _HEADER.size + _CHUNKS.size:
            return RedisLargeValue(expected, *_CHUNKS.unpack_from(stored, _HEADER.size))
        start = TOKEN_AT + TOKEN_BYTES
        token = stored[TOKEN_AT:start]
        if mark == _CREATED_WHOLE and len(stored) >= start:
            return check(group, key, expected, stored[start:], token)
        if mark == _CREATED_IN_CHUNKS and len(stored) == start + _CHUNKS.size:
            write_id, chunks = _CHUNKS.unpack_from(stored, start)
            return RedisLargeValue(expected, write_id, chunks, token)
    raise damaged(group, key, "holds no value of a known version")
