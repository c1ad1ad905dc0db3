"""A process that writes checkpoints of one thread, until it is killed or has done enough.

    worker.py URL WHO FIRST STEPS PRUNE

It prints the number of each checkpoint when its put has returned.
"""

import sys

from safekeeper.langgraph import SafeKeeperSaver

from .checkpoints import put

THREAD = "t"


def values(who, step):
    """What checkpoint *step* of *who* has."""
    messages = [f"{who} {n} ".ljust(1500, ".") for n in range(max(0, step - 40), step + 1)]
    return {"messages": messages, "step": step, "who": who}


def main(url, who, first, steps, prune):
    with SafeKeeperSaver(url) as saver:
        print("opened", flush=True)
        for step in range(first, first + steps):
            at = put(saver, THREAD, values(who, step), metadata={"step": step, "who": who})
            saver.put_writes(at, [("messages", f"{who} {step}")], f"task of {who}")
            print(step, flush=True)
            if prune and step % prune == 0:
                saver.prune([THREAD])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
