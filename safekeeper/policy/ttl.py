"""What has been idle for too long to be kept in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class Ttl:
    """Keys in the order of their last event. It is about memory only: nothing is ever deleted from a store by it."""

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ValueError(f"a time to live is more than 0 s, not {seconds}")
        self._seconds = seconds
        self._last: OrderedDict[bytes, float] = OrderedDict()

    def touch(self, key: bytes, now: float) -> None:
        """*key* had an event, or came into memory."""
        self._last[key] = now
        self._last.move_to_end(key)

    def drop(self, key: bytes) -> None:
        """*key* is not in memory any more. That it was not there is not an error."""
        self._last.pop(key, None)

    def idle(self, now: float) -> Iterator[bytes]:
        """The keys without an event for the whole time to live, the longest idle first."""
        for key, last in self._last.items():
            if now - last < self._seconds:
                return
            yield key
