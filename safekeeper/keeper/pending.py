"""A state whose owner goes on while a worker makes its bytes."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from safekeeper.errors import Closed, SafekeeperError


class PendingState:
    """A state that is serialized once, as it is when this is made: by the worker that stores it, or before that by its
    owner, who is about to change it.

    So a worker never sees what the owner is changing, and never waits for longer than the owner takes to serialize.
    What the owner has serialized early is not in the bounds of a queue before a worker comes to it.
    """

    def __init__(self, state: Any, encode: Callable[[Any], bytes]) -> None:
        self._state = state
        self._encode = encode
        self._lock = Lock()
        self._value: bytes | None = None
        self.error: SafekeeperError | None = None
        """Why there are no bytes, once that is known."""
        self.done = False
        """Set when a worker has taken the bytes, or when nobody needs them any more."""

    def serialize(self) -> None:
        """For the owner: when this returns the state may change. That it has no bytes is the worker's to tell."""
        with self._lock:
            if not self.done:
                self._make_value()

    def take(self) -> bytes:
        """For the worker, once: the bytes. Raise why there are none."""
        with self._lock:
            if not self.done:
                self._make_value()
            value, self._value, self.done = self._value, None, True
        if value is None:
            raise self.error or Closed("its bytes are not needed any more")
        return value

    def _make_value(self) -> None:
        if self._value is not None or self.error is not None:
            return
        try:
            self._value = self._encode(self._state)
        except SafekeeperError as error:
            self.error = error
        self._state = None
