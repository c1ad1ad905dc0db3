"""The script that changes a group: everything a write does to it, at one moment, and only in time.

A command can be held up on its way and arrive when its sender has long given up and somebody else has written
something newer. So a change carries a deadline by the server's own clock, and the server refuses it from then on.
MULTI/EXEC could not: it has no condition that is tested when it arrives.

A script runs alone, reaches the append-only file and the replicas as one MULTI/EXEC, and cannot run out of memory half
way: that is tested at its first write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from safekeeper.backends.redis.layout import Group, Head

LATE = "LATE"
"""The error code of a change that came after its deadline. Nothing was changed."""

SOURCE = rb"""
local ids, groups, large = KEYS[1], KEYS[2], KEYS[3]
local deadline, group, part_prefix, puts, heads = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local first_head = 6 + 2 * puts
local first_delete = first_head + 4 * heads

local time = redis.call('TIME')
if time[1] * 1000000 + time[2] > tonumber(deadline) then
  return redis.error_reply('LATE the change came after its deadline')
end

local function each_part(write_id, count, command)
  for n = 0, count - 1 do redis.call(command, part_prefix .. write_id .. ':' .. n) end
end

-- Whatever can fail does so before the first change. HLEN also fails where something else has our name; the parts
-- are not among the declared keys, so nobody has looked yet whether they are on their way to another node.
local on_the_move = redis.error_reply('TRYAGAIN the parts of a value are being moved to another node')
local function count_parts(write_id, count)
  local found = 0
  for n = 0, count - 1 do
    local answer = redis.pcall('EXISTS', part_prefix .. write_id .. ':' .. n)
    if type(answer) == 'table' then return nil end
    found = found + answer
  end
  return found
end

for i = first_head, first_delete - 1, 4 do
  local found = count_parts(ARGV[i + 2], ARGV[i + 3])
  if not found then return on_the_move end
  if found ~= tonumber(ARGV[i + 3]) then
    return redis.error_reply('GONE the parts of a value expired before its head came')
  end
end

local is_new = redis.call('HLEN', ids) == 0
local replaced = {}
if redis.call('HLEN', large) > 0 then
  local function find(first, last, step)
    for i = first, last, step do
      local old = redis.call('HGET', large, ARGV[i])
      if old then replaced[ARGV[i]] = { old:match('(%x+) (%d+)') } end
    end
  end
  find(6, first_head - 1, 2)
  find(first_head, first_delete - 1, 4)
  find(first_delete, #ARGV, 1)
end
for _, old in pairs(replaced) do
  if not count_parts(old[1], old[2]) then return on_the_move end
end

if is_new and puts + heads > 0 then redis.call('SADD', groups, group) end
for i = 6, first_head - 1, 4000 do  -- unpack takes about 8000
  redis.call('HSET', ids, unpack(ARGV, i, math.min(i + 3999, first_head - 1)))
end
for i = first_head, first_delete - 1, 4 do
  redis.call('HSET', ids, ARGV[i], ARGV[i + 1])
  each_part(ARGV[i + 2], ARGV[i + 3], 'PERSIST')
end
for i = first_delete, #ARGV, 4000 do
  redis.call('HDEL', ids, unpack(ARGV, i, math.min(i + 3999, #ARGV)))
end
if first_delete <= #ARGV and redis.call('EXISTS', ids) == 0 then redis.call('SREM', groups, group) end

for key in pairs(replaced) do redis.call('HDEL', large, key) end
for i = first_head, first_delete - 1, 4 do
  redis.call('HSET', large, ARGV[i], ARGV[i + 2] .. ' ' .. ARGV[i + 3])
end
for _, old in pairs(replaced) do each_part(old[1], old[2], 'DEL') end

return 1
"""

LOAD = (b"SCRIPT", b"LOAD", SOURCE)
_SHA = hashlib.sha1(SOURCE, usedforsecurity=False).hexdigest().encode()


def change(
    group: Group,
    deadline: int,
    puts: Sequence[bytes],
    heads: Sequence[tuple[bytes, Head]],
    deletes: Sequence[bytes],
) -> list[bytes]:
    """The command that runs the script: *puts* are keys and encoded values in turn, *deadline* is in microseconds by
    the server's clock."""
    command = [b"EVALSHA", _SHA, b"3", group.ids, group.listed_in, group.large]
    command += [b"%d" % deadline, group.name, group.part_prefix, b"%d" % (len(puts) // 2), b"%d" % len(heads)]
    command += puts
    for key, head in heads:
        command += [key, head.encode(), head.write_id, b"%d" % head.parts]
    command += deletes
    return command
