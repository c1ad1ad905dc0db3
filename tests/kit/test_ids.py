import pytest

from safekeeper import CheckpointId
from safekeeper.testing import AWKWARD_GROUPS, AWKWARD_KEYS


@pytest.mark.parametrize("table", (AWKWARD_KEYS, AWKWARD_GROUPS), ids=("keys", "groups"))
def test_the_awkward_names_all_differ(table):
    assert len(set(table.values())) == len(table)


def test_awkward_ids_are_ids():
    for group in AWKWARD_GROUPS.values():
        for key in AWKWARD_KEYS.values():
            CheckpointId(group, key)
