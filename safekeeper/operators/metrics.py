"""What an operator counts and times, as a value to look at and as text for Prometheus.

print(counter.metrics().expected_recovery_seconds, counter.metrics().standby_lag_blocks)
text = "".join(operator.metrics().prometheus(operator=operator.name) for operator in operators)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from safekeeper.keeper.metrics import Histogram, Numbers, counter, gauge, times


@dataclass(slots=True)
class OperatorMetrics(Numbers):
    """What an operator has done, what it keeps now, and how long a recovery would take. A standby has its lag, and
    knows of the rest what it has followed."""

    events: int = field(default=0, metadata=counter("Events that were taken, since the journal began"))
    outputs: int = field(default=0, metadata=counter("Outputs that were emitted, since the journal began"))
    acknowledged_outputs: int = field(default=0, metadata=counter("Outputs that all readers have acknowledged"))
    blocks: int = field(default=0, metadata=counter("Blocks that were appended, since the journal began"))
    capture: Histogram = field(default_factory=Histogram, metadata=times("Processor time of a capture here"))
    parts: int = field(default=0, metadata=gauge("Parts of the state"))
    records: int = field(default=0, metadata=gauge("Records of parts that a recovery loads"))
    replay_events: int = field(default=0, metadata=gauge("Events that a recovery replays"))
    unsaved_events: int = field(default=0, metadata=gauge("Events that are in no block"))
    blocks_in_flight: int = field(default=0, metadata=gauge("Blocks that are not acknowledged"))
    held_outputs: int = field(default=0, metadata=gauge("Outputs that are kept for streams and readers"))
    held_output_bytes: int = field(default=0, metadata=gauge("Bytes of the outputs that are kept"))
    expected_recovery_seconds: float = field(default=0.0, metadata=gauge("How long a recovery would take now"))
    owns: int = field(default=0, metadata=gauge("1 while it owns its journal, else 0"))
    standbys: int = field(default=0, metadata=gauge("Standbys that watch it"))
    stands_by: int = field(default=0, metadata=gauge("1 while it is a standby, else 0"))
    standby_lag_blocks: int = field(default=0, metadata=gauge("Blocks that this standby is behind"))
    standby_lag_seconds: float = field(default=0.0, metadata=gauge("For how long this standby has been behind"))
    standby_waiting_blocks: int = field(default=0, metadata=gauge("Blocks that wait here to be pasted"))
    standby_loads: int = field(default=0, metadata=gauge("How often this standby has loaded everything"))

    prefix = "safekeeper_operator"
