"""safekeeper keeps checkpoints: state in, durable bytes behind one contract, state back after a failure.

    from safekeeper import CheckpointId, SafeKeeper

    with SafeKeeper("file:///var/lib/app") as keeper:
        keeper.save(CheckpointId("WordCounter", b"foo"), {"count": 41}).result()

`safekeeper.open(url)` gives the store itself, for bytes without queues; `safekeeper.aio` has the keeper for asyncio.

What is imported here is the whole public surface, with `safekeeper.testing` for those who write backends. An `import *`
brings all of it but `open`, which would take the place of Python's own.
"""

from typing import TYPE_CHECKING, Any

from safekeeper.backend import (
    MAX_GROUP_BYTES,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    TOKEN_BYTES,
    Backend,
    Batch,
    CheckpointId,
    Compaction,
    Damage,
    Intact,
    PlacementCounts,
    Receipt,
    Scope,
    Stats,
    SupportsAnnouncement,
    SupportsAtomicBatch,
    SupportsCompaction,
    SupportsConcurrentWrites,
    SupportsCreate,
    SupportsExists,
    SupportsPlacement,
    SupportsProgress,
    SupportsSalvage,
    SupportsScan,
    SupportsSomeAtomicBatches,
    SupportsStats,
    SupportsTurns,
    SupportsUrlOptions,
    SupportsVerify,
    SupportsWorkers,
    Survives,
    check_creation,
)
from safekeeper.elements import Checkpointed, Element, ElementMetrics
from safekeeper.errors import (
    BadId,
    BadState,
    BadUrl,
    Closed,
    Conflict,
    Corruption,
    Diverged,
    Gone,
    HalfDone,
    QueueFull,
    SafekeeperError,
    TooLarge,
    Unavailable,
)
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.backoff import Backoff
from safekeeper.keeper.fuse import Fuse
from safekeeper.keeper.lanes import Bounds
from safekeeper.keeper.metrics import Histogram, Metrics
from safekeeper.keeper.reader import Progress
from safekeeper.keeper.serializers import Serializer
from safekeeper.keeper.ticket import Ticket
from safekeeper.policy import Calibrate, Every, Trigger
from safekeeper.registry import open as open  # not in __all__: `import *` would hide the builtin
from safekeeper.url import Size, Url

if TYPE_CHECKING:
    from safekeeper.columns import Column, Columns

__version__ = "0.1.0"

__all__ = [
    "MAX_GROUP_BYTES",
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "TOKEN_BYTES",
    "Backend",
    "Backoff",
    "BadId",
    "BadState",
    "BadUrl",
    "Batch",
    "Bounds",
    "Calibrate",
    "CheckpointId",
    "Checkpointed",
    "Closed",
    "Column",
    "Columns",
    "Compaction",
    "Conflict",
    "Corruption",
    "Damage",
    "Diverged",
    "Element",
    "ElementMetrics",
    "Every",
    "Fuse",
    "Gone",
    "HalfDone",
    "Histogram",
    "Intact",
    "Metrics",
    "PlacementCounts",
    "Progress",
    "QueueFull",
    "Receipt",
    "SafeKeeper",
    "SafekeeperError",
    "Scope",
    "Serializer",
    "Size",
    "Stats",
    "SupportsAnnouncement",
    "SupportsAtomicBatch",
    "SupportsCompaction",
    "SupportsConcurrentWrites",
    "SupportsCreate",
    "SupportsExists",
    "SupportsPlacement",
    "SupportsProgress",
    "SupportsSalvage",
    "SupportsScan",
    "SupportsSomeAtomicBatches",
    "SupportsStats",
    "SupportsTurns",
    "SupportsUrlOptions",
    "SupportsVerify",
    "SupportsWorkers",
    "Survives",
    "Ticket",
    "TooLarge",
    "Trigger",
    "Unavailable",
    "Url",
    "check_creation",
]


def __getattr__(name: str) -> Any:
    if name in ("Column", "Columns"):  # they need numpy, which takes longer to import than all the rest
        from safekeeper import columns

        return getattr(columns, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
