"""How ids and values become names and records in the tree, and how they are written, read and listed.

GROUP 00 KEY                  an id. A group has no control characters, so nothing else starts like this
GROUP 01 sha256(KEY)          an id whose name would be longer than LMDB allows; its record starts with the key
00 01 GROUP 00 sha256(KEY)    the token of an id that was created and not written since

Versions that know no tokens leave them alone, since no group starts like this. They do not remove them either when they
write the id; so a token is with the checksum of the record that it belongs to, and counts for no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, takewhile

import lmdb
import xxhash

from safekeeper.backend import Batch, CheckpointId
from safekeeper.backends.lmdb.environment import BytesTransaction, Transaction
from safekeeper.backends.shared.pages import MOST_BYTES, MOST_PAIRS
from safekeeper.columns import Columns
from safekeeper.errors import Corruption

# record:       xxh3 u64 | value                            under GROUP 00 KEY
#               xxh3 u64 | key_len u16 | key | value        under GROUP 01 sha256(KEY)
#               xxh3 u64 | token, 16 bytes | xxh3 u64       under 00 01 GROUP 00 sha256(KEY): that of the id's record
#               big endian; the checksum covers the rest of the record, seeded with that of its name; frozen
PLAIN, HASHED, BEHIND = b"\0", b"\1", b"\2"
TOKENS = b"\0\1"
_LONGEST_NAME = 511
FIRST_GROUP = b" "  # what comes before is no group, since a group has no control characters
_CHECKSUM = 8
_digest, _seed = xxhash.xxh3_64_digest, xxhash.xxh3_64_intdigest
PAGE = 1000
"""How many names are listed in one transaction."""


def _name(group: str, key: bytes) -> tuple[bytes, bytes]:
    """The name of an id in the tree, and what its record holds before the value."""
    name = group.encode() + PLAIN + key
    if len(name) <= _LONGEST_NAME:
        return name, b""
    return group.encode() + HASHED + hashlib.sha256(key).digest(), len(key).to_bytes(2, "big") + key


def _checksum(name: bytes, rest: bytes | memoryview) -> bytes:
    return _digest(rest, _seed(name))


def apply(transaction: Transaction, batch: Batch) -> None:
    """Carry out the operations of *batch*."""
    cursor = transaction.cursor()
    if cursor.set_range(TOKENS) and cursor.key()[: len(TOKENS)] == TOKENS:  # no call: this is part of every write
        _forget_tokens(transaction, batch)
    if batch.columns is not None:
        puts = [_record(batch.columns.group, key, value) for key, value in _pairs(batch.columns)]
    else:
        puts = _puts(transaction, batch.items())
    cursor.putmulti(puts)


def create(transaction: Transaction, id: CheckpointId, value: bytes, token: bytes) -> bool:
    """Put *value* unless *id* is there; whether what is there is what *token* stands for."""
    name, record = _record(id.group, id.key, value)
    token_name = _token_name(id)
    there = transaction.get(name)
    if there is None:
        transaction.put(name, record)
        there = memoryview(record)
    elif _token_of(transaction, token_name) != token + there[:_CHECKSUM]:
        return False
    rest = token + there[:_CHECKSUM]
    # Also if it stands there: whoever put it may have been killed before that was durable, and this makes it so.
    transaction.put(token_name, _checksum(token_name, rest) + rest)
    return True


def _token_name(id: CheckpointId) -> bytes:
    return TOKENS + id.group.encode() + PLAIN + hashlib.sha256(id.key).digest()


def _token_of(transaction: Transaction, token_name: bytes) -> bytes:
    """The token with that name and the checksum that is with it; nothing if there is none."""
    if (record := transaction.get(token_name)) is None:
        return b""
    rest = record[_CHECKSUM:]
    if record[:_CHECKSUM] != _checksum(token_name, rest):
        raise Corruption(
            f"the checksum of the token {token_name!r} does not match: it was damaged after it was written"
        )
    return bytes(rest)


def _has_tokens(transaction: Transaction, group: str) -> bool:
    """Whether any id of *group* was created and not written since."""
    start = TOKENS + group.encode() + PLAIN
    name = first_name(transaction, start)
    return name is not None and name.startswith(start)


def _forget_tokens(transaction: Transaction, batch: Batch) -> None:
    concerned: dict[str, bool] = {}
    for id, _ in batch.items():
        if id.group not in concerned:
            concerned[id.group] = _has_tokens(transaction, id.group)
        if concerned[id.group]:
            transaction.delete(_token_name(id))


def count_tokens(transaction: Transaction) -> int:
    """How many ids were created and not written since."""
    cursor = transaction.cursor()
    if not cursor.set_range(TOKENS):
        return 0
    return sum(1 for _ in takewhile(lambda name: name[: len(TOKENS)] == TOKENS, cursor.iternext(values=False)))


def _puts(
    transaction: Transaction, operations: Iterable[tuple[CheckpointId, bytes | None]]
) -> list[tuple[bytes, bytes]]:
    """Carry out the deletes among *operations*; the puts, as names and records."""
    puts = []
    group, start = "", b""
    for id, value in operations:
        if id.group != group:
            group, start = id.group, id.group.encode() + PLAIN
        name = start + id.key
        if value is None:
            transaction.delete(name if len(name) <= _LONGEST_NAME else _name(group, id.key)[0])
        elif len(name) <= _LONGEST_NAME:  # no call: it would take as long as what LMDB does for a small value
            puts.append((name, _digest(value, _seed(name)) + value))
        else:
            puts.append(_record(group, id.key, value))
    return puts


def _record(group: str, key: bytes, value: bytes | memoryview) -> tuple[bytes, bytes]:
    name, prefix = _name(group, key)
    rest = prefix + value if prefix else value
    return name, _checksum(name, rest) + rest


def _pairs(columns: Columns) -> Iterator[tuple[bytes, memoryview]]:
    """What *columns* put, in order. A key may come twice, the last one counts."""
    keys, values = columns.keys, columns.values
    for (key, key_end), (value, value_end) in zip(
        pairwise(keys.offsets.tolist()), pairwise(values.offsets.tolist()), strict=True
    ):
        yield bytes(keys.data[key:key_end]), values.data[value:value_end]


def get(transaction: Transaction, id: CheckpointId) -> bytes | None:
    """The value of *id*, None if there is none. Raise `Corruption` if it was damaged."""
    name, prefix = _name(id.group, id.key)
    record = transaction.get(name)
    if record is None:
        return None
    rest = record[_CHECKSUM:]
    if record[:_CHECKSUM] != _checksum(name, rest):
        raise Corruption(f"the checksum of {id} does not match: it was damaged after it was written")
    if rest[: len(prefix)] != prefix:
        raise Corruption(f"another key is stored in the place of {id}")
    return bytes(rest[len(prefix) :])


def list_keys(transaction: Transaction, after: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
    """The next names after *after* and before *end*, at most a page of them, each with its key."""
    cursor = transaction.cursor()
    page: list[tuple[bytes, bytes]] = []
    there = cursor.set_range(after)
    while there and len(page) < PAGE and (name := bytes(cursor.key())) < end:
        if name != after:
            page.append((name, _key(name, cursor)))
        there = cursor.next()
    return page


def _key(name: bytes, cursor: lmdb.Cursor[memoryview]) -> bytes:
    group, _, key = name.partition(PLAIN)
    if HASHED not in group:
        return key
    record = cursor.value()
    start = _CHECKSUM + 2
    key = bytes(record[start : start + int.from_bytes(record[_CHECKSUM:start], "big")])
    if name != group.partition(HASHED)[0] + HASHED + hashlib.sha256(key).digest():
        raise Corruption(f"the key of {name!r} does not match its hash: it was damaged after it was written")
    return key


def scan_page(transaction: BytesTransaction, group: str, after: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The next keys of *group* with their values, those whose names come after *after*; the last name among them."""
    plain, end = group.encode() + PLAIN, group.encode() + BEHIND
    start, size = len(plain), 0
    page: list[tuple[bytes, bytes]] = []
    cursor = transaction.cursor()
    there = cursor.set_range(after)
    if there and cursor.key() == after:
        there = cursor.next()
    # No calls and no views in here: each takes as long as what LMDB does for a small value.
    for name, record in islice(cursor.iternext(), MOST_PAIRS) if there else ():
        value = record[_CHECKSUM:]
        if name.startswith(plain):
            page.append((name[start:], value))
        elif name < end:
            key_end = 2 + int.from_bytes(value[:2], "big")
            page.append((value[2:key_end], value[key_end:]))
        else:
            break
        if record[:_CHECKSUM] != _digest(value, _seed(name)):
            raise Corruption(
                f"the checksum of {_shown(group, name)} does not match: it was damaged after it was written"
            )
        after = name
        size += len(value)
        if size >= MOST_BYTES:
            break
    return page, after


def _shown(group: str, name: bytes) -> str:
    """What messages call the id with *name*, whose record cannot be trusted."""
    kind, rest = name[len(group.encode()) :][:1], name[len(group.encode()) + 1 :]
    return str(CheckpointId(group, rest)) if kind == PLAIN else f"{group}/ a key with the hash {rest.hex()}"


def first_name(transaction: Transaction, start: bytes) -> bytes | None:
    """The first name that is not before *start*; None if there is none."""
    cursor = transaction.cursor()
    return bytes(cursor.key()) if cursor.set_range(start) else None
