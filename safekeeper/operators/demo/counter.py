"""Counts words from one stream into another. Kill it at any moment, start it again, or twice: the counts are right.

STORE=log:///var/lib/counter BROKER=redis://127.0.0.1:6379/0 python counter.py
"""

import asyncio
import os

from safekeeper.operators import Operator


async def main() -> None:
    """Count for ever."""
    async with Operator(
        "counter",
        os.environ["STORE"],
        inputs={"words": f"{os.environ['BROKER']}?stream=words"},
        outputs={"counts": f"{os.environ['BROKER']}?stream=counts"},
        readers={"counts": ["dashboard"]},
    ) as counter:
        async for event in counter:  # nothing lost, nothing twice
            part = counter.part(event.key, new=dict)
            part.state["n"] = part.state.get("n", 0) + 1
            counter.emit("counts", key=event.key, body=b"%d" % part.state["n"])


if __name__ == "__main__":
    asyncio.run(main())
