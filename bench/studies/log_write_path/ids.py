"""What is measured in a process of its own: opening a log and the memory of its index. Prints JSON.

python -m safekeeper.bench.studies.log_write_path.ids fill|open|tail|change PATH NUMBER
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import safekeeper
from safekeeper import Batch, CheckpointId, Columns

_CHUNK = 10_000


def _key(number: int) -> bytes:
    return b"%016d" % number


def fill(path: Path, ids: int) -> dict[str, float]:
    """Make a log with so many ids and close it."""
    with safekeeper.open(f"log://{path}?sync=none") as store:
        for start in range(0, ids, _CHUNK):
            keys = [_key(number) for number in range(start, min(start + _CHUNK, ids))]
            store.write(Batch.of_columns(Columns.of("bench", keys, keys)))
    return {}


def tail(path: Path, records: int) -> dict[str, float]:
    """Write so many records and end without closing, so that they are in no index file."""
    store = safekeeper.open(f"log://{path}?sync=none")
    for number in range(records):
        store.write(Batch({CheckpointId("bench", _key(number)): bytes(1000)}))
    time.sleep(2.5)  # until the buffer is in the file
    print("{}", flush=True)
    os._exit(0)


def open_log(path: Path, ids: int) -> dict[str, float]:
    """Open the log and read an id, several times; then read many."""
    some = [CheckpointId("bench", _key(ids * n // 1000)) for n in range(1000)]
    safekeeper.registry.backend_class("log")  # imported now, not in the time that is measured
    before = _resident()
    times = []
    for _ in range(9):
        started = time.perf_counter()
        store = safekeeper.open(f"log://{path}")
        assert store.read(some[:1]) != [None]
        times.append(time.perf_counter() - started)
        if len(times) < 9:
            store.close()
    store.read(some)
    memory = _resident() - before
    store.close()
    return {"open, ms": statistics.median(times) * 1000, "memory at rest, bytes an id": memory / ids}


def change(path: Path, ids: int) -> dict[str, float]:
    """Write so many ids, none of which is in an index file, and see what they need in memory."""
    with safekeeper.open(f"log://{path}?sync=none&segment=4G&sync-interval=0.2") as store:
        store.write(Batch({CheckpointId("bench", b"first"): b""}))
        before = _resident()
        for start in range(0, ids, 100):
            store.write(Batch({CheckpointId("bench", _key(n)): b"" for n in range(start, min(start + 100, ids))}))
        memory = _resident() - before
    return {"memory when changed, bytes an id": memory / ids}


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


WORK: dict[str, Callable[[Path, int], dict[str, float]]] = {
    "fill": fill,
    "tail": tail,
    "open": open_log,
    "change": change,
}

if __name__ == "__main__":
    print(json.dumps(WORK[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
