"""What `Checkpointed` counts and times, as a value to look at and as text for Prometheus.

print(words.metrics().in_memory, words.metrics().load.quantile(0.99))
text = keeper.metrics().prometheus(keeper="orders") + words.metrics().prometheus(group="WordCounter")
"""

from __future__ import annotations

from dataclasses import dataclass, field

from safekeeper.keeper.metrics import Histogram, Numbers, counter, gauge, times


@dataclass(slots=True)
class ElementMetrics(Numbers):
    """Counters since the elements were made, and what is in memory now."""

    events: int = field(default=0, metadata=counter("Events that counted"))
    raised: int = field(default=0, metadata=counter("Events whose block raised"))
    undone: int = field(default=0, metadata=counter("Events that raised and were undone"))
    loaded: int = field(default=0, metadata=counter("Elements that came back from the store"))
    began: int = field(default=0, metadata=counter("Elements that were in neither memory nor store"))
    blank: int = field(default=0, metadata=counter("Elements that began blank because the store did not answer"))
    load_errors: int = field(default=0, metadata=counter("Elements that could not be loaded"))
    evicted: int = field(default=0, metadata=counter("Elements that left memory because they were idle"))
    forgotten: int = field(default=0, metadata=counter("Elements that were forgotten"))
    saves: int = field(default=0, metadata=counter("Saves of elements"))
    stored: int = field(default=0, metadata=counter("Saves of elements that the store acknowledged"))
    not_stored: int = field(default=0, metadata=counter("Saves of elements that failed"))
    in_memory: int = field(default=0, metadata=gauge("Elements in memory"))
    dirty: int = field(default=0, metadata=gauge("Elements with events after their newest save, or whose save failed"))
    postponed: int = field(default=0, metadata=gauge("Elements that are due and wait for room in the queues"))
    saving: int = field(default=0, metadata=gauge("Elements whose newest save is under way"))
    failed: int = field(default=0, metadata=gauge("Elements whose newest save has failed"))
    half_done: int = field(default=0, metadata=gauge("Elements that an event has left half-done"))
    owned: int = field(default=0, metadata=gauge("1 while the group belongs to this process, else 0"))
    recovered: int = field(default=0, metadata=gauge("1 when the recovery in the background is through, else 0"))
    load: Histogram = field(default_factory=Histogram, metadata=times("Time to load an element"))

    prefix = "safekeeper_elements"
