"""What happens to keepers when their process forks or ends.

A child has the memory of its parent but none of its threads: a ticket inherited there would never complete. So every
pipeline is brought to rest for the moment of the fork, and closed in the child. At the end of the process what is still
open is closed, which stores what is queued.
"""

from __future__ import annotations

import atexit
import logging
import os
from threading import Lock
from typing import Protocol
from weakref import WeakSet

_log = logging.getLogger("safekeeper")


class Living(Protocol):
    """What can be registered here."""

    def before_fork(self) -> None:
        """Come to rest: no other thread may be in the middle of a change."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Complete everything with `Closed`, and go on being closed."""

    def at_exit(self) -> None:
        """Close."""


_lock = Lock()
_living: WeakSet[Living] = WeakSet()
_resting: list[Living] = []


def register(living: Living) -> None:
    """Tell *living* about forks and the end of the process for as long as it exists."""
    with _lock:
        _living.add(living)


def _before_fork() -> None:
    _lock.acquire()
    _resting.extend(_living)
    for living in _resting:
        living.before_fork()


def _after_fork_in_parent() -> None:
    for living in _resting:
        living.after_fork_in_parent()
    _resting.clear()
    _lock.release()


def _after_fork_in_child() -> None:
    for living in _resting:
        living.after_fork_in_child()
    _resting.clear()
    _lock.release()


@atexit.register
def _at_exit() -> None:
    with _lock:
        living = list(_living)
    for one in living:
        try:
            one.at_exit()
        except Exception as error:
            _log.error("at the end of the process: %s", error)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
