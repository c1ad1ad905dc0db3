"""safekeeper keeps checkpoints: state in, durable bytes behind one contract, state back after a failure.

    from safekeeper import CheckpointId, SafeKeeper

    with SafeKeeper("file:///var/lib/app") as keeper:
        keeper.save(CheckpointId("WordCounter", b"foo"), {"count": 41}).result()

`safekeeper.open(url)` gives the store itself, for bytes without queues; `safekeeper.aio` has the keeper for asyncio.

What is imported here is the whole public surface, with `safekeeper.testing` for those who write backends.
"""

from safekeeper.backend import (
    MAX_GROUP_BYTES,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
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
    SupportsAtomicBatch,
    SupportsCompaction,
    SupportsPlacement,
    SupportsSalvage,
    SupportsStats,
    SupportsVerify,
    SupportsWorkers,
    Survives,
)
from safekeeper.checkpointed import Checkpointed
from safekeeper.columns import Column, Columns
from safekeeper.element import Element
from safekeeper.errors import (
    BadId,
    BadState,
    BadUrl,
    Closed,
    Conflict,
    Corruption,
    QueueFull,
    SafekeeperError,
    TooLarge,
    Unavailable,
)
from safekeeper.keeper import SafeKeeper
from safekeeper.metrics import Histogram, Metrics
from safekeeper.policy import Calibrate, Every, Trigger
from safekeeper.queues.backoff import Backoff
from safekeeper.queues.fuse import Fuse
from safekeeper.queues.queue import Bounds
from safekeeper.queues.reading import Progress
from safekeeper.queues.ticket import Ticket
from safekeeper.registry import open
from safekeeper.serializers import Serializer
from safekeeper.url import Size, Url

__version__ = "0.1.0"

__all__ = [
    "MAX_GROUP_BYTES",
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
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
    "Element",
    "Every",
    "Fuse",
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
    "SupportsAtomicBatch",
    "SupportsCompaction",
    "SupportsPlacement",
    "SupportsSalvage",
    "SupportsStats",
    "SupportsVerify",
    "SupportsWorkers",
    "Survives",
    "Ticket",
    "TooLarge",
    "Trigger",
    "Unavailable",
    "Url",
    "open",
]
