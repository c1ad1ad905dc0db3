"""What a forked child finds when it uses its parent's handle. Runs inside a `Peer`, which has no other threads."""

from __future__ import annotations

import os
import pickle
import select
import signal
import warnings
from collections.abc import Callable

from safekeeper.backend import Backend, Batch, CheckpointId

_PATIENCE = 60.0


def after_fork(store: Backend) -> dict[str, str]:
    """What each method did in a forked child: "fine", or the name of the error. Then the parent must work as before."""
    ids = [CheckpointId("fork", b"%d" % n) for n in range(20)]
    batch = Batch(dict.fromkeys(ids, b"before"))
    store.write(batch)
    keys, groups = store.keys("fork"), store.groups()
    next(keys)
    attempts: dict[str, Callable[[], object]] = {
        "read": lambda: store.read(ids),
        "write": lambda: store.write(Batch({ids[0]: b"by the child"})),
        "keys": lambda: list(store.keys("fork")),
        "groups": lambda: list(store.groups()),
        "keys begun before": lambda: list(keys),
        "groups not yet begun": lambda: list(groups),
        "close": store.close,
        "close again": store.close,
        "read after close": lambda: store.read(ids),
    }
    outcomes = _in_a_child(lambda: {name: _outcome(attempt) for name, attempt in attempts.items()})
    _check_parent(store, ids)
    list(keys), list(groups)
    return outcomes


def _check_parent(store: Backend, ids: list[CheckpointId]) -> None:
    before = store.read(ids)
    store.write(Batch({ids[0]: b"after"}))
    found = store.read(ids[:1])
    if before != [b"before"] * len(ids) or found != [b"after"]:
        raise AssertionError(f"after the fork the parent read {before}, then wrote and read {found}")


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "fine"


def _in_a_child(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a driver's threads are what this is about
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        if not select.select([reading], [], [], _PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
            return {"everything": f"no answer in {_PATIENCE:g} s"}
        data = os.read(reading, 1 << 16)
        return pickle.loads(data) if data else {"everything": "died"}  # noqa: S301 - our own child's
    finally:
        os.close(reading)
        os.waitpid(child, 0)
