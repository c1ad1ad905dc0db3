"""Chunks as fluids: how fast each goes when all that are under way share wires, links and disks fairly.

A chunk flows at one rate through everything it uses at once, from the writer to the last replica: HDFS passes packets
on as they come. Where several meet, they get equal shares, and what one cannot use the others get (max-min fairness,
which is what TCP comes close to). Nothing else takes time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_SAME = 1e-9  # rates this near are equal


def fair_rates(uses: Sequence[Sequence[int]], capacities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The max-min fair rate of each flow, given what it uses and how much of each there is."""
    sizes = np.fromiter(map(len, uses), np.intp, len(uses))
    resource = np.fromiter((r for one in uses for r in one), np.intp, int(sizes.sum()))
    flow = np.repeat(np.arange(len(uses)), sizes)
    rates = np.zeros(len(uses))
    left = capacities.astype(np.float64, copy=True)
    while len(flow):
        count = np.bincount(resource, minlength=len(left))
        share = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        narrow = np.full(len(uses), np.inf)
        np.minimum.at(narrow, flow, share[resource])  # what each flow gets where it gets least
        least = np.full(len(left), np.inf)
        np.minimum.at(least, resource, narrow[flow])  # the least that any flow of a resource gets
        full = share <= least * (1 + _SAME)  # no flow there is held up more elsewhere: these are the bottlenecks
        settled = np.zeros(len(uses), bool)
        settled[flow[full[resource]]] = True
        rates[settled] = narrow[settled]
        gone = settled[flow]
        np.subtract.at(left, resource[gone], rates[flow[gone]])
        np.maximum(left, 0.0, out=left)
        flow, resource = flow[~gone], resource[~gone]
    return rates


@dataclass(slots=True)
class Flow:
    """One chunk under way."""

    owner: int
    """Whatever its owner goes by."""
    uses: Sequence[int]
    left: float
    """Bytes."""
    rate: float = 0.0


@dataclass(slots=True)
class Fluid:
    """Flows over things with capacities, in bytes a second, and how busy these were."""

    capacities: NDArray[np.float64]
    flows: list[Flow] = field(default_factory=list)
    now: float = 0.0
    busy: list[tuple[float, float, NDArray[np.float64]]] = field(default_factory=list)
    """From when to when each resource was used at which part of its capacity."""

    def add(self, owner: int, uses: Sequence[int], size: float) -> None:
        """Let a chunk begin."""
        self.flows.append(Flow(owner, uses, size))

    def advance(self, until: float = float("inf"), together: float = 0.0) -> list[int]:
        """Go on until chunks are done, or until a moment; the owners of those that are.

        Chunks that end within *together* seconds after the first end with it: fewer, larger steps.
        """
        if not self.flows:
            self.now = until
            return []
        rates = fair_rates([one.uses for one in self.flows], self.capacities)
        ends = np.array([one.left for one in self.flows]) / rates
        step = min(float(ends.min()) + together, until - self.now)
        self._record(step, rates)
        self.now += step
        done = [one.owner for one, end in zip(self.flows, ends, strict=True) if end <= step + 1e-12]
        for one, rate in zip(self.flows, rates, strict=True):
            one.left -= float(rate) * step
        self.flows = [one for one, end in zip(self.flows, ends, strict=True) if end > step + 1e-12]
        return done

    def _record(self, step: float, rates: NDArray[np.float64]) -> None:
        used = np.zeros(len(self.capacities))
        for one, rate in zip(self.flows, rates, strict=True):
            used[list(one.uses)] += rate
        self.busy.append((self.now, self.now + step, used / self.capacities))
