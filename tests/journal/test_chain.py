"""Which blocks count: every rule of `chain` by example."""

import pytest

from safekeeper import BadState, Corruption
from safekeeper.claims import Mark
from safekeeper.journal.chain import MOST_IN_FLIGHT, BlockKey, choose

ONE, TWO, RIVAL = Mark(1, "a" * 16), Mark(2, "b" * 16), Mark(2, "c" * 16)


def run(mark, first, last, after=None):
    return [BlockKey(mark, first, after), *(BlockKey(mark, number) for number in range(first + 1, last + 1))]


def numbers(keys, oldest=1):
    return [(key.mark.epoch, key.number) for key in choose(keys, lambda key: min(oldest, key.number))]


@pytest.mark.parametrize("key", [BlockKey(ONE, 1), BlockKey(TWO, 2**62, ONE)])
def test_a_key_says_what_it_names(key):
    decoded = BlockKey.decode(key.encode())
    assert (decoded, decoded.after) == (key, key.after)


@pytest.mark.parametrize("key", [b"", b"block_1_1_x", BlockKey(ONE, 1).encode() + b"_", b"part_1"])
def test_what_is_no_block_is_named(key):
    with pytest.raises(BadState, match="not a block"):
        BlockKey.decode(key)


def test_one_owner():
    assert numbers(run(ONE, 1, 3)) == [(1, 1), (1, 2), (1, 3)]


def test_only_what_is_needed():
    assert numbers(run(ONE, 3, 5), oldest=4) == [(1, 4), (1, 5)]


def test_the_next_owner_goes_on_where_it_says():
    assert numbers(run(ONE, 1, 3) + run(TWO, 3, 4, ONE)) == [(1, 1), (1, 2), (2, 3), (2, 4)]


def test_of_two_claims_of_an_epoch_the_higher_owner_counts():
    found = choose(run(ONE, 1, 2) + run(TWO, 3, 9, ONE) + run(RIVAL, 3, 3, ONE), lambda key: 1)
    assert [key.mark for key in found] == [ONE, ONE, RIVAL]


def test_what_a_fenced_owner_writes_late_does_not_count():
    assert numbers(run(ONE, 1, 9) + run(TWO, 3, 3, ONE)) == [(1, 1), (1, 2), (2, 3)]


def test_a_chain_ends_at_a_hole():
    assert numbers([*run(ONE, 1, 2), BlockKey(ONE, 4)]) == [(1, 1), (1, 2)]


def test_an_owner_whose_first_block_is_a_hole_does_not_count():
    assert numbers([*run(ONE, 1, 2), BlockKey(TWO, 4)]) == [(1, 1), (1, 2)]


def test_a_hole_that_is_too_old_to_be_one_is_a_loss():
    keys = [*run(ONE, 1, 2), *run(ONE, 4, 3 + MOST_IN_FLIGHT)]
    with pytest.raises(Corruption, match="block 3 is missing"):
        numbers(keys)


def test_nothing_acknowledged_is_no_chain():
    assert numbers([BlockKey(ONE, 2)]) == []
    assert numbers([]) == []


def test_a_block_that_is_gone_when_it_is_read_is_not_the_end():
    keys = run(ONE, 1, 3)
    assert choose(keys, lambda key: None if key.number == 3 else 1) == keys[:2]
