"""Where a record lies in a writer's folder, as one number: what the index keeps for an id.

    location:   segment number << 34 | row << 33 | tombstone << 32 | offset / 8

Frozen: index files hold such numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

SEGMENT_SHIFT: Final = 34
ROW_BIT: Final = 1 << 33
TOMBSTONE_BIT: Final = 1 << 32
_UNIT_MASK: Final = TOMBSTONE_BIT - 1
MAX_OFFSET: Final = 8 * _UNIT_MASK
"""No record starts behind this offset of a segment."""


def location_of(segment: int, offset: int) -> int:
    """The location of a put that is stored as a record. A row or a tombstone has a bit more."""
    return segment << SEGMENT_SHIFT | offset >> 3


def segment_of(location: int) -> int:
    """The number of the segment that *location* is in."""
    return location >> SEGMENT_SHIFT


def segments_of(locations: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same for many locations."""
    return locations >> np.uint64(SEGMENT_SHIFT)


def offset_of(location: int) -> int:
    """Where in its segment *location* is."""
    return (location & _UNIT_MASK) << 3


def offsets_of(locations: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The same for many locations."""
    return ((locations & np.uint64(_UNIT_MASK)) << np.uint64(3)).astype(np.int64)
