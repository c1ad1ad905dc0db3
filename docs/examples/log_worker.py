"""A worker with threads that counts the words of a growing file and loses none.

    SAFEKEEPER_URL=log:///var/lib/words python docs/examples/log_worker.py access.log

States are saved now and then, which is cheap. After each slice of the file everything is stored, and then how far it
was read: after a kill the last slice is read again. So nothing is lost, and what was counted of that slice may be
counted twice; `stream_counter.py` shows how positions in the states prevent that. Start it twice: the second one waits.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from safekeeper import Checkpointed, Every, SafeKeeper

POSITION = b"\0position"
SLICE = 64 * 1024  # bytes


def main(path: str, store_url: str) -> None:
    """Count for ever."""
    with (
        SafeKeeper(store_url) as keeper,
        Checkpointed(keeper, "LogWorker", new=lambda: 0, owner="wait", trigger=Every(events=100, seconds=1)) as words,
        ThreadPoolExecutor(4) as threads,
        open(path, "rb") as file,
    ):
        with words.look(POSITION) as position:
            file.seek(position or 0)
        print("owner", flush=True)
        while True:
            lines = [line for line in file.readlines(SLICE) if line.endswith(b"\n")]
            list(threads.map(partial(count, words), lines))
            for ticket in words.checkpoint():
                ticket.result()
            with words.event(POSITION) as element:
                element.state += sum(map(len, lines))
                file.seek(element.state)
            for ticket in words.checkpoint(POSITION):
                ticket.result()
            print(element.state, flush=True)
            if not lines:
                time.sleep(0.1)


def count(words: Checkpointed[int], line: bytes) -> None:
    """Count the words of one line."""
    for word in line.split():
        with words.event(word) as element:
            element.state += 1


if __name__ == "__main__":
    main(sys.argv[1], os.environ["SAFEKEEPER_URL"])
