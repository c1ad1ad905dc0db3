"""The baselines do what the runner asks of them; numbers of a store that loses things would be worth nothing."""

import sys
import threading

import pytest

from safekeeper.backend import Batch, CheckpointId, Survives
from safekeeper.bench.ycsb.stores import BASELINES, open_store
from safekeeper.errors import BadUrl

A, B, OTHER = CheckpointId("g", b"a"), CheckpointId("g", b"b\0"), CheckpointId("g2", b"")


@pytest.fixture(params=sorted({*BASELINES} - ({"leveldb"} if sys.version_info >= (3, 13) else set())))
def url(request, tmp_path):
    return f"{request.param}://{tmp_path}/below/store"


def test_what_is_written_is_read_back_also_by_another_thread(url):
    with open_store(url) as store:
        store.write(Batch({A: b"1", B: b"22", OTHER: b"4"}))
        store.write(Batch({A: b"333"}))
        found = []
        thread = threading.Thread(target=lambda: found.extend(store.read([A, B, OTHER, CheckpointId("g", b"c")])))
        thread.start()
        thread.join()
        assert found == [b"333", b"22", b"4", None]


def test_a_baseline_begins_with_a_new_folder(url):
    open_store(url).close()
    with pytest.raises(BadUrl, match="choose another path"):
        open_store(url)


def test_what_does_not_sync_is_not_said_to_survive_a_power_cut(tmp_path):
    with open_store(f"slatedb://{tmp_path}/slate") as slate, open_store(f"sqlite://{tmp_path}/lite") as lite:
        assert slate.survives == Survives.PROCESS
        assert Survives.PROCESS in lite.survives


def test_anything_else_is_a_backend():
    assert type(open_store("memory:")).__name__ == "MemoryBackend"
    with pytest.raises(BadUrl, match="no backend for nosuch:"):
        open_store("nosuch:x")


@pytest.mark.parametrize(
    ("scheme", "module"), [("leveldb", "plyvel"), ("rocksdict", "rocksdict"), ("slatedb", "slatedb")]
)
def test_a_missing_module_names_the_extra_that_brings_it(scheme, module, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadUrl, match=rf"needs the module {module}: pip install 'safekeeper\[bench\]'"):
        open_store(f"{scheme}://{tmp_path}/store")
