"""What the parts of the contract class share: fixtures, tunables and small helpers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import safekeeper
from safekeeper.backend import Backend, Batch, CheckpointId, Receipt
from safekeeper.registry import Url
from safekeeper.testing.peer import Peer

Opener: TypeAlias = Callable[[], Backend]

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
"""Whether the tests run in their long form."""


class Kit:
    """Fixtures for tests of a backend. A subclass gives the fixture `url`; everything else has a default.

    The tests use groups with fresh names and leave the others alone, so where a store is expensive to make, `url` may
    be of a wider scope than one test; then override `traces` as well, since the store is not unwritten.
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

        By default it is a path below something that is no folder, for stores that have a path.
        """
        parsed = Url.parse(url)
        if not _is_local(parsed):
            return None
        occupied = tmp_path / "occupied"
        occupied.write_bytes(b"no folder")
        return url.replace(parsed.path, f"{occupied}/store", 1)

    def traces(self, url: str) -> list[str]:
        """What an outsider finds of the store at *url*, without opening it; nothing if it was never written.

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

    @pytest.fixture
    def group(self) -> str:
        """A group that nobody else uses."""
        return fresh_name("group")


def _is_local(url: Url) -> bool:
    return url.host is None and url.path.startswith("/")


def fresh_name(what: str) -> str:
    """A name that was never used before."""
    return f"{what}-{secrets.token_hex(6)}"


def put(store: Backend, id: CheckpointId, value: bytes) -> Receipt:
    """Write one value."""
    return store.write(Batch({id: value}))


def delete(store: Backend, *ids: CheckpointId) -> None:
    """Remove ids, in one batch."""
    batch = Batch()
    for id in ids:
        batch.delete(id)
    store.write(batch)


def get(store: Backend, id: CheckpointId) -> bytes | None:
    """Read one value."""
    (value,) = store.read([id])
    return value


def check_value(what: object, found: bytes | None, *allowed: bytes | None) -> None:
    """Fail unless *found* is one of *allowed*; with a message that fits on a screen, however large they are."""
    if found not in allowed:
        raise AssertionError(f"{what}: found {_short(found)} instead of {' or '.join(map(_short, allowed))}")


def _short(value: bytes | None) -> str:
    if value is None:
        return "nothing"
    return f"{len(value)} bytes {value[:16]!r}{'...' if len(value) > 16 else ''}"
