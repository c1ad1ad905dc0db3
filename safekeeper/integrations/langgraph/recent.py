"""The parts that a saver has read or written last, in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from safekeeper.integrations.langgraph.values import Packed

MOST_BYTES = 32 << 20
_MOST_OF_ONE = 8
"""What is larger than this part of all is not kept: it would push out too much."""


class RecentParts:
    """Elements of parts, by thread, token and name. A name stands for one content, so they are never out of date; but
    whether a part is still in the store has to be asked there: rule 2 of `layout.py`."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = Lock()
        self._parts: OrderedDict[tuple[str, str, bytes], Packed] = OrderedDict()
        self._nbytes = 0

    def find(self, group: str, wanted: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], Packed]:
        """Those of the *wanted* parts, by token and name, that are here."""
        found = {}
        with self._lock:
            for token, name in wanted:
                if (elements := self._parts.get(key := (group, token, name))) is not None:
                    self._parts.move_to_end(key)
                    found[token, name] = elements
        return found

    def add(self, group: str, token: str, name: bytes, elements: Packed) -> None:
        """Keep a part, and drop those that were not used for longest."""
        if (size := len(elements[2])) > self._most // _MOST_OF_ONE:
            return
        with self._lock:
            if (before := self._parts.pop((group, token, name), None)) is not None:
                self._nbytes -= len(before[2])
            self._parts[group, token, name] = elements
            self._nbytes += size
            while self._nbytes > self._most:
                self._nbytes -= len(self._parts.popitem(last=False)[1][2])
