"""safekeeper keeps checkpoints: state in, durable bytes behind one contract, state back after a failure.

    import safekeeper
    from safekeeper import Batch, CheckpointId

    with safekeeper.open("file:///var/lib/app") as store:
        store.write(Batch({CheckpointId("WordCounter", b"foo"): b"41"}))

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
    Receipt,
    Scope,
    Stats,
    SupportsAtomicBatch,
    SupportsCompaction,
    SupportsStats,
    SupportsVerify,
    Survives,
)
from safekeeper.columns import Column, Columns
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
from safekeeper.registry import Size, Url, open

__version__ = "0.1.0"

__all__ = [
    "MAX_GROUP_BYTES",
    "MAX_KEY_BYTES",
    "MAX_VALUE_BYTES",
    "Backend",
    "BadId",
    "BadState",
    "BadUrl",
    "Batch",
    "CheckpointId",
    "Closed",
    "Column",
    "Columns",
    "Compaction",
    "Conflict",
    "Corruption",
    "Damage",
    "QueueFull",
    "Receipt",
    "SafekeeperError",
    "Scope",
    "Size",
    "Stats",
    "SupportsAtomicBatch",
    "SupportsCompaction",
    "SupportsStats",
    "SupportsVerify",
    "Survives",
    "TooLarge",
    "Unavailable",
    "Url",
    "open",
]
