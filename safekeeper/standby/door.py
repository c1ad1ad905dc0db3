"""The door of an owner: whoever holds a connection to it learns at once when the owner's process is gone."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from safekeeper.claims import Mark

# line:   "safekeeper" MARK NUMBER WATCHING "\n"        ASCII with spaces between; when a watcher comes, then every beat
#         MARK: EPOCH_OWNER of its claim, "0_" before it has one; NUMBER: of the newest block that is acknowledged;
#         WATCHING: how many hold a connection. Nothing is read from a watcher, and nothing here is secret
_MOST = 64  # watchers; one that has hung up has to go, else the oldest


class OwnerDoor:
    """Listens at *place*, and says every *beat* seconds that the process is alive."""

    def __init__(self, place: tuple[str, int], beat: float, number: Callable[[], int] = lambda: 0) -> None:
        self.mark: Mark | None = None
        """The claim of the owner, when it has one."""
        self._beat, self._number = beat, number
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._listener = socket.create_server(place, family=family)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._watchers: list[socket.socket] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="safekeeper-door", daemon=True)
        self._thread.start()

    @property
    def watching(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def close(self) -> None:
        """Close the door: whoever watches takes it for the owner's end."""
        self._ending.set()
        self._thread.join()
        for connection in (self._listener, *self._watchers):
            connection.close()

    def _run(self) -> None:
        told = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ending.is_set():
                if selector.select(min(self._beat, 0.1)):
                    self._let_in()
                if time.monotonic() - told >= self._beat:  # also while many come
                    told = time.monotonic()
                    self._tell(self._watchers)

    def _let_in(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._watchers.append(connection)
            self._tell([connection])
            if len(self._watchers) > _MOST:
                gone = next(filter(_has_hung_up, self._watchers), self._watchers[0])
                self._watchers.remove(gone)
                gone.close()

    def _tell(self, watchers: list[socket.socket]) -> None:
        mark = f"{self.mark.epoch}_{self.mark.owner}" if self.mark is not None else "0_"
        line = f"safekeeper {mark} {self._number()} {len(self._watchers)}\n".encode()
        for connection in list(watchers):
            try:
                connection.send(line)
            except BlockingIOError:  # it does not read: it will see that it is behind
                pass
            except OSError:
                self._watchers.remove(connection)
                connection.close()


def _has_hung_up(watcher: socket.socket) -> bool:
    try:
        return not watcher.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
