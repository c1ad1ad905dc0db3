"""What the crash explorer goes by: the states that a power cut can leave, and what may be found in them."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from safekeeper import CheckpointId

from .disk import SECTOR, DiskWrite, Record
from .workload import Done, History

A, B = (CheckpointId("group", key) for key in (b"a", b"b"))


def test_what_was_flushed_is_there_and_the_rest_as_the_power_cut_left_it():
    record = Record(
        [DiskWrite(8192, b"1" * 1024), None, DiskWrite(8192 + SECTOR, b"2" * 1024), DiskWrite(0, b"3" * 1024)]
    )
    cuts = [(1, "lost"), (2, "lost"), (4, "lost"), (4, "kept"), *[(4, "torn")] * 200]
    plan = [(at, how, Random(number)) for number, (at, how) in enumerate(cuts)]
    states = [bytes(state) for state in record.states(bytes(16384), plan)]
    parts = [(state[:1024], state[8192 : 8192 + 3 * SECTOR]) for state in states]
    old, new = b"1" * 1024 + bytes(SECTOR), b"1" * SECTOR + b"2" * 1024
    assert parts[:4] == [(bytes(1024), bytes(1536)), (bytes(1024), old), (bytes(1024), old), (b"3" * 1024, new)]
    torn = b"1" * SECTOR + b"2" * SECTOR + bytes(SECTOR)
    assert {state for _, state in parts[4:]} == {old, new, torn, b"1" * 1024 + b"2" * SECTOR}
    assert {block for block, _ in parts[4:]} == {bytes(1024), b"3" * 1024}, "the superblock of ext4 is never torn"


@pytest.fixture
def history():
    """Two saves of A, one after the other; then a batch of both ids, that was not acknowledged."""
    return History(
        [
            Done("1", {A: b"1"}, begun=1, begun_at=10, ended=2, acknowledged_at=20),
            Done("2", {A: b"2"}, begun=3, begun_at=30, ended=4, acknowledged_at=40),
            Done("3", {A: b"3", B: b"3"}, begun=5, begun_at=50, ended=6, acknowledged_at=inf),
        ]
    )


@pytest.mark.parametrize(
    ("found", "position", "fine"),
    (
        ({}, 15, True),
        ({A: b"1"}, 15, True),
        ({}, 20, False),
        ({A: b"1"}, 39, True),
        ({A: b"2"}, 39, True),
        ({A: b"2"}, 29, False),
        ({A: b"1"}, 40, False),
        ({A: b"2"}, 60, True),
        ({A: b"3", B: b"3"}, 60, True),
        ({A: b"3"}, 60, False),
        ({A: b"2", B: b"3"}, 60, False),
        ({A: b"x"}, 60, False),
        ({A: b"2", CheckpointId("group", b"c"): b""}, 60, False),
    ),
)
def test_what_may_be_found_is_acknowledged_or_newer_and_whole(history, found, position, fine):
    assert (history.problems(found, position, atomic=True) == []) is fine


def test_half_a_batch_is_fine_where_batches_are_not_atomic(history):
    assert history.problems({A: b"3"}, 60, atomic=False) == []
