"""Whether a state is so small that it is serialized at once."""

from __future__ import annotations

import sys
from typing import Any

_SMALL = 16 * 1024  # bytes of Python objects: to serialize so little takes less time than to hand it to another thread
PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
"""Types whose objects cannot change and have nothing inside."""


def is_small(state: Any) -> bool:
    """Whether *state* surely has few bytes: it is looked at only so far, and what is not known counts as large."""
    room = _SMALL
    parts = [state]
    while parts:
        part = parts.pop()
        room -= sys.getsizeof(part)
        if room < 0:
            return False
        if type(part) in PLAIN:
            continue
        if isinstance(part, dict):
            parts += part
            parts += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            parts += part
        elif hasattr(part, "__dict__") and not hasattr(part, "nbytes"):
            parts += vars(part).values()
        else:
            return False
    return True
