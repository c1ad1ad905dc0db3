"""The fuse that keeps a service alive while its store does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from safekeeper.errors import Unavailable


class Fuse:
    """Blows after *failures* failures in a row; then all fails at once for *rest* seconds, and then one probe may try.

    A probe that succeeds mends the fuse; one that fails, or does not come back within *rest* seconds, leaves it blown
    for another *rest*. What the fuse stops is `Unavailable`: it never looks like an absent id.
    """

    def __init__(self, failures: int = 10, rest: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        if failures < 1 or rest < 0:
            raise ValueError(f"a fuse blows after 1 failure or more and rests 0 s or more, not {failures} and {rest}")
        self._limit = failures
        self._rest = rest
        self._clock = clock
        self._lock = Lock()
        self._failures = 0
        self._closed_until = 0.0

    @property
    def blown(self) -> bool:
        """Whether the last *failures* tries failed and no probe has succeeded since."""
        return self._failures >= self._limit

    def __repr__(self) -> str:
        return f"<Fuse: {self._failures} of {self._limit} failures in a row{', blown' if self.blown else ''}>"

    def check(self) -> None:
        """Raise `Unavailable` if the fuse is blown, unless it is time for a probe and this is the one."""
        if not self.blown:
            return
        with self._lock:
            now = self._clock()
            if self.blown and now < self._closed_until:
                seconds = self._closed_until - now
                raise Unavailable(f"the last {self._failures} fetches failed: none is tried for {seconds:.1f} s")
            self._closed_until = now + self._rest

    def succeeded(self) -> bool:
        """The store answered. True if that mended a blown fuse."""
        if not self._failures:
            return False
        with self._lock:
            mended = self.blown
            self._failures = 0
            return mended

    def failed(self) -> bool:
        """The store did not answer. True if that blew the fuse."""
        with self._lock:
            self._failures += 1
            if self.blown:
                self._closed_until = self._clock() + self._rest
            return self._failures == self._limit
