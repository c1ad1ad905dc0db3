"""From states to bytes and back.

Bytes carry a header that names their serializer, so that reading them with another one is an error and not garbage,
and a checksum that goes with them through every store. `pickle` runs code that it finds in the bytes; it is used only
where it is asked for by name, also for reading.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import xxhash

from safekeeper.errors import BadState, Corruption

# state:  "SKS1" | xxh3 u64 | flags u8 | schema u16 | name_len u8 | name | payload to the end
#         little endian; the checksum is that of the payload, seeded with that of everything between; flag 1: the
#         payload is a zstd frame; frozen: version 2 gets another mark
_MARK = b"SKS1"
_HEADER = struct.Struct("<4sQBHB")
_SEALED_FROM = 12
_ZSTD = 1

MAX_SCHEMA = 0xFFFF

Compression: TypeAlias = Literal["zstd"] | None
Migrate: TypeAlias = Callable[[Any, int], Any]
"""Gets a state and the schema version it was saved with, returns it as the present version has it."""


@runtime_checkable
class Serializer(Protocol):
    """What turns states into bytes. Its methods are called from several threads at once."""

    name: str
    """1 to 255 bytes of UTF-8. It stands in everything written."""

    def dumps(self, state: Any) -> bytes:
        """The bytes of *state*; raise anything if it has none."""

    def loads(self, data: bytes) -> Any:
        """The state with these bytes."""


class Msgpack:
    """msgpack: None, bool, int of 64 bits, float, str, bytes, list, dict with any such keys, datetime with a zone. A
    tuple comes back as a list."""

    name = "msgpack"

    def __init__(self) -> None:
        import msgpack

        self._pack, self._unpack = msgpack.packb, msgpack.unpackb

    def dumps(self, state: Any) -> bytes:
        return self._pack(state, datetime=True)  # type: ignore[no-any-return]

    def loads(self, data: bytes) -> Any:
        return self._unpack(data, timestamp=3, strict_map_key=False)


class Raw:
    """Bytes as they are."""

    name = "raw"

    def dumps(self, state: Any) -> bytes:
        if isinstance(state, bytes):
            return state
        if isinstance(state, bytearray | memoryview):
            return bytes(state)
        raise TypeError(f"raw takes bytes, not {type(state).__name__}")

    def loads(self, data: bytes) -> Any:
        return data


class Json:
    """JSON, compact. Tuples come back as lists, the keys of a dict as str."""

    name = "json"

    def dumps(self, state: Any) -> bytes:
        return json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


class Arrow:
    """A pyarrow Table or RecordBatch as an IPC stream. It comes back as a Table."""

    name = "arrow"

    def __init__(self) -> None:
        import pyarrow

        self._pa = pyarrow

    def dumps(self, state: Any) -> bytes:
        sink = self._pa.BufferOutputStream()
        with self._pa.ipc.new_stream(sink, state.schema) as writer:
            writer.write(state)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def loads(self, data: bytes) -> Any:
        with self._pa.ipc.open_stream(data) as reader:
            return reader.read_all()


class Pickle:
    """Python's pickle. Whoever can write to the store can run code in the process that fetches."""

    name = "pickle"

    def dumps(self, state: Any) -> bytes:
        return pickle.dumps(state, protocol=5)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)  # noqa: S301 (asked for by name)


BUNDLED: dict[str, tuple[Callable[[], Serializer], str]] = {
    "msgpack": (Msgpack, "safekeeper"),
    "raw": (Raw, "safekeeper"),
    "json": (Json, "safekeeper"),
    "arrow": (Arrow, "safekeeper[arrow]"),
    "pickle": (Pickle, "safekeeper"),
}
"""The serializers that can be named, each with what installs it."""


def serializer_named(name: str) -> Serializer:
    """The bundled serializer of that name. Raise `ValueError` if there is none or a module that it needs is missing."""
    if name not in BUNDLED:
        raise ValueError(f"no serializer {name!r}; there are: {', '.join(BUNDLED)}")
    make, package = BUNDLED[name]
    try:
        return make()
    except ModuleNotFoundError as error:
        raise ValueError(f"the serializer {name} needs {error.name}: pip install '{package}'") from error


@dataclass(frozen=True, slots=True)
class _Header:
    """What stands between the checksum and the payload, with the seed it makes."""

    data: bytes
    seed: int

    @classmethod
    def of(cls, flags: int, schema: int, name: bytes) -> _Header:
        data = struct.pack("<BHB", flags, schema, len(name)) + name
        return cls(data, xxhash.xxh3_64_intdigest(data))

    def seal(self, payload: bytes) -> bytes:
        checksum = xxhash.xxh3_64_intdigest(payload, self.seed)
        return b"".join((_MARK, checksum.to_bytes(8, "little"), self.data, payload))


