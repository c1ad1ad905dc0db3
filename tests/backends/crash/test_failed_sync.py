"""Syncs that fail below the file system: what was acknowledged is there all the same when the cache is gone.

After a failed sync the page cache holds what the disk does not, and takes it for written: the next sync succeeds. So
whoever comes next must not take what it reads there for durable.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from safekeeper import Batch, CheckpointId, SafekeeperError, Unavailable, stores
from safekeeper.backend import Backend
from safekeeper.testing.peer import Peer

from .disk import FuseDisk
from .explorer import STORES
from .mounts import alone, make_image, mounted

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
MARK = b"this value never reaches the disk"
EVERYTHING = b""
FAILING = {
    "log": {"blocks": MARK, "segments": b"SKLOGSEG", "manifests": b"safekeeper-log"},
    "file": {"values": MARK},
    "lmdb": {"values": MARK, "roots": bytes.fromhex("dec0efbe")},
}
"""Bytes by which the disk knows the writes that it is to fail: of a file's content, so that ext4's journal goes on."""

Values = dict[CheckpointId, bytes]


def an_id(writer: str, number: int) -> CheckpointId:
    return CheckpointId("group", f"{writer} {number}".encode())


def write_until_refused(store: Backend, writer: str) -> tuple[Values, str]:
    """Write until a write raises; what was acknowledged, and what was raised."""
    acknowledged: Values = {}
    for number in range(400):
        id, value = an_id(writer, number), MARK + b" %d" % number * 50
        try:
            store.write(Batch({id: value}))
        except SafekeeperError as error:
            return acknowledged, f"{type(error).__name__}: {error}"
        acknowledged[id] = value
    return acknowledged, "nothing"


def write_some(store: Backend, writer: str) -> Values:
    """Write again what is refused: an error that a sync did not report to anybody is reported to the next one."""
    values = {an_id(writer, number): b"some %d" % number * 100 for number in range(20)}
    refused = 0
    for id, value in values.items():
        while True:
            try:
                store.write(Batch({id: value}))
                break
            except Unavailable:
                refused += 1
                if refused > 5:
                    raise
    return values


def damages(store: Backend) -> list[str]:
    return [str(damage) for damage in stores.verify(store)]


def fail_and_adopt(memory: Path, scheme: str, having: bytes, fate: str) -> None:
    """A writer meets a disk that fails; another one goes on with what it left; then the cache is dropped."""
    base = make_image("ext4", memory / "base")
    content = base.read_bytes()
    with FuseDisk(memory / "disk", base) as disk:
        with mounted(disk.file, memory / "mounted", content=content) as mount, ExitStack() as peers:
            url = STORES[scheme].format(mount / "store")
            first, second = (peers.enter_context(Peer(url)) for _ in range(2))
            acknowledged = first.call(write_some, "first") | second.call(write_some, "second")
            disk.fail_writes(having)
            more, error = first.call(write_until_refused, "first, while writes fail")
            acknowledged |= more
            assert error.startswith(Unavailable.__name__), error
            if fate == "lives on":
                disk.heal()
                acknowledged |= first.call(write_some, "first, again")
            first._process.kill()
            first._process.wait()
            heir = peers.enter_context(Peer(url))
            if fate == "killed, as the next one":
                more, error = heir.call(write_until_refused, "heir, while writes fail")
                acknowledged |= more
                assert error.startswith(Unavailable.__name__), error
                heir._process.kill()
                heir._process.wait()
                heir = peers.enter_context(Peer(url))
            disk.heal()
            for name, peer in {"heir": heir, "second, again": second}.items():
                if having:  # else ext4 itself has given up, until it is mounted again
                    acknowledged |= peer.call(write_some, name)
                    assert peer.read(list(acknowledged)) == list(acknowledged.values())
                peer._process.kill()
        (lost,) = disk.record().states(content, [(len(disk.record()), "lost", Random(0))])
        (memory / "lost").write_bytes(lost)
        for image in (disk.file, memory / "lost"):
            with mounted(image, memory / "again") as mount:
                check_and_go_on(STORES[scheme].format(mount / "store"), acknowledged)


def check_and_go_on(url: str, acknowledged: Values) -> None:
    with Peer(url) as peer:
        assert peer.read(list(acknowledged)) == list(acknowledged.values())
        assert peer.call(damages) == []
        more = peer.call(write_some, "after all")
    with Peer(url) as peer:
        expected = acknowledged | more
        assert peer.read(list(expected)) == list(expected.values())


FATES = ("killed", "killed, as the next one", "lives on") if LONG else ("killed",)
CASES = [(scheme, what) for scheme, failing in FAILING.items() for what in list(failing)[: None if LONG else 1]]


@pytest.mark.crash
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize(("scheme", "what"), CASES, ids=[f"{scheme}-{what}" for scheme, what in CASES])
def test_what_was_acknowledged_after_a_failed_sync_is_there_when_the_cache_is_gone(tmp_path, scheme, what, fate):
    alone(fail_and_adopt, tmp_path, scheme, FAILING[scheme][what], fate)


@pytest.mark.crash
@pytest.mark.parametrize("scheme", FAILING if LONG else ["log"])
def test_a_disk_that_takes_nothing_any_more_loses_nothing_that_was_acknowledged(tmp_path, scheme):
    alone(fail_and_adopt, tmp_path, scheme, EVERYTHING, "killed, as the next one")
