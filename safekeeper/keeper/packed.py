"""msgpack for states: what is plain as msgpack has it, what Python has besides as extension types.

    payload:    version 1 | version 2
    version 1:  one msgpack value; the timestamp extension is a datetime in UTC
    version 2:  0xC1 (which no msgpack value begins with) | 0x02 | one msgpack value, with these extension types:
                1 tuple       2 set     3 frozenset      an array of the members
                4 date                                   its ordinal, u32 big endian
                5 datetime    6 time                     [ISO text without zone, fold, zone]
                7 timedelta                              [days, seconds, microseconds]
                8 Decimal                                decimal text
                11 int of more than 64 bits              hexadecimal text
                9 UUID                                   16 bytes
                10 Enum                                  [module, qualified name, name], or [..., nil, value]
                12 ndarray                               [dtype, shape, "C" or "F", bytes]
                13 a scalar of numpy                     [dtype, bytes]
    zone:       nil | name of a ZoneInfo | [days, seconds, microseconds of the offset, name or nil]

Frozen: another version gets another second byte. Version 2 is written only where version 1 has no word for the state.
An Enum is looked for among the modules that are loaded; nothing that is read imports or calls anything else.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from safekeeper.keeper.exact import has_only, plain_problem, problem_in
from safekeeper.keeper.slices import MsgpackSlices

_VERSION_2 = b"\xc1\x02"
_TUPLE, _SET, _FROZENSET, _DATE, _DATETIME, _TIME, _TIMEDELTA, _DECIMAL, _UUID, _ENUM, _INT, _ARRAY, _SCALAR = range(
    1, 14
)
_PLAIN = frozenset({type(None), bool, int, float, str, list, dict, bytes, datetime})
_PLAIN_LEAVES = _PLAIN - {list, dict}
_RICH = _PLAIN | {tuple, set, frozenset, date, time, timedelta, Decimal, UUID}
_BINARY_OR_OWN = bytes([*range(0xC4, 0xCA), *range(0xD4, 0xD9)])  # how msgpack's bin and ext begin, and other bytes too
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DEEPEST_RICH = 50  # tuples and sets in each other: each takes several frames of Python's stack, also to read
_LARGE = 1024 * 1024  # bytes: a buffer that has grown to this is not kept


class Msgpack:
    """msgpack: None, bool, int, float, str, bytes, list, dict with any such keys, tuple, set, frozenset, date,
    datetime, time, timedelta, Decimal, UUID, members of an Enum, arrays and scalars of numpy. All of them come back as
    they were; anything else is refused, also where it could be written, such as a bytearray."""

    name = "msgpack"

    def __init__(self) -> None:
        import msgpack

        self._own = _Own(msgpack)
        self._unpack = _unpacker()

    def dumps(self, state: Any) -> bytes:
        packer = self._own.packer
        try:
            # In a list, whose one byte is taken off again, since msgpack writes one level more than it can read.
            data: bytes = packer.pack([state])[1:]
        except Exception as error:
            self._own.start_anew()
            raise TypeError(problem_in(state, _problem) or str(error)) from error
        rich, packer.rich = packer.rich, False
        if len(data) > _LARGE:
            self._own.start_anew()
        # What looks like bytes, and msgpack's own types, it takes for something plain all the same.
        if len(data.translate(None, _BINARY_OR_OWN)) < len(data) and not _is_exact(state, rich):
            raise TypeError(problem_in(state, _problem))
        return _VERSION_2 + data if rich else data

    def slices(self, state: Any, rest: Callable[[], object]) -> list[bytes]:
        try:
            return MsgpackSlices(self.dumps, rest).pieces(state)
        except RecursionError:  # it was called from deep inside a program
            return [self.dumps(state)]
        except RuntimeError as error:
            raise TypeError(
                f"somebody changed it meanwhile ({error}): change it under the lock= of its save"
            ) from error
        except Exception as error:
            raise TypeError(problem_in(state, _problem) or str(error)) from error

    def loads(self, data: bytes) -> Any:
        if data.startswith(b"\xc1"):
            if not data.startswith(_VERSION_2):
                raise ValueError("a later version of safekeeper wrote them: update it")
            data = data[2:]
        return self._unpack(data)


class _Own(threading.local):
    """A packer for each thread: to make one takes longer than to pack a small state."""

    def __init__(self, msgpack: Any) -> None:
        self._msgpack = msgpack
        self.start_anew()

    def start_anew(self) -> None:
        """With an empty buffer, and nothing noted."""
        self.packer = _Packer(self._msgpack)


class _Packer:
    """msgpack's packer with our extension types."""

    def __init__(self, msgpack: Any) -> None:
        self._msgpack = msgpack
        self.rich = False
        """Whether something was packed that version 1 has no word for."""
        self._depth = 0
        # Strict: whatever is of no plain type goes to `default`, subclasses and tuples too.
        self.pack: Callable[[Any], bytes] = msgpack.Packer(default=self._default, strict_types=True).pack

    def _default(self, value: Any) -> Any:
        if type(value) is datetime and value.tzinfo is UTC and not value.fold:
            since = value - _EPOCH
            return self._msgpack.Timestamp(since.days * 86400 + since.seconds, since.microseconds * 1000)
        self.rich = True
        return self._msgpack.ExtType(*self._extension(value))

    def _extension(self, value: Any) -> tuple[int, bytes]:
        """The extension type of *value* and its bytes. Raise `TypeError` if it has none."""
        kind = type(value)
        if kind in _SEQUENCES:
            return _SEQUENCES[kind], self._nested(list(value))
        if kind in _LEAVES:
            code, parts = _LEAVES[kind](value)
        elif isinstance(value, Enum):
            code, parts = _ENUM, _enum_parts(value)
        elif _is_numpy(kind):
            code, parts = _numpy_parts(value)
        else:
            raise TypeError(f"{kind.__name__} is of no type that comes back")
        return code, parts if isinstance(parts, bytes) else self._nested(parts)

    def _nested(self, parts: list[Any]) -> bytes:
        if self._depth >= _DEEPEST_RICH:
            raise TypeError(
                f"tuples and sets are more than {_DEEPEST_RICH} deep in each other, or contain themselves: use lists"
            )
        self._depth += 1
        try:
            packed: bytes = self._msgpack.packb(parts, default=self._default, strict_types=True)
        finally:
            self._depth -= 1
        return packed


