"""What runs inside a `Peer`: among others, stopping itself (SIGSTOP) between two steps of a write."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from safekeeper import Batch, CheckpointId
from safekeeper.backends.log.background import Background
from safekeeper.backends.log.files import Files
from safekeeper.backends.log.writer_status import WriterStatus

FILE_STEPS = ("create", "write", "write_synced", "sync", "sync_folder", "replace", "remove")
STATUS_STEPS = ("choose", "take", "publish", "publish_generation")


def claim(store: Any) -> None:
    """Become a writer, and write nothing."""
    store._shared(create=True)._claim()


def compact(store: Any) -> None:
    """Compact whatever has a dead record."""
    store.compact()


def damage(store: Any) -> list[str]:
    """What is damaged."""
    return [f"{each.place}: {each.problem}" for each in store.verify()]


def fork_a_child_that_stays(store: Any) -> None:
    """Leave a child behind, which may outlive this process by a moment."""
    if os.fork() == 0:
        time.sleep(0.5)
        os._exit(0)


def steps_of_a_write(store: Any, operations: dict[CheckpointId, bytes]) -> list[str]:
    """Write, and tell before which steps it could be stopped."""
    passed: list[str] = []
    with _before_each_step(passed.append):
        store.write(Batch(operations))
    return passed


def write_and_stop(store: Any, operations: dict[CheckpointId, bytes], step: int) -> None:
    """Write, and stop before the step with that number; at the last one, the write is over but not yet answered."""
    passed: list[str] = []

    def stop(name: str) -> None:
        passed.append(name)
        if len(passed) == step + 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    with _before_each_step(stop):
        store.write(Batch(operations))
        stop("answer")


def compact_and_stop(store: Any, manifest: int) -> None:
    """Compact, and stop when the manifest with that number is replaced and its folder not yet synced."""
    passed: list[str] = []

    def stop(name: str) -> None:
        passed.append(name)
        if passed[-2:] == ["replace", "sync_folder"] and passed.count("replace") == manifest + 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    with _before_each_step(stop):
        store.compact()


def compact_and_stop_while_copying(store: Any) -> None:
    """Compact, and stop when the first file for copies was created, after the next segment and its manifest."""
    passed: list[str] = []

    def stop(name: str) -> None:
        passed.append(name)
        if name == "write_synced" and passed.count("create") == 3:
            os.kill(os.getpid(), signal.SIGSTOP)

    with _before_each_step(stop):
        store.compact()


@contextmanager
def _before_each_step(call: Callable[[str], None]) -> Iterator[None]:
    """Call *call* with its name before everything that a writer does to files and to its status, and looks at there."""
    saved = [
        (cls, name, cls.__dict__[name])
        for cls, names in ((Files, FILE_STEPS), (WriterStatus, STATUS_STEPS))
        for name in names
    ]
    fenced = WriterStatus.__dict__["fenced"]
    for cls, name, method in saved:
        setattr(cls, name, _announced(method, name, call))
    WriterStatus.fenced = property(_announced(fenced.fget, "fenced", call))  # type: ignore[assignment]
    try:
        yield
    finally:
        for cls, name, method in saved:
            setattr(cls, name, method)
        WriterStatus.fenced = fenced


def _announced(method: Callable[..., Any], name: str, call: Callable[[str], None]) -> Callable[..., Any]:
    def announced(*args: Any) -> Any:
        call(name)
        return method(*args)

    return announced


_hogged: list[int] = []


def limit_files(store: Any, most: int) -> None:
    """Let this process have at most so many open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def open_files(store: Any) -> int:
    """How many files it has open."""
    return len(os.listdir("/proc/self/fd"))


def hog_files(store: Any, spare: int) -> None:
    """Open all files that this process may have but *spare*; give them back if that is -1."""
    while _hogged:
        os.close(_hogged.pop())
    if spare >= 0:
        with suppress(OSError):
            while True:
                _hogged.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(spare):
            os.close(_hogged.pop())


def stop_passes(store: Any) -> None:
    """Let no pass run in the background from now on."""
    Background.due = lambda self: False  # type: ignore[method-assign]


def stats(store: Any) -> int:
    """How many ids there are."""
    return int(store.stats().ids)
