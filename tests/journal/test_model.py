"""The protocol of a journal in every order, and with mistakes that must be found out."""

import os

import pytest

from .model import Lost, Rules, explore

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"

SOUND = {
    "two processes": Rules((3, 3)),
    "two processes, two blocks in flight": Rules((3, 2), together=2),
    "three processes": Rules((1, 1, 1)),
}
MISTAKEN = {
    "no check after the write": Rules((1, 1), check=False),
    "holes do not end a chain": Rules((2, 1), together=2, holes=False),
    "rubbish is removed at once": Rules((2, 0, 1, 0), together=2, patient=False),
    "what was found is acknowledged at once": Rules((1, 1, 0, 0), confirm=False),
}
if LONG:
    SOUND["four processes"] = Rules((1, 1, 0, 0))
    SOUND["three processes, two blocks each"] = Rules((2, 2, 2))
    SOUND["three processes, two blocks in flight"] = Rules((2, 2, 1), together=2)


@pytest.mark.crash
@pytest.mark.parametrize("rules", SOUND.values(), ids=SOUND)
def test_every_owner_builds_on_what_was_acknowledged(rules):
    assert explore(rules) > 1_000


@pytest.mark.parametrize("rules", MISTAKEN.values(), ids=MISTAKEN)
def test_a_protocol_with_a_mistake_is_found_out(rules):
    with pytest.raises(Lost):
        explore(rules)
