"""A second process with a handle on the same store, for what only a second process can show.

    with Peer(url) as peer:
        peer.write(batch)
        peer.call(function, argument)       # runs function(store, argument) over there

It has the methods of a backend as far as tests need them. Requests and answers are pickles on a socket that only the
two processes have; what raises over there raises here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId
from safekeeper.columns import Column, Columns

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 120.0
"""Seconds after which a process that does not answer counts as stuck: far more than a slow machine needs."""


def start_python(module: str, *arguments: str, **how: Any) -> subprocess.Popen[bytes]:
    """Start *module* in a Python of its own that imports what this one can import."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen([sys.executable, "-P", "-m", module, *arguments], env=environment, **how)


class Handle(Protocol):
    """What a backend and a `Peer` have in common."""

    def write(self, batch: Batch) -> object:
        """As `Backend.write`."""

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """As `Backend.read`."""

    def keys(self, group: str) -> Iterable[bytes]:
        """As `Backend.keys`."""

    def groups(self) -> Iterable[str]:
        """As `Backend.groups`."""


class Peer:
    """A process that opens *url* when it is first asked for something."""

    def __init__(self, url: str) -> None:
        self._line, theirs = Pipe()
        with theirs:
            fd = theirs.fileno()
            self._process = start_python(__name__, url, str(fd), pass_fds=[fd])

    def call(self, function: Callable[Concatenate[Backend, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *function* over there with its store as first argument. It must be importable by name."""
        return self._ask((function, args, kwargs))  # type: ignore[no-any-return]

    def _ask(self, request: Any) -> Any:
        self._line.send(request)
        if not self._line.poll(PATIENCE):
            self._process.kill()
            raise TimeoutError(f"the other process did not answer within {PATIENCE:g} s")
        try:
            succeeded, answer = self._line.recv()
        except EOFError:
            raise AssertionError("the other process ended by itself: its standard error says why") from None
        if not succeeded:
            raise answer
        return answer

    def write(self, batch: Batch) -> None:
        """`Backend.write` over there."""
        if batch.columns is None:
            self.call(_write, dict(batch.items()))
        else:
            columns = batch.columns
            self.call(_write_columns, columns.group, _items(columns.keys), _items(columns.values))

    def read(self, ids: Sequence[CheckpointId]) -> list[bytes | None]:
        """`Backend.read` over there."""
        return self.call(_read, ids)

    def keys(self, group: str) -> list[bytes]:
        """All of `Backend.keys` over there."""
        return self.call(_keys, group)

    def groups(self) -> list[str]:
        """All of `Backend.groups` over there."""
        return self.call(_groups)

    def reopen(self) -> None:
        """Close the handle over there and open another one."""
        self._ask(None)

    def close(self) -> None:
        """Close the handle over there and end the process."""
        self._line.close()
        try:
            self._process.wait(PATIENCE)
        finally:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _items(column: Column) -> list[bytes]:
    return [column[i] for i in range(len(column))]


def _write(store: Backend, operations: dict[CheckpointId, bytes | None]) -> None:
    batch = Batch()
    for id, value in operations.items():
        batch.delete(id) if value is None else batch.put(id, value)
    store.write(batch)


def _write_columns(store: Backend, group: str, keys: list[bytes], values: list[bytes]) -> None:
    store.write(Batch.of_columns(Columns.of(group, keys, values)))


def _read(store: Backend, ids: Sequence[CheckpointId]) -> list[bytes | None]:
    return store.read(ids)


def _keys(store: Backend, group: str) -> list[bytes]:
    return list(store.keys(group))


def _groups(store: Backend) -> list[str]:
    return list(store.groups())


def _serve(url: str, line: Connection[Any, Any]) -> None:
    store: Backend | None = None
    while True:
        try:
            request = line.recv()
        except EOFError:
            break
        try:
            answer = None
            if request is None:
                if store is not None:
                    store.close()
                store = safekeeper.open(url)
            else:
                function, args, kwargs = request
                store = store or safekeeper.open(url)
                answer = function(store, *args, **kwargs)
            line.send((True, answer))
        except Exception as error:
            error.add_note(f"in the other process: {traceback.format_exc()}")
            line.send((False, error))
    if store is not None:
        store.close()


if __name__ == "__main__":
    with Connection(int(sys.argv[2])) as connection:
        _serve(sys.argv[1], connection)
