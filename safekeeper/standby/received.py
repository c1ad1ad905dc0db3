"""What a standby has received of an operator, and may paste later: how long that would take, and what it is worth."""

from __future__ import annotations

import time
from collections.abc import Callable

from safekeeper.journal.follow import Follow

_MOST_BYTES = 64 << 20  # that wait; more are pasted, whoever has its turn
_FIRST_GUESS = 1e-8  # seconds a byte, until a paste was measured


class ReceivedBlocks:
    """The blocks that *follow* receives of an operator, whose owner is *owner*: a `PasteView`."""

    def __init__(self, follow: Follow, owner: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.owner = owner
        """The process that owns the operator."""
        self.load = 0.0
        """How many seconds it processes events in a second, by the blocks that were pasted."""
        self._follow, self._clock = follow, clock
        self._oldest = self._newest = clock()  # when what waits came: the first of it, the last of it
        self._pasted: tuple[int, float] | None = None  # events, and when the block with the last of them had come
        self._seconds_a_byte = _FIRST_GUESS

    @property
    def waiting(self) -> float:
        """How many seconds it takes to paste what was received."""
        return self._follow.waiting_bytes * self._seconds_a_byte

    @property
    def waited(self) -> float:
        """How many seconds ago the oldest of it came."""
        return self._clock() - self._oldest if self._follow.waiting else 0.0

    @property
    def recovery(self) -> float:
        """How many seconds it would take to paste what waits, and to process again what is in no block."""
        return self.waiting + self.load * (self._clock() - self._newest)

    @property
    def is_full(self) -> bool:
        """Whether so much waits that it has to be pasted."""
        return self._follow.waiting_bytes > _MOST_BYTES

    def receive(self, *, look: bool) -> int:
        """Read what has come; how many blocks. *look* is as for `Follow.poll`."""
        waited = self._follow.waiting
        received = self._follow.receive(look=look)
        if received:
            self._newest = self._clock()
            if not waited:
                self._oldest = self._newest
        return received

    def paste(self) -> int:
        """Paste what waits, and learn from it; how many blocks."""
        nbytes, begun = self._follow.waiting_bytes, time.thread_time()
        pasted = self._follow.paste()
        if nbytes:
            spent = (time.thread_time() - begun) / nbytes
            first = self._seconds_a_byte == _FIRST_GUESS
            self._seconds_a_byte = spent if first else 0.75 * self._seconds_a_byte + 0.25 * spent
        self._learn_load()
        return pasted

    def _learn_load(self) -> None:
        """From how many events there were since the last paste, and how quickly their owner would replay them."""
        last = self._follow.image.last
        if last is None:
            return
        before, self._pasted = self._pasted, (last.at.events, self._newest)
        if before is not None and self._newest > before[1] and last.rates[1] > 0:
            load = (last.at.events - before[0]) / (self._newest - before[1]) / last.rates[1]
            self.load = 0.75 * self.load + 0.25 * load if self.load else load
