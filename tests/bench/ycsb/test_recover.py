import pytest

from safekeeper.bench.ycsb.recover import GROUP, measure
from safekeeper.errors import BadUrl
from safekeeper.registry import open


@pytest.mark.parametrize("end", ("close", "kill"))
def test_every_size_is_filled_and_recovered(tmp_path, end):
    url = f"file://{tmp_path}/store"
    small, large = measure(url, [20, 5], value_size=10, end=end)
    assert (small.ids, large.ids) == (5, 20)
    assert all(one.open_seconds > 0 and one.recover_seconds > 0 and one.peak_bytes > 0 for one in (small, large))
    with open(url) as store:
        assert len(set(store.keys(GROUP))) == 20


def test_a_store_that_ends_with_its_process_is_refused():
    with pytest.raises(BadUrl, match="nothing in this store outlives its process"):
        next(measure("memory:", [1]))


def test_a_store_with_more_ids_than_asked_for_is_refused(tmp_path):
    url = f"file://{tmp_path}/store"
    assert len(list(measure(url, [5]))) == 1
    with pytest.raises(BadUrl, match="has 5 ids"):
        next(measure(url, [3]))


def test_opening_alone_can_be_measured(tmp_path):
    (one,) = measure(f"file://{tmp_path}/store", [5], only_open=True)
    assert (one.ids, one.list_seconds, one.recover_seconds) == (5, 0, 0)
    assert one.open_seconds > 0
