"""The state log against plain maps, under random puts, removes, commits, aborts, undo, cleaning and loading."""

from __future__ import annotations

import os
from typing import Any

import pytest

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(200 if LONG else 8))
def test_the_log_does_what_a_map_does(jvm: Any, seed: int) -> None:
    jvm.state.StateLogModel.run(seed, 20_000 if LONG else 3_000)


def test_addresses_use_all_of_their_bits_and_no_more(jvm: Any) -> None:
    """65,536 pages, of 1 KB here and 512 KB else: the page after them is refused each time, and all is as it was."""
    jvm.state.StateLogModel.fill()


def test_a_key_whose_hash_is_zero_is_like_any_other(jvm: Any) -> None:
    jvm.state.StateLogModel.hashZero()


def test_the_index_is_split_while_iterators_read_what_it_was(jvm: Any) -> None:
    jvm.state.StateLogModel.split()
