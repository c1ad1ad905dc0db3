"""What a write does to a group, and why it cannot come late.

A command can be held up on its way, and arrive when its sender has long given up and somebody else has written
something newer. So a connection that writes holds a lease, a key that expires, and what it sends does nothing once
the lease has expired or was taken away. There are two forms, with the same effect:

- A small change is a script that looks for the lease first. It is one command and has one answer.
- A larger one stands between MULTI and EXEC, since a script copies every value twice. The connection watches its lease:
  that was answered before the transaction is sent, and EXEC does nothing if the lease is not as it was. EXEC also ends
  the watch, so a connection can have one transaction under way, not two.

Deletes alone are always a script: a server whose memory is full takes no transaction, but it runs a script that says
it may. So is what is created only if it is absent: the script looks and stores in one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from safekeeper.backend import TOKEN_BYTES, Batch, CheckpointId
from safekeeper.backends.redis.layout import LARGE_BYTES, TOKEN_AT, RedisGroup, RedisLargeValue, encode, locate, split
from safekeeper.backends.redis.server import Command

CHANGE_BYTES = 512 * 1024
_WINDOW_BYTES = 2 * 1024 * 1024
_WINDOW_CHANGES = 1000
_CHUNK_EXPIRES = b"3600000"
"""Milliseconds after which a chunk goes whose head never came: its writer died in between."""

LATE = "LATE"
"""The error code of a script that found no lease. Nothing was done."""

# Where both scripts drop the chunks of large values. It stands where it is needed: making a function takes its time.
_DROP_CHUNKS = rb"""
local chunk_prefix = KEYS[1]:match('^([^{]*{%x%x}:)') .. 'part:'
local moving = redis.error_reply('TRYAGAIN the chunks of a value are being moved to another node')

local function drop_chunks(key, new_head)
  local old = redis.call('HGET', KEYS[3], key)
  if not old or old == new_head then return true end
  local write_id, chunks = old:match('(%x+) (%d+)')
  for n = 0, chunks - 1 do
    local answer = redis.pcall('DEL', chunk_prefix .. write_id .. ':' .. n)
    if type(answer) == 'table' then return false end  -- it is not declared, and has gone to another node of a cluster
  end
  redis.call('HDEL', KEYS[3], key)
  return true
end
"""

# KEYS: ids, groups, large, lease. ARGV: group, count; count puts, as key and value; the keys to delete
_CHANGE = (
    rb"""
local there = redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[4])  -- one call for both: the lease counts twice
if there < 2 then return redis.error_reply('LATE the lease is over') end
local ids, first_delete = KEYS[1], 3 + 2 * ARGV[2]
if first_delete > 3 then
  local added = redis.call('HSET', ids, unpack(ARGV, 3, first_delete - 1))
  if added > 0 and added == redis.call('HLEN', ids) then redis.call('SADD', KEYS[2], ARGV[1]) end
