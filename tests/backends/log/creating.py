"""What runs inside a `Peer` that creates ids, and stops itself (SIGSTOP) between two steps of that."""

from __future__ import annotations

import os
import signal
from typing import Any

from safekeeper import CheckpointId

from .inside import _before_each_step


def create(store: Any, id: CheckpointId, value: bytes, token: bytes) -> bool:
    """Create one id."""
    created: bool = store.create(id, value, token)
    return created


def steps_of_a_create(store: Any, id: CheckpointId, value: bytes, token: bytes) -> list[str]:
    """Create an id, and tell before which steps it could be stopped."""
    passed: list[str] = []
    with _before_each_step(passed.append):
        store.create(id, value, token)
    return passed


def create_and_stop(store: Any, id: CheckpointId, value: bytes, token: bytes, step: int) -> None:
    """Create an id, and stop before the step with that number; at the last one, it is created but not yet answered."""
    passed: list[str] = []

    def stop(name: str) -> None:
        passed.append(name)
        if len(passed) == step + 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    with _before_each_step(stop):
        store.create(id, value, token)
        stop("answer")
