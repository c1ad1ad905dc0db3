"""Is the owner there? A connection to its door says so."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from safekeeper.claims import Mark

_CONNECT = 0.5  # seconds; also within the lease
_AGAIN = 6  # times in a lease it is tried to connect, while the host says nothing
_LONGEST_LINE = 4096
_LONGEST_NUMBER = 19  # digits


class OwnerWatch:
    """A connection to the door of whoever has the claim *mark*, which said of itself what is in *about*."""

    def __init__(self, mark: Mark, about: Mapping[str, Any], lease: float) -> None:
        self.gone = False
        """Whether the owner's process has ended, or is silent for the lease."""
        self.number = 0
        """The newest block that the owner had acknowledged when it last spoke."""
        self.watching = 0
        """How many watch it, with us."""
        self.is_watched = True
        """Whether the owner has a door at all."""
        self._mark, self._lease = mark, lease
        self._heard = self._tried = time.monotonic()
        self._said = b""
        self._connection: socket.socket | None = None
        host, _, port = str(about.get("watch", "")).rpartition(":")
        self._place = host.strip("[]"), int(port) if _is_number(port) else 0
        self.is_watched = bool(host) and 0 < self._place[1] <= 65535
        if self.is_watched:
            self._connect()

    def _connect(self) -> None:
        self._tried = time.monotonic()
        left = max(self._lease - (self._tried - self._heard), 0.01)
        try:
            self._connection = socket.create_connection(self._place, timeout=min(_CONNECT, left))
            self._connection.setblocking(False)
        except ConnectionRefusedError:  # its host says that nobody is there
            self.gone = True
        except (OSError, ValueError):  # its host says nothing, or there is none of that name: it counts as silent
            pass

    def wait(self, seconds: float) -> None:
        """Return when the owner said something or is gone, after *seconds* at the latest."""
        if self._connection is not None:
            poll = select.poll()  # `select` knows no more than 1024 files
            poll.register(self._connection, select.POLLIN)
            if poll.poll(1e3 * seconds):
                self._hear()
        else:
            time.sleep(seconds)
            if self.is_watched and time.monotonic() - self._tried > self._lease / _AGAIN:
                self._connect()
        if time.monotonic() - self._heard > self._lease:
            self.gone = self.gone or self.is_watched

    def _hear(self) -> None:
        assert self._connection is not None
        try:
            data = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone = True
            return
        *lines, self._said = (self._said + data).split(b"\n")
        if lines:
            self._understand(lines[-1])
        elif len(self._said) > _LONGEST_LINE:
            self.gone = True

    def _understand(self, line: bytes) -> None:
        words = line.decode("ascii", "replace").split()
        if len(words) != 4 or words[0] != "safekeeper" or not (_is_number(words[2]) and _is_number(words[3])):
            self.gone = True  # another program listens there now
        elif words[1] == f"{self._mark.epoch}_{self._mark.owner}":
            self._heard = time.monotonic()
            self.number, self.watching = int(words[2]), int(words[3])
        elif words[1] != "0_":
            self.gone = True  # another owner does

    def close(self) -> None:
        """Watch no more."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()


def _is_number(text: str) -> bool:
    """Whether *text* is a number as an owner writes it: `int` raises for one of thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
