"""The door of an owner: whoever holds a connection to it learns at once when the owner's process is gone."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from safekeeper.claims import Mark
from safekeeper.keeper.notices import log_safely

_log = logging.getLogger("safekeeper")

# line:   "safekeeper" MARK NUMBER WATCHING "\n"        ASCII with spaces between; when a watcher comes, then every beat
#         MARK: EPOCH_OWNER of its claim, "0_" before it has one; NUMBER: of the newest block that is acknowledged;
#         WATCHING: how many hold a connection. Nothing is read from a watcher, and nothing here is secret
_MOST = 64  # watchers; one that has hung up has to go, else the oldest
_TROUBLE = 0.05  # seconds to wait when nobody can be let in, such as for too many open files


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
        self._unsent: dict[socket.socket, bytes] = {}  # what there was no room for, of a line that was begun
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
        told, warned = time.monotonic(), False
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ending.is_set():
                try:
                    if selector.select(min(self._beat, 0.1)):
                        self._let_in()
                    if time.monotonic() - told >= self._beat:  # also while many come
                        told = time.monotonic()
                        self._tell(self._watchers)
                except Exception as error:  # a door that says nothing would let a standby take over
                    if not warned:
                        log_safely(_log.warning, "who watches this owner may not hear of it: %r", error)
                    warned = True
                    self._ending.wait(_TROUBLE)

    def _let_in(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        self._watchers.append(connection)
        self._tell([connection])
        if len(self._watchers) > _MOST:
            self._let_out(next(filter(_has_hung_up, self._watchers), self._watchers[0]))

    def _let_out(self, connection: socket.socket) -> None:
        self._watchers.remove(connection)
        self._unsent.pop(connection, None)
        connection.close()

    def _tell(self, watchers: list[socket.socket]) -> None:
        mark = f"{self.mark.epoch}_{self.mark.owner}" if self.mark is not None else "0_"
        line = f"safekeeper {mark} {self._number()} {len(self._watchers)}\n".encode()
        for connection in list(watchers):
            said = self._unsent.pop(connection, line)  # half a line would be taken for another program's
            try:
                sent = connection.send(said)
            except BlockingIOError:  # it does not read: it will see that it is behind
                sent = 0
            except OSError:
                self._let_out(connection)
                continue
            if sent < len(said) and (sent or said is not line):
                self._unsent[connection] = said[sent:]


def _has_hung_up(watcher: socket.socket) -> bool:
    try:
        return not watcher.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
