"""A large state to bytes, slice by slice, so that the other threads of the process get on meanwhile.

One call of msgpack has Python's interpreter lock until it returns: 128 MB stop the process for a third of a second, and
the check that everything comes back exactly for as long again. So what is large is cut. The bytes of a dict are a
header and then its keys and values, one after the other, and it does not matter in how many calls these are made. After
each slice the lock is let go for a moment. The bytes are the same as those of one call.

Nobody may change the state meanwhile, as ever: see "States that change" in `docs/keeper.md`. If something is added to
it or taken away all the same, it is noticed and the save fails.
"""

from __future__ import annotations

import gc
import struct
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, Final

SLICE_BYTES: Final = 256 * 1024
"""What a slice has at most, about: to serialize it takes a millisecond."""
_OBJECT: Final = 64  # an object takes the time of so many bytes of text
_MOST: Final = SLICE_BYTES // _OBJECT
_TEXT: Final = SLICE_BYTES // 2  # so many characters or bytes at once
_WORK: Final = 0.5e-3  # seconds between two rests, at least
_MOST_WORK: Final = 2.5e-3
_REST: Final = 100e-6  # long enough for a thread that waits for the interpreter to wake up and take it
_DEEPEST: Final = 20  # what is nested deeper is not cut any more

_NUMBERS: Final = frozenset({type(None), bool, int, float})
_TEXTS: Final = frozenset({str, bytes})
_CONTAINERS: Final = frozenset({dict, list, tuple, set, frozenset})
_KNOWN: Final = _NUMBERS | _TEXTS | _CONTAINERS


def looks_large(state: Any) -> bool:
    """Whether *state* is larger than a slice at first sight. That costs nearly nothing and overlooks what is inside."""
    kind = type(state)
    return len(state) >= _MOST if kind is dict or kind is list else kind in _TEXTS and len(state) >= SLICE_BYTES


def is_large(state: Any) -> bool:
    """Whether *state* is larger than a slice."""
    return looks_large(state) or _room_after([state]) < 0


def _room_after(values: list[Any]) -> int:
    """How many bytes of a slice are left by *values* with all that is in them, about; negative if they are too many.

    It looks at no more than fits, and at the speed of C. Into what is of no plain type it does not look.
    """
    room, level = SLICE_BYTES, values
    while True:
        room -= len(level) * _OBJECT
        kinds = set(map(type, level))
        if room < 0 or kinds <= _NUMBERS:
            return room
        if kinds & _TEXTS:
            room -= sum(map(len, level if kinds <= _TEXTS else [one for one in level if type(one) in _TEXTS]))
        if not kinds <= _KNOWN:
            room -= sum(map(sys.getsizeof, [one for one in level if type(one) not in _KNOWN]))
        if room < 0 or not kinds & _CONTAINERS:
            return room
        containers = level if kinds <= _CONTAINERS else [one for one in level if type(one) in _CONTAINERS]
        if sum(map(len, containers)) * _OBJECT > room:
            return -1
        level = gc.get_referents(*containers)


class Rest:
    """Lets the other threads have the interpreter for a moment, whenever it is called and has not done so just now.
    Then *get_on* is called.

    Without it others wait for the interpreter for 5 ms, after which Python takes it from a thread that does not stop
    working, and for as long as the call of C takes that has it then. If another does not stop working either, we get it
    back after these 5 ms; so that we get on, the longer the rest was the longer we work until the next.
    """

    def __init__(self, get_on: Callable[[], object] | None = None) -> None:
        self._get_on = get_on
        self._work = _WORK
        self._since = time.perf_counter()

    def __call__(self) -> None:
        now = time.perf_counter()
        if now - self._since < self._work:
            return
        time.sleep(_REST)
        if self._get_on is not None:
            self._get_on()
        self._since = time.perf_counter()
        self._work = min(max((self._since - now) / 2, _WORK), _MOST_WORK)


