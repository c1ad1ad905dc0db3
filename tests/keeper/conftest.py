from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from safekeeper.backends.memory import MemoryBackend
from safekeeper.testing import Faulty

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@pytest.fixture
def long_form() -> bool:
    return LONG


@pytest.fixture
def store() -> Iterator[Faulty]:
    """A store in memory that fails and stops where it is told to."""
    with Faulty(MemoryBackend()) as store:
        yield store


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so; fail if it never is."""

    def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it never came about"
            time.sleep(0.005)

    return wait


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Every keeper that a test closes takes its threads with it."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 30
    while left := [t for t in threading.enumerate() if t not in before and t.name.startswith("safekeeper-")]:
        assert time.monotonic() < until, f"threads are left: {left}"
        time.sleep(0.01)
