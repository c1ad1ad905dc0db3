"""The baselines do what the driver asks of them; numbers of a store that loses things would be worth nothing."""

import pytest

from safekeeper.backend import Batch, CheckpointId
from safekeeper.bench.baselines import BASELINES, open_store
from safekeeper.errors import BadUrl

A, B, OTHER = CheckpointId("g", b"a"), CheckpointId("g", b"b\0"), CheckpointId("g2", b"")


@pytest.fixture(params=sorted(BASELINES))
def url(request, tmp_path):
    return f"{request.param}://{tmp_path}/store"


def test_what_is_written_is_read_listed_and_deleted(url):
    with open_store(url) as store:
        store.write(Batch({A: b"1", B: b"22", OTHER: b""}))
        store.write(Batch({A: b"333"}))
        assert store.read([A, B, OTHER, CheckpointId("g", b"c")]) == [b"333", b"22", b"", None]
        assert sorted(store.keys("g")) == [b"a", b"b\0"]
        assert sorted(set(store.groups())) == ["g", "g2"]
        deletion = Batch()
        deletion.delete(A)
        store.write(deletion)
        assert store.read([A]) == [None]
        assert list(store.keys("g")) == [b"b\0"]


@pytest.mark.parametrize("scheme", ("rocksdict", "sqlite"))
def test_what_is_written_is_there_after_closing(scheme, tmp_path):
    url = f"{scheme}://{tmp_path}/store"
    with open_store(url) as store:
        store.write(Batch({A: b"1"}))
    with open_store(url) as store:
        assert store.read([A]) == [b"1"]


def test_anything_else_is_a_backend(tmp_path):
    assert type(open_store("memory:")).__name__ == "MemoryBackend"
    with pytest.raises(BadUrl, match="no backend for nosuch:"):
        open_store("nosuch:x")
