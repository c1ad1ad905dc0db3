"""`python -m safekeeper.agent SOCKET`: the agent as a process. Its life is described in `docs/agent.md`."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from safekeeper.agent.protocol import VERSION
from safekeeper.agent.server import AgentServer
from safekeeper.errors import SafekeeperError, Unavailable
from safekeeper.keeper import SafeKeeper
from safekeeper.keeper.lanes import Bounds

log = logging.getLogger(__name__)

_M_MMAP_THRESHOLD = -3  # from malloc.h

_AWAY_SECONDS = 10.0
"""For how long an agent waits for a store that is away before it says so; the JVM then starts the next one."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The first line on standard input, a JSON object."""

    url: str = field(repr=False)
    """The backend to serve. It may hold a password."""
    queue_bytes: int = 128 * 1024 * 1024
    """How many bytes of requests may be in memory, and how many of values on their way to the JVM."""
    retry_seconds: float = 60.0
    """For how long a write is tried again while the store is unavailable."""

    @classmethod
    def parse(cls, line: str) -> AgentSettings:
        """The settings in *line*. Raise `ValueError`, which does not repeat them, when it has none."""
        try:
            settings = cls(**json.loads(line))
        except (ValueError, TypeError):
            raise ValueError('the first line on standard input is {"url": "...", "queue_bytes": N}') from None
        if type(settings.url) is not str or type(settings.queue_bytes) is not int or settings.queue_bytes < 1:
            raise ValueError("url is a string and queue_bytes a positive number")
        if type(settings.retry_seconds) not in (int, float) or settings.retry_seconds <= 0:
            raise ValueError("retry_seconds is a positive number")
        return settings


class _StoreIsAway(Unavailable):
    """The store could not be opened for a while; it may come back."""


def main() -> int:
    """Serve until standard input ends or SIGTERM comes; 1 if it could not start, with the reason on standard output."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m safekeeper.agent SOCKET")
    _give_memory_back()
    logging.basicConfig(level=logging.INFO, format="safekeeper agent %(process)d: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a shell is for the job, not for its state
    signal.signal(signal.SIGTERM, _end)
    answer = _Answer()
    try:
        _serve(sys.argv[1], answer)
    except (SafekeeperError, ValueError) as error:
        is_away = isinstance(error, _StoreIsAway)
        answer.give({"ready": False, "away": is_away, "error": " ".join(str(error).split())})
        log.error("%s", error)
        return 1
    return 0


class _Answer:
    """Standard output, kept for the one line that the JVM reads; whatever a driver prints goes to standard error."""

    def __init__(self) -> None:
        self._fd: int | None = os.dup(1)
        os.dup2(2, 1)

    def give(self, line: dict[str, object]) -> None:
        """Write the line, unless one was written before."""
        if self._fd is not None:
            os.write(self._fd, json.dumps(line).encode() + b"\n")
            os.close(self._fd)
            self._fd = None


def _serve(path: str, answer: _Answer) -> None:
    settings = AgentSettings.parse(sys.stdin.readline())
    with open_when_there(settings) as keeper, AgentServer(keeper, path, settings.queue_bytes):
        survives = [flag.name for flag in keeper.backend.survives]
        ready = {"ready": True, "version": VERSION, "scope": keeper.backend.scope.name, "survives": survives}
        answer.give(ready | {"pid": os.getpid()})
        while os.read(0, 65536):
            pass
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end has begun: let it be a clean one


def open_when_there(settings: AgentSettings) -> SafeKeeper:
    """The keeper, as soon as the store can be reached; `Unavailable` if that takes too long."""
    give_up = time.monotonic() + min(_AWAY_SECONDS, settings.retry_seconds)
    said = ""
    while True:
        try:
            return open_keeper(settings)
        except Unavailable as error:
            if time.monotonic() > give_up:
                raise _StoreIsAway(str(error)) from error
            if said != (said := str(error)):
                log.warning("the store is away, trying again: %s", error)
            time.sleep(0.2)


def open_keeper(settings: AgentSettings) -> SafeKeeper:
    """The keeper that commits go through, with as many writes under way as the store gains by."""
    return SafeKeeper(
        settings.url,
        serializer=None,
        overflow="block",
        # The server has made room for every body before the keeper sees it, so the queue never blocks for long.
        storage_queue=Bounds(nbytes=settings.queue_bytes),
        storage_workers=None,
        deadline=settings.retry_seconds,
    )


def _give_memory_back() -> None:
    """Make the C library return large blocks to the system when they are freed, instead of keeping some per thread."""
    with suppress(OSError, AttributeError):  # a C library that knows no mallopt
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _end(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
