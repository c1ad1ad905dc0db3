import pytest

from safekeeper.langgraph import SafeKeeperSaver


@pytest.fixture
def make_saver(new_url):
    """Makes savers, each with a store of its own unless it is given one."""
    made = []

    def make(store="log", **options):
        saver = SafeKeeperSaver(new_url(store) if isinstance(store, str) and ":" not in store else store, **options)
        made.append(saver)
        return saver

    yield make
    for saver in made:
        saver.close()
