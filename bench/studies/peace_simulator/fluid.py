"""Chunks as fluids: how fast each goes when all that are under way share wires, links and disks fairly.

A chunk flows at one rate through everything it uses at once, from the writer to the last replica: HDFS passes packets
on as they come. Where several meet, they get equal shares, and what one cannot use the others get (max-min fairness,
which is what TCP comes close to). Nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Uses = NDArray[np.intp]
"""A row for each flow: what it uses, by index; filled up with an index one beyond the last, which is without limit."""

_SAME = 1 + 1e-9  # rates this near are equal


def fair_rates(uses: Uses, capacities: Floats) -> Floats:
    """The max-min fair rate of each flow, given what it uses and how much of each there is."""
    rates = np.zeros(len(uses))
    left = np.append(capacities, np.inf)
    rest = np.arange(len(uses))  # the flows whose rate is not settled
    while len(rest):
        used = uses[rest]
        count = np.bincount(used.ravel(), minlength=len(left))
        share = left / np.maximum(count, 1)
        narrow = share[used].min(axis=1)  # what each flow gets where it gets least
        least = np.full(len(left), np.inf)
        np.minimum.at(least, used, narrow[:, np.newaxis])  # the least that any flow of a resource gets
        full = share <= least * _SAME  # no flow there is held up more elsewhere: these are the bottlenecks
        full[-1] = False
        settled = full[used].any(axis=1)
        rates[rest[settled]] = narrow[settled]
        left -= _sums(used[settled], narrow[settled], len(left))
        np.maximum(left, 0.0, out=left)
        rest = rest[~settled]
    return rates


def _sums(uses: Uses, rates: Floats, resources: int) -> Floats:
    """What flows over each resource, the one without limit among them."""
    return np.bincount(uses.ravel(), np.repeat(rates, uses.shape[1]), resources).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Busy:
    """At which part of its capacity everything was used for a while."""

    start: float
    end: float
    used: Floats


class Fluid:
    """Flows over things with capacities, in bytes a second; a flow uses at most *most_uses* of them."""

    def __init__(self, capacities: Sequence[float], most_uses: int = 16) -> None:
        self.now = 0.0
        self.busy: list[Busy] = []
        self._capacities = np.array(capacities, dtype=np.float64)
        self._uses = np.empty((0, most_uses), np.intp)
        self._left = np.empty(0)
        self._owners: list[int] = []
        self._new: list[tuple[int, Sequence[int], float]] = []

    def __len__(self) -> int:
        """How many flow."""
        return len(self._owners) + len(self._new)

    def add(self, owner: int, uses: Sequence[int], size: float) -> None:
        """Let a chunk of *size* bytes begin. *owner* is what `advance` says when it is done."""
        self._new.append((owner, uses, size))

    def advance(self, together: float = 0.0) -> list[int]:
        """Go on until chunks are done; their owners.

        Chunks that end within *together* seconds after the first end with it: fewer, larger steps.
        """
        self._take_in()
        rates = fair_rates(self._uses, self._capacities)
        ends = self._left / rates
        step = float(ends.min()) + together
        used = _sums(self._uses, rates, len(self._capacities) + 1)[:-1] / self._capacities
        self.busy.append(Busy(self.now, self.now + step, used))
        self.now += step
        self._left -= rates * step
        over = ends <= step * _SAME
        done = [owner for owner, is_over in zip(self._owners, over, strict=True) if is_over]
        self._owners = [owner for owner, is_over in zip(self._owners, over, strict=True) if not is_over]
        self._uses, self._left = self._uses[~over], self._left[~over]
        return done

    def _take_in(self) -> None:
        rows = np.full((len(self._new), self._uses.shape[1]), len(self._capacities), np.intp)
        for row, (_, uses, _) in zip(rows, self._new, strict=True):
            row[: len(uses)] = uses
        self._uses = np.concatenate([self._uses, rows])
        self._left = np.append(self._left, [size for _, _, size in self._new])
        self._owners += [owner for owner, _, _ in self._new]
        self._new.clear()