end
for i = first_delete, #ARGV, 4000 do  -- unpack takes about 8000
  redis.call('HDEL', ids, unpack(ARGV, i, math.min(i + 3999, #ARGV)))
end
if first_delete <= #ARGV and redis.call('HLEN', ids) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end
if there == 2 then return 1 end
"""
    + _DROP_CHUNKS
    + rb"""
for i = 3, first_delete - 1, 2 do
  if not drop_chunks(ARGV[i]) then return moving end
end
for i = first_delete, #ARGV do
  if not drop_chunks(ARGV[i]) then return moving end
end
return 1
"""
)
_DELETE = b"#!lua flags=allow-oom\n" + _CHANGE

# Runs in a transaction, after the values were set and removed.
# KEYS: ids, groups, large. ARGV: group, count; count heads, as key, write id and chunks; other keys
_TIDY = (
    _DROP_CHUNKS
    + rb"""
local first_other = 3 + 3 * ARGV[2]
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('SREM', KEYS[2], ARGV[1]) end
for i = 3, first_other - 1, 3 do
  local head = ARGV[i + 1] .. ' ' .. ARGV[i + 2]
  if not drop_chunks(ARGV[i], head) then return moving end
  redis.call('HSET', KEYS[3], ARGV[i], head)
end
for i = first_other, #ARGV do
  if not drop_chunks(ARGV[i]) then return moving end
end
return 1
"""
)

# KEYS: ids, groups, large, lease; the chunks of a large value. ARGV: group, key, what to store, where its token begins
# and ends; of a large value, write id and chunks
_CREATE = (
    _DROP_CHUNKS
    + rb"""
local ids, key, new = KEYS[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', KEYS[4]) == 0 then return redis.error_reply('LATE the lease is over') end
local old = redis.call('HGET', ids, key)
if old then
  if (old:byte() or 0) < 3 or old:sub(ARGV[4], ARGV[5]) ~= new:sub(ARGV[4], ARGV[5]) then return 0 end
  redis.call('HSET', ids, key, old)  -- Valkey's WAIT waits for what its own connection has changed, and for no more
  return 1
end
if #KEYS > 4 and redis.call('EXISTS', unpack(KEYS, 5)) < #KEYS - 4 then
  return redis.error_reply('LOST chunks of the value: write it again')
end
if not drop_chunks(key) then return moving end
if #KEYS > 4 then
  for i = 5, #KEYS do redis.call('PERSIST', KEYS[i]) end
  redis.call('HSET', KEYS[3], key, ARGV[6])
end
redis.call('HSET', ids, key, new)
redis.call('SADD', KEYS[2], ARGV[1])
return 1
"""
)

LOAD_SCRIPTS: list[Command] = [(b"SCRIPT", b"LOAD", script) for script in (_CHANGE, _DELETE)]
_CHANGE_SHA, _DELETE_SHA = (
    hashlib.sha1(script, usedforsecurity=False).hexdigest().encode() for script in (_CHANGE, _DELETE)
)


@dataclass(slots=True)
class Change:
    """What is done to a group in one step."""

    group: RedisGroup
    tidy: bool = False
    """Whether a transaction has to tidy: something is deleted or large, or may have been."""
    puts: list[bytes] = field(default_factory=list)
    """Keys and encoded values in turn."""
    deletes: list[bytes] = field(default_factory=list)
    untidied: Sequence[bytes] = ()
    """Keys that were replaced by an earlier change that did not tidy."""
    head: tuple[bytes, RedisLargeValue] | None = None
    chunks: Sequence[memoryview] = ()
    """The chunks of the head, until they are there: sent again, they would expire under the head."""
    nbytes: int = 0
    answer: Any = None
    """What a script said that has made it."""

    @property
    def only_deletes(self) -> bool:
        return not (self.puts or self.head or self.untidied)

    def bringing_chunks(self) -> list[Command]:
        """The commands that have to be answered before anything else is sent. They may be late."""
        if not self.head:
            return []
        names = self.head[1].names(self.group)
        return [(b"SET", name, chunk, b"PX", _CHUNK_EXPIRES) for name, chunk in zip(names, self.chunks, strict=True)]

    def by_script(self, lease: bytes) -> Command:
        """The change as one command; it has no head."""
        group = self.group
        command = [b"EVALSHA", _CHANGE_SHA if self.puts else _DELETE_SHA, b"4"]
        command += (group.ids, group.listed_in, group.large, lease)
        command += (group.raw, b"%d" % (len(self.puts) // 2))
        return command + self.puts + self.deletes

    def in_transaction(self) -> Iterator[Command]:
        """The change as commands between MULTI and EXEC."""
        group = self.group
        if not self.tidy:
            yield b"HLEN", group.large
        if self.puts:
            yield [b"HSET", group.ids, *self.puts]
        if self.deletes:
            yield [b"HDEL", group.ids, *self.deletes]
        if self.head:
            key, head = self.head
            yield b"HSET", group.ids, key, head.encode()
            for name in head.names(group):
                yield b"PERSIST", name
        if self.puts or self.head:
            yield b"SADD", group.listed_in, group.raw
        if self.tidy:
            yield self._tidying()

    def _tidying(self) -> Command:
        command = [b"EVAL", _TIDY, b"3", self.group.ids, self.group.listed_in, self.group.large]
        command += (self.group.raw, b"1" if self.head else b"0")
        if self.head:
            key, head = self.head
            command += (key, head.write_id, b"%d" % head.chunks)
        return [*command, *self.puts[::2], *self.deletes, *self.untidied]

    def follow_up(self, answers: Sequence[Any]) -> Change | None:
        """What has to be done as well when *answers*, those of the transaction, show that it should have tidied."""
        if self.tidy or not answers[0]:
            return None
        return Change(self.group, tidy=True, untidied=self.puts[::2])


class Creation(Change):
    """One id that is set if it is absent, always by a script. It answers 1 if that is what stands there now."""

    def by_script(self, lease: bytes) -> Command:
        group = self.group
        names = self.head[1].names(group) if self.head else []
        command = [b"EVAL", _CREATE, b"%d" % (4 + len(names))]
        command += (group.ids, group.listed_in, group.large, lease, *names)
        key, stored = (self.head[0], self.head[1].encode()) if self.head else self.puts
        command += (group.raw, key, stored, b"%d" % (TOKEN_AT + 1), b"%d" % (TOKEN_AT + TOKEN_BYTES))
        return [*command, b"%b %d" % (self.head[1].write_id, self.head[1].chunks)] if self.head else command


def creation(prefix: str, id: CheckpointId, value: bytes, token: bytes) -> Creation:
    """What creates *id*."""
    where = locate(prefix, id.group)
    if len(value) <= LARGE_BYTES:
        return Creation(where, puts=[id.key, encode(where, id.key, value, token)], nbytes=len(value))
    head, chunks = split(where, id.key, value, token)
    return Creation(where, head=(id.key, head), chunks=chunks, nbytes=len(value))


def changes(prefix: str, batch: Batch, with_large: set[str]) -> Iterator[Change]:
    """*batch* in pieces that the server can work on one at a time. *with_large* are groups that may have heads."""
    begun: dict[str, Change] = {}
    for id, value in batch.items():
        where = locate(prefix, id.group)
        if value is not None and len(value) > LARGE_BYTES:
            with_large.add(id.group)
            head, chunks = split(where, id.key, value)
            yield Change(where, tidy=True, head=(id.key, head), chunks=chunks, nbytes=len(value))
            continue
        change = begun.get(id.group)
        if change is None:
            change = begun[id.group] = Change(where, id.group in with_large)
        if value is None:
            change.deletes.append(id.key)
            change.tidy = True
            change.nbytes += len(id.key)
        else:
            change.puts += (id.key, encode(where, id.key, value))
            change.nbytes += len(id.key) + len(value)
        if change.nbytes > CHANGE_BYTES:
            yield begun.pop(id.group)
    yield from begun.values()


def windows(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """*changes* in lists that are sent together: as much as a server can do at once without others noticing."""
    window: list[Change] = []
    nbytes = 0
    for change in changes:
        window.append(change)
        nbytes += change.nbytes
        if nbytes > _WINDOW_BYTES or len(window) == _WINDOW_CHANGES:
            yield window
            window, nbytes = [], 0
    if window:
        yield window