class MsgpackSlices:
    """Makes the bytes of one large state that *dumps* would make at once. That is called for slices: lists of some of
    what the state has."""

    def __init__(self, dumps: Callable[[Any], bytes], rest: Callable[[], object]) -> None:
        self._dumps = dumps
        self._rest = rest
        self._mark = b""
        self._pieces: list[bytes] = []

    def pieces(self, state: Any) -> list[bytes]:
        """The bytes of *state*, in order. Raise what *dumps* raises, and `RuntimeError` if the state is changed
        meanwhile so that it shows."""
        self._large(state, 0)
        return [self._mark, *self._pieces]

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._rest()

    def _large(self, value: Any, depth: int) -> None:
        """Add a *value* that is too large for one slice and has *depth* containers around it."""
        kind = type(value)
        if kind is list and depth < _DEEPEST:
            self._add(_head(_LIST, len(value)))
            self._items(value, len(value), depth)
        elif kind is dict and depth < _DEEPEST:
            self._add(_head(_DICT, len(value)))
            self._items(chain.from_iterable(value.items()), 2 * len(value), depth)
        elif kind is bytes:
            self._add(_head(_BYTES, len(value)))
            for start in range(0, len(value), _TEXT):
                self._add(value[start : start + _TEXT])
        elif kind is str:
            self._text(value)
        elif depth:
            self._several([value], depth - 1)
        else:
            self._dump(value, 0)

    def _items(self, items: Iterable[Any], count: int, depth: int) -> None:
        """Add the *items*, *count* in all, of a container that has *depth* around it."""
        rest, at_once, seen = iter(items), 16, 0
        while some := list(islice(rest, at_once)):
            seen += len(some)
            room = self._some(some, depth)
            if room > SLICE_BYTES // 2:
                at_once = min(2 * at_once, _MOST)
            elif room < 0:
                at_once = max(at_once // 2, 1)
        if seen != count:
            raise RuntimeError(f"{count} items have become {seen}")

    def _some(self, some: list[Any], depth: int) -> int:
        """Add *some* items of a container that has *depth* around it; the room that they leave in a slice."""
        room = _room_after(some)
        if room >= 0:
            self._several(some, depth)
        elif len(some) == 1:
            self._large(some[0], depth + 1)
        else:
            middle = len(some) // 2
            self._some(some[:middle], depth)
            self._some(some[middle:], depth)
        return room

    def _several(self, some: list[Any], depth: int) -> None:
        """Add *some* items at once. They are dumped as deep as they are, so that what is too deep is noticed."""
        head = depth + len(_head(_LIST, len(some)))
        for _ in range(depth):
            some = [some]
        self._dump(some, head)

    def _dump(self, value: Any, head: int) -> None:
        """Add the bytes of *value* but for so many at their beginning."""
        data = self._dumps(value)
        if data[0] == _NEVER_USED:  # a mark of two bytes is before it: it has to stand before everything, once
            self._mark, data = data[:2], data[2:]
        self._add(data[head:])

    def _text(self, value: str) -> None:
        encoded = []
        for start in range(0, len(value), _TEXT):
            encoded.append(value[start : start + _TEXT].encode())
            self._rest()
        self._pieces += [_head(_STR, sum(map(len, encoded))), *encoded]


# How msgpack begins what has a size: the number of sizes that fit into one byte with a code, and that code, then the
# codes of 8, 16 and 32 bits.
_LIST: Final = (16, 0x90, None, 0xDC, 0xDD)
_DICT: Final = (16, 0x80, None, 0xDE, 0xDF)
_STR: Final = (32, 0xA0, 0xD9, 0xDA, 0xDB)
_BYTES: Final = (0, 0, 0xC4, 0xC5, 0xC6)
_NEVER_USED: Final = 0xC1


def _head(codes: tuple[int, int, int | None, int, int], size: int) -> bytes:
    """What msgpack writes before something of that *size*."""
    within, tiny, byte, short, long = codes
    if size < within:
        return bytes((tiny | size,))
    if size < 2**8 and byte is not None:
        return bytes((byte, size))
    if size < 2**16:
        return struct.pack(">BH", short, size)
    if size < 2**32:
        return struct.pack(">BI", long, size)
    raise ValueError(f"{size} is more than msgpack has a number for: save it in parts")
