"""A distributed checkpoint of PyTorch, where PyTorch is installed: `tox -e torch` does that, and writes one of 1 GB."""

import os

import pytest

LONG = os.environ.get("SAFEKEEPER_TEST_LEVEL") == "long"
SIZE = (1 << 30) if LONG else (1 << 22)


@pytest.mark.crash
@pytest.mark.filterwarnings("ignore")
def test_a_distributed_checkpoint_is_read_back_byte_for_byte(new_url):
    torch = pytest.importorskip("torch", reason="PyTorch is too large for the everyday tests: tox -e torch")
    from torch.distributed import checkpoint

    from safekeeper.fsspec import SafekeeperFileSystem

    url, path = new_url("log"), "safekeeper://main/runs/step-1"
    torch.manual_seed(1)
    state = {f"layer {n}": torch.randint(0, 256, (SIZE // 8,), dtype=torch.uint8) for n in range(8)}
    checkpoint.save(state, storage_writer=checkpoint.FsspecWriter(path, store=url), no_dist=True)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    checkpoint.load(loaded, storage_reader=checkpoint.FsspecReader(path, store=url), no_dist=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    fs = SafekeeperFileSystem(url)
    assert sum(fs.du(path, total=False).values()) > SIZE
    fs.close()
    SafekeeperFileSystem.clear_instance_cache()
