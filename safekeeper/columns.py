"""Bulk batches: many puts of one group, laid out as Arrow lays out binary columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from safekeeper.backend import MAX_KEY_BYTES, MAX_VALUE_BYTES, CheckpointId, check_group
from safekeeper.errors import BadId, TooLarge


@dataclass(frozen=True, slots=True)
class Column:
    """Byte strings laid end to end: item *i* is `data[offsets[i]:offsets[i + 1]]`."""

    offsets: NDArray[np.int64]
    """One more than there are items, never falling."""
    data: memoryview
    """Unsigned bytes. What lies before the first offset or after the last belongs to nobody."""

    @classmethod
    def of(cls, items: Any) -> Self:
        """The column of a pyarrow binary or string array (large or not, sliced or not), or of a sequence of bytes.

        An Arrow array is taken without a copy of its data.
        """
        if hasattr(items, "combine_chunks"):  # a pyarrow.ChunkedArray
            items = items.combine_chunks()
        if hasattr(items, "buffers"):
            return cls._of_arrow(items)
        lengths = np.fromiter((len(item) for item in items), np.int64, len(items))
        return cls(np.concatenate(([0], lengths.cumsum())), memoryview(b"".join(items)))

    @classmethod
    def _of_arrow(cls, array: Any) -> Self:
        width = {"binary": np.int32, "string": np.int32, "large_binary": np.int64, "large_string": np.int64}.get(
            str(array.type)
        )
        if width is None:
            raise TypeError(f"a column is a binary or string array, not {array.type}: cast it")
        if array.null_count:
            raise TypeError("a column has no nulls: drop them, or write the deletes as a batch of their own")
        _, offsets, data = array.buffers()
        if offsets is None or not len(array):
            return cls(np.zeros(1, np.int64), memoryview(b""))
        all_offsets = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
        return cls(all_offsets.astype(np.int64), memoryview(data or b"").cast("B"))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]])

    @property
    def nbytes(self) -> int:
        """The bytes of all items together."""
        return int(self.offsets[-1] - self.offsets[0])

    def longest(self) -> int:
        """The length of the longest item, 0 if there is none."""
        return int(np.diff(self.offsets).max(initial=0))


@dataclass(frozen=True, slots=True)
class Columns:
    """Puts of one group: item *i* of `keys` is set to item *i* of `values`. Where a key stands twice, the last counts.

    The buffers must not change until `write` has returned.
    """

    group: str
    keys: Column
    values: Column

    def __post_init__(self) -> None:
        check_group(self.group)
        if len(self.keys) != len(self.values):
            raise BadId(f"{len(self.keys)} keys and {len(self.values)} values do not belong together")
        if self.keys.longest() > MAX_KEY_BYTES:
            raise TooLarge(
                f"a key has at most {MAX_KEY_BYTES} bytes, one here has {self.keys.longest()}: shorten or hash it"
            )
        if self.values.longest() > MAX_VALUE_BYTES:
            raise TooLarge(
                f"a value has at most {MAX_VALUE_BYTES} bytes, one here has {self.values.longest()}: split it"
            )

    @classmethod
    def of(cls, group: str, keys: Sequence[bytes] | Any, values: Sequence[bytes] | Any) -> Self:
        """Columns from pyarrow arrays or from sequences of bytes."""
        return cls(group, Column.of(keys), Column.of(values))

    def items(self) -> Iterable[tuple[CheckpointId, bytes]]:
        """Every id once, with the value that counts: for backends that have no bulk path."""
        last = {self.keys[i]: i for i in range(len(self))}
        return ((CheckpointId(self.group, key), self.values[i]) for key, i in last.items())

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """The bytes of all keys and values together."""
        return self.keys.nbytes + self.values.nbytes
