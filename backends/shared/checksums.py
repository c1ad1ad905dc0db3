"""Checksums of values in servers: seeded with the id, so that a value under another id's name does not pass either."""

from __future__ import annotations

from typing import Protocol

import xxhash

from safekeeper.backend import CheckpointId
from safekeeper.errors import Corruption


class Located(Protocol):
    """Where the ids of a group lie in a store."""

    @property
    def name(self) -> str:
        """The group."""

    @property
    def seed(self) -> int:
        """What the checksums of its values start from: `seed_of` the name."""

    def describe(self, key: bytes) -> str:
        """What the value of *key* lies in, for people."""


def seed_of(group: bytes) -> int:
    """What the checksums of a group's values start from."""
    return xxhash.xxh3_64_intdigest(group)


def checksum(group: Located, key: bytes, value: bytes, token: bytes = b"") -> int:
    """The checksum of a whole value, and of the *token* that it was created with."""
    seed = xxhash.xxh3_64_intdigest(key, group.seed)
    return xxhash.xxh3_64_intdigest(value, xxhash.xxh3_64_intdigest(token, seed) if token else seed)


def check(group: Located, key: bytes, expected: int, value: bytes, token: bytes = b"") -> bytes:
    """*value*, if it has the checksum that it was saved with."""
    if checksum(group, key, value, token) != expected:
        raise damaged(group, key, "the checksum does not match: the value was changed after it was written")
    return value


def damaged(group: Located, key: bytes, problem: str) -> Corruption:
    """The error for a value that is not what was saved."""
    return Corruption(f"{CheckpointId(group.name, key)} in {group.describe(key)}: {problem}")
