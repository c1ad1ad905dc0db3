import pytest

from safekeeper.testing import AWKWARD_GROUPS, AWKWARD_IDS, AWKWARD_KEYS


@pytest.mark.parametrize("table", (AWKWARD_KEYS, AWKWARD_GROUPS, AWKWARD_IDS), ids=("keys", "groups", "ids"))
def test_the_awkward_names_all_differ(table):
    assert len(set(table.values())) == len(table)


def test_every_awkward_name_is_in_an_id():
    assert {id.key for id in AWKWARD_IDS.values()} >= set(AWKWARD_KEYS.values())
    assert {id.group for id in AWKWARD_IDS.values()} >= set(AWKWARD_GROUPS.values())