def _is_exact(state: Any, rich: bool) -> bool:
    """Whether there is nothing in *state* that would come back as something else, although it could be packed."""
    try:
        if not rich:
            return _is_plain(state)
    except RecursionError:
        pass
    if has_only(state, _RICH if rich else _PLAIN):
        return True
    return rich and problem_in(state, _problem) is None  # some Enum, or numpy


def _is_plain(state: Any) -> bool:
    """As `has_only` with the plain types, quicker for a small state. Raise `RecursionError` if it is too deep."""
    kind = type(state)
    if kind is dict:
        return _are_plain(state) and _are_plain(state.values())
    return _are_plain(state) if kind is list else kind in _PLAIN_LEAVES


def _are_plain(states: Any) -> bool:
    return _PLAIN_LEAVES.issuperset(map(type, states)) or all(map(_is_plain, states))


def _problem(value: Any, is_key: bool) -> str | None:
    kind = type(value)
    if kind is datetime or kind is time:
        try:
            _zone_parts(value.tzinfo)
        except TypeError as error:
            return f"{'a datetime' if kind is datetime else 'a time'} whose {error}"
    elif isinstance(value, Enum):
        try:
            _enum_parts(value)
        except TypeError as error:
            return str(error)
        return None
    elif _is_numpy(kind):
        try:
            _numpy_parts(value)
        except TypeError as error:
            return str(error)
        return None
    return plain_problem(value, _RICH)


_SEQUENCES: dict[type, int] = {tuple: _TUPLE, set: _SET, frozenset: _FROZENSET}

_LEAVES: dict[type, Callable[[Any], tuple[int, bytes | list[Any]]]] = {
    int: lambda value: (_INT, b"%x" % value),
    date: lambda value: (_DATE, value.toordinal().to_bytes(4, "big")),
    datetime: lambda value: (_DATETIME, _clock_parts(value)),
    time: lambda value: (_TIME, _clock_parts(value)),
    timedelta: lambda value: (_TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    Decimal: lambda value: (_DECIMAL, str(value).encode()),
    UUID: lambda value: (_UUID, value.bytes),
}


def _clock_parts(value: datetime | time) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _zone_parts(value.tzinfo)]


def _zone_parts(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone) is timezone:
        made_of: tuple[Any, ...] = zone.__getinitargs__()  # type: ignore[attr-defined]
        offset, name = made_of if len(made_of) == 2 else (*made_of, None)
        return [offset.days, offset.seconds, offset.microseconds, name]
    raise TypeError(f"zone is {type(zone).__name__}: use zoneinfo.ZoneInfo, or save value.astimezone(datetime.UTC)")


