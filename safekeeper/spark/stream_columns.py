"""The elements of a stream as columns, and columns as elements.

What a body is:

    bytes      columns number, key and body, or some of them; key and body are binary or string
    json       a JSON object: its fields are the columns
    msgpack    a msgpack map by the names of the columns, or an array in their order
    arrow      an Arrow stream (`pyarrow.ipc.new_stream`): an element may hold many rows
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from safekeeper.errors import BadState, BadUrl
from safekeeper.streams import StreamElement
from safekeeper.streams.tables import BytesColumn, ElementTable, PackedBytes

BODIES = ("bytes", "json", "msgpack", "arrow")
BYTES_SCHEMA = "number bigint, key binary, body binary"
_TEXTS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_decimal,
    pa.types.is_time,
)
"""What JSON has as text."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow types by which Spark takes columns of *schema*."""
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


@dataclass(frozen=True, slots=True)
class ElementColumns:
    """How the elements of a stream become the columns of *schema*."""

    schema: StructType
    body: str
    key: str | None
    """The column that is the element's key."""
    number: str | None
    """The column that is the element's number."""
    stream: str
    """For errors: which stream it is."""

    def __post_init__(self) -> None:
        if self.body == "bytes":
            types = {"number": ("bigint",), "key": ("binary", "string"), "body": ("binary", "string")}
            for one in self.schema.fields:
                if one.dataType.simpleString() not in types.get(one.name, ()):
                    raise BadUrl(f"there is no column {one.name} {one.dataType.simpleString()}: take {BYTES_SCHEMA}")
        for name in (self.key, self.number):
            if name is not None and name not in self.schema.names:
                raise BadUrl(f"the schema has no column {name}, which the options name")

    def batches(self, table: ElementTable) -> Iterator[pa.RecordBatch]:
        """The rows of the elements of *table*."""
        if not len(table.bodies):
            return
        schema = arrow_schema(self.schema)
        if self.body == "arrow":
            for element in table.elements():
                yield from self._from_arrow(schema, element)
            return
        find = {"bytes": self._from_bytes, "json": self._from_json, "msgpack": self._from_msgpack}[self.body]
        columns = find(schema, table)
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _meta(self, schema: pa.Schema, table: ElementTable) -> dict[str, pa.Array]:
        """The columns of key and number."""
        found: dict[str, pa.Array] = {}
        if self.key is not None:
            found[self.key] = self._cast(_array(table.keys), schema.field(self.key))
        if self.number is not None:
            found[self.number] = self._cast(_numbers(table), schema.field(self.number))
        return found

    def _from_bytes(self, schema: pa.Schema, table: ElementTable) -> dict[str, pa.Array]:
        columns = {"key": table.keys, "body": table.bodies}
        return {
            one.name: self._cast(_array(columns[one.name]) if one.name in columns else _numbers(table), one)
            for one in schema
        }

    def _cast(self, values: Any, field: pa.Field) -> pa.Array:
        try:
            if pa.types.is_timestamp(field.type) and field.type.tz and pa.types.is_string(values.type):
                return _instants(values, field.type)
            return values.cast(field.type)
        except pa.ArrowInvalid as error:
            raise BadState(f"{self.stream}: column {field.name}: {error}") from error

    def _inside(self, schema: pa.Schema) -> list[pa.Field]:
        """The columns that come from the body."""
        return [field for field in schema if field.name not in (self.key, self.number)]

    def _from_json(self, schema: pa.Schema, table: ElementTable) -> dict[str, pa.Array]:
        fields = self._inside(schema)
        # A JSON text has no line ends but between its tokens.
        bodies = pc.replace_substring(_array(table.bodies), b"\n", b" ")
        lines = pc.binary_join(pa.ListArray.from_arrays([0, len(bodies)], bodies), b"\n")[0].as_buffer()
        as_read = [pa.field(one.name, pa.string()) if _is_text(one.type) else one for one in fields]
        options = pyarrow.json.ParseOptions(explicit_schema=pa.schema(as_read), unexpected_field_behavior="ignore")
        blocks = pyarrow.json.ReadOptions(block_size=max(1 << 20, lines.size + 1))
        try:
            rows = pyarrow.json.read_json(pa.BufferReader(lines), blocks, options)
        except pa.ArrowInvalid as error:
            raise self._bad_json(table, str(error)) from error
        if rows.num_rows != len(bodies):
            raise self._bad_json(table, "one of them is empty")
        found = {one.name: self._cast(_joined(rows.column(one.name)), one) for one in fields}
        return found | self._meta(schema, table)

    def _bad_json(self, table: ElementTable, says: str) -> BadState:
        """What is wrong, with the first element that is not a JSON object, if there is one."""
        for element in table.elements():
            try:
                if isinstance(json.loads(element.body), dict):
                    continue
            except ValueError:
                pass
            return BadState(f"{self.stream}: the element {element.number} is not a JSON object")
        return BadState(f"{self.stream}: elements {table.first} to {table.last}: {says}")

    def _from_msgpack(self, schema: pa.Schema, table: ElementTable) -> dict[str, pa.Array]:
        names = [one.name for one in self._inside(schema)]
        rows: list[Any] = []
        for element in table.elements():
            try:
                row = msgpack.unpackb(element.body, timestamp=3)
                rows.append([row.get(name) for name in names] if isinstance(row, dict) else row)
                if len(rows[-1]) != len(names):
                    raise ValueError(f"it has {len(rows[-1])} values, the schema {len(names)} columns")
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                raise BadState(f"{self.stream}: the element {element.number} is not such a row: {error}") from error
        columns = zip(*rows, strict=True) if names else ()
        try:
            found = {
                name: pa.array(values, schema.field(name).type) for name, values in zip(names, columns, strict=True)
            }
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise BadState(f"{self.stream}: elements {table.first} to {table.last}: {error}") from error
        return found | self._meta(schema, table)

    def _from_arrow(self, schema: pa.Schema, element: StreamElement) -> Iterator[pa.RecordBatch]:
        try:
            with pa.ipc.open_stream(element.body) as stream:
                found = list(stream)
        except pa.ArrowInvalid as error:
            raise BadState(f"{self.stream}: the element {element.number} is not an Arrow stream: {error}") from error
        for batch in found:
            count = batch.num_rows
            columns = self._meta(schema, ElementTable(0, [element.key] * count, [b""] * count))
            if self.number is not None:
                columns[self.number] = pa.array([element.number] * count, schema.field(self.number).type)
            for one in self._inside(schema):
                if one.name not in batch.schema.names:
                    raise BadState(f"{self.stream}: the element {element.number} has no column {one.name}")
                columns[one.name] = self._cast(batch.column(one.name), one)
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _array(values: BytesColumn) -> pa.Array:
    """A column of bytes, without an object for each if there is none yet."""
    if not isinstance(values, PackedBytes):
        return pa.array(values, pa.binary())
    offsets = np.ascontiguousarray(values.offsets)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values.data)])


def _numbers(table: ElementTable) -> pa.Array:
    return pa.array(np.arange(table.first, table.last + 1, dtype=np.int64))


def _is_text(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _TEXTS)


def _instants(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times from texts. Those that do not say in which zone they are, are in UTC."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
