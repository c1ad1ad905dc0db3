"""One id and its value in one file or object: the name it stands under, and the bytes in it.

In a name letters, digits, `_` and `-` stand for themselves, any other byte is `%xx`; of a name that would be too long
the beginning is kept, and `=` and a hash follow. The bytes hold the id in full.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from urllib.parse import unquote_to_bytes

import xxhash

from safekeeper.backend import MAX_GROUP_BYTES, MAX_KEY_BYTES, TOKEN_BYTES, CheckpointId
from safekeeper.errors import Corruption

# "SKF1" | xxh3 u64 | group_len u8 | key_len u16 | group | key | value to the end
# "SKF2" | xxh3 u64 | group_len u8 | key_len u16 | group | key | token, 16 bytes | value to the end
# little endian; the checksum covers everything after itself; what was created has a token; frozen: another layout gets
# another mark
_MARK = b"SKF1"
_CREATED_MARK = b"SKF2"
_HEADER = struct.Struct("<4sQBH")
_CHECKED_FROM = 12

MAX_HEADER_BYTES = _HEADER.size + MAX_GROUP_BYTES + MAX_KEY_BYTES + TOKEN_BYTES
"""The id is within this many bytes from the beginning."""

_PLAIN = re.compile(rb"[A-Za-z0-9_-]*")
_ESCAPED = [chr(byte) if _PLAIN.fullmatch(bytes([byte])) else f"%{byte:02x}" for byte in range(256)]
_LONGEST_NAME = 200
_SMALL = 4096  # up to here a copy takes less time than a view


def escape(raw: bytes) -> str:
    """The name for a group or a key: never a path, nor empty unless *raw* is."""
    name = raw.decode() if _PLAIN.fullmatch(raw) else "".join([_ESCAPED[byte] for byte in raw])
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:100]}={hashlib.sha256(raw).hexdigest()}"


def unescape(name: str) -> bytes | None:
    """What `escape` was made from; None if it is not in the name in full."""
    return None if "=" in name else unquote_to_bytes(name)


def encode(id: CheckpointId, value: bytes, token: bytes = b"") -> list[bytes]:
    """The bytes for *id* and *value*, in pieces to be written one after the other; with a *token* if it is created."""
    group = id.group.encode()
    checked = b"%c%b%b%b%b" % (len(group), len(id.key).to_bytes(2, "little"), group, id.key, token)
    checksum = xxhash.xxh3_64(checked)
    checksum.update(value)
    return [_CREATED_MARK if token else _MARK, checksum.intdigest().to_bytes(8, "little"), checked, value]


def decode_id(place: str | os.PathLike[str], data: bytes) -> tuple[CheckpointId, int]:
    """The id at the beginning of *data*, and where its value starts."""
    if data[:4] not in (_MARK, _CREATED_MARK):
        raise Corruption(f"{place}: is no checkpoint of version 1 or 2")
    if len(data) < _HEADER.size:
        raise Corruption(f"{place}: ends after {len(data)} bytes")
    _, _, group_size, key_size = _HEADER.unpack_from(data)
    key_from = _HEADER.size + group_size
    key_to = key_from + key_size
    try:
        id = CheckpointId(data[_HEADER.size : key_from].decode(), data[key_from:key_to])
        return id, key_to + TOKEN_BYTES if data[:4] == _CREATED_MARK else key_to
    except ValueError as error:
        raise Corruption(f"{place}: holds no valid id: {error}") from error


def decode(place: str | os.PathLike[str], data: bytes) -> tuple[CheckpointId, bytes]:
    """The id and the value in *data*, both checked."""
    id, start = decode_id(place, data)
    if xxhash.xxh3_64_intdigest(memoryview(data)[_CHECKED_FROM:]) != _HEADER.unpack_from(data)[1]:
        raise Corruption(f"{place}: the checksum does not match: it was damaged after it was written")
    return id, data[start:]


def decode_of_group(place: str, data: bytes, group: bytes) -> tuple[bytes, bytes]:
    """The key and the value in *data*, which must be of *group*: the same as `decode`, for many."""
    if data.startswith(_MARK) and len(data) >= _HEADER.size:
        _, checksum, group_size, key_size = _HEADER.unpack_from(data)
        key_from = _HEADER.size + group_size
        key_to = key_from + key_size
        checked = data[_CHECKED_FROM:] if len(data) < _SMALL else memoryview(data)[_CHECKED_FROM:]
        if xxhash.xxh3_64_intdigest(checked) == checksum and data[_HEADER.size : key_from] == group:
            return data[key_from:key_to], data[key_to:]
    id, value = decode(place, data)
    if id.group.encode() != group:
        raise Corruption(f"{place}: holds {id}, which belongs in another file: files were renamed")
    return id.key, value


def decode_value(place: str | os.PathLike[str], data: bytes, id: CheckpointId) -> bytes:
    """The value in *data*, which must be that of *id*."""
    found, value = decode(place, data)
    if found != id:
        raise Corruption(f"{place}: holds {found} instead of {id}: files were renamed")
    return value


def token_of(place: str | os.PathLike[str], data: bytes) -> bytes | None:
    """The token with which the value in *data* was created; None if it was written."""
    decode(place, data)
    _, start = decode_id(place, data)
    return data[start - TOKEN_BYTES : start] if data[:4] == _CREATED_MARK else None