def _zone(parts: Any) -> tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        return ZoneInfo(parts)
    days, seconds, microseconds, name = parts
    offset = timedelta(days, seconds, microseconds)
    return timezone(offset) if name is None else timezone(offset, name)


def _enum_parts(value: Enum) -> list[Any]:
    kind = type(value)
    if _enum(kind.__module__, kind.__qualname__) is not kind:
        raise TypeError(f"{kind.__name__}.{value.name}, an Enum that is not in a module or class: move it there")
    if isinstance(value, Flag) and value.name not in kind.__members__:
        return [kind.__module__, kind.__qualname__, None, value.value]
    return [kind.__module__, kind.__qualname__, value.name]


def _enum(module: str, qualname: str) -> Any:
    """The Enum of that name in a module that is loaded; None if there is none."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, Enum) else None


def _enum_member(module: str, qualname: str, name: str | None, value: Any = None) -> Enum:
    kind = _enum(module, qualname)
    if kind is None:
        raise ValueError(f"there is no Enum {qualname} in the module {module}: import that first, or migrate the state")
    try:
        member: Enum = kind(value) if name is None else kind[name]
    except KeyError:
        raise ValueError(f"the Enum {module}.{qualname} has no member {name} any more: put it back") from None
    return member


def _is_numpy(kind: type) -> bool:
    if kind.__module__ != "numpy":
        return False
    import numpy as np

    return kind is np.ndarray or issubclass(kind, np.generic)


def _numpy_parts(value: Any) -> tuple[int, list[Any]]:
    import numpy as np

    dtype = value.dtype
    kind = dtype.str if dtype.names is None and dtype.subdtype is None else np.lib.format.dtype_to_descr(dtype)
    if dtype.hasobject or np.lib.format.descr_to_dtype(kind) != dtype or dtype.metadata:
        raise TypeError(f"of numpy's dtype {dtype!s:.60}, which has no bytes of its own: save value.tolist()")
    if type(value) is not np.ndarray:
        return _SCALAR, [kind, value.tobytes()]
    order: Any = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    return _ARRAY, [kind, list(value.shape), order, value.tobytes(order)]


def _array(kind: Any, shape: list[int], order: Any, data: bytes) -> Any:
    import numpy as np

    dtype = np.lib.format.descr_to_dtype(kind)
    if dtype.hasobject:
        raise ValueError("it would be an array of objects, which nobody saves")
    # A bytearray, since what comes back can be written to as what was saved could.
    return np.ndarray(tuple(shape), dtype, bytearray(data), order=order)


def _scalar(kind: Any, data: bytes) -> Any:
    return _array(kind, [], "C", data)[()]


_OPENED: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _DATETIME: lambda parts: datetime.fromisoformat(parts[0]).replace(tzinfo=_zone(parts[2]), fold=parts[1]),
    _TIME: lambda parts: time.fromisoformat(parts[0]).replace(tzinfo=_zone(parts[2]), fold=parts[1]),
    _TIMEDELTA: lambda parts: timedelta(*parts),
    _ENUM: lambda parts: _enum_member(*parts),
    _ARRAY: lambda parts: _array(*parts),
    _SCALAR: lambda parts: _scalar(*parts),
}
_OPENED_BYTES: dict[int, Callable[[bytes], Any]] = {
    _DATE: lambda data: date.fromordinal(int.from_bytes(data, "big")),
    _DECIMAL: lambda data: Decimal(data.decode()),
    _UUID: lambda data: UUID(bytes=data),
    _INT: lambda data: int(data, 16),
}


def _opened(code: int, data: bytes | memoryview) -> Any:
    """The value of an extension type."""
    if code in _OPENED_BYTES:
        return _OPENED_BYTES[code](bytes(data))
    if code not in _OPENED:
        raise ValueError(f"extension type {code} is of a later version of safekeeper: update it")
    return _OPENED[code](_unpacker()(data))


@functools.cache
def _unpacker() -> Callable[[bytes | memoryview], Any]:
    """What reads msgpack with our extension types.

    msgspec does, which takes little of the thread's stack: some threads have 128 KB. Where lists are nested deeper than
    Python lets it go, msgpack does. That needs 25 KB to begin with, for each extension that is inside another one.
    """
    import msgpack
    import msgspec

    decode = msgspec.msgpack.Decoder(ext_hook=_opened).decode
    unpack = functools.partial(msgpack.unpackb, timestamp=3, strict_map_key=False, ext_hook=_opened)

    def read(data: bytes | memoryview) -> Any:
        try:
            return decode(data)
        except RecursionError:
            return unpack(data)

    return read
