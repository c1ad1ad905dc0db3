"""Values that come while others are being worked on: in order, a few at a time, and none after an error."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("count", (0, 1, 2, 5, 300))
@pytest.mark.parametrize("largest", (1, 1000, 3_000_000))
def test_values_come_in_order_whatever_their_size(jvm: Any, count: int, largest: int) -> None:
    jvm.commits.ReadAheadModel.run(count + largest, min(count, 50) if largest > 1000 else count, largest)


def test_small_values_share_requests(jvm: Any) -> None:
    assert jvm.commits.ReadAheadModel.run(1, 2000, 1000) < 60


def test_parts_are_read_ahead_of_their_turn_as_far_as_there_is_room(jvm: Any) -> None:
    assert jvm.commits.ReadAheadModel.parts(1 << 40) == 4
    assert jvm.commits.ReadAheadModel.parts(0) == 1
    assert 1 < jvm.commits.ReadAheadModel.parts(1 << 20) < 4  # for one part, beside the request that is waited for


def test_a_value_that_is_larger_than_a_request_counts_as_what_it_has(jvm: Any) -> None:
    assert jvm.commits.ReadAheadModel.lastLeave(6 << 20) == 6 << 20


def test_a_request_that_there_is_no_memory_for_keeps_no_room(jvm: Any) -> None:
    assert jvm.commits.ReadAheadModel.noMemory() == "no thread"


def test_an_error_ends_the_reading_and_gives_up_what_is_under_way(jvm: Any) -> None:
    assert jvm.commits.ReadAheadModel.failure() == "out of order"
