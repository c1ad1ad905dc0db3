"""From states to bytes and back.

Bytes carry a header that names their serializer, so that reading them with another one is an error and not garbage,
and a checksum that goes with them through every store. `pickle` runs code that it finds in the bytes; it is used only
where it is asked for by name, also for reading.
"""

from __future__ import annotations

import copy
import json
import pickle
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import xxhash

from safekeeper.backend import MAX_VALUE_BYTES
from safekeeper.errors import BadState, Corruption, TooLarge
from safekeeper.keeper.exact import DEEPEST_JSON, JSON_TYPES, has_only, json_problem, problem_in
from safekeeper.keeper.slices import SLICE_BYTES, Rest, is_large, looks_large

if TYPE_CHECKING:
    from safekeeper.keeper.typed import StateType

# state:  "SKS1" | xxh3 u64 | flags u8 | schema u16 | name_len u8 | name | payload to the end
#         little endian; the checksum is that of the payload, seeded with that of everything between; flag 1: the
#         payload is a zstd frame; frozen: version 2 gets another mark
_MARK = b"SKS1"
_HEADER = struct.Struct("<4sQBHB")
_SEALED_FROM = 12
_ZSTD = 1

MAX_SCHEMA = 0xFFFF

UNPACKED_LIMIT = 4 * MAX_VALUE_BYTES
"""How many bytes a compressed state becomes at most, unless the keeper is told. Zeros shrink to a 30,000th."""

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


@runtime_checkable
class SlicedSerializer(Serializer, Protocol):
    """A serializer that need not stop the process while it makes many bytes."""

    def slices(self, state: Any, rest: Callable[[], object]) -> list[bytes]:
        """The bytes that `dumps` gives *state*, in pieces, with a call of *rest* about every millisecond."""


class Raw:
    """Bytes as they are."""

    name = "raw"

    def dumps(self, state: Any) -> bytes:
        if type(state) is bytes:
            return state
        raise TypeError(f"raw takes bytes, not {type(state).__name__}: save bytes(state) if that is what it is")

    def loads(self, data: bytes) -> Any:
        return data


class Json:
    """JSON, compact: None, bool, int, float, str, list, dict with str as keys. Anything else is refused, also where it
    could be written, such as a tuple."""

    name = "json"

    def dumps(self, state: Any) -> bytes:
        try:
            data = json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()
        except Exception as error:
            raise TypeError(problem_in(state, json_problem, DEEPEST_JSON) or str(error)) from error
        if not has_only(state, JSON_TYPES, DEEPEST_JSON, text_keys=True):
            raise TypeError(problem_in(state, json_problem, DEEPEST_JSON))
        return data

    def loads(self, data: bytes) -> Any:
        return json.loads(data)


class Arrow:
    """A pyarrow Table as an IPC stream."""

    name = "arrow"

    def __init__(self) -> None:
        import pyarrow

        self._pa = pyarrow

    def dumps(self, state: Any) -> bytes:
        if type(state) is not self._pa.Table:
            how = ": save pyarrow.Table.from_batches([state])" if isinstance(state, self._pa.RecordBatch) else ""
            raise TypeError(f"arrow takes a pyarrow.Table, not {type(state).__name__}{how}")
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


def _msgpack() -> Serializer:
    from safekeeper.keeper.packed import Msgpack  # late: it needs several modules

    return Msgpack()


