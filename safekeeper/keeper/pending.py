"""A state whose owner goes on while a worker makes its bytes."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock
from typing import Any

from safekeeper.errors import Closed, SafekeeperError


class PendingState:
    """A state that is serialized once, as it is when this is made: by the worker that stores it, or before that by its
    owner, who is about to change it.

    So a worker never sees what the owner is changing, and never waits for longer than the owner takes to serialize.
    What the owner has serialized early is not in the bounds of a queue before a worker comes to it.
    """

    def __init__(self, state: Any, encode: Callable[..., bytes]) -> None:
        """*encode* is called with the state, and with the worker's *get_on* if it has one (see `Codec.encode`)."""
        self._state = state
        self._encode = encode
        self._lock = Lock()
        self._value: bytes | None = None
        self.error: SafekeeperError | None = None
        """Why there are no bytes, once that is known."""
        self._done = Event()

    @property
    def done(self) -> bool:
        """Set when a worker has taken the bytes, or when nobody needs them any more."""
        return self._done.is_set()

    @done.setter
    def done(self, done: bool) -> None:
        if done:
            self._done.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done; False if *timeout* seconds pass first."""
        return self._done.wait(timeout)

    def serialize(self) -> None:
        """For the owner: when this returns the state may change. That it has no bytes is the worker's to tell."""
        with self._lock:
            if not self.done:
                self._make_value(_nothing)  # it may be large, as with a worker

    def take(self, get_on: Callable[[], object] | None = None) -> bytes:
        """For the worker, once: the bytes. Raise why there are none. *get_on* is that of `Codec.encode`."""
        with self._lock:
            if not self.done:
                self._make_value(get_on)
            value, self._value, self.done = self._value, None, True
        if value is None:
            raise self.error or Closed("its bytes are not needed any more")
        return value

    def _make_value(self, get_on: Callable[[], object] | None) -> None:
        if self._value is not None or self.error is not None:
            return
        try:
            self._value = self._encode(self._state) if get_on is None else self._encode(self._state, get_on)
        except SafekeeperError as error:
            self.error = error
        self._state = None


def _nothing() -> None:
    pass
