"""The operators of several pipelines in one process, so that many runs need few processes.

python -m safekeeper.spark.pipeline.operators tidy|total STORE INPUT OUTPUT [INPUT OUTPUT ...]
"""

from __future__ import annotations

import os
import sys
import threading
import traceback

from safekeeper.spark.pipeline.tidy import tidy
from safekeeper.spark.pipeline.total import total


def _run(part: str, store: str, source: str, target: str) -> None:
    try:
        (tidy if part == "tidy" else total)(store, source, target)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # somebody starts us again


def main(part: str, store: str, *streams: str) -> None:
    """Run them, each in a thread."""
    threads = [
        threading.Thread(target=_run, args=(part, f"{store}-{index // 2}", *streams[index : index + 2]))
        for index in range(0, len(streams), 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
