"""How checkpoints lie in Redis: the names of the keys and the bytes of the values.

    PREFIX:{BB}:groups            set      the groups of this bucket; a name is in it exactly while its hash exists
    PREFIX:{BB}:ids:GROUP         hash     key -> value, or the head of a value over 512 KiB
    PREFIX:{BB}:large:GROUP       hash     key -> write id and number of parts, for the keys that have a head
    PREFIX:{BB}:part:WRITE-ID:N   string   part N of such a value; it expires, unless its head was written
    PREFIX:{BB}:lease:ID          string   the lease of a connection that writes; it expires after some seconds

BB is the bucket of the group, 00 to ff. It is the hash tag, so in a cluster a bucket lies in one slot, and one
transaction can change a group and the list it stands in. Frozen, all of it: another layout gets another prefix.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from functools import lru_cache

from safekeeper.backends.shared.checksums import check, checksum, damaged, seed_of

BUCKETS = 256

LARGE_BYTES = PART_BYTES = 512 * 1024
"""Values over this size are written in parts of it. No server can be told to refuse an argument of this size: the
limits that it can be given have a lower bound of 1 MiB."""

# value:   mark u8 | xxh3 u64 | mark 1: the bytes themselves
#                             | mark 2: write id, 16 hexadecimal digits | number of parts u16
#          little endian; the checksum covers the whole value and is seeded with the id, so that a value under
#          another id's name does not pass
_HEAD = struct.Struct("<BQ")
_PARTS = struct.Struct("<16sH")
_WHOLE, _IN_PARTS = 1, 2


@dataclass(frozen=True, slots=True)
class Group:
    """Where a group lies."""

    name: str
    raw: bytes
    """The name as the server knows it."""
    bucket: int
    listed_in: bytes
    ids: bytes
    large: bytes
    part_prefix: bytes
    seed: int

    def describe(self, key: bytes) -> str:
        """What the value of *key* lies in, for people."""
        return f"the hash {self.ids.decode()}"


@lru_cache(maxsize=4096)
def locate(prefix: str, name: str) -> Group:
    """Where the group *name* lies in the store *prefix*."""
    raw = name.encode()
    seed = seed_of(raw)
    bucket = seed % BUCKETS
    tag = _tag(prefix, bucket)
    return Group(
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
class Head:
    """What stands for a large value: which parts it has, and the checksum of them all together."""

    checksum: int
    write_id: bytes
    parts: int

    def names(self, group: Group) -> list[bytes]:
        """The keys of the parts, in order."""
        return [b"%b%b:%d" % (group.part_prefix, self.write_id, n) for n in range(self.parts)]

    def encode(self) -> bytes:
        return _HEAD.pack(_IN_PARTS, self.checksum) + _PARTS.pack(self.write_id, self.parts)


def encode(group: Group, key: bytes, value: bytes) -> bytes:
    """A value as it is stored under its key."""
    return _HEAD.pack(_WHOLE, checksum(group, key, value)) + value


def split(group: Group, key: bytes, value: bytes) -> tuple[Head, list[memoryview]]:
    """A large value as its head and its parts, under a fresh write id."""
    view = memoryview(value)
    parts = [view[start : start + PART_BYTES] for start in range(0, len(value), PART_BYTES)]
    return Head(checksum(group, key, value), secrets.token_hex(8).encode(), len(parts)), parts


def decode(group: Group, key: bytes, stored: bytes) -> bytes | Head:
    """The value that *stored* holds, checked, or the head of a large one."""
    if len(stored) >= _HEAD.size:
        mark, expected = _HEAD.unpack_from(stored)
        if mark == _WHOLE:
            return check(group, key, expected, stored[_HEAD.size :])
        if mark == _IN_PARTS and len(stored) == _HEAD.size + _PARTS.size:
            return Head(expected, *_PARTS.unpack_from(stored, _HEAD.size))
    raise damaged(group, key, "holds no value of version 1")
