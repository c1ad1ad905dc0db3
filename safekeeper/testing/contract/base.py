"""What the parts of the contract class share: fixtures, tunables and small helpers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TypeAlias, cast

import pytest

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId, Scope
from safekeeper.testing.peer import Handle, Peer
from safekeeper.url import Url

Opener: TypeAlias = Callable[[], Backend]

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
"""Whether the tests run in their long form."""


class Kit:
    """Fixtures for tests of a backend. A subclass gives the fixture `url`; everything else has a default.

    Where a store is expensive to make, `url` may be of a wider scope than one test: the tests do not mind what other
    tests have left in it.
    """

    examples: int = 20
    """How many histories the model tries."""
    long_examples: int = 300
    """The same with SAFEKEEPER_TEST_LEVEL=long."""
    kills: int = 5
    """How many times a writing process is killed."""
    long_kills: int = 50
    """The same with SAFEKEEPER_TEST_LEVEL=long."""

    @pytest.fixture
    def url(self) -> str:
        """The URL of a fresh, empty store."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture 'url': the URL of a fresh, empty store")

    @pytest.fixture
    def unreachable_url(self, url: str, tmp_path: Path) -> str | None:
        """The URL of a store of the same kind that cannot be reached; None if there is no such thing.

        By default it is a path below something that is no folder, for stores that have a path. A backend of scope
        NETWORK has to override this: None fails its tests.
        """
        parsed = Url.parse(url)
        if not _is_local(parsed):
            return None
        occupied = tmp_path / "occupied"
        occupied.write_bytes(b"no folder")
        return url.replace(parsed.path, f"{occupied}/store", 1)

    def traces(self, url: str) -> list[str]:
        """What an outsider finds of the store at *url*, without opening it: the same before and after a mere look.

        By default it is the path, if that exists. Stores that have none skip the test unless they override this.
        """
        parsed = Url.parse(url)
        if not _is_local(parsed):
            pytest.skip(f"no way is known to look at {parsed.scheme}: from outside: override traces()")
        return [parsed.path] if os.path.lexists(parsed.path) else []

    @pytest.fixture
    def opened(self, url: str) -> Iterator[Opener]:
        """Opens further handles on the store; all are closed after the test."""
        handles: list[Backend] = []

        def open_another() -> Backend:
            handles.append(safekeeper.open(url))
            return handles[-1]

        yield open_another
        for handle in handles:
            handle.close()

    @pytest.fixture
    def store(self, opened: Opener) -> Backend:
        """A handle on the store."""
        return opened()

    @pytest.fixture
    def peer(self, url: str) -> Iterator[Peer]:
        """Another process with a handle on the store."""
        with Peer(url) as peer:
            yield peer

    @pytest.fixture(params=("the same handle", "another handle", "another process"))
    def other(self, request: pytest.FixtureRequest, store: Backend, opened: Opener) -> Handle:
        """Whoever else uses the store."""
        if request.param == "the same handle":
            return store
        if request.param == "another handle":
            return opened()
        if store.scope < Scope.HOST:
            pytest.skip("other processes do not see this store")
        return cast("Peer", request.getfixturevalue("peer"))

    @pytest.fixture
    def group(self) -> str:
        """A group that nobody else uses."""
        return fresh_name("group")


def _is_local(url: Url) -> bool:
    return url.host is None and url.path.startswith("/")


def fresh_name(what: str) -> str:
    """A name that was never used before."""
    return f"{what}-{secrets.token_hex(6)}"


def put(store: Handle, id: CheckpointId, value: bytes) -> None:
    """Write one value."""
    store.write(Batch({id: value}))


def delete(store: Handle, *ids: CheckpointId) -> None:
    """Remove ids, in one batch."""
    batch = Batch()
    for id in ids:
        batch.delete(id)
    store.write(batch)


def get(store: Handle, id: CheckpointId) -> bytes | None:
    """Read one value."""
    (value,) = store.read([id])
    return value


def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do *work* in a thread of its own; go on until it is done, and then once more."""
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        done = False
        while not done:
            done = working.done()
            yield
        working.result()


def at_once(*calls: Callable[[], object]) -> None:
    """Run *calls* in a thread each, started together."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(run, call) for call in calls]:
            future.result()


def check_value(what: object, found: bytes | None, *allowed: bytes | None) -> None:
    """Fail unless *found* is one of *allowed*; with a message that fits on a screen, however large they are."""
    if found not in allowed:
        raise AssertionError(f"{what}: found {_short(found)} instead of {' or '.join(map(_short, allowed))}")


def _short(value: bytes | None) -> str:
    if value is None:
        return "nothing"
    return f"{len(value)} bytes {value[:16]!r}{'...' if len(value) > 16 else ''}"
