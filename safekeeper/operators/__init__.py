"""Operators: exactly-once services. State in parts, positions in inputs and outputs change together, or not at all.

Read in this order: `core` (everything without I/O), `part`, `outputs`, `replay`; `operator` (with journal and streams),
`event`, `feed` (inputs), `pump` (outputs and acknowledgements); `guarantee`; `metrics`; `changes` (states that know
what has changed in them), `windows`, `buffer`. `docs/operators.md` is the guide.
"""

from safekeeper.operators.buffer import Buffer
from safekeeper.operators.changes import SupportsChanges
from safekeeper.operators.event import Event
from safekeeper.operators.metrics import OperatorMetrics
from safekeeper.operators.operator import Operator
from safekeeper.operators.part import Part
from safekeeper.operators.windows import Window, Windows

__all__ = ["Buffer", "Event", "Operator", "OperatorMetrics", "Part", "SupportsChanges", "Window", "Windows"]
