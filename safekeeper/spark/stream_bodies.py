"""Rows as the elements of a stream: which column is the key, what becomes the body. `stream_columns` is the inverse.

Columns that are bytes already go to a piece as Arrow has them, without a Python object for each row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from safekeeper.errors import BadState, BadUrl

PIECE_BYTES = 4 * 1024 * 1024
"""A piece is closed when its elements have this many bytes; one element may be larger."""

PieceColumns = tuple[int, tuple[bytes, bytes], tuple[bytes, bytes]]
"""How many elements, and their keys and bodies as `encode_piece` takes them."""


@dataclass(frozen=True, slots=True)
class ElementBodies:
    """How rows of *schema* become elements."""

    schema: StructType
    body: str
    key: str | None
    stream: str
    """For errors: which stream it is."""

    def __post_init__(self) -> None:
        types = {field.name: field.dataType.simpleString() for field in self.schema.fields}
        if self.body == "bytes":
            for name, kind in types.items():
                if name not in ("key", "body") or kind not in ("binary", "string"):
                    raise BadUrl(
                        f"{self.stream} takes no column {name} {kind}: take body and key, binary or string, or set the "
                        f"option body to json, msgpack or arrow"
                    )
            if "body" not in types:
                raise BadUrl(f"{self.stream}: there is no column body")
        if self.key is not None and types.get(self.key) not in ("binary", "string"):
            raise BadUrl(f"{self.stream}: there is no column {self.key} that is binary or string")
        if self.key is not None and self.body == "arrow":
            raise BadUrl(f"{self.stream}: an Arrow stream has many rows and cannot have the key of one: leave key out")

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[PieceColumns]:
        """The elements of one task, as pieces of some MiB."""
        keys: list[pa.Array] = []
        bodies: list[pa.Array] = []
        nbytes = 0
        for batch in batches:
            for some_keys, some_bodies in _halves(*self._elements(batch)):
                size = _size(some_keys) + _size(some_bodies)
                if nbytes and nbytes + size > PIECE_BYTES:
                    yield _piece(keys, bodies)
                    keys, bodies, nbytes = [], [], 0
                keys.append(some_keys)
                bodies.append(some_bodies)
                nbytes += size
        if sum(map(len, bodies)):
            yield _piece(keys, bodies)

    def _elements(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """The keys and the bodies of the rows of *batch*."""
        if self.body == "arrow":
            return pa.array([b""], pa.binary()), pa.array([_arrow(batch)], pa.binary())
        name = "key" if self.body == "bytes" else self.key
        names = batch.schema.names
        if name in names:
            keys = batch.column(name).cast(pa.binary()).fill_null(b"")
        else:
            keys = pa.array([b""] * batch.num_rows, pa.binary())
        if self.body == "bytes":
            bodies = batch.column("body")
            if bodies.null_count:
                raise BadState(f"{self.stream}: a row has no body, which is null")
            return keys, bodies.cast(pa.binary())
        rows = batch.select([one for one in names if one != name]).to_pylist()
        encode = _json if self.body == "json" else _msgpack
        return keys, pa.array([encode(row) for row in rows], pa.binary())


def _json(row: dict[str, Any]) -> bytes:
    return _encoder.encode(row).encode()


def _msgpack(row: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(row, datetime=True, default=_text)
    return packed


def _text(value: Any) -> str:
    """What JSON and msgpack have no type for."""
    return value.hex() if isinstance(value, bytes) else str(value)


_encoder = json.JSONEncoder(default=_text, ensure_ascii=False)  # `json.dumps` would make one for each row


def _arrow(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _size(values: pa.Array) -> int:
    """The bytes of all values."""
    ends = _offsets(values)
    return int(ends[-1]) - int(ends[0])


def _offsets(values: pa.Array) -> np.ndarray[Any, Any]:
    """Where each value of a column of bytes begins, and the last one ends."""
    if not len(values):
        return np.zeros(1, "<i4")
    return np.frombuffer(values.buffers()[1], "<i4", len(values) + 1, 4 * values.offset)


def _halves(keys: pa.Array, bodies: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """The columns, cut until each part fits into a piece or is one element."""
    middle = len(bodies) // 2
    if not middle or _size(keys) + _size(bodies) <= PIECE_BYTES:
        yield keys, bodies
        return
    yield from _halves(keys[:middle], bodies[:middle])
    yield from _halves(keys[middle:], bodies[middle:])


def _piece(keys: list[pa.Array], bodies: list[pa.Array]) -> PieceColumns:
    return sum(map(len, bodies)), _column(pa.concat_arrays(keys)), _column(pa.concat_arrays(bodies))


def _column(values: pa.Array) -> tuple[bytes, bytes]:
    offsets = _offsets(values)
    data = values.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    ends = (offsets[1:] - first).astype("<u4").tobytes()
    return ends, b"" if data is None or first == last else data.slice(first, last - first).to_pybytes()
