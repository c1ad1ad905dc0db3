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
_LONGEST_LINE = 4096


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
        self._heard = time.monotonic()
        self._said = b""
        self._connection: socket.socket | None = None
        host, _, port = str(about.get("watch", "")).rpartition(":")
        if not host or not port.isdecimal():
            self.is_watched = False
            return
        self._connect(host, int(port))

    def _connect(self, host: str, port: int) -> None:
        try:
            self._connection = socket.create_connection((host.strip("[]"), port), timeout=min(_CONNECT, self._lease))
            self._connection.setblocking(False)
        except ConnectionRefusedError:  # its host says that nobody is there
            self.gone = True
        except OSError:  # its host says nothing: it counts as silent
            pass

    def wait(self, seconds: float) -> None:
        """Return when the owner said something or is gone, after *seconds* at the latest."""
        if self._connection is None:
            time.sleep(seconds)
        elif select.select([self._connection], [], [], seconds)[0]:
            self._hear()
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
        if len(words) != 4 or words[0] != "safekeeper" or not (words[2].isdecimal() and words[3].isdecimal()):
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
