"""A consumer of a Redis stream that counts each entry once, however often it is killed.

    redis-cli XADD words '*' word be
    SAFEKEEPER_URL=log:///var/lib/words python docs/examples/stream_counter.py redis://localhost/0

An entry is acknowledged to Redis when its count is durable. What was not comes again after a restart; the position of
the last entry is part of each word's state, so it is not counted twice. Start it twice: the second one waits until the
first is gone.
"""

import asyncio
import os
import sys
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from safekeeper import Checkpointed, SafeKeeper, Ticket

STREAM, GROUP, NAME = "words", "counter", "the one"  # one name: what its predecessor had not acknowledged is its own


async def main(redis_url: str, store_url: str) -> None:
    """Count for ever."""
    redis: Any = Redis.from_url(redis_url)  # Any: its types are those of all replies at once
    try:
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise
    with SafeKeeper(store_url) as keeper:
        async with Checkpointed(keeper, "StreamCounter", new=lambda: [0, 0, 0], owner="wait") as words:
            print("owner", flush=True)
            after = "0"  # first what was delivered and not acknowledged, then what is new
            while True:
                reply = await redis.xreadgroup(GROUP, NAME, {STREAM: after}, count=100, block=1000)
                entries = reply[0][1] if reply else []
                after = entries[-1][0] if entries and after != ">" else ">"
                tickets = [await count(words, id, fields) for id, fields in entries]
                await asyncio.gather(*(ticket for ticket in tickets if ticket is not None))
                if entries:
                    await redis.xack(STREAM, GROUP, *(id for id, _ in entries))


async def count(words: Checkpointed[list[int]], id: bytes, fields: dict[bytes, bytes]) -> Ticket | None:
    """Count one entry, unless it is in the word's state already; the ticket of what has to be stored."""
    position = [int(part) for part in id.split(b"-")]
    async with words.event(fields[b"word"]) as element:
        seen, *last = element.state
        if position > last:
            element.state = [seen + 1, *position]
    return element.ticket


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], os.environ["SAFEKEEPER_URL"]))
