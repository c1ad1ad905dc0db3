"""Cutting a channel's value into parts that checkpoints share, and putting it together again.

Whether a list is cut after an element follows from the element's own digest and size: about every `RUN_BYTES` a run
ends, about every `SEGMENT_BYTES` a segment. A whole segment is one part. Of the last segment, which is not whole, every
run is a part of its own; what comes after the last run stands in the checkpoint. So an element that is appended costs
its own bytes, and once more when its segment is whole; and a list of any length is read in few parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from safekeeper.errors import BadState

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

RUN_BYTES = 1024
SEGMENT_BYTES = 64 * 1024
_MOST = 8
"""Runs and segments end after this many times their usual size, whatever the digests say."""
_LEAST = 256
"""Values that are one element and have fewer bytes stand in the checkpoint."""
_NAME = 16

Element = tuple[str, bytes]
Packed = list[Any]
"""Elements as they are stored: `[type or types, sizes, bytes]`. In memory their bytes may come once more, as an array
of msgpack: see `with_array`."""
CutValue = list[Any]
"""`[kind, names, elements]`, as `layout.py` says."""


class ValueCutter:
    """Cuts the values of one checkpoint; *parts* are what they have in common with others, by name."""

    def __init__(self, serde: SerializerProtocol, key: bytes) -> None:
        self._serde, self._key = serde, key
        self.parts: dict[bytes, list[Element]] = {}

    def cut(self, value: Any) -> CutValue:
        """What is to stand in the checkpoint for *value*."""
        kind, elements = self._elements(value)
        if kind[-1] == "v":
            if len(elements[0][1]) < _LEAST:
                return [kind, b"", packed(elements)]
            return [kind, self._part(elements, self._digests(elements)), packed([])]
        names, rest = self._runs(elements)
        return [kind, b"".join(names), packed(rest)]

    def whole(self, value: Any) -> CutValue:
        """The same without parts."""
        return ["v", b"", packed([self._serde.dumps_typed(value)])]

    def _elements(self, value: Any) -> tuple[str, list[Element]]:
        dump = self._serde.dumps_typed
        if type(value) is list:
            return "l", [dump(element) for element in value]
        if type(value) is dict and all(type(key) is str for key in value):
            return "d", [dump([key, element]) for key, element in value.items()]
        if isinstance(value, _DeltaSnapshot):
            kind, elements = self._elements(value.value)
            return f"s{kind}", elements
        return "v", [dump(value)]

    def _runs(self, elements: list[Element]) -> tuple[list[bytes], list[Element]]:
        """The names of the parts, and the elements after the last cut."""
        digests = self._digests(elements)
        names: list[bytes] = []
        runs: list[tuple[int, int]] = []
        segment = run = segment_bytes = run_bytes = 0
        for at, ((_, data), digest) in enumerate(zip(elements, digests, strict=True), 1):
            size = len(data) + 1
            run_bytes += size
            chance = int.from_bytes(digest[:6], "little")
            if (chance * RUN_BYTES) >> 48 >= size and run_bytes < _MOST * RUN_BYTES:
                continue
            segment_bytes += run_bytes
            runs.append((run, at))
            run, run_bytes = at, 0
            if (chance * SEGMENT_BYTES) >> 48 < size or segment_bytes >= _MOST * SEGMENT_BYTES:
                names.append(self._part(elements[segment:at], digests[segment:at]))
                segment, segment_bytes = at, 0
                runs.clear()
        names += (self._part(elements[start:end], digests[start:end]) for start, end in runs)
        return names, elements[run:]

    def _digests(self, elements: Iterable[Element]) -> list[bytes]:
        new, key = hashlib.blake2b, self._key
        return [new(data, digest_size=_NAME, key=key, person=kind.encode()[:16]).digest() for kind, data in elements]

    def _part(self, elements: list[Element], digests: list[bytes]) -> bytes:
        name = hashlib.blake2b(b"".join(digests), digest_size=_NAME, key=self._key, person=b"part").digest()
        self.parts[name] = elements
        return name


def names_in(values: Iterable[CutValue]) -> Iterator[bytes]:
    """The names of all parts of *values*."""
    for _, names, _ in values:
        yield from (names[at : at + _NAME] for at in range(0, len(names), _NAME))


def packed(elements: Sequence[Element]) -> Packed:
    """*elements* as they are stored."""
    types = [type for type, _ in elements]
    same = types.count(types[0]) == len(types) if types else True
    return [
        (types[0] if types else "") if same else types,
        [len(d) for _, d in elements],
        b"".join(d for _, d in elements),
    ]


def with_array(stored: Packed) -> Packed:
    """The same with an array that shares its bytes, if all elements are msgpack: who reads it often need not copy it
    again."""
    types, sizes, data = stored[:3]
    if types != "msgpack" or len(stored) > 3:
        return stored
    array = b"".join((b"\xdd", len(sizes).to_bytes(4), data))
    return [types, sizes, memoryview(array)[5:], array]


def unpacked(stored: Packed) -> Iterator[Element]:
    """What was packed."""
    types, sizes, data = stored[:3]
    at = 0
    for type, size in zip([types] * len(sizes) if isinstance(types, str) else types, sizes, strict=True):
        yield type, bytes(data[at : at + size])
        at += size


def join(serde: SerializerProtocol, value: CutValue, parts: Mapping[bytes, Packed]) -> Any:
    """The value that was cut, with its parts."""
    kind, _, rest = value
    elements = _loaded(serde, [*(parts[name] for name in names_in([value])), rest])
    made = _KINDS[kind[-1]](elements) if kind[-1] in _KINDS else _unknown(kind)
    return _DeltaSnapshot(made) if kind[0] == "s" else made


def _loaded(serde: SerializerProtocol, pieces: Sequence[Packed]) -> Iterator[Any]:
    """The elements of *pieces*. Where those of a piece are msgpack, it is read as one array, which is quicker."""
    for piece in pieces:
        if type(serde) is JsonPlusSerializer and (array := with_array(piece)[3:]):
            yield from serde.loads_typed(("msgpack", *array))
        else:
            yield from map(serde.loads_typed, unpacked(piece))


_KINDS: dict[str, Callable[[Iterator[Any]], Any]] = {"v": next, "l": list, "d": dict}


def _unknown(kind: str) -> Any:
    raise BadState(f"a value of kind {kind!r} is not known to this version of safekeeper: upgrade safekeeper")
