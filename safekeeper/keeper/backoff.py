"""How long to wait before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow from *first* by *factor* up to *most* seconds, each shortened at random by up to *jitter*.

    The randomness keeps many processes that lost the same server from coming back all at once.
    """

    first: float = 0.05
    factor: float = 2.0
    most: float = 1.0
    """Short on purpose: a try costs little, and a save whose deadline comes during a delay was not tried again."""
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.first <= 0 or self.factor < 1 or self.most < self.first or not 0 <= self.jitter < 1:
            raise ValueError(f"{self} makes no sense: 0 < first <= most, factor >= 1, 0 <= jitter < 1")

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row, one or more."""
        # Past some power the product is infinite, and the bound holds anyway.
        full = min(self.first * self.factor ** min(failures - 1, 64), self.most)
        return full * (1 - self.jitter * random.random())  # noqa: S311 (nobody gains by guessing it)