class Codec:
    """A serializer with header, checksum, compression and schema version: what stands between a state and its bytes."""

    def __init__(
        self,
        serializer: Serializer,
        *,
        compression: Compression = None,
        schema: int = 0,
        migrate: Migrate | None = None,
    ) -> None:
        name = serializer.name.encode()
        if not 1 <= len(name) <= 255:
            raise ValueError(f"a serializer's name has 1 to 255 bytes, {serializer.name!r} has {len(name)}")
        if not 0 <= schema <= MAX_SCHEMA:
            raise ValueError(f"a schema version is 0 to {MAX_SCHEMA}, not {schema}")
        if compression not in (None, "zstd"):
            raise ValueError(f"compression is 'zstd' or None, not {compression!r}")
        self._serializer = serializer
        self._schema = schema
        self._migrate = migrate
        self._plain = _Header.of(0, schema, name)
        self._compressed = _Header.of(_ZSTD, schema, name)
        self._zstd = _Zstd() if compression else None

    def encode(self, state: Any) -> bytes:
        """The bytes of *state*. Raise `BadState` if the serializer cannot do it."""
        try:
            payload = self._serializer.dumps(state)
            if self._zstd is not None and len(compressed := self._zstd.compress(payload)) < len(payload):
                return self._compressed.seal(compressed)
            return self._plain.seal(payload)
        except Exception as error:
            raise BadState(f"{self._serializer.name} cannot serialize this {type(state).__name__}: {error}") from error

    def decode(self, data: bytes) -> Any:
        """The state with these bytes, brought to the present schema version.

        Raise `Corruption` if they are damaged, `BadState` if another serializer or a later version wrote them.
        """
        flags, schema, name, payload = _open(data)
        mine = self._serializer.name
        if name != mine:
            raise BadState(f"was written by the serializer {name!r}, this keeper has {mine!r}: fetch it with {name!r}")
        if flags & ~_ZSTD:
            raise BadState("was written by a later version of safekeeper: update it")
        try:
            if flags & _ZSTD:
                payload = (self._zstd or _Zstd()).decompress(payload)
            state = self._serializer.loads(payload)
        except Exception as error:
            raise BadState(f"{mine} cannot read its own bytes: {error}") from error
        return state if schema == self._schema else self._migrated(state, schema)

    def _migrated(self, state: Any, schema: int) -> Any:
        if schema > self._schema:
            raise BadState(f"has schema version {schema}, this application knows {self._schema}: update it")
        if self._migrate is None:
            raise BadState(f"has schema version {schema}, this application {self._schema}: give the keeper a migrate=")
        return self._migrate(state, schema)


def _open(data: bytes) -> tuple[int, int, str, bytes]:
    """Flags, schema version, name of the serializer and payload of what a codec wrote."""
    if data[:4] != _MARK or len(data) < _HEADER.size:
        raise BadState("carries no serializer's header: another program wrote it, or a keeper with serializer=None")
    _, checksum, flags, schema, name_size = _HEADER.unpack_from(data)
    start = _HEADER.size + name_size
    header, payload = data[_SEALED_FROM:start], data[start:]
    if xxhash.xxh3_64_intdigest(payload, xxhash.xxh3_64_intdigest(header)) != checksum:
        raise Corruption("the checksum does not match: the bytes were damaged after they were saved")
    return flags, schema, data[_HEADER.size : start].decode(), payload


def serializer_of(data: bytes) -> str:
    """The name of the serializer that wrote *data*. Raise `BadState` or `Corruption` if it cannot be told."""
    return _open(data)[2]


class _Zstd:
    """zstd with a compressor for each thread: they must not be shared."""

    def __init__(self) -> None:
        try:
            import zstandard
        except ModuleNotFoundError as error:
            raise ValueError("compression needs zstandard: pip install 'safekeeper[zstd]'") from error
        self._module = zstandard
        self._own = threading.local()

    def compress(self, data: bytes) -> bytes:
        if not hasattr(self._own, "compressor"):
            self._own.compressor = self._module.ZstdCompressor()
        return self._own.compressor.compress(data)  # type: ignore[no-any-return]

    def decompress(self, data: bytes) -> bytes:
        return self._module.ZstdDecompressor().decompress(data)


_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})


def size_if_immutable(state: Any) -> int | None:
    """About how many bytes *state* has, if it can be read at any later time and is still the same; None if it is not
    sure that it can.

    Immutable are numbers, str, bytes and None, tuples and frozensets of them, Arrow data.
    """
    kind = type(state)
    if kind is bytes:
        return len(state)
    if kind in _IMMUTABLE:
        return sys.getsizeof(state)
    if kind is tuple or kind is frozenset:
        total = sys.getsizeof(state)
        for item in state:
            if (size := size_if_immutable(item)) is None:
                return None
            total += size
        return total
    arrow = sys.modules.get("pyarrow")
    if arrow is not None and isinstance(state, arrow.Table | arrow.RecordBatch | arrow.Array | arrow.ChunkedArray):
        return int(state.nbytes)
    return None