BUNDLED: dict[str, tuple[Callable[[], Serializer], str]] = {
    "msgpack": (_msgpack, "safekeeper"),
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
    size: int
    """Of all that stands before the payload."""
    pack: Callable[[bytes, int, bytes], bytes]

    @classmethod
    def of(cls, flags: int, schema: int, name: bytes) -> _Header:
        data = struct.pack("<BHB", flags, schema, len(name)) + name
        before = struct.Struct(f"<4sQ{len(data)}s")
        return cls(data, xxhash.xxh3_64_intdigest(data), before.size, before.pack)

    def seal(self, payload: bytes) -> bytes:
        # Joined, not added: for what is large `join` lets other threads run while it copies.
        return b"".join((self.pack(_MARK, xxhash.xxh3_64_intdigest(payload, self.seed), self.data), payload))


def state_type(declared: Any, serializer: str) -> StateType:
    """What `state=` of a keeper declares. Raise `ValueError` if it cannot be used."""
    from safekeeper.keeper.typed import StateType  # late: it needs several modules

    try:
        return StateType(declared, serializer)
    except ModuleNotFoundError as error:
        raise ValueError(f"state={declared!r} needs {error.name}: pip install {error.name}") from error


class Codec:
    """A serializer with header, checksum, compression and schema version: what stands between a state and its bytes.

    With *state*, a type, states are taken apart before they are serialized, and made again (see `typed`). A `migrate`
    gets the plain parts and may return such parts or a state.
    """

    def __init__(
        self,
        serializer: Serializer,
        *,
        compression: Compression = None,
        unpacked_limit: int = UNPACKED_LIMIT,
        schema: int = 0,
        migrate: Migrate | None = None,
        state: Any = None,
    ) -> None:
        name = serializer.name.encode()
        if not 1 <= len(name) <= 255:
            raise ValueError(f"a serializer's name has 1 to 255 bytes, {serializer.name!r} has {len(name)}")
        if not 0 <= schema <= MAX_SCHEMA:
            raise ValueError(f"a schema version is 0 to {MAX_SCHEMA}, not {schema}")
        if compression not in (None, "zstd"):
            raise ValueError(f"compression is 'zstd' or None, not {compression!r}")
        self._serializer = serializer
        self._dumps = serializer.dumps
        self._type = None if state is None else state_type(state, serializer.name)
        self._schema = schema
        self._migrate = migrate
        self._plain = _Header.of(0, schema, name)
        self._compressed = _Header.of(_ZSTD, schema, name)
        self._zstd = _Zstd() if compression else None
        self._unpacked_limit = unpacked_limit
        self._slices = serializer.slices if isinstance(serializer, SlicedSerializer) else None
        self._met_large = False
        """Whether there are large states: then each is looked at. Others need not pay for that."""

    def of(self, state: Any) -> Codec:
        """The same with states of another type."""
        codec = copy.copy(self)
        codec._type = state_type(state, self._serializer.name)
        return codec

    def encode(self, state: Any, get_on: Callable[[], object] | None = None) -> bytes:
        """The bytes of *state*. Raise `BadState` if the serializer cannot do it.

        If that takes long it is done in slices, if the serializer can, and *get_on* is called after each. Without it
        the caller wants a small state to be quick: if this is the first that is large, it may not be noticed.
        """
        try:
            if self._type is not None:
                payload = self._type.dumps(state, lambda plain: self._payload(plain, get_on))
            elif get_on is None and not self._met_large and not looks_large(state):
                payload = self._dumps(state)  # as `_payload`, without a call: it is on the way of every small state
                if len(payload) > SLICE_BYTES:
                    self._met_large = True
            else:
                payload = self._payload(state, get_on)
            if self._zstd is None:
                plain = self._plain
                if len(payload) > SLICE_BYTES:
                    return plain.seal(payload)
                return plain.pack(_MARK, xxhash.xxh3_64_intdigest(payload, plain.seed), plain.data) + payload
            packed = self._zstd.compress(payload)
        except Exception as error:
            raise BadState(f"{self._serializer.name} cannot serialize this {type(state).__name__}: {error}") from error
        if len(packed) >= len(payload):
            return self._plain.seal(payload)
        if len(payload) > self._unpacked_limit:
            raise TooLarge(
                f"it has {len(payload)} bytes before it is compressed, the limit is {self._unpacked_limit}: save it in"
                " parts, or give the keeper a larger unpacked_limit="
            )
        return self._compressed.seal(packed)

    def _payload(self, state: Any, get_on: Callable[[], object] | None) -> bytes:
        rest = None if get_on is None else Rest(get_on)
        if self._slices is not None:
            sure = self._met_large or rest is not None
            if is_large(state) if sure else looks_large(state):
                self._met_large = True
                return b"".join(self._slices(state, rest or Rest()))
        payload = self._dumps(state)
        if rest is not None:
            rest()
        if len(payload) > SLICE_BYTES:
            self._met_large = True
        return payload

    def decode(self, data: bytes) -> Any:
        """The state with these bytes, brought to the present schema version.

        Raise `Corruption` if they are damaged, `BadState` if another serializer or a later version wrote them.
        """
        # Nearly all begin as this codec would let them begin: there may be millions, and no need to take them apart.
        plain = self._plain
        payload = data[plain.size :]
        if data.startswith(plain.pack(_MARK, xxhash.xxh3_64_intdigest(payload, plain.seed), plain.data)):
            state = self._loads(payload)
            return state if self._type is None else self._made(state)
        flags, schema, name, payload = _open(data)
        mine = self._serializer.name
        if name != mine:
            raise BadState(f"was written by the serializer {name!r}, this keeper has {mine!r}: fetch it with {name!r}")
        if flags & ~_ZSTD:
            raise BadState("was written by a later version of safekeeper: update it")
        try:
            if flags & _ZSTD:
                payload = (self._zstd or _Zstd()).decompress(payload, self._unpacked_limit)
        except Exception as error:
            raise BadState(f"{mine} cannot read its own bytes: {error}") from error
        state = self._loads(payload)
        if schema != self._schema:
            state = self._migrated(state, schema)
        return state if self._type is None else self._made(state)

    def _made(self, plain: Any) -> Any:
        """The state of the declared type with these parts."""
        assert self._type is not None
        try:
            return self._type.made(plain)
        except TypeError as error:
            raise BadState(str(error)) from error

    def _loads(self, payload: bytes) -> Any:
        if len(payload) > SLICE_BYTES:
            self._met_large = True
        try:
            return self._serializer.loads(payload)
        except Exception as error:
            raise BadState(f"{self._serializer.name} cannot read its own bytes: {error}") from error

    def _migrated(self, state: Any, schema: int) -> Any:
        if schema > self._schema:
            raise BadState(f"has schema version {schema}, this application knows {self._schema}: update it")
        if self._migrate is None:
            raise BadState(f"has schema version {schema}, this application {self._schema}: give the keeper a migrate=")
        try:
            return self._migrate(state, schema)
        except Exception as error:
            raise BadState(f"migrate= failed for schema version {schema}: {error!r}") from error


def _open(data: bytes) -> tuple[int, int, str, bytes]:
    """Flags, schema version, name of the serializer and payload of what a codec wrote."""
    if data[:4] != _MARK or len(data) < _HEADER.size:
        raise BadState("carries no serializer's header: another program wrote it, or a keeper with serializer=None")
    _, checksum, flags, schema, name_size = _HEADER.unpack_from(data)
    start = _HEADER.size + name_size
    header, payload = data[_SEALED_FROM:start], data[start:]
    if xxhash.xxh3_64_intdigest(payload, xxhash.xxh3_64_intdigest(header)) != checksum:
        raise Corruption("the checksum does not match: the bytes were damaged after they were saved")
    try:
        name = data[_HEADER.size : start].decode()
    except UnicodeDecodeError as error:
        raise BadState("the name of its serializer is not UTF-8: no keeper wrote it") from error
    return flags, schema, name, payload


_PIECE = 1024 * 1024


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

    def decompress(self, data: bytes, limit: int) -> bytes:
        """What was compressed. Raise `ValueError`, and use no more memory than that, if it has more than *limit* bytes:
        who can write to the store could write a few that become billions."""
        size = self._module.frame_content_size(data)
        if 0 <= size <= limit:
            return self._module.ZstdDecompressor().decompress(data)
        pieces: list[bytes] = []
        with self._module.ZstdDecompressor().stream_reader(data) as reader:
            left = limit if size < 0 else -1  # a frame that does not say its size is unpacked piece by piece
            while left >= 0 and (piece := reader.read(_PIECE)):
                pieces.append(piece)
                left -= len(piece)
        if left < 0:
            raise ValueError(
                f"it unpacks to more than {limit} bytes: if that is what was saved, give the keeper a larger"
                " unpacked_limit="
            )
        return b"".join(pieces)


_IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})


def size_if_immutable(state: Any) -> int | None:
    """About how many bytes *state* has, if it can be read at any later time and is still the same; None if it is not
    sure that it can.

    Immutable are numbers, str, bytes and None, tuples and frozensets of them. Not Arrow data: it may lie in memory of
    numpy or of a bytearray that its owner goes on writing, and none of its buffers tells.
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
    return None
