"""What a write does to a group: a few commands between MULTI and EXEC, and a script for what must look before it acts.

A command can be held up on its way, and arrive when its sender has long given up and somebody else has written
something newer. So a connection holds a lease, a key that expires, and watches it: EXEC does nothing once the lease
has expired or was taken away. WATCH was answered before the transaction is sent, so there is no way around it. Because
EXEC ends every watch, a connection can send one transaction, and then has to watch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from safekeeper.backend import Batch
from safekeeper.backends.redis.layout import LARGE_BYTES, Group, Head, encode, locate, split
from safekeeper.backends.redis.server import Command

_CHANGE_BYTES = 512 * 1024
_WINDOW_BYTES = 2 * 1024 * 1024
_WINDOW_CHANGES = 1000
_PART_EXPIRES = b"3600000"
"""Milliseconds after which a part goes whose head never came: its writer died in between."""

# Runs after values were set and removed, in the same transaction. A repetition does no harm.
_TIDY = rb"""
local ids, groups, large = KEYS[1], KEYS[2], KEYS[3]
local group, part_prefix, heads = ARGV[1], ARGV[2], tonumber(ARGV[3])
local first_key = 4 + 3 * heads

local function drop_parts(key, of_new_head)
  local old = redis.call('HGET', large, key)
  if not old or old == of_new_head then return true end
  local write_id, count = old:match('(%x+) (%d+)')
  for n = 0, count - 1 do
    local answer = redis.pcall('DEL', part_prefix .. write_id .. ':' .. n)
    if type(answer) == 'table' then return false end  -- it is not declared, and has gone to another node of a cluster
  end
  redis.call('HDEL', large, key)
  return true
end

local moving = redis.error_reply('TRYAGAIN the parts of a value are being moved to another node')
if redis.call('HLEN', ids) == 0 then redis.call('SREM', groups, group) end
for i = 4, first_key - 1, 3 do
  local head = ARGV[i + 1] .. ' ' .. ARGV[i + 2]
  if not drop_parts(ARGV[i], head) then return moving end
  redis.call('HSET', large, ARGV[i], head)
end
for i = first_key, #ARGV do
  if not drop_parts(ARGV[i]) then return moving end
end
return 1
"""


# A server whose memory is full takes no transactions, not even to delete. So deletes alone are a script, which may run
# even then, and looks for the lease itself.
_DELETE = (
    rb"""#!lua flags=allow-oom
if redis.call('EXISTS', KEYS[4]) == 0 then return redis.error_reply('LATE the lease is over') end
for i = 4, #ARGV, 4000 do  -- unpack takes about 8000
  redis.call('HDEL', KEYS[1], unpack(ARGV, i, math.min(i + 3999, #ARGV)))
end
"""
    + _TIDY
)

LATE = "LATE"
"""The error code of deletes that found no lease. Nothing was done."""


@dataclass(slots=True)
class Change:
    """What is done to a group in one transaction."""

    group: Group
    tidy: bool = False
    """Whether it takes the script: something is deleted or large, or may have been."""
    puts: list[bytes] = field(default_factory=list)
    """Keys and encoded values in turn."""
    deletes: list[bytes] = field(default_factory=list)
    untidied: list[bytes] = field(default_factory=list)
    """Keys that were replaced by an earlier change that did not tidy."""
    head: tuple[bytes, Head] | None = None
    parts: Sequence[memoryview] = ()
    """The parts of the head, until they are there: sent again, they would expire under the head."""
    nbytes: int = 0

    def sent_before(self) -> Iterator[Command]:
        """The commands that come before the transaction. It does not matter when they are carried out."""
        if self.head and self.parts:
            for name, part in zip(self.head[1].names(self.group), self.parts, strict=True):
                yield b"SET", name, part, b"PX", _PART_EXPIRES

    def queued(self) -> Iterator[Command]:
        """The commands of the transaction."""
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
            yield b"SADD", group.listed_in, group.name
        if self.tidy:
            yield self._tidying()

    @property
    def only_deletes(self) -> bool:
        return bool(self.deletes) and not self.puts and not self.head

    def deleting(self, lease: bytes) -> Command:
        """The one command of a change that only deletes."""
        group = self.group
        keys = [group.ids, group.listed_in, group.large, lease]
        return [b"EVAL", _DELETE, b"4", *keys, group.name, group.part_prefix, b"0", *self.deletes]

    def _tidying(self) -> Command:
        command = [b"EVAL", _TIDY, b"3", self.group.ids, self.group.listed_in, self.group.large]
        command += [self.group.name, self.group.part_prefix, b"1" if self.head else b"0"]
        if self.head:
            key, head = self.head
            command += [key, head.write_id, b"%d" % head.parts]
        return command + self.puts[::2] + self.deletes + self.untidied

    def left_untidied(self, answers: Sequence[Any]) -> Change | None:
        """The change that has to follow when *answers*, those of the transaction, show that it should have tidied."""
        if self.tidy or not answers[0]:
            return None
        return Change(self.group, tidy=True, untidied=self.puts[::2])


def changes(prefix: str, batch: Batch, with_large: set[str]) -> Iterator[Change]:
    """*batch* in pieces that the server can work on one at a time. *with_large* are groups that may have heads."""
    begun: dict[str, Change] = {}
    for id, value in batch.items():
        where = locate(prefix, id.group)
        if value is not None and len(value) > LARGE_BYTES:
            with_large.add(id.group)
            head, parts = split(where, id.key, value)
            yield Change(where, tidy=True, head=(id.key, head), parts=parts, nbytes=len(value))
            continue
        change = begun.get(id.group)
        if change is None:
            change = begun[id.group] = Change(where, tidy=id.group in with_large)
        if value is None:
            change.deletes.append(id.key)
            change.tidy = True
            change.nbytes += len(id.key)
        else:
            change.puts += (id.key, encode(where, id.key, value))
            change.nbytes += len(id.key) + len(value)
        if change.nbytes > _CHANGE_BYTES:
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
