"""Operators: exactly-once services. State in parts, positions in inputs and outputs change together, or not at all.

Read in this order: `core` (everything without I/O), `part`, `outputs`, `replay`; `operator` (with journal and streams),
`event`, `feed` (inputs), `pump` (outputs and acknowledgements); `guarantee`. `docs/operators.md` is the guide.
"""

from safekeeper.operators.event import Event
from safekeeper.operators.operator import Operator
from safekeeper.operators.part import Part

__all__ = ["Event", "Operator", "Part"]
